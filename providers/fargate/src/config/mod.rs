//! The settings.

mod efs;
mod validate;

use std::{collections::BTreeMap, path::PathBuf};

use sandbox_core::Secret;
use serde::Deserialize;

pub use self::efs::EfsConfig;
pub(crate) use self::validate::is_bucket;

/// The settings of the Fargate provider. `cluster`, `subnets`, `execution_role_arn` and `sidecar.image` are needed, here
/// or in the parameter that `settings_parameter` names; every other key has a default. `sidecar.image` is not needed with
/// `transport = "direct"` and `s3_bucket`: images that have `curl` or `wget` fetch the agent then.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct FargateConfig {
    /// The region, such as `eu-central-1`. Default: the variable `AWS_REGION` or `AWS_DEFAULT_REGION`, else that of the
    /// profile.
    pub region: Option<String>,
    /// The profile of the AWS files. Default: the variable `AWS_PROFILE`, else `default`.
    pub profile: Option<String>,
    /// Who asks. Default: environment, web identity, profile, container, instance, in this order.
    pub credentials: Option<StaticCredentials>,
    /// One base URL for every service, for a stand-in. Default: the variable `AWS_ENDPOINT_URL`, else AWS.
    pub endpoint_url: Option<String>,
    /// Base URLs of single services.
    pub endpoints: ServiceEndpoints,
    /// A parameter of Systems Manager that holds, as JSON, those settings among `cluster`, `subnets`, `security_groups`,
    /// `assign_public_ip`, `execution_role_arn`, `task_role_arn`, `log_group`, `s3_bucket` and `sidecar.image` that are not
    /// given here.
    pub settings_parameter: Option<String>,
    /// The cluster's name or ARN.
    pub cluster: Option<String>,
    /// Subnets of the tasks; where one has no capacity, the next is tried.
    pub subnets: Vec<String>,
    /// Security groups of the tasks.
    pub security_groups: Vec<String>,
    /// Whether tasks get a public address. Default false.
    pub assign_public_ip: Option<bool>,
    /// By which address tasks are reached: `private` (default) or `public`.
    pub address: Address,
    /// The role with which AWS itself pulls images and writes logs.
    pub execution_role_arn: Option<String>,
    /// The role of the sandboxed code: whatever it may do, the code in the sandbox may do. Default: none.
    pub task_role_arn: Option<String>,
    /// The version of Fargate. Default `LATEST`.
    pub platform_version: String,
    /// The processors: `x86_64` (default) or `aarch64`. Images and the sidecar must be of it.
    pub architecture: Architecture,
    /// `on_demand` (default), `spot`, or `spot_with_fallback`.
    pub capacity: Capacity,
    /// Cores where a spec says nothing; 0.25 to 16. Default 1.
    pub cpu: f64,
    /// Memory in MiB where a spec says nothing. Default: the least that goes with the cores.
    pub memory_mib: Option<u64>,
    /// The longest time to live, in seconds, of a sandbox whose spec has none; above 0. Default 14400; null: no limit.
    pub ttl_s: Option<f64>,
    /// How long a sandbox may take until commands run, in seconds, where a spec says nothing. Default 300.
    pub ready_timeout_s: f64,
    /// Commands of all sandboxes at once, at least 1. Default: no limit.
    pub concurrency: Option<usize>,
    /// The first part of the names of task definitions: 1 to 64 of `a-z A-Z 0-9 - _`. Default `sandbox`.
    pub family_prefix: String,
    /// What `startedBy` says of our tasks, by which they are found again; 1 to 36 of `a-z A-Z 0-9 - _ /`. Default `sandbox`.
    pub started_by: String,
    /// Further tags of tasks and task definitions, for bills.
    pub tags: BTreeMap<String, String>,
    /// A log group for what the containers write. Default: nothing is kept.
    pub log_group: Option<String>,
    /// A bucket by way of which large files move. Default: none, and they go over the connection as all others.
    pub s3_bucket: Option<String>,
    /// What the names of our objects in it begin with: 1 to 200 of `a-z A-Z 0-9 . _ - /`. Default `sandbox`.
    pub s3_prefix: String,
    /// Files of so many bytes and more go by way of the bucket; at least 1. Default 67108864 (64 MiB).
    pub s3_threshold_bytes: u64,
    /// A repository of ECR, by name or address, for images that are copied or built. Default: none.
    pub ecr_repository: Option<String>,
    /// Whether images of other registries are copied to `ecr_repository` first, once each: a tag that moves is not copied
    /// again. Default false.
    pub auto_mirror: bool,
    /// The build service, which copies and builds images.
    pub build: BuildConfig,
    /// A file system of EFS of which sandboxes share parts. Default: none.
    pub shared_storage: Option<EfsConfig>,
    /// File systems of EFS by the names of volumes in specs. Default: none.
    pub volumes: BTreeMap<String, EfsConfig>,
    /// A secret of Secrets Manager with the login for the registry of images. Default: none.
    pub image_pull_secret_arn: Option<String>,
    /// How the agent is reached: `ssh` (default) through the sidecar, or `direct` by the task's address.
    pub transport: TransportKind,
    /// The port of the agent, for `direct`. Default 52223.
    pub agent_port: u16,
    /// The image that brings the agent, and its SSH server.
    pub sidecar: SidecarConfig,
    /// The secret from which the keys of sandboxes are derived.
    pub key: KeySource,
}

/// The build service.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct BuildConfig {
    /// A project of CodeBuild, whose role may write to the repository, and whose machines have the processors of
    /// `architecture`. Default: none, and nothing is copied or built.
    pub project: Option<String>,
    /// How long one build may take, in seconds, 300 to 129600. Default 3600.
    pub timeout_s: f64,
}

impl Default for BuildConfig {
    fn default() -> Self {
        Self { project: None, timeout_s: 3600.0 }
    }
}

/// Who asks, in the settings themselves.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct StaticCredentials {
    /// The id of the access key.
    pub access_key_id: String,
    /// Its secret.
    pub secret_access_key: Secret,
    /// The token of temporary credentials.
    #[serde(default)]
    pub session_token: Option<Secret>,
}

/// Base URLs of single services, over `endpoint_url` and the variables `AWS_ENDPOINT_URL_…`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ServiceEndpoints {
    /// Elastic Container Service.
    pub ecs: Option<String>,
    /// EC2, for the public addresses of tasks.
    pub ec2: Option<String>,
    /// Systems Manager, for `settings_parameter`.
    pub ssm: Option<String>,
    /// Secrets Manager, for `key.secret_arn`.
    pub secretsmanager: Option<String>,
    /// The registry of images, for `ecr_repository`.
    pub ecr: Option<String>,
    /// The build service, for `build.project`.
    pub codebuild: Option<String>,
    /// The log service, for what builds say.
    pub logs: Option<String>,
    /// The token service, for web identities and roles to assume.
    pub sts: Option<String>,
    /// The store of objects, for `s3_bucket`; its buckets are below this URL.
    pub s3: Option<String>,
    /// The sign-on service's portal, for profiles that sign on.
    pub sso: Option<String>,
    /// Its token service.
    pub sso_oidc: Option<String>,
}

/// By which address tasks are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// That of the network interface, from within the network.
    #[default]
    Private,
    /// The public one; needs `assign_public_ip`.
    Public,
}

/// The processors of tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum Architecture {
    /// AMD and Intel.
    #[default]
    #[serde(rename = "x86_64")]
    X86_64,
    /// Graviton.
    #[serde(rename = "aarch64")]
    Aarch64,
}

/// Which capacity tasks run on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capacity {
    /// Nobody takes it back.
    #[default]
    OnDemand,
    /// Cheaper; AWS takes it back with two minutes of notice.
    Spot,
    /// Spot, and where that has no room, on demand.
    SpotWithFallback,
}

/// How the agent is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportKind {
    /// Through the SSH server of the sidecar: encrypted, and nothing of the agent listens on the network.
    #[default]
    Ssh,
    /// By the task's address, with a token: for networks that may carry plain text.
    Direct,
}

/// The image that brings the agent.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SidecarConfig {
    /// Its reference; see the provider's README for what must be in it.
    pub image: Option<String>,
    /// The agent's file in it. Default `/opt/sandbox/sandbox-agent`.
    pub agent_path: String,
    /// The port of the SSH server. Default 52222.
    pub ssh_port: u16,
    /// The agent's file on this machine, for images that fetch it. Default: the one that came with this program.
    pub agent_file: Option<PathBuf>,
}

/// Where the secret is from which the keys of sandboxes are derived: at least 32 bytes. Whoever has it reaches every
/// sandbox that was made with it; another process or machine needs the same one to connect.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KeySource {
    /// A private file of this user, made at first use: `fargate/key` below the system's state folder.
    #[default]
    State,
    /// This file, made if it is missing.
    File(PathBuf),
    /// A secret of Secrets Manager, for many machines.
    SecretArn(String),
}

impl Default for SidecarConfig {
    fn default() -> Self {
        Self { image: None, agent_path: "/opt/sandbox/sandbox-agent".to_owned(), ssh_port: 52222, agent_file: None }
    }
}

impl Default for FargateConfig {
    fn default() -> Self {
        Self {
            region: None,
            profile: None,
            credentials: None,
            endpoint_url: None,
            endpoints: ServiceEndpoints::default(),
            settings_parameter: None,
            cluster: None,
            subnets: Vec::new(),
            security_groups: Vec::new(),
            assign_public_ip: None,
            address: Address::default(),
            execution_role_arn: None,
            task_role_arn: None,
            platform_version: "LATEST".to_owned(),
            architecture: Architecture::default(),
            capacity: Capacity::default(),
            cpu: 1.0,
            memory_mib: None,
            ttl_s: Some(14_400.0),
            ready_timeout_s: 300.0,
            concurrency: None,
            family_prefix: "sandbox".to_owned(),
            started_by: "sandbox".to_owned(),
            tags: BTreeMap::new(),
            log_group: None,
            s3_bucket: None,
            s3_prefix: "sandbox".to_owned(),
            s3_threshold_bytes: 64 << 20,
            ecr_repository: None,
            auto_mirror: false,
            build: BuildConfig::default(),
            shared_storage: None,
            volumes: BTreeMap::new(),
            image_pull_secret_arn: None,
            transport: TransportKind::default(),
            agent_port: 52223,
            sidecar: SidecarConfig::default(),
            key: KeySource::default(),
        }
    }
}
