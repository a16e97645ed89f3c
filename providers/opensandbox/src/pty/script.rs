//! What a session runs: the daemon takes a command and a folder only, so that environment, user and size go into the command.

use sandbox_core::{Result, SandboxError, SandboxPtySpec};

use super::DEFAULT_SIZE;
use crate::{
    daemon::Daemon,
    error::NAME,
    exec::{ENCODED_PREFIX, Found, printf_format, quote},
    state::State,
};

/// A shell as the daemon itself would open it.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash --norc --noprofile; else exec sh; fi";

/// The command for a session; none where the daemon's own shell is what is wanted.
pub(super) async fn command(daemon: &Daemon<'_>, state: &State, spec: &SandboxPtySpec) -> Result<Option<String>> {
    let text = |bytes: &sandbox_core::ByteString| {
        bytes.as_str().map(str::to_owned).ok_or_else(|| {
            let why = "must be UTF-8: the daemon inside takes nothing else";
            SandboxError::invalid_input("command", why).with_provider(NAME)
        })
    };
    let mut preamble = String::new();
    // A daemon of ours has put them right already.
    let is_native = daemon.kind().await?.native;
    for name in state.encoded.iter().filter(|_| !is_native) {
        preamble += &format!("{name}=$(printf \"${ENCODED_PREFIX}{name}\");{name}=${{{name}%_}};export {name};");
    }
    for (name, value) in spec.env.iter() {
        preamble += &match value.as_str() {
            Some(text) => format!("export {name}={};", quote(text)),
            None => {
                let format = printf_format(value.as_bytes());
                format!("{name}=$(printf '{format}');{name}=${{{name}%_}};export {name};")
            }
        };
    }
    if spec.pty && (spec.rows, spec.cols) != DEFAULT_SIZE {
        // Before the first command of the script runs; the daemon is told the size, too, but later.
        preamble += &format!("stty rows {} cols {} 2>/dev/null;", spec.rows, spec.cols);
    }
    let command = spec.command.as_ref().map(text).transpose()?;
    let user = match spec.user.as_ref().or(state.user.as_ref()) {
        None => None,
        Some(name) => match daemon.user(name).await? {
            Found::User(user) if user.uid == 0 => None,
            Found::User(user) => Some(user.name.ok_or_else(|| {
                let why = format!("{name} has no name in the sandbox, and a terminal session needs one");
                SandboxError::invalid_input("user", why).with_provider(NAME)
            })?),
            Found::Unknown(why) => return Err(SandboxError::invalid_input("user", why).with_provider(NAME)),
        },
    };
    if preamble.is_empty() && user.is_none() {
        return Ok(command);
    }
    let whole = format!("{preamble}\n{}", command.as_deref().unwrap_or(SHELL));
    Ok(Some(match user {
        None => whole,
        Some(name) => {
            let name = String::from_utf8_lossy(&name).into_owned();
            format!("exec su -s /bin/sh -c {} -- {}", quote(&whole), quote(&name))
        }
    }))
}
