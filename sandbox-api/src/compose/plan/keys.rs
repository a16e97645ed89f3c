//! What becomes of the keys that have no field of their own in a sandbox's spec.

use crate::compose::plan::ComposeAllow;

/// What becomes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handling {
    /// Code of its own looks after it.
    Own,
    /// A provider may know it as an option of this name; else it is refused.
    Option,
    /// A provider may know it as an option; else it has no effect, for this reason.
    OptionOrNote(&'static str),
    /// It has no effect here, for this reason.
    Note(&'static str),
    /// Nobody can do it, for this reason.
    Refused(&'static str),
}

/// What becomes of a key of a service.
pub(crate) fn handling(key: &str) -> Handling {
    use Handling::{Note, Option, OptionOrNote, Own, Refused};
    match key {
        "annotations" => Note("annotations are for an engine and change nothing in the service"),
        "attach" => Note("the logs of every service are kept"),
        "develop" => Note("is for development, not for running"),
        "logging" => Note("logs are kept by the stack itself"),
        "pull_refresh_after" => Note("only a pull policy that refreshes looks at it"),
        "init" => OptionOrNote("the first process of a sandbox reaps its children already"),
        "mem_reservation" | "cpu_shares" | "oom_score_adj" => {
            OptionOrNote("only matters when the machine is short, and limits nothing")
        }
        "blkio_config"
        | "cgroup"
        | "cgroup_parent"
        | "cpu_count"
        | "cpu_percent"
        | "cpu_period"
        | "cpu_quota"
        | "cpu_rt_period"
        | "cpu_rt_runtime"
        | "cpuset"
        | "device_cgroup_rules"
        | "devices"
        | "dns"
        | "dns_opt"
        | "dns_search"
        | "domainname"
        | "group_add"
        | "ipc"
        | "mac_address"
        | "mem_swappiness"
        | "memswap_limit"
        | "oom_kill_disable"
        | "pid"
        | "read_only"
        | "runtime"
        | "storage_opt"
        | "sysctls"
        | "ulimits"
        | "userns_mode"
        | "uts" => Option,
        "credential_spec" | "isolation" => Refused("is for Windows"),
        "external_links" => Refused("links to containers that are no part of the stack"),
        "models" => Refused("AI models as parts of a stack are not supported"),
        "post_start" | "pre_stop" => Refused("hooks are not supported yet; make them part of the command"),
        "provider" => Refused("services that a plugin of docker compose provides are not supported"),
        "use_api_socket" => Refused("would give the service the engine itself"),
        "volumes_from" => Refused("name the volumes in both services instead"),
        _ => Own,
    }
}

/// What must be allowed for a key with this value, and why.
pub(crate) fn danger(key: &str, value: &str) -> Option<(ComposeAllow, &'static str)> {
    let is_host = value == "host";
    match key {
        "ipc" | "pid" | "uts" | "userns_mode" | "cgroup" if is_host => {
            Some((ComposeAllow::Privileged, "shares a namespace of this machine"))
        }
        "devices" | "device_cgroup_rules" => Some((ComposeAllow::Privileged, "gives devices of this machine")),
        "cgroup_parent" => Some((ComposeAllow::Privileged, "moves the service among the cgroups of this machine")),
        _ => None,
    }
}

/// Kernel capabilities that are as good as root on the host.
pub(crate) const STRONG_CAPABILITIES: &[&str] = &[
    "ALL",
    "BPF",
    "DAC_READ_SEARCH",
    "MAC_ADMIN",
    "MAC_OVERRIDE",
    "PERFMON",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_MODULE",
    "SYS_PTRACE",
    "SYS_RAWIO",
    "SYS_TIME",
    "SYSLOG",
];

#[cfg(test)]
mod tests {
    use super::{Handling, handling};
    use crate::compose::load::service_keys;

    #[test]
    fn h11_every_key_of_the_specification_is_decided_on() {
        // The keys that code of its own looks after. A key that is in none of the lists would be dropped silently.
        let own = [
            "build",
            "cap_add",
            "cap_drop",
            "command",
            "configs",
            "container_name",
            "cpus",
            "depends_on",
            "deploy",
            "entrypoint",
            "env_file",
            "environment",
            "expose",
            "extends",
            "extra_hosts",
            "gpus",
            "healthcheck",
            "hostname",
            "image",
            "label_file",
            "labels",
            "links",
            "mem_limit",
            "network_mode",
            "networks",
            "pids_limit",
            "platform",
            "ports",
            "privileged",
            "profiles",
            "pull_policy",
            "restart",
            "scale",
            "secrets",
            "security_opt",
            "shm_size",
            "stdin_open",
            "stop_grace_period",
            "stop_signal",
            "tmpfs",
            "tty",
            "user",
            "volumes",
            "working_dir",
        ];
        for key in service_keys() {
            assert_eq!(handling(key) == Handling::Own, own.contains(&key), "{key}");
        }
    }
}
