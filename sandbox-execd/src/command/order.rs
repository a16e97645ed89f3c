//! An order of execd as a command of the agent.

use std::collections::BTreeMap;

use sandbox_core::{ByteString, ExecCommand, ExecRequest, StdinSource};
use serde::Deserialize;

use crate::{
    environment,
    execd::{Execd, expand},
    http::Refusal,
};

/// The body of `POST /command`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Order {
    pub(super) command: String,
    argv: Vec<String>,
    cwd: String,
    pub(super) background: bool,
    /// Milliseconds; 0: none.
    timeout: u64,
    uid: Option<u32>,
    gid: Option<u32>,
    envs: BTreeMap<String, String>,
    /// Ours: exact bytes in events.
    pub(super) bytes: bool,
    /// Ours: a file as standard input.
    pub(super) stdin_path: String,
    /// Ours: so many milliseconds the first events wait for those behind them, to be sent as one piece; at most 1000.
    pub(super) gather_ms: u64,
}

/// A command that can be started.
pub(super) struct Prepared {
    pub(super) request: ExecRequest,
    /// What is named where nothing could be started.
    pub(super) program: String,
}

/// As whom: uid and gid, or the daemon's own.
fn user(uid: Option<u32>, gid: Option<u32>) -> Result<Option<String>, Refusal> {
    match (uid, gid) {
        (None, Some(_)) => Err(Refusal::bad("gid needs uid")),
        (None, None) => Ok(None),
        (Some(uid), None) => Ok(Some(uid.to_string())),
        (Some(uid), Some(gid)) => Ok(Some(format!("{uid}:{gid}"))),
    }
}

/// A working directory, which must be there.
pub(crate) fn folder(cwd: &str) -> Result<Option<ByteString>, Refusal> {
    if cwd.is_empty() {
        return Ok(None);
    }
    let path = expand(cwd)?;
    match path.as_path().is_dir() {
        true => Ok(Some(path)),
        false => Err(Refusal::bad("the working directory does not exist or is no directory")),
    }
}

impl Order {
    pub(super) fn prepare(&self, execd: &Execd) -> Result<Prepared, Refusal> {
        let (mut request, program) = match (self.argv.first(), self.command.is_empty()) {
            (Some(_), false) => return Err(Refusal::bad("command and argv exclude each other")),
            (Some(program), true) => (ExecRequest::argv(&self.argv), program.clone()),
            (None, true) => {
                return Err(Refusal::bad(
                    "Key: 'RunCommandRequest.Command' Error:Field validation for 'Command' failed",
                ));
            }
            (None, false) => {
                let mut request = ExecRequest::shell(&self.command);
                request.command = ExecCommand::Shell { script: (&self.command).into(), shell: environment::shell() };
                (request, "sh".to_owned())
            }
        };
        request.env = environment::read_envs(&execd.settings.envs_file);
        for (name, value) in &self.envs {
            request.env.insert(name, value.as_str());
        }
        request.cwd = folder(&self.cwd)?;
        request.user = user(self.uid, self.gid)?;
        request.timeout_s = (self.timeout > 0).then_some(self.timeout as f64 / 1000.0);
        if !self.stdin_path.is_empty() {
            request.stdin = StdinSource::Stream;
        }
        Ok(Prepared { request, program })
    }
}
