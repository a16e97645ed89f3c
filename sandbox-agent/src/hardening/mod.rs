//! What commands inside are deprived of.
//!
//! The agent itself keeps its capabilities over the sandbox's own namespaces: it switches users, mounts and kills
//! inside. Commands get none of them (or the few that the configuration names), cannot get them back
//! (no_new_privs, empty bounding set), and are refused the system calls that reach the kernel's wider surface.

mod bpf;
mod calls;
mod capability;
mod filter;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::sys;

pub use capability::Capability;

/// Landlock's version from which it can scope abstract unix sockets.
pub(crate) const LANDLOCK_SCOPES: u32 = 6;
const LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;

/// Which restriction could not be put in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} could not be put in force: {errno}")]
pub struct RestrictError {
    what: &'static str,
    errno: Errno,
}

impl RestrictError {
    /// The errno of the failed system call.
    pub fn raw_os_error(&self) -> i32 {
        self.errno.raw_os_error()
    }

    pub(crate) fn errno(&self) -> Errno {
        self.errno
    }
}

/// Everything that commands are deprived of, worked out once and put in force in any number of processes.
///
/// ```no_run
/// use sandbox_agent::{Capability, CommandRestrictions};
///
/// let restrictions = CommandRestrictions::new(&[Capability::Chown]);
/// // In the process that starts commands, after its last mount and before it starts the first:
/// restrictions.restrict_commands()?;
/// # Ok::<(), sandbox_agent::RestrictError>(())
/// ```
#[derive(Debug, Clone)]
pub struct CommandRestrictions {
    keep: CapabilitySet,
    filter: filter::Filter,
}

impl CommandRestrictions {
    /// Works the restrictions out; commands keep `capabilities` inside the sandbox's own namespaces.
    pub fn new(capabilities: &[Capability]) -> CommandRestrictions {
        let keep = capabilities.iter().fold(CapabilitySet::empty(), |set, capability| set | capability.flag());
        CommandRestrictions { keep, filter: filter::Filter::get() }
    }

    /// Puts everything in force for this thread and what it starts from now on: no_new_privs, capabilities, seccomp.
    ///
    /// Call it in a process without other threads that only starts commands (a nursery) or in the child before
    /// exec; it allocates nothing and takes no lock. The caller still can switch users afterwards only if it keeps
    /// its effective capabilities, which it does: what is cut off is the bounding, ambient and inheritable set, so
    /// the capabilities are gone with the next exec.
    ///
    /// # Errors
    /// Names the first restriction that failed; the process must not run anything then.
    pub fn restrict_commands(&self) -> Result<(), RestrictError> {
        self.restrict_capabilities()?;
        self.install_filter()
    }

    /// The half of [`restrict_commands`](Self::restrict_commands) that is about capabilities, and no_new_privs.
    /// About 45 short system calls; needs `CAP_SETPCAP`, or an already empty bounding set.
    ///
    /// # Errors
    /// As there.
    pub fn restrict_capabilities(&self) -> Result<(), RestrictError> {
        let failed = |what| move |errno| RestrictError { what, errno };
        rustix::thread::set_no_new_privs(true).map_err(failed("no_new_privs"))?;
        rustix::thread::clear_ambient_capability_set().map_err(failed("the ambient set"))?;
        for flag in CapabilitySet::all().iter() {
            if self.keep.contains(flag) {
                continue;
            }
            match rustix::thread::remove_capability_from_bounding_set(flag) {
                // The kernel has no such capability.
                Err(Errno::INVAL) | Ok(()) => {}
                // It may be gone already, where this process may take none out.
                Err(errno) if rustix::thread::capability_is_in_bounding_set(flag) != Ok(false) => {
                    return Err(failed("the capability bounding set")(errno));
                }
                Err(_) => {}
            }
        }
        let mut sets = rustix::thread::capabilities(None).map_err(failed("the capabilities"))?;
        sets.inheritable = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, sets).map_err(failed("the capabilities"))
    }

    /// Gives up this process's own capabilities at once, as exec would: for code that runs as a command without exec.
    ///
    /// # Errors
    /// As [`restrict_commands`](Self::restrict_commands).
    pub fn drop_capabilities(&self) -> Result<(), RestrictError> {
        let failed = |errno| RestrictError { what: "the capabilities", errno };
        let now = rustix::thread::capabilities(None).map_err(failed)?;
        let sets = CapabilitySets {
            effective: now.effective & self.keep,
            permitted: now.permitted & self.keep,
            inheritable: CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, sets).map_err(failed)
    }

    /// The half of [`restrict_commands`](Self::restrict_commands) that is about system calls. Filters add up: each
    /// costs every later call of the process a little, so install it once per process, not once per nested child.
    ///
    /// # Errors
    /// As there; without no_new_privs and `CAP_SYS_ADMIN` it fails.
    pub fn install_filter(&self) -> Result<(), RestrictError> {
        self.filter.install().map_err(|errno| RestrictError { what: "the seccomp filter", errno })
    }

    /// The half of it that is about system calls, as the kernel's array of `struct sock_filter`.
    pub(crate) fn program(&self) -> Vec<u8> {
        self.filter.bytes()
    }

    /// How many system calls are refused, wholly or for some arguments.
    pub fn refused_calls(&self) -> usize {
        self.filter.refused()
    }
}

/// Works out what does not depend on what commands keep, for this process and those that it forks.
pub(crate) fn prepare() {
    filter::Filter::get();
}

/// Shuts this process's memory and descriptors to other processes inside; not inherited across exec.
///
/// # Errors
/// Names the restriction that failed.
pub fn protect_agent() -> Result<(), RestrictError> {
    let failed = |what| move |errno| RestrictError { what, errno };
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("non-dumpable memory"))
}

/// The kernel's Landlock version; 0 when it has none. Abstract unix sockets can be fenced from 6 on.
pub fn landlock_abi() -> u32 {
    sys::landlock_version()
}

/// Fences the abstract unix sockets that were made outside of this process's tree.
pub(crate) fn fence_abstract_sockets() -> Result<(), RestrictError> {
    sys::landlock_scope(LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET).map_err(|errno| RestrictError { what: "Landlock", errno })
}
