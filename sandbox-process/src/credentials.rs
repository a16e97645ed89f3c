//! Who a process is. Allowed between `fork` and `exec`, like everything in [`raw`](crate::raw): raw system calls, since
//! the C library's own wrappers signal threads that are gone after `fork`.

use libc::c_int;

use crate::raw::{Errno, check_long};

pub(crate) fn set_groups(groups: &[libc::gid_t]) -> Result<(), Errno> {
    // SAFETY: the pointer and length describe the readable list.
    check_long(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) }).map(drop)
}

/// True when this process has exactly these supplementary groups (ascending, as the kernel lists them).
pub(crate) fn has_groups(wanted: &[libc::gid_t]) -> bool {
    let mut groups = [0; 1024];
    // SAFETY: the pointer is valid for this many entries.
    let count = unsafe { libc::getgroups(groups.len() as c_int, groups.as_mut_ptr()) };
    usize::try_from(count).is_ok_and(|count| groups.get(..count) == Some(wanted))
}

pub(crate) fn set_gid(gid: libc::gid_t) -> Result<(), Errno> {
    // SAFETY: setresgid takes plain numbers.
    check_long(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) }).map(drop)
}

pub(crate) fn set_uid(uid: libc::uid_t) -> Result<(), Errno> {
    // SAFETY: setresuid takes plain numbers.
    check_long(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) }).map(drop)
}
