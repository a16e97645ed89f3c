//! Cables between the network namespaces of sandboxes.

use std::{
    fs::{File, Metadata},
    net::Ipv4Addr,
    os::{fd::AsFd, unix::fs::MetadataExt},
};

use rustix::{
    io::Errno,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use sandbox_agent_client::start_time;
use sandbox_core::{ErrorKind, Result, SandboxError};

use super::netlink::{End, Netlink};
use crate::isolated::Leftover;

/// The network namespace of a running sandbox.
pub(super) struct Namespace(File);

impl Namespace {
    /// None when the sandbox has ended, or its network is this machine's.
    pub(super) fn of(inside: &Leftover) -> Option<Self> {
        let (pid, start_ticks) = inside.process();
        let file = File::open(format!("/proc/{pid}/ns/net")).ok()?;
        // Compared after it was opened, so it is of the very process.
        if start_time(pid) != Some(start_ticks) {
            return None;
        }
        let own = std::fs::metadata("/proc/self/ns/net").ok()?;
        let id = |metadata: &Metadata| (metadata.dev(), metadata.ino());
        (id(&file.metadata().ok()?) != id(&own)).then_some(Self(file))
    }

    /// Does work in the namespace, on a thread that ends with it.
    fn enter<T: Send>(&self, work: impl FnOnce(&Netlink) -> Result<T, Errno> + Send) -> Result<T> {
        let done = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("sandbox-network".to_owned()).spawn_scoped(scope, || {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
                work(&Netlink::open()?)
            });
            thread
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?
                .join()
                .unwrap_or(Err(Errno::IO))
        });
        done.map_err(failed)
    }

    /// Lets the sandbox answer to its address.
    pub(super) fn add_address(&self, address: Ipv4Addr) -> Result<()> {
        self.enter(|netlink| netlink.add_own_address(address))
    }

    /// Takes everything away that led to these others from this address.
    pub(super) fn disconnect(&self, own: Ipv4Addr, others: &[Ipv4Addr]) -> Result<()> {
        self.enter(|netlink| {
            for other in others {
                netlink.remove_cable(&interface(*other))?;
            }
            netlink.remove_own_address(own)
        })
    }

    /// Takes the cable to another one away.
    pub(super) fn unplug(&self, other: Ipv4Addr) -> Result<()> {
        self.enter(|netlink| netlink.remove_cable(&interface(other)))
    }

    /// Lays a cable to another sandbox, with everything at its place or nothing.
    pub(super) fn connect(&self, own: Ipv4Addr, other: &Self, its: Ipv4Addr) -> Result<()> {
        let (here, there) = (interface(its), interface(own));
        // The kernel may still hold one of a sandbox that had this address before.
        other.unplug(own)?;
        let here = &End { name: &here, address: own };
        self.enter(|netlink| {
            netlink.remove_cable(here.name)?;
            netlink.make_cable(here.name, &there, other.0.as_fd())?;
            netlink.address_cable(here, its)
        })?;
        let end = End { name: &there, address: its };
        let addressed = other.enter(|netlink| netlink.address_cable(&end, own));
        if addressed.is_err() {
            // The reason to fail is told; with one end the other one goes.
            let _ = self.unplug(its);
        }
        addressed
    }
}

/// The name of a sandbox's end of a cable. Networks do not overlap, so an address is in one of them only.
fn interface(other: Ipv4Addr) -> String {
    format!("n{:08x}", u32::from(other))
}

fn failed(errno: Errno) -> SandboxError {
    let kind = match errno {
        Errno::PERM | Errno::ACCESS => ErrorKind::PermissionDenied,
        Errno::OPNOTSUPP => ErrorKind::Unsupported,
        Errno::NOMEM | Errno::NOBUFS | Errno::MFILE | Errno::AGAIN => ErrorKind::Exhausted,
        _ => ErrorKind::Internal,
    };
    let error = SandboxError::new(kind, format!("connecting sandboxes: {errno}"));
    match kind {
        ErrorKind::PermissionDenied => error.with_help("networks need CAP_NET_ADMIN and CAP_SYS_ADMIN"),
        ErrorKind::Unsupported => error.with_help("the kernel needs veth (CONFIG_VETH)"),
        _ => error,
    }
}
