//! The settings, and everything that is read from this process's environment.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use sandbox_agent::Sizes;
use sandbox_core::{Result, SandboxError};
use serde::Deserialize;

/// Where programs are looked for when nothing else is said.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables of this process that no command may get: each makes a shell run a file before the command.
const NEVER_PASSED: [&str; 2] = ["BASH_ENV", "ENV"];

/// The longest `drain_grace_ms`.
const DRAIN_GRACE_MAX_MS: u64 = 60_000;

/// The settings of the local provider. Every key has a default.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct LocalConfig {
    /// The folder that holds the folders of sandboxes; absolute, made when it is absent. It must belong to this user and
    /// be writable by nobody else. Default: `<temporary folder>/sandbox-local-<uid>`.
    pub workspace_root: Option<PathBuf>,
    /// The folder in which sandboxes are written down that outlive the program that made them; absolute, made when it is
    /// absent. It must belong to this user and be writable by nobody else. Default: `sandbox` in `XDG_STATE_HOME`, else
    /// `~/.local/state/sandbox`.
    pub state_root: Option<PathBuf>,
    /// How commands are kept from the rest of the machine: `namespaces`, or `none`, which is never chosen by itself.
    /// Default: `namespaces`.
    pub isolation: String,
    /// The shell for scripts, by name (looked for in `path`) or absolute path. Default: bash where there is one, else sh.
    pub shell: Option<String>,
    /// `PATH` of commands: absolute folders with colons between. Default:
    /// `/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`.
    pub path: String,
    /// Names of variables of this process that every command gets. Default: none. `BASH_ENV` and `ENV` are refused.
    pub env_allow: Vec<String>,
    /// How long output is still read, in milliseconds, when a command has ended and a child in the background holds its
    /// output. 0 to 60,000; default 100.
    pub drain_grace_ms: u64,
    /// How many commands may run at once, in all sandboxes of this provider; more of them wait, and their time limits
    /// start when they do. At least 1; default: no limit. File operations and `close` never wait.
    pub concurrency: Option<usize>,
    /// Isolated only: the file of the agent, absolute. Default: what `SANDBOX_AGENT` names, else the one that was
    /// installed with the program.
    pub agent_path: Option<PathBuf>,
    /// Isolated only: the network of sandboxes whose spec names none: `none`, `host`, or, as root, `private`, which they
    /// share. Default: `none`.
    pub network: Option<NetworkDefault>,
    /// Isolated only: files and folders of this machine that every sandbox sees. Default: none.
    pub binds: Vec<BindSetting>,
    /// Isolated only: sizes of the folders in memory, in MiB (`tmp_mib`, `var_tmp_mib`, `run_mib`, `home_mib`,
    /// `root_mib`, `shm_mib`). Each 1 to 1,048,576; default 512, and 64 for `run_mib` and `shm_mib`.
    pub sizes: Option<Sizes>,
    /// Isolated only: a folder with a whole system, absolute and without links, that sandboxes run on in place of this
    /// machine's system folders. It never changes. Default: none.
    pub rootfs: Option<PathBuf>,
    /// Isolated only: what the unpacked images of `image = "tar:/path"` may take on disk in all, in MiB; one that is
    /// larger is refused, and those that nobody uses go when room is needed. 1 to 16,777,216; default 16,384.
    pub image_cache_mib: Option<u64>,
    /// Isolated only: a folder of this machine, absolute and without links, whose folders sandboxes share
    /// (`shared_storage`). Default: none.
    pub shared_root: Option<PathBuf>,
}

/// The network of a sandbox whose spec names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NetworkDefault {
    /// A loopback of its own.
    None,
    /// This machine's network, with every address and listener.
    Host,
    /// One that all sandboxes share whose spec names none, and nothing else; needs root.
    Private,
}

/// A file or folder of this machine that every sandbox sees.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindSetting {
    /// Absolute, without links.
    pub source: PathBuf,
    /// Where it is inside; absolute, not `/`, nor in `/proc`, `/sys` or `/dev`.
    pub target: PathBuf,
    /// Whether it can only be read. Default: true.
    #[serde(default = "yes")]
    pub read_only: bool,
}

fn yes() -> bool {
    true
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            workspace_root: None,
            state_root: None,
            isolation: "namespaces".to_owned(),
            shell: None,
            path: PATH_DEFAULT.to_owned(),
            env_allow: Vec::new(),
            drain_grace_ms: 100,
            concurrency: None,
            agent_path: None,
            network: None,
            binds: Vec::new(),
            sizes: None,
            rootfs: None,
            image_cache_mib: None,
            shared_root: None,
        }
    }
}

impl LocalConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// `InvalidInput`, naming the key and its range; `Unsupported` for an isolation that is not there.
    pub fn validate(&self) -> Result<()> {
        match self.isolation.as_str() {
            "none" => self.refuse_isolated_settings()?,
            "namespaces" => crate::isolated::check_settings(self)?,
            other => return Err(invalid("isolation", format!("must be \"none\" or \"namespaces\", not {other:?}"))),
        }
        for (key, root) in [("workspace_root", &self.workspace_root), ("state_root", &self.state_root)] {
            if root.as_deref().is_some_and(|root| !root.is_absolute() || holds_nul(root)) {
                return Err(invalid(key, "must be an absolute path"));
            }
        }
        if self.shell.as_deref().is_some_and(|shell| shell.is_empty() || shell.contains('\0')) {
            return Err(invalid("shell", "must name a program"));
        }
        if self.shell.as_deref().is_some_and(|shell| shell.contains('/') && !shell.starts_with('/')) {
            return Err(invalid("shell", "must be a name or an absolute path"));
        }
        if self.path.contains('\0') || self.path.split(':').any(|folder| !folder.starts_with('/')) {
            return Err(invalid("path", "must be absolute folders with ':' between"));
        }
        for name in &self.env_allow {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(invalid("env_allow", "a variable name must not be empty and must not contain '=' or NUL"));
            }
            if NEVER_PASSED.contains(&name.as_str()) {
                return Err(invalid("env_allow", format!("{name} would make a shell run a file before each command"))
                    .with_help(format!("give {name} with the command that needs it")));
            }
        }
        if self.drain_grace_ms > DRAIN_GRACE_MAX_MS {
            return Err(invalid("drain_grace_ms", format!("must be at most {DRAIN_GRACE_MAX_MS}")));
        }
        if self.concurrency == Some(0) {
            return Err(invalid("concurrency", "must be at least 1"));
        }
        Ok(())
    }

    /// Whether sandboxes are isolated by namespaces.
    pub(crate) fn is_isolated(&self) -> bool {
        self.isolation == "namespaces"
    }

    /// What has no effect without isolation is refused: whoever sets it relies on it.
    fn refuse_isolated_settings(&self) -> Result<()> {
        let set = [
            ("network", self.network.is_some()),
            ("binds", !self.binds.is_empty()),
            ("sizes", self.sizes.is_some()),
            ("rootfs", self.rootfs.is_some()),
            ("image_cache_mib", self.image_cache_mib.is_some()),
            ("shared_root", self.shared_root.is_some()),
        ];
        match set.iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => Err(invalid(key, "has no effect with isolation = \"none\"")
                .with_help("set isolation = \"namespaces\", or leave it out")),
            None => Ok(()),
        }
    }

    pub(crate) fn drain_grace(&self) -> Duration {
        Duration::from_millis(self.drain_grace_ms)
    }

    /// The folder for workspaces.
    pub(crate) fn root(&self) -> PathBuf {
        self.workspace_root.clone().unwrap_or_else(|| {
            let uid = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("sandbox-local-{uid}"))
        })
    }

    /// The folder of what outlives a program; none where this user has no home.
    pub(crate) fn state_root(&self) -> Option<PathBuf> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        self.state_root.clone().or_else(|| {
            let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
            Some(state.join("sandbox"))
        })
    }

    /// The variables that `env_allow` lets through, as they are now.
    pub(crate) fn passed_variables(&self) -> Vec<(&str, OsString)> {
        self.env_allow.iter().filter_map(|name| Some((name.as_str(), std::env::var_os(name)?))).collect()
    }
}

pub(crate) fn invalid(key: &str, why: impl Into<String>) -> SandboxError {
    SandboxError::invalid_input(key, why)
}

fn holds_nul(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, from_json};
    use serde_json::json;

    use super::LocalConfig;

    fn refusal(value: serde_json::Value) -> (ErrorKind, Option<String>) {
        let read = from_json::<LocalConfig>(value, "config").and_then(|config| config.validate().map(|()| config));
        let error = read.expect_err("must be refused");
        (error.kind(), error.field().map(str::to_owned))
    }

    #[test]
    fn every_bad_value_is_refused_with_its_key() {
        for (value, key) in [
            (json!({"workspace_rot": "/x"}), "workspace_rot"),
            (json!({"workspace_root": "rel"}), "workspace_root"),
            (json!({"state_root": "rel"}), "state_root"),
            (json!({"isolation": "chroot"}), "isolation"),
            (json!({"shell": ""}), "shell"),
            (json!({"shell": "bin/sh"}), "shell"),
            (json!({"path": ""}), "path"),
            (json!({"path": "/bin:"}), "path"),
            (json!({"path": "/bin:rel"}), "path"),
            (json!({"env_allow": [""]}), "env_allow"),
            (json!({"env_allow": ["A=B"]}), "env_allow"),
            (json!({"env_allow": ["BASH_ENV"]}), "env_allow"),
            (json!({"drain_grace_ms": 60_001}), "drain_grace_ms"),
            (json!({"concurrency": 0}), "concurrency"),
            (json!({"isolation": "none", "network": "host"}), "network"),
            (json!({"isolation": "none", "binds": [{"source": "/a", "target": "/b"}]}), "binds"),
            (json!({"isolation": "none", "sizes": {}}), "sizes"),
            (json!({"isolation": "none", "rootfs": "/r"}), "rootfs"),
            (json!({"isolation": "none", "image_cache_mib": 1}), "image_cache_mib"),
            (json!({"isolation": "none", "shared_root": "/s"}), "shared_root"),
            (json!({"isolation": "namespaces", "shared_root": "s"}), "shared_root"),
            (json!({"isolation": "namespaces", "image_cache_mib": 0}), "image_cache_mib"),
            (json!({"isolation": "namespaces", "agent_path": "x"}), "agent_path"),
            (json!({"isolation": "namespaces", "rootfs": "r"}), "rootfs"),
            (json!({"isolation": "namespaces", "sizes": {"tmp_mib": 0}}), "sizes"),
            (json!({"isolation": "namespaces", "binds": [{"source": "/a", "target": "/proc/x"}]}), "binds.target"),
            (json!({"isolation": "namespaces", "binds": [{"source": "a", "target": "/x"}]}), "binds.source"),
        ] {
            assert_eq!(refusal(value), (ErrorKind::InvalidInput, Some(key.to_owned())));
        }
    }

    #[test]
    fn no_settings_are_good_settings_and_an_empty_list_passes_nothing() {
        let config: LocalConfig = from_json(json!(null), "config").unwrap();
        config.validate().unwrap();
        assert_eq!(config, LocalConfig::default());
        assert!(config.is_isolated(), "isolation is not something to ask for");
        assert!(config.passed_variables().is_empty());
        assert!(config.root().is_absolute());
    }
}
