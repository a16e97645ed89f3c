//! What a project becomes on a provider: a pure function of the document and of what the provider says of itself.

mod keys;
mod networks;
mod options;
mod ports;
mod program;
mod service;
mod support;
mod volumes;

use std::{collections::BTreeMap, path::PathBuf};

use sandbox_core::{Capability, Field, FieldSupport, ProviderInfo, SandboxSpec};
use serde::Serialize;

use self::support::Planner;
use super::{
    ComposeBuild, ComposeCondition, ComposeGrant, ComposeHealthcheck, ComposePort, ComposeProject, ComposeRestart,
    order, report::ComposeReport,
};

pub use options::{BindPolicy, ComposeAllow, PlanOptions, PublishPolicy};

/// What planning gave: a plan, unless something cannot be done, and everything there is to say.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ComposePlanned {
    /// The plan; none when the report has errors.
    pub plan: Option<ComposePlan>,
    /// What there is to say.
    pub report: ComposeReport,
}

/// What a project becomes on one provider.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ComposePlan {
    /// The project's name.
    pub project: String,
    /// The provider's name.
    pub provider: String,
    /// How services reach each other.
    pub networking: Networking,
    /// Networks to make or use.
    pub networks: Vec<PlannedNetwork>,
    /// Volumes to make or use.
    pub volumes: Vec<PlannedVolume>,
    /// The services, each behind what it needs.
    pub services: Vec<PlannedService>,
    /// Contents of secrets and configs, by `secrets.NAME` and `configs.NAME`.
    pub(crate) files: BTreeMap<String, super::FileSource>,
    /// The project's folder.
    pub(crate) directory: PathBuf,
    pub(crate) allows_host_paths: bool,
}

/// How the services of a stack reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Networking {
    /// They do not.
    Isolated,
    /// In networks of the provider, with its name service.
    Networks,
    /// By address; the names are written into the hosts file of each.
    Hosts,
}

/// A network of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlannedNetwork {
    /// Its key in the document.
    pub key: String,
    /// Its name, if it is there already and only used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// No way out of it.
    pub internal: bool,
    /// Its address range, if the document says one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subnet: Option<String>,
}

/// A volume of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlannedVolume {
    /// Its key in the document.
    pub key: String,
    /// Its name, if it is there already and only used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<String>,
    /// The service from whose image an empty volume is filled, and where its contents are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_up: Option<(String, String)>,
}

/// A service of a plan.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlannedService {
    /// Its name.
    pub name: String,
    /// How many sandboxes.
    pub replicas: u32,
    /// What each sandbox starts from. Names of networks and volumes are the keys of the document.
    pub spec: SandboxSpec,
    /// How its image is built, where it is.
    pub build: Option<ComposeBuild>,
    /// Program and arguments as the document gives them; what is none comes from the image.
    pub entrypoint: Option<Vec<String>>,
    /// Arguments, likewise.
    pub command: Option<Vec<String>>,
    /// Networks with the names of the service there, the first one first.
    pub networks: Vec<(String, Vec<String>)>,
    /// Names of peers that its hosts file gets, by peer.
    pub hosts: BTreeMap<String, Vec<String>>,
    /// Ports that are reached from outside.
    pub ports: Vec<PlannedPort>,
    /// The service whose ports are on this one's loopback, and which.
    pub forwards: Option<(String, Vec<u16>)>,
    /// What it waits for, and until when.
    pub depends_on: BTreeMap<String, (ComposeCondition, bool)>,
    /// Services with which it is started again.
    pub restarts_with: Vec<String>,
    /// Its health check; none: that of its image.
    pub healthcheck: Option<ComposeHealthcheck>,
    /// What happens when it ends.
    pub restart: ComposeRestart,
    /// The signal that asks it to stop.
    pub stop_signal: Option<String>,
    /// How long it may take to stop, in seconds.
    pub stop_grace_s: f64,
    /// What is copied in at the start: from this machine, and to where.
    pub copies: Vec<(PathBuf, String)>,
    /// Folders that are made at the start.
    pub folders: Vec<String>,
    /// Secrets and configs, with their section.
    pub grants: Vec<(&'static str, ComposeGrant)>,
    /// Whether its input stays open.
    pub keeps_input: bool,
    /// Variables whose URL gets the address of the service that it names.
    pub resolve_environment: Vec<String>,
}

/// A published port of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlannedPort {
    /// The port.
    pub port: ComposePort,
    /// Who publishes it.
    pub by: PublishedBy,
}

/// Who publishes a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PublishedBy {
    /// The provider itself.
    Provider,
    /// A relay of this process over the provider's forwarded connections.
    Relay,
    /// Nobody: the provider's own endpoint is where it is reached.
    Endpoint,
}

/// How long a service may take to stop when the document does not say.
pub(crate) const DEFAULT_STOP_GRACE_S: f64 = 10.0;

impl ComposeProject {
    /// Plans the project for a provider. Nothing is started, no file is read, no image looked at. Every problem is
    /// reported in one go.
    pub fn plan(&self, info: &ProviderInfo, options: &PlanOptions) -> ComposePlanned {
        let mut planner = Planner { project: self, info, options, log: self.log.without_findings() };
        let plan = planner.plan();
        let report = planner.log.report();
        ComposePlanned { plan: Some(plan).filter(|_| report.is_ok()), report }
    }
}

impl Planner<'_> {
    fn plan(&mut self) -> ComposePlan {
        let networking = self.networking();
        let networks = self.networks(networking);
        let volumes = self.volumes();
        // A circle was refused when the document was loaded.
        let order = order::start_order(&self.project.services).unwrap_or_default();
        for (kind, name) in self.unknown_options() {
            self.refuse_option(kind, &name);
        }
        let services = order.iter().map(|name| self.service(&self.project.services[name], networking)).collect();
        let sections = [("secrets", &self.project.secrets), ("configs", &self.project.configs)];
        let files = sections.into_iter().flat_map(|(section, files)| {
            files.iter().map(move |(name, file)| (format!("{section}.{name}"), file.source.clone()))
        });
        ComposePlan {
            project: self.project.name.clone(),
            provider: self.info.name.clone(),
            networking,
            networks,
            volumes,
            services,
            files: files.collect(),
            directory: self.project.directory.clone(),
            allows_host_paths: self.options.allows(ComposeAllow::HostPaths),
        }
    }
}

/// Whether a provider names its images in a registry, so that a service needs one.
pub(crate) fn is_image_based(info: &ProviderInfo) -> bool {
    let takes = !matches!(info.support(Field::Image), FieldSupport::Refused(_));
    takes && info.capabilities.contains(Capability::ImageConfig)
}
