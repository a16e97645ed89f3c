//! The system calls that commands are refused, and why.

use libc::{EAFNOSUPPORT, ENOSYS, EPERM, c_long};

use super::bpf::Rule;

#[cfg(target_arch = "x86_64")]
pub(super) const ARCH: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCH: u32 = 0xc000_00b7;

/// The first number that was not known when this list was made (Linux 6.18): later calls do not exist for commands,
/// since nobody has judged them.
pub(super) const FIRST_UNKNOWN: u32 = 470;

/// The newer calls have one number everywhere; libc does not name this one yet.
const SYS_OPEN_TREE_ATTR: c_long = 467;

/// Every flag of clone and unshare that makes a namespace. CLONE_NEWTIME (0x80) is left out for clone, where these
/// bits are the exit signal.
const NAMESPACES: u32 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET) as u32;
const NEWTIME: u32 = 0x80;

/// 0 is Linux, the other one asks what is set.
const PERSONALITIES: &[u32] = &[0, u32::MAX];
/// TIOCSTI and TIOCLINUX type into the terminal. The kernel looks at 32 bits of the number only, and so does the rule.
const TERMINAL_INJECTION: &[u32] = &[0x5412, 0x541c];
/// UNIX, INET, INET6, NETLINK and PACKET know network namespaces. Others do not: VSOCK, for one, reaches the
/// hypervisor from any of them.
const FAMILIES: &[u32] = &[1, 2, 10, 16, 17];

/// Calls with a rule about their arguments.
pub(super) const JUDGED: &[(c_long, Rule)] = &[
    (libc::SYS_clone, Rule::RefuseBits(0, NAMESPACES, EPERM)),
    (libc::SYS_unshare, Rule::RefuseBits(0, NAMESPACES | NEWTIME, EPERM)),
    // Its flags are in memory, where a filter cannot look; libc falls back to clone.
    (libc::SYS_clone3, Rule::Refuse(ENOSYS)),
    (libc::SYS_personality, Rule::AllowValues(0, PERSONALITIES, EPERM)),
    (libc::SYS_ioctl, Rule::RefuseValues(1, TERMINAL_INJECTION, EPERM)),
    (libc::SYS_socket, Rule::AllowValues(0, FAMILIES, EAFNOSUPPORT)),
    (libc::SYS_socketpair, Rule::AllowValues(0, FAMILIES, EAFNOSUPPORT)),
];

/// Calls that fail with EPERM whatever they are given.
pub(super) const REFUSED: &[c_long] = &[
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    SYS_OPEN_TREE_ATTR,
    // Keys know user ids, not sandboxes.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // Wide surfaces with a record of holes.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    // File handles reach past mounts.
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // The kernel itself and the machine.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
];

#[cfg(target_arch = "x86_64")]
pub(super) const REFUSED_HERE: &[c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_kexec_file_load,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];

#[cfg(target_arch = "aarch64")]
pub(super) const REFUSED_HERE: &[c_long] = &[libc::SYS_kexec_file_load];
