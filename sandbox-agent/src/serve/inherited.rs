//! Serving as what `launch` executes: PID 1 of a sandbox of its making.

use crate::{
    handover::{Handover, SERVE_FD, SOCKET_FD},
    hardening::CommandRestrictions,
};

use super::{
    arguments::{ConfigSource, Endpoint, ServeArguments},
    config::ServeConfig,
    run::run,
};

/// The variable that tells PID 1 the number of the descriptor that holds its [`ServeConfig`].
pub const SERVE_VARIABLE: &str = "SANDBOX_AGENT_SERVE";

/// Serves the socket of a launch. What the configuration leaves open comes from the handover: where commands work, as
/// whom, and that the sandbox ends with its client. Commands are deprived of what [`CommandRestrictions`] says.
///
/// Returns the exit code, as [`run`].
///
/// # Errors
/// As [`run`].
pub fn run_inherited(handover: &Handover) -> Result<u8, String> {
    // Everything that this process starts inherits them; its own capabilities it keeps.
    CommandRestrictions::new(&handover.capabilities).restrict_commands().map_err(|error| error.to_string())?;
    let arguments =
        ServeArguments { endpoint: Endpoint::Fd(SOCKET_FD), config: ConfigSource::Fd(SERVE_FD), token: None };
    run(&arguments, |config| complete(config, handover))
}

fn complete(config: &mut ServeConfig, handover: &Handover) {
    if config.workdir == ServeConfig::default().workdir {
        config.workdir = handover.workdir.as_str().into();
    }
    if config.user.is_none() && handover.ids.count > 1 {
        config.user = Some(handover.user.name.clone());
    }
    config.die_on_disconnect |= handover.die_with_parent;
    config.outside_peers_only = true;
}
