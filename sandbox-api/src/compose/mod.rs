//! Compose stacks on any provider.
//!
//! A document is loaded ([`ComposeProject::load`]), planned for a provider ([`ComposeProject::plan`]) and run
//! ([`AsyncSandboxCompose`]). The first two start nothing; all that they have to say comes in one [`ComposeReport`].

mod load;
mod model;
mod order;
mod plan;
mod report;
mod resolved;
mod run;

pub use load::{
    COMPOSE_FILE_NAMES, ComposeLoaded, ComposeMount, ComposeOptions, ComposePort, HostPort, MountSource, Protocol,
};
pub use model::{
    ComposeAttachment, ComposeBuild, ComposeCondition, ComposeDependency, ComposeFile, ComposeGrant,
    ComposeHealthcheck, ComposeNetwork, ComposeNetworkMode, ComposeProject, ComposeRestart, ComposeService,
    ComposeVolume, FileSource, HealthTest,
};
pub use plan::{
    BindPolicy, ComposeAllow, ComposePlan, ComposePlanned, Networking, PlanOptions, PlannedNetwork, PlannedPort,
    PlannedService, PlannedVolume, PublishPolicy, PublishedBy,
};
pub use report::{ComposeFinding, ComposeReport, FindingClass, Severity};
pub use run::{
    AsyncSandboxCompose, ComposeEvent, DEFAULT_COMPOSE_TIMEOUT_S, LogChunk, LogFollower, ServiceHealth, ServiceLogs,
    ServicePhase, ServiceState, ServiceStatus, sweep_stacks,
};
