//! The sandbox's own network namespace, if it has one, and its name.

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::ids::Plan;
use crate::config::{LaunchConfig, Network};
use crate::error::{Context, LaunchError, Stage};
use crate::sys;

pub(super) const DEFAULT_HOSTNAME: &str = "sandbox";

pub(super) fn set_name(config: &LaunchConfig) -> Result<(), LaunchError> {
    let name = config.hostname.as_deref().unwrap_or(DEFAULT_HOSTNAME);
    rustix::system::sethostname(name.as_bytes()).stage(Stage::Network, "setting the host name")
}

/// Must come before `/proc/sys` is read-only.
pub(super) fn set_up(network: Network, plan: &Plan) -> Result<(), LaunchError> {
    if network == Network::Host {
        return Ok(());
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None);
    let socket = socket.stage(Stage::Network, "opening a socket")?;
    use std::os::fd::AsFd;
    sys::loopback_up(socket.as_fd()).stage(Stage::Network, "bringing the loopback up")?;
    // Commands have no capabilities; in a network of their own every port and ping is theirs.
    let last_gid = plan.map.inside_gid + plan.map.count - 1;
    let settings = [
        ("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0".to_owned()),
        ("/proc/sys/net/ipv4/ping_group_range", format!("{} {last_gid}", plan.map.inside_gid)),
    ];
    for (path, value) in settings {
        std::fs::write(path, value).stage_at(Stage::Network, "writing", path)?;
    }
    Ok(())
}
