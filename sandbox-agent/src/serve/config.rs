//! What the provider tells the serving half.

use std::time::Duration;

use sandbox_core::{ByteString, Env, ExecRequest, Secret};
use sandbox_protocol::{
    limits::{MAX_WINDOW_BYTES, MIN_WINDOW_BYTES, WINDOW_BYTES},
    methods,
};
use serde::{Deserialize, Serialize};

use super::{job::EXEC_KEEP, log::Keep};
use crate::config::is_default;

/// Most output of one command that is kept at each end.
const LOG_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Less would lose what is on its way to a client.
const LOG_TAIL_BYTES_MIN: usize = 512 * 1024;

/// The longest time that is taken, in seconds: about 30 years.
const SECONDS_MAX: f64 = 1e9;

/// Everything that `sandbox-agent serve` can be told, as one JSON document. Unknown keys are refused; every key has a
/// default. `Debug` does not show the environment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServeConfig {
    /// Where commands run and relative paths start; absolute. Default `/`.
    pub workdir: ByteString,
    /// The user of commands and the owner of files: `NAME`, `UID`, `UID:GID` or `NAME:GROUP`, resolved inside. Default:
    /// the agent's own.
    #[serde(skip_serializing_if = "is_default")]
    pub user: Option<String>,
    /// Commands work where the agent was started, whatever `workdir` says. Default false. For a container whose image
    /// says where, and nobody but its runtime knows.
    #[serde(skip_serializing_if = "is_default")]
    pub inherit_workdir: bool,
    /// The agent's own environment is that of commands, too, below `env`. Default false.
    #[serde(skip_serializing_if = "is_default")]
    pub inherit_env: bool,
    /// The environment of commands. `PATH`, `HOME`, `USER`, `LOGNAME` and `LANG` have defaults.
    #[serde(skip_serializing_if = "is_default")]
    pub env: Env,
    /// The shell, by name or path. Default: bash, else sh.
    #[serde(skip_serializing_if = "is_default")]
    pub shell: Option<String>,
    /// Seconds until the sandbox ends by itself; 0.001..=1e9. Default: never. Moved by `ttl.renew`.
    #[serde(skip_serializing_if = "is_default")]
    pub ttl_s: Option<f64>,
    /// Ends everything when the last client has been gone for `disconnect_grace_s`. Default false: only if no client
    /// ever came, and none can come any more.
    #[serde(skip_serializing_if = "is_default")]
    pub die_on_disconnect: bool,
    /// How long a command that is not detached, and with `die_on_disconnect` the sandbox, waits for a client that lost
    /// its connection; 0..=1e9 seconds. Default 30.
    pub disconnect_grace_s: f64,
    /// Which incarnation of the sandbox this is, for `info`. Default: made up.
    #[serde(skip_serializing_if = "is_default")]
    pub incarnation: Option<String>,
    /// With a listening socket: the uids of peers that may connect, as this process sees them. Default: for
    /// `--listen-unix` its own and 0; for an inherited listener any, the token decides.
    ///
    /// The first of them owns the socket of `--listen-unix`.
    #[serde(skip_serializing_if = "is_default")]
    pub peer_uids: Option<Vec<u32>>,
    /// With a listening socket: only processes of no pid namespace that this one sees may connect. Default false; true
    /// for PID 1 of a launch, whose clients are all outside.
    #[serde(skip_serializing_if = "is_default")]
    pub outside_peers_only: bool,
    /// What clients must show. Default: that of `--token-env`, else nothing.
    #[serde(skip_serializing_if = "is_default")]
    pub token: Option<Secret>,
    /// What commands are deprived of.
    #[serde(skip_serializing_if = "is_default")]
    pub commands: CommandLimits,
    /// The sandbox's own main process: started with the agent, as a detached command whose id is `entrypoint`. It gets
    /// the signals that the agent gets, and SIGTERM, SIGINT and SIGQUIT end the agent after it. Default: none.
    #[serde(skip_serializing_if = "is_default")]
    pub entrypoint: Option<Entrypoint>,
    /// Ends the sandbox when its entrypoint ends, with its exit code (128 + signal; 125 to 127 when it could not be
    /// started). Default false: the agent serves on.
    #[serde(skip_serializing_if = "is_default")]
    pub exit_with_entrypoint: bool,
    /// How much of the output of a detached command is kept of what it wrote first; 0..=67108864 bytes. Default 262144.
    pub log_head_bytes: usize,
    /// How much of it is kept of what it wrote last; 524288..=67108864 bytes. Default 3670016.
    pub log_tail_bytes: usize,
    /// How much each stream of a connection may hold for a reader inside that has not taken it; 131072..=16777216 bytes.
    /// Default 262144. A stream moves so much in each round trip at most: more for clients that are far away.
    pub window_bytes: u32,
}

/// The main process of a sandbox. `Debug` does not show it.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Entrypoint {
    /// Program and arguments.
    pub argv: Vec<ByteString>,
    /// Environment, beside and over that of commands.
    pub env: Env,
    /// Where it runs. Default: the workdir.
    pub cwd: Option<ByteString>,
    /// As whom. Default: the sandbox's user.
    pub user: Option<String>,
}

impl std::fmt::Debug for Entrypoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entrypoint").field("arguments", &self.argv.len()).finish_non_exhaustive()
    }
}

impl Entrypoint {
    /// The same as a command.
    pub(super) fn request(&self) -> ExecRequest {
        let mut request = ExecRequest::argv(self.argv.iter().cloned());
        request.exec_id = methods::ENTRYPOINT_ID.to_owned();
        request.env.clone_from(&self.env);
        request.cwd.clone_from(&self.cwd);
        request.user.clone_from(&self.user);
        request
    }
}

impl Default for ServeConfig {
    fn default() -> Self {
        Self {
            workdir: ByteString::from("/"),
            inherit_workdir: false,
            inherit_env: false,
            user: None,
            env: Env::default(),
            shell: None,
            ttl_s: None,
            die_on_disconnect: false,
            disconnect_grace_s: 30.0,
            incarnation: None,
            peer_uids: None,
            outside_peers_only: false,
            token: None,
            commands: CommandLimits::default(),
            entrypoint: None,
            exit_with_entrypoint: false,
            log_head_bytes: 256 * 1024,
            log_tail_bytes: EXEC_KEEP.tail,
            window_bytes: WINDOW_BYTES,
        }
    }
}

/// What every command is deprived of. Put in force once, where all commands come from; if a part cannot be had, no
/// command starts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommandLimits {
    /// Executing a program never gains privileges. Default false.
    pub no_new_privs: bool,
    /// Numbers of the capabilities that commands may have at most; 0..=63. Default: those of the agent.
    pub capabilities: Option<Vec<u8>>,
    /// A seccomp program: the kernel's array of `struct sock_filter` in hexadecimal digits. Default: none.
    pub seccomp: Option<String>,
    /// Resource limits of each command: number of the resource, soft and hard limit.
    pub rlimits: Vec<(u32, u64, u64)>,
}

/// A configuration that cannot be meant. Names the key, and the range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("serve configuration: {0}")]
pub struct ConfigError(String);

impl ServeConfig {
    /// Reads and checks a JSON document.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn from_json(text: &[u8]) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_slice(text)
            // The text of the error may quote values only of the wrong type, never of variables: those are all text.
            .map_err(|error| ConfigError(format!("line {}, column {}: {error}", error.line(), error.column())))?;
        config.validate()?;
        Ok(config)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// The key, and its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail = |text: &str| Err(ConfigError(text.to_owned()));
        if !self.workdir.as_bytes().starts_with(b"/") || self.workdir.as_bytes().contains(&0) {
            return fail("workdir must be an absolute path");
        }
        let mut probe = ExecRequest::argv(["true"]);
        probe.env.clone_from(&self.env);
        if probe.validate().is_err() {
            return fail("env has a name or value that no environment can hold");
        }
        if self.ttl_s.is_some_and(|ttl| !(0.001..=SECONDS_MAX).contains(&ttl)) {
            return fail("ttl_s must be 0.001 to 1e9");
        }
        if !(0.0..=SECONDS_MAX).contains(&self.disconnect_grace_s) {
            return fail("disconnect_grace_s must be 0 to 1e9");
        }
        if self.log_head_bytes > LOG_BYTES_MAX {
            return fail("log_head_bytes must be at most 67108864");
        }
        if !(LOG_TAIL_BYTES_MIN..=LOG_BYTES_MAX).contains(&self.log_tail_bytes) {
            return fail("log_tail_bytes must be 524288 to 67108864");
        }
        if !(MIN_WINDOW_BYTES..=MAX_WINDOW_BYTES).contains(&self.window_bytes) {
            return fail("window_bytes must be 131072 to 16777216");
        }
        if let Some(entrypoint) = &self.entrypoint {
            // The message of the error names a part of it, never a value.
            entrypoint.request().validate().map_err(|error| {
                ConfigError(format!("entrypoint.{}: {}", error.field().unwrap_or("argv"), error.message()))
            })?;
        }
        if self.exit_with_entrypoint && self.entrypoint.is_none() {
            return fail("exit_with_entrypoint needs an entrypoint");
        }
        let commands = &self.commands;
        if commands.capabilities.iter().flatten().any(|number| *number > 63) {
            return fail("commands.capabilities must be numbers from 0 to 63");
        }
        if commands.seccomp.is_some() && commands.seccomp_program().is_none() {
            return fail("commands.seccomp must be hexadecimal digits, 16 for each instruction");
        }
        Ok(())
    }

    pub(super) fn grace(&self) -> Duration {
        Duration::from_secs_f64(self.disconnect_grace_s)
    }

    /// What is kept of the output of a detached command.
    pub(super) fn kept_of_jobs(&self) -> Keep {
        Keep { head: self.log_head_bytes, tail: self.log_tail_bytes }
    }
}

impl CommandLimits {
    pub(super) fn seccomp_program(&self) -> Option<Vec<u8>> {
        let Some(text) = &self.seccomp else { return Some(Vec::new()) };
        if text.len() % 16 != 0 {
            return None;
        }
        let digit = |byte: u8| (byte as char).to_digit(16);
        text.as_bytes().chunks_exact(2).map(|pair| Some((digit(pair[0])? * 16 + digit(pair[1])?) as u8)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::ServeConfig;

    #[test]
    fn what_is_not_told_because_it_is_nothing_is_read_as_nothing() {
        let nothing = serde_json::json!({
            "user": null, "inherit_workdir": false, "inherit_env": false, "env": {}, "shell": null, "ttl_s": null,
            "die_on_disconnect": false, "incarnation": null, "peer_uids": null, "outside_peers_only": false,
            "token": null, "commands": {}, "entrypoint": null, "exit_with_entrypoint": false,
        });
        let config: ServeConfig = serde_json::from_value(nothing).unwrap();
        let told = serde_json::to_value(&config).unwrap();
        assert!(told.get("inherit_env").is_none() && told.get("workdir").is_some(), "{told}");
        assert_eq!(serde_json::from_value::<ServeConfig>(told).unwrap(), config);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_its_key() {
        for (text, key) in [
            (r#"{"workdri": "/"}"#, "workdri"),
            (r#"{"workdir": "x"}"#, "workdir"),
            (r#"{"ttl_s": 0}"#, "ttl_s"),
            (r#"{"disconnect_grace_s": -1}"#, "disconnect_grace_s"),
            (r#"{"entrypoint": {"argv": []}}"#, "entrypoint"),
            (r#"{"entrypoint": {"argv": ["x"], "shell": "x"}}"#, "shell"),
            (r#"{"entrypoint": {"argv": ["x"], "env": {"A=B": "x"}}}"#, "entrypoint"),
            (r#"{"exit_with_entrypoint": true}"#, "exit_with_entrypoint"),
            (r#"{"log_tail_bytes": 1}"#, "log_tail_bytes"),
            (r#"{"log_head_bytes": 99999999}"#, "log_head_bytes"),
            (r#"{"window_bytes": 1000}"#, "window_bytes"),
            (r#"{"commands": {"capabilities": [64]}}"#, "commands.capabilities"),
            (r#"{"commands": {"seccomp": "0600000000"}}"#, "commands.seccomp"),
            (r#"{"commands": {"seccomp": "zz00000000000000"}}"#, "commands.seccomp"),
        ] {
            let error = ServeConfig::from_json(text.as_bytes()).expect_err(key);
            assert!(error.to_string().contains(key), "{error}");
        }
        assert_eq!(ServeConfig::from_json(b"{}"), Ok(ServeConfig::default()));
    }
}
