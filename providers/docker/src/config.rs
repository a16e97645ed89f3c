//! The settings, and everything that is read from this process's environment.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    time::Duration,
};

use sandbox_core::{Result, SandboxError, Secret};
use serde::Deserialize;

/// Where the engine is when nothing says otherwise.
const HOST_DEFAULT: &str = "unix:///var/run/docker.sock";

/// The longest path of a unix socket that the kernel takes, less the part below `run_dir`.
const RUN_DIR_MAX_BYTES: usize = 107 - "/docker-0123456789ab/agent.sock".len();

/// The longest time of a setting, in seconds: a day.
const SECONDS_MAX: f64 = 86_400.0;

/// The most of one kind that is made ahead.
const POOL_MAX: usize = 64;

/// The settings of the docker provider. Every key has a default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DockerConfig {
    /// The engine: `unix:///path`, `tcp://host:port`, `http://…` or `https://…`. Default: `DOCKER_HOST`, else
    /// `unix:///var/run/docker.sock`.
    pub host: Option<String>,
    /// Files for TLS. Default: those of `DOCKER_CERT_PATH` where `DOCKER_TLS_VERIFY` is set.
    pub tls: Option<TlsFiles>,
    /// How long the engine may take to answer a request, in seconds; above 0, at most 86,400. Default: 120.
    pub request_timeout_s: f64,
    /// How long a creation may take when the spec does not say, without the pull, in seconds; above 0, at most 86,400.
    /// Default: 120.
    pub ready_timeout_s: f64,
    /// When images are pulled: `always`, `if_missing` or `never`. Default: `if_missing`.
    pub pull: PullPolicy,
    /// How long a pull may take, in seconds; above 0, at most 86,400. Default: 600.
    pub pull_timeout_s: f64,
    /// How long building an image may take, the sending of its context included, in seconds; above 0, at most 86,400.
    /// Default: 1800.
    pub build_timeout_s: f64,
    /// Credentials by registry host (`docker.io`, `ghcr.io`, `localhost:5000`). They go before those of the docker
    /// config.
    pub registry_auth: BTreeMap<String, RegistryAuth>,
    /// Whether credentials of the user's docker config are used (`DOCKER_CONFIG`, else `~/.docker/config.json`), and the
    /// credential helpers that it names, found in `PATH`. Default: true.
    pub use_docker_config: bool,
    /// Platform of images, such as `linux/arm64`. Default: the engine's own.
    pub platform: Option<String>,
    /// The network of sandboxes whose spec names none: `bridge`, `none`, or a network's name. Default: `bridge`.
    pub network: String,
    /// Whether the root of every sandbox can only be read. Default: false.
    pub read_only: bool,
    /// Kernel capabilities that no sandbox has, without `CAP_`; `ALL` for every one. A spec cannot add them back.
    pub cap_drop: Vec<String>,
    /// Security options of every sandbox in the engine's own form, such as `apparmor=name`. They win over the spec's.
    pub security_opt: Vec<String>,
    /// How many processes a sandbox may have when its spec does not say; at least 16. Default: no limit.
    pub pids_limit: Option<u64>,
    /// The address of this machine on which declared ports are published. Default: `127.0.0.1`.
    pub publish_host: IpAddr,
    /// Folders of the engine's machine below which a spec may mount folders; absolute. Default: every one.
    pub bind_roots: Option<Vec<PathBuf>>,
    /// Whether a spec may ask for all privileges of the host. Default: false.
    pub allow_privileged: bool,
    /// Whether a spec may ask for the network of the host. Default: false.
    pub allow_host_network: bool,
    /// Whether our agent runs in sandboxes: `auto` (the engine's own exec where it cannot), `required` or `off`.
    /// Default: `auto`.
    pub agent: AgentMode,
    /// The file of the agent, absolute. Default: what `SANDBOX_AGENT` names, else the one that was installed with the
    /// program.
    pub agent_path: Option<PathBuf>,
    /// How the agent is reached: `auto`, `socket` (in a shared folder: the engine runs on this machine) or `relay`
    /// (through the engine). Default: `auto`.
    pub transport: Transport,
    /// The folder for the sockets of agents; absolute, at most 76 bytes, made when absent (0700). Default:
    /// `$XDG_RUNTIME_DIR/sandbox-docker`, else `<temporary folder>/sandbox-docker-<uid>`.
    pub run_dir: Option<PathBuf>,
    /// The shell for scripts, by name or absolute path. Default: bash where there is one, else sh.
    pub shell: Option<String>,
    /// How many commands may run at once, in all sandboxes of this provider; more of them wait, and their clocks start
    /// when they do. At least 1; default: no limit. File operations and `close` never wait.
    pub concurrency: Option<usize>,
    /// Storage that several sandboxes share. Default: none.
    pub shared_storage: Option<SharedStorageConfig>,
    /// What is made ahead. Default: nothing.
    pub pool: PoolConfig,
}

/// Containers that are made ahead, for sandboxes whose agent is reached by a socket. They are removed when the provider
/// is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// How many networks are held ready; 0 to 64. Default: 0.
    pub network: usize,
    /// How many whole containers of each image and configuration wait; 0 to 64. Default: 0.
    pub ready: usize,
}

/// Files in PEM form, absolute.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Certificates of who may have signed the engine's.
    pub ca: PathBuf,
    /// The client's certificate.
    pub cert: PathBuf,
    /// The client's key.
    pub key: PathBuf,
}

/// When images are pulled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PullPolicy {
    /// Before every creation.
    Always,
    /// When the engine does not have the image.
    #[default]
    #[serde(alias = "missing", alias = "if_not_present")]
    IfMissing,
    /// Never: the engine must have it.
    Never,
}

/// Credentials of a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RegistryAuth {
    /// The user.
    pub username: Option<String>,
    /// The password.
    pub password: Option<Secret>,
    /// A token in place of both.
    pub identity_token: Option<Secret>,
}

/// Whether our agent runs in sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentMode {
    /// Where it can.
    #[default]
    Auto,
    /// A sandbox in which it cannot run is not made.
    Required,
    /// Never: commands go through the engine's own exec.
    Off,
}

/// How the agent is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// By a socket where the engine runs on this machine, else through the engine.
    #[default]
    Auto,
    /// By a socket in a folder that this machine and the sandbox share.
    Socket,
    /// Through the engine, which may be on another machine.
    Relay,
}

/// Storage that several sandboxes share: one of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedStorageConfig {
    /// A volume of the engine, by name.
    pub volume: Option<String>,
    /// A folder of the engine's machine, absolute.
    pub folder: Option<PathBuf>,
}

impl Default for DockerConfig {
    fn default() -> Self {
        Self {
            host: None,
            tls: None,
            request_timeout_s: 120.0,
            ready_timeout_s: 120.0,
            pull: PullPolicy::default(),
            pull_timeout_s: 600.0,
            build_timeout_s: 1800.0,
            registry_auth: BTreeMap::new(),
            use_docker_config: true,
            platform: None,
            network: "bridge".to_owned(),
            read_only: false,
            cap_drop: Vec::new(),
            security_opt: Vec::new(),
            pids_limit: None,
            publish_host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            bind_roots: None,
            allow_privileged: false,
            allow_host_network: false,
            agent: AgentMode::default(),
            agent_path: None,
            transport: Transport::default(),
            run_dir: None,
            shell: None,
            concurrency: None,
            shared_storage: None,
            pool: PoolConfig::default(),
        }
    }
}

impl DockerConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// `InvalidInput`, naming the key and its range.
    pub fn validate(&self) -> Result<()> {
        let invalid = |key: &str, message: &str| SandboxError::invalid_input(key, message);
        let host = self.host();
        if !["unix:///", "tcp://", "http://", "https://"].iter().any(|scheme| host.starts_with(scheme)) {
            let message = "must be unix:///path, tcp://host:port, http://… or https://…";
            return Err(invalid("host", message).with_help("an engine by SSH: forward its socket, and name that one"));
        }
        if host.starts_with("https://") && self.tls().is_none() {
            return Err(invalid("tls", "is needed by a host with https://"));
        }
        for (key, seconds) in [
            ("request_timeout_s", self.request_timeout_s),
            ("ready_timeout_s", self.ready_timeout_s),
            ("pull_timeout_s", self.pull_timeout_s),
            ("build_timeout_s", self.build_timeout_s),
        ] {
            if !(seconds > 0.0 && seconds <= SECONDS_MAX) {
                return Err(invalid(key, &format!("must be above 0 and at most {SECONDS_MAX} seconds")));
            }
        }
        for (registry, auth) in &self.registry_auth {
            let is_pair = auth.username.is_some() && auth.password.is_some();
            if registry.is_empty() || registry.contains('/') {
                return Err(invalid("registry_auth", "a key must be the host of a registry, without scheme or path"));
            }
            if is_pair == auth.identity_token.is_some() {
                let message = "must have username and password, or identity_token alone";
                return Err(invalid(&format!("registry_auth.{registry}"), message));
            }
        }
        if self.platform.as_deref().is_some_and(|platform| !is_platform(platform)) {
            return Err(invalid("platform", "must be os/architecture[/variant], such as linux/amd64"));
        }
        if self.network.is_empty() || self.network == "host" || self.network.starts_with("container:") {
            return Err(invalid("network", "must be bridge, none, or a network's name"));
        }
        crate::kernel::check_capabilities("cap_drop", &self.cap_drop, true)?;
        if self.security_opt.iter().any(String::is_empty) {
            return Err(invalid("security_opt", "must not have a blank entry"));
        }
        if self.pids_limit.is_some_and(|limit| limit < 16) {
            return Err(invalid("pids_limit", "must be at least 16: the agent and its helpers count"));
        }
        for root in self.bind_roots.iter().flatten() {
            if !is_plain(root) {
                return Err(invalid("bind_roots", "must be absolute paths without .."));
            }
        }
        if self.agent_path.as_deref().is_some_and(|path| !path.is_absolute()) {
            return Err(invalid("agent_path", "must be an absolute path"));
        }
        if self.agent == AgentMode::Off && self.agent_path.is_some() {
            return Err(invalid("agent_path", "has no effect with agent = \"off\""));
        }
        let run_dir = self.run_dir();
        if !run_dir.is_absolute() || run_dir.as_os_str().len() > RUN_DIR_MAX_BYTES {
            let message = format!("must be an absolute path of at most {RUN_DIR_MAX_BYTES} bytes");
            return Err(invalid("run_dir", &message).with_help("a unix socket has to fit below it"));
        }
        if self.shell.as_deref().is_some_and(|shell| shell.is_empty() || shell.contains('\0')) {
            return Err(invalid("shell", "must name a program"));
        }
        if self.concurrency == Some(0) {
            return Err(invalid("concurrency", "must be at least 1"));
        }
        for (key, count) in [("pool.network", self.pool.network), ("pool.ready", self.pool.ready)] {
            if count > POOL_MAX {
                return Err(invalid(key, &format!("must be at most {POOL_MAX}")));
            }
            if count > 0 && (self.agent == AgentMode::Off || self.transport == Transport::Relay) {
                let message = "needs our agent by a socket: not with agent = \"off\" or transport = \"relay\"";
                return Err(invalid(key, message));
            }
        }
        if let Some(storage) = &self.shared_storage {
            if storage.volume.is_some() == storage.folder.is_some() {
                return Err(invalid("shared_storage", "must name one of volume and folder"));
            }
            if storage.folder.as_deref().is_some_and(|folder| !is_plain(folder)) {
                return Err(invalid("shared_storage.folder", "must be an absolute path without .."));
            }
        }
        Ok(())
    }

    /// The engine's address.
    pub(crate) fn host(&self) -> String {
        let named = self.host.clone().or_else(|| std::env::var("DOCKER_HOST").ok().filter(|host| !host.is_empty()));
        named.unwrap_or_else(|| HOST_DEFAULT.to_owned())
    }

    /// The files for TLS, if it is to be used.
    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        let from_environment = || {
            std::env::var_os("DOCKER_TLS_VERIFY").filter(|value| !value.is_empty())?;
            let folder = std::env::var_os("DOCKER_CERT_PATH").map(PathBuf::from).or_else(|| docker_folder(None))?;
            let file = |name| folder.join(name);
            Some(TlsFiles { ca: file("ca.pem"), cert: file("cert.pem"), key: file("key.pem") })
        };
        self.tls.clone().or_else(from_environment)
    }

    pub(crate) fn request_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.request_timeout_s)
    }

    /// The folder for sockets.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(|| match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
            Some(folder) if folder.is_absolute() => folder.join("sandbox-docker"),
            _ => std::env::temp_dir().join(format!("sandbox-docker-{}", rustix::process::geteuid().as_raw())),
        })
    }

    /// The user's docker config, if it is to be used.
    pub(crate) fn docker_config(&self) -> Option<PathBuf> {
        let folder = self.use_docker_config.then(|| docker_folder(std::env::var_os("DOCKER_CONFIG"))).flatten();
        folder.map(|folder| folder.join("config.json"))
    }
}

fn docker_folder(named: Option<std::ffi::OsString>) -> Option<PathBuf> {
    named.map(PathBuf::from).or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker")))
}

/// True for an absolute path that names what it says.
pub(crate) fn is_plain(path: &Path) -> bool {
    path.is_absolute() && !path.components().any(|part| part == std::path::Component::ParentDir)
}

/// True for `os/architecture` or `os/architecture/variant`.
pub(crate) fn is_platform(text: &str) -> bool {
    let parts: Vec<_> = text.split('/').collect();
    (2..=3).contains(&parts.len()) && parts.iter().all(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use sandbox_core::from_json;
    use serde_json::json;

    use super::DockerConfig;

    #[test]
    fn every_bad_value_is_refused_with_its_key() {
        for (settings, key) in [
            (json!({"host": "ssh://x"}), "host"),
            (json!({"host": "https://x:1"}), "tls"),
            (json!({"request_timeout_s": 0}), "request_timeout_s"),
            (json!({"ready_timeout_s": -1}), "ready_timeout_s"),
            (json!({"pull_timeout_s": 1e9}), "pull_timeout_s"),
            (json!({"build_timeout_s": 0}), "build_timeout_s"),
            (json!({"pull": "sometimes"}), "pull"),
            (json!({"registry_auth": {"https://x/": {}}}), "registry_auth"),
            (json!({"registry_auth": {"x": {"username": "u"}}}), "registry_auth.x"),
            (json!({"platform": "arm"}), "platform"),
            (json!({"network": ""}), "network"),
            (json!({"network": "host"}), "network"),
            (json!({"cap_drop": ["NOT_ONE"]}), "cap_drop"),
            (json!({"security_opt": [""]}), "security_opt"),
            (json!({"pids_limit": 3}), "pids_limit"),
            (json!({"pool": {"ready": 65}}), "pool.ready"),
            (json!({"pool": {"network": 1}, "agent": "off"}), "pool.network"),
            (json!({"publish_host": "example"}), "publish_host"),
            (json!({"bind_roots": ["rel"]}), "bind_roots"),
            (json!({"agent": "maybe"}), "agent"),
            (json!({"agent_path": "rel"}), "agent_path"),
            (json!({"agent": "off", "agent_path": "/x"}), "agent_path"),
            (json!({"transport": "pigeon"}), "transport"),
            (json!({"run_dir": format!("/{}", "x".repeat(90))}), "run_dir"),
            (json!({"shell": ""}), "shell"),
            (json!({"concurrency": 0}), "concurrency"),
            (json!({"shared_storage": {}}), "shared_storage"),
            (json!({"shared_storage": {"folder": "/a/../b"}}), "shared_storage.folder"),
        ] {
            let checked = from_json::<DockerConfig>(settings, "config").and_then(|config| config.validate());
            let error = checked.expect_err(key);
            // A word that is none of the accepted ones belongs to the path.
            let field = error.field().unwrap_or_default();
            assert!(field == key || field.starts_with(&format!("{key}.")), "{key}: {error}");
        }
        DockerConfig::default().validate().unwrap();
    }

    #[test]
    fn an_unknown_key_is_told_with_the_nearest() {
        let error = from_json::<DockerConfig>(json!({"read_ony": true}), "config").unwrap_err();
        assert_eq!((error.field(), error.help()), (Some("read_ony"), Some("did you mean \"read_only\"?")));
    }

    #[test]
    fn credentials_are_not_in_debug() {
        let settings = json!({"registry_auth": {"r": {"username": "u", "password": "canary"}}});
        let config: DockerConfig = from_json(settings, "config").unwrap();
        assert!(!format!("{config:?}").contains("canary"));
    }
}
