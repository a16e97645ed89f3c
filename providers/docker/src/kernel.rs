//! Kernel capabilities: their names and numbers, and what sandboxes have of them.

use sandbox_core::{Result, SandboxError, near_match};

/// Every capability by its number.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// What the engine gives a container when nothing else is said.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SYS_CHROOT",
    "MKNOD",
    "AUDIT_WRITE",
    "SETFCAP",
];

/// What the agent needs itself: to switch users, own and read files, end processes, and deprive commands of the rest.
const AGENT: [&str; 8] = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP"];

/// What a sandbox's container is made with, and what its commands may have at most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Capabilities {
    pub(crate) add: Vec<String>,
    pub(crate) drop: Vec<String>,
    /// Numbers; none: those of the container.
    pub(crate) commands: Option<Vec<u8>>,
}

/// Refuses names that no kernel knows.
pub(crate) fn check_capabilities(field: &str, names: &[String], allows_all: bool) -> Result<()> {
    for name in names {
        if !(NAMES.contains(&plain(name).as_str()) || allows_all && plain(name) == "ALL") {
            let error = SandboxError::invalid_input(field, format!("{name:?} is no capability of Linux"));
            return Err(match near_match(&plain(name), NAMES) {
                Some(near) => error.with_help(format!("did you mean {near:?}?")),
                None => error,
            });
        }
    }
    Ok(())
}

/// A name without its prefix, in capitals.
fn plain(name: &str) -> String {
    let name = name.to_ascii_uppercase();
    name.strip_prefix("CAP_").map(str::to_owned).unwrap_or(name)
}

impl Capabilities {
    /// `dropped` and `added` are the spec's, `never` the operator's.
    pub(crate) fn new(added: &[String], dropped: &[String], never: &[String], has_agent: bool) -> Result<Self> {
        check_capabilities("security.cap_add", added, false)?;
        check_capabilities("security.cap_drop", dropped, true)?;
        let has = |list: &[String], name: &str| list.iter().any(|one| plain(one) == name);
        if let Some(name) = added.iter().find(|name| has(never, &plain(name)) || has(never, "ALL")) {
            let message = format!("{} is dropped by the provider's settings", plain(name));
            return Err(SandboxError::invalid_input("security.cap_add", message));
        }
        let drops = |name: &str| [dropped, never].iter().any(|list| has(list, name) || has(list, "ALL"));
        let is_given = |name: &str| has(added, name) || DEFAULT.contains(&name) && !drops(name);
        let commands: Vec<u8> =
            (0u8..).zip(NAMES).filter(|(_, name)| is_given(name)).map(|(number, _)| number).collect();
        let is_default = dropped.is_empty() && never.is_empty();
        let add = added.iter().map(|name| plain(name)).collect();
        let drop = DEFAULT.iter().filter(|name| !(is_given(name) || has_agent && AGENT.contains(name)));
        let drop = drop.map(|name| (*name).to_owned()).collect();
        Ok(Self { add, drop, commands: (has_agent && !is_default).then_some(commands) })
    }
}

#[cfg(test)]
mod tests {
    use super::{Capabilities, check_capabilities};

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_agent_keeps_what_it_needs_and_commands_do_not() {
        let all = Capabilities::new(&[], &names(&["ALL"]), &[], true).unwrap();
        assert_eq!(all.commands, Some(vec![]));
        assert!(all.drop.contains(&"NET_RAW".to_owned()) && !all.drop.contains(&"SETUID".to_owned()), "{all:?}");
        let without = Capabilities::new(&[], &names(&["all"]), &[], false).unwrap();
        assert!(without.drop.contains(&"SETUID".to_owned()) && without.commands.is_none());
        let one = Capabilities::new(&names(&["cap_sys_ptrace"]), &names(&["ALL"]), &[], true).unwrap();
        assert_eq!((one.add, one.commands), (names(&["SYS_PTRACE"]), Some(vec![19])));
        assert_eq!(Capabilities::new(&[], &[], &[], true).unwrap(), Capabilities::default());
    }

    #[test]
    fn what_the_operator_drops_no_spec_adds_back() {
        let error = Capabilities::new(&names(&["NET_RAW"]), &[], &names(&["NET_RAW"]), true).unwrap_err();
        assert_eq!(error.field(), Some("security.cap_add"));
        assert!(Capabilities::new(&names(&["NET_RAW"]), &[], &names(&["ALL"]), true).is_err());
    }

    #[test]
    fn an_unknown_name_is_told_with_the_nearest() {
        let error = check_capabilities("cap_drop", &names(&["NET_ROW"]), true).unwrap_err();
        assert_eq!(error.help(), Some("did you mean \"NET_RAW\"?"));
    }
}
