//! What a compose document says, once everything in it is resolved.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use sandbox_core::Env;

use super::{
    load::{ComposeMount, ComposePort, Node, Protocol},
    report::{Log, Place},
};

/// A compose document with everything resolved: variables, included and extended files, profiles, env files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ComposeProject {
    /// The project's name: lower-case letters, digits, `-` and `_`. Not unique: each stack has an id of its own.
    pub name: String,
    /// The project's folder, absolute.
    pub directory: PathBuf,
    /// The services that the profiles and the caller ask for, with what they need.
    pub services: BTreeMap<String, ComposeService>,
    /// The networks of the document, and `default` where it is used.
    pub networks: BTreeMap<String, ComposeNetwork>,
    /// The volumes of the document.
    pub volumes: BTreeMap<String, ComposeVolume>,
    /// What services can be given as files.
    pub secrets: BTreeMap<String, ComposeFile>,
    /// The same, for what is no secret.
    pub configs: BTreeMap<String, ComposeFile>,
    /// Services that are left out, with the profiles that would bring them in.
    pub inactive: BTreeMap<String, Vec<String>>,
    pub(crate) document: Node,
    pub(crate) log: Log,
}

/// One service.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ComposeService {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: Option<String>,
    /// How its image is built.
    pub build: Option<ComposeBuild>,
    /// Arguments of the program; none: those of the image.
    pub command: Option<Vec<String>>,
    /// The program; none: that of the image. Empty: the image's program is left out.
    pub entrypoint: Option<Vec<String>>,
    /// Variables: those of env files, then those of the document.
    pub environment: Env,
    /// Where the program starts.
    pub working_dir: Option<String>,
    /// Who runs it: `NAME`, `UID`, `UID:GID`, `NAME:GROUP`.
    pub user: Option<String>,
    /// What must be there before it starts.
    pub depends_on: BTreeMap<String, ComposeDependency>,
    /// How it is found out whether it is well; none: as its image says.
    pub healthcheck: Option<ComposeHealthcheck>,
    /// Ports that other services may use; only said, never enforced.
    pub expose: Vec<(u16, Protocol)>,
    /// Ports that are reached from outside.
    pub ports: Vec<ComposePort>,
    /// Which networks it is in, and under which further names; empty with a network mode.
    pub networks: BTreeMap<String, ComposeAttachment>,
    /// What it has instead of networks.
    pub network_mode: Option<ComposeNetworkMode>,
    /// What is mounted.
    pub mounts: Vec<ComposeMount>,
    /// Cores.
    pub cpus: Option<f64>,
    /// Memory in MiB.
    pub memory_mib: Option<u64>,
    /// Size of `/dev/shm` in MiB.
    pub shm_size_mib: Option<u64>,
    /// How many processes.
    pub pids: Option<u64>,
    /// Number of GPUs.
    pub gpus: Option<u32>,
    /// Kernel capabilities to add.
    pub cap_add: Vec<String>,
    /// Kernel capabilities to drop.
    pub cap_drop: Vec<String>,
    /// All privileges of the host.
    pub privileged: bool,
    /// Options of `security_opt`.
    pub security_opt: Vec<String>,
    /// Further names of hosts: name and address.
    pub extra_hosts: Vec<(String, String)>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Its name for itself.
    pub hostname: Option<String>,
    /// A name that only one container in the world may have; here a further name in the networks.
    pub container_name: Option<String>,
    /// The signal that asks it to stop, by name or number.
    pub stop_signal: Option<String>,
    /// How long it may take to stop.
    pub stop_grace_period: Option<Duration>,
    /// What happens when it ends.
    pub restart: ComposeRestart,
    /// How many of it run.
    pub scale: u32,
    /// Secrets that it is given.
    pub secrets: Vec<ComposeGrant>,
    /// Configs that it is given.
    pub configs: Vec<ComposeGrant>,
    /// When its image is pulled.
    pub pull_policy: Option<String>,
    /// The operating system and architecture of its image.
    pub platform: Option<String>,
    /// Whether peers' names are written into its hosts file (`x-sandbox.hosts`).
    pub writes_hosts: bool,
    /// Variables whose URL gets the address of the service that it names (`x-sandbox.resolve_environment`).
    pub resolve_environment: Vec<String>,
    /// Where each key stands: `image`, `ports[0]`, ….
    pub(crate) places: BTreeMap<String, Place>,
    /// The key of each mount: `volumes[0]`, `tmpfs[1]`.
    pub(crate) mount_keys: Vec<String>,
    /// Its node, for keys that are handed on as they are.
    pub(crate) node: Option<Node>,
}

impl ComposeService {
    /// Where a key stands, or the nearest that stands somewhere.
    pub(crate) fn place(&self, key: &str) -> Place {
        let parent = || self.places.get(key.split(['[', '.']).next().unwrap_or_default());
        self.places.get(key).or_else(parent).or_else(|| self.places.get("")).copied().unwrap_or_default()
    }

    /// Whether the document has this key.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.places.contains_key(key)
    }

    /// The name of a key for people: `services.web.KEY`.
    pub(crate) fn key(&self, key: &str) -> String {
        format!("services.{}.{key}", self.name)
    }
}

/// How an image is built.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ComposeBuild {
    /// The folder, absolute; or a URL.
    pub context: String,
    /// The build file, relative to the context.
    pub dockerfile: Option<String>,
    /// The text of the build file, in place of one.
    pub dockerfile_inline: Option<String>,
    /// The stage to stop at.
    pub target: Option<String>,
    /// Arguments.
    pub args: Env,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Further names of the image.
    pub tags: Vec<String>,
    /// Every step is done again.
    pub no_cache: bool,
    /// Images that it begins with are pulled, also where they are there already.
    pub pull: bool,
    /// Operating systems and architectures, such as `linux/amd64`.
    pub platforms: Vec<String>,
    /// Keys beyond these, which most builders do not have.
    pub other_keys: Vec<String>,
}

/// When a service that another one needs is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ComposeCondition {
    /// Its program was started.
    ServiceStarted,
    /// Its health check passes.
    ServiceHealthy,
    /// Its program ended with exit code 0.
    ServiceCompletedSuccessfully,
}

/// What one service needs of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct ComposeDependency {
    /// When it is there.
    pub condition: ComposeCondition,
    /// Whether the service cannot start without it.
    pub required: bool,
    /// Whether the service is started again with it.
    pub restart: bool,
}

/// How it is found out whether a service is well.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComposeHealthcheck {
    /// What is run; none: the image's own test.
    pub test: Option<HealthTest>,
    /// Time between two tests.
    pub interval: Option<Duration>,
    /// How long one may take.
    pub timeout: Option<Duration>,
    /// How many must fail in a row.
    pub retries: Option<u32>,
    /// In this time after the start a failure does not count.
    pub start_period: Option<Duration>,
    /// Time between two tests during it.
    pub start_interval: Option<Duration>,
}

/// What a health check runs.
#[derive(Clone, PartialEq, Eq)]
pub enum HealthTest {
    /// Nothing: there is no check, not even the image's.
    None,
    /// A program and its arguments.
    Command(Vec<String>),
    /// A script for the sandbox's shell.
    Shell(String),
}

impl std::fmt::Debug for HealthTest {
    // Commands are shown nowhere.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Command(_) => "Command",
            Self::Shell(_) => "Shell",
        })
    }
}

/// How a service is in a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComposeAttachment {
    /// Further names there.
    pub aliases: Vec<String>,
    /// A fixed address.
    pub ipv4_address: Option<String>,
    /// Keys beyond these.
    pub other_keys: Vec<String>,
    /// Networks with a higher number come first.
    pub priority: i64,
}

/// What a service has instead of networks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComposeNetworkMode {
    /// Nothing but its own loopback.
    None,
    /// The host's network.
    Host,
    /// The provider's default network, without the other services.
    Bridge,
    /// The network of another service.
    Service(String),
    /// The network of a container that is no part of the stack.
    Container(String),
    /// What only some engine knows.
    Other(String),
}

/// What happens when a service ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComposeRestart {
    /// Nothing.
    #[default]
    No,
    /// It is started again.
    Always,
    /// It is started again unless it was stopped.
    UnlessStopped,
    /// It is started again if it failed, so many times at most.
    OnFailure(Option<u32>),
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ComposeNetwork {
    /// The name on the provider's side, if the document gives one.
    pub name: Option<String>,
    /// Somebody else made it and it is only used.
    pub external: bool,
    /// No way out of it.
    pub internal: bool,
    /// Its driver.
    pub driver: Option<String>,
    /// Its address range.
    pub subnet: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Keys beyond these that change what the network is.
    pub other_keys: Vec<String>,
    pub(crate) place: Place,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ComposeVolume {
    /// The name on the provider's side, if the document gives one.
    pub name: Option<String>,
    /// Somebody else made it and it is only used.
    pub external: bool,
    /// Its driver.
    pub driver: Option<String>,
    /// Options of the driver.
    pub driver_opts: BTreeMap<String, String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    pub(crate) place: Place,
}

/// Where the contents of a secret or config come from.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileSource {
    /// A file of this machine, absolute.
    File(PathBuf),
    /// The value of a variable.
    Value(String),
    /// The provider has it already, by this name.
    External(String),
}

impl std::fmt::Debug for FileSource {
    // Values are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::File(_) => "File",
            Self::Value(_) => "Value",
            Self::External(_) => "External",
        })
    }
}

/// A secret or config.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComposeFile {
    /// Where its contents come from.
    pub source: FileSource,
    pub(crate) place: Place,
}

/// A secret or config that a service is given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ComposeGrant {
    /// Which one.
    pub source: String,
    /// Where it is in the service, absolute.
    pub target: String,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner, as `UID` or `UID:GID`.
    pub owner: Option<String>,
    pub(crate) place: Place,
}
