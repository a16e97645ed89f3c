//! What every command of a set is deprived of: plain data, put in force once, in the process that starts them.

use crate::raw::{self, Errno};

/// Bytes of one instruction of a seccomp program (`struct sock_filter`).
const INSTRUCTION_BYTES: usize = 8;
/// The kernel's own limit.
const INSTRUCTIONS_MAX: usize = 4096;

/// What the commands of a [`ProcessSet`](crate::ProcessSet) are deprived of. Nothing by default.
///
/// It is put in force once, in the set's nursery, from where every command inherits it: a command pays nothing for
/// it. Where one part cannot be had no command starts
/// ([`UserRefused`](crate::StartErrorKind::UserRefused)): there is no fall-back to less.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Restrictions {
    /// No privileges are gained by executing a program.
    pub no_new_privs: bool,
    /// The capabilities (bit n: number n) that commands may have at most; `None`: all that the host has. The host's
    /// own are needed to switch users, so they are only gone with the `exec` of each command.
    pub capabilities: Option<u64>,
    /// A seccomp program, as the kernel's array of `struct sock_filter`. Needs `no_new_privs`, or `CAP_SYS_ADMIN`.
    /// It must let through what the supervisors do: fork, exec, prctl, signals, reading `/proc`.
    pub seccomp: Vec<u8>,
    /// The `oom_score_adj` of commands; `None`: the host's. Lowering it needs privilege.
    pub oom_score_adj: Option<i16>,
}

impl Restrictions {
    /// Puts everything in force for this process and what it starts. Usable between `fork` and `exec`.
    pub(crate) fn enforce(&self) -> Result<(), Errno> {
        if let Some(value) = self.oom_score_adj {
            raw::set_oom_score(value)?;
        }
        if self.no_new_privs {
            raw::no_new_privs()?;
        }
        if let Some(keep) = self.capabilities {
            raw::limit_capabilities(keep)?;
        }
        match self.seccomp.len() {
            0 => Ok(()),
            bytes if bytes % INSTRUCTION_BYTES != 0 || bytes > INSTRUCTIONS_MAX * INSTRUCTION_BYTES => {
                Err(Errno(libc::EINVAL))
            }
            _ => raw::install_seccomp(&self.seccomp),
        }
    }
}
