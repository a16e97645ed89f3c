//! Which setting of the host forbids what a launch needs.

use std::fs;

use rustix::io::Errno;

use crate::error::Stage;

const OPT_OUT: &str = "or opt out of isolation with isolation = \"none\"";

/// Limits on namespaces, by the name of their sysctl.
const NAMESPACE_LIMITS: [&str; 7] = [
    "max_user_namespaces",
    "max_mnt_namespaces",
    "max_pid_namespaces",
    "max_net_namespaces",
    "max_ipc_namespaces",
    "max_uts_namespaces",
    "max_cgroup_namespaces",
];

/// What to change so that `errno` at `stage` does not come again, as far as it can be known.
pub(crate) fn for_failure(stage: Stage, errno: Errno) -> Option<String> {
    match stage {
        Stage::Namespaces => Some(namespaces(errno)),
        Stage::IdMaps | Stage::Root | Stage::Dev | Stage::Network if denied(errno) => {
            let apparmor = "kernel.apparmor_restrict_unprivileged_userns";
            is("kernel/apparmor_restrict_unprivileged_userns", "1").then(|| {
                format!("set sysctl {apparmor} = 0 or give the agent an AppArmor profile that allows userns, {OPT_OUT}")
            })
        }
        Stage::Proc if denied(errno) => Some(format!(
            "the host's own /proc is partly hidden (a container?), so the kernel allows no new one: start the host's \
             container with an unmasked /proc, {OPT_OUT}"
        )),
        Stage::Source if errno == Errno::LOOP => {
            Some("links in host paths are not followed: give the path that they lead to".to_owned())
        }
        _ if errno == Errno::NOSYS => Some(format!("Linux 5.12 or newer is needed, {OPT_OUT}")),
        _ => None,
    }
}

fn namespaces(errno: Errno) -> String {
    if errno == Errno::NOSPC || errno == Errno::USERS {
        for name in NAMESPACE_LIMITS {
            if is(&format!("user/{name}"), "0") {
                return format!("set sysctl user.{name} above 0, {OPT_OUT}");
            }
        }
        return format!("all of user.max_*_namespaces are above 0, so one is used up: raise them, {OPT_OUT}");
    }
    if errno == Errno::INVAL {
        return format!("the kernel was built without one of the namespaces (CONFIG_USER_NS…), {OPT_OUT}");
    }
    if is("kernel/unprivileged_userns_clone", "0") {
        return format!("set sysctl kernel.unprivileged_userns_clone = 1, {OPT_OUT}");
    }
    if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        return format!("set sysctl kernel.apparmor_restrict_unprivileged_userns = 0, {OPT_OUT}");
    }
    format!(
        "kernel.unprivileged_userns_clone, user.max_user_namespaces and \
         kernel.apparmor_restrict_unprivileged_userns allow it, so a seccomp filter around this process forbids it \
         (a container's default profile does), or the process is in a chroot or has unmapped ids, {OPT_OUT}"
    )
}

fn denied(errno: Errno) -> bool {
    errno == Errno::PERM || errno == Errno::ACCESS
}

fn is(sysctl: &str, value: &str) -> bool {
    fs::read_to_string(format!("/proc/sys/{sysctl}")).is_ok_and(|text| text.trim() == value)
}
