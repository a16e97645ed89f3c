//! Serving as PID 1 of a launch.

use std::os::fd::OwnedFd;

use crate::{handover::Handover, hardening::CommandRestrictions};

use super::{config::ServeConfig, connections::Peers, connections::Source, early::Early, run};

/// Serves the socket of a launch. What the configuration leaves open comes from the handover: where commands work, as
/// whom, and that the sandbox ends with its client. Commands are deprived of what [`CommandRestrictions`] says; `early`
/// must have been made with the same capabilities.
///
/// Returns the exit code, as [`run::run`].
///
/// # Errors
/// As [`run::run`].
pub(crate) fn run_launched(
    mut config: ServeConfig,
    handover: Handover,
    early: Option<Early>,
    socket: OwnedFd,
) -> Result<u8, String> {
    // Everything that this process starts inherits them; its own capabilities it keeps.
    let restrictions = CommandRestrictions::new(&handover.capabilities);
    let restricted = if early.is_some() { restrictions.install_filter() } else { restrictions.restrict_commands() };
    restricted.map_err(|error| error.to_string())?;
    complete(&mut config, handover);
    config.validate().map_err(|error| error.to_string())?;
    let early = early.map_or_else(Early::bare, Ok)?;
    let peers = Peers::of(&config);
    let open = || {
        let source = Source::of_socket(socket, peers);
        Ok((source.map_err(|error| format!("the socket of the launch cannot be used: {error}"))?, None))
    };
    run::serve(config, early, None, open)
}

fn complete(config: &mut ServeConfig, handover: Handover) {
    if config.workdir == ServeConfig::default().workdir {
        config.workdir = handover.workdir.into();
    }
    if config.user.is_none() && handover.ids.count > 1 {
        config.user = Some(handover.user.name);
    }
    config.die_on_disconnect |= handover.die_with_parent;
    config.outside_peers_only = true;
}
