//! What every sandbox carries, so that it can be found again and is never swept by mistake.

use std::{
    fs,
    time::{SystemTime, UNIX_EPOCH},
};

use sandbox_core::{Owner, SandboxIdentity, SandboxSpec};

use crate::{
    Attribution,
    attribution::{resolve_attribution, resolve_run_id},
    environment::{self, Environment},
};

/// This process as the owner of sandboxes: when it is gone, they may be swept.
pub fn process_owner() -> Owner {
    Owner::Process { host: host_name(), pid: std::process::id(), start_time: start_time().unwrap_or_default() }
}

/// False if the owner is a process of this machine that is gone. True for everybody else: who cannot be seen may live.
pub fn may_live(owner: &Owner) -> bool {
    match owner {
        Owner::Process { host, pid, start_time } if *host == host_name() => {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
            stat.is_ok_and(|stat| parse_start_time(&stat) == Some(*start_time))
        }
        _ => true,
    }
}

/// The identity of a sandbox that is made now: the run and attribution of this process, this owner, and an expiry
/// `ttl_s` seconds from now.
///
/// [`AsyncSandbox::start`](crate::AsyncSandbox::start) fills it in, with [`process_owner`], unless the spec has one.
pub fn new_identity(owner: Owner, ttl_s: Option<f64>) -> SandboxIdentity {
    let environment = Environment::process();
    let created_at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    SandboxIdentity {
        run_id: resolve_run_id(None, &environment),
        owner,
        created_at_ms,
        expires_at_ms: expiry(created_at_ms, ttl_s),
        attribution: resolve_attribution(&Attribution::default(), &environment),
    }
}

/// Gives a spec its identity, or the expiry of the identity that it has.
pub(crate) fn fill(spec: &mut SandboxSpec) {
    let ttl_s = spec.ttl_s;
    let identity = spec.identity.get_or_insert_with(|| new_identity(process_owner(), ttl_s));
    if identity.expires_at_ms.is_none() {
        identity.expires_at_ms = expiry(identity.created_at_ms, ttl_s);
    }
}

/// Whether the process that owns something is gone. False where this machine cannot know.
pub(crate) fn is_gone(owner: &Owner) -> bool {
    let Owner::Process { host, pid, start_time } = owner else { return false };
    if *host != host_name() {
        return false;
    }
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => parse_start_time(&stat) != Some(*start_time),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

fn expiry(created_at_ms: u64, ttl_s: Option<f64>) -> Option<u64> {
    ttl_s.map(|ttl_s| created_at_ms.saturating_add((ttl_s * 1000.0) as u64))
}

fn host_name() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/hostname").ok().map(|name| name.trim().to_owned());
    kernel
        .filter(|name| !name.is_empty())
        .or_else(|| Environment::process().first(environment::HOST).map(str::to_owned))
        .unwrap_or_else(|| "unknown".to_owned())
}

/// When this process started, in clock ticks since boot.
fn start_time() -> Option<u64> {
    parse_start_time(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// Field 22 of a `/proc/<pid>/stat`. Field 2 is the program's name in parentheses and may hold anything, so counting
/// starts behind its last parenthesis, with field 3.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(22 - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Owner, SandboxSpec};

    use super::{fill, may_live, new_identity, parse_start_time, process_owner};

    #[test]
    fn the_start_time_is_field_22_whatever_the_program_is_called() {
        let fields: Vec<String> = (3..=40).map(|field| field.to_string()).collect();
        for name in ["cat", "a b", "x) R 1 (", ")"] {
            let stat = format!("17 ({name}) {}\n", fields.join(" "));
            assert_eq!(parse_start_time(&stat), Some(22), "{name}");
        }
        for broken in ["", "17 (x", "17 (x) S 1"] {
            assert_eq!(parse_start_time(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn the_owner_is_this_process_with_its_start_time() {
        let Owner::Process { host, pid, start_time } = process_owner() else { panic!("not a process") };
        assert_eq!(pid, std::process::id());
        assert!(!host.is_empty() && start_time > 0);
        assert!(may_live(&process_owner()) && may_live(&Owner::Lease));
        assert!(!may_live(&Owner::Process { host, pid, start_time: start_time + 1 }));
    }

    #[test]
    fn a_spec_gets_an_identity_and_keeps_the_one_it_has() {
        let mut spec = SandboxSpec::default().with_ttl_s(2.5);
        fill(&mut spec);
        let identity = spec.identity.clone().unwrap();
        assert_eq!(identity.expires_at_ms, Some(identity.created_at_ms + 2500));
        let mut leased = SandboxSpec::default().with_ttl_s(1.0);
        leased.identity = Some(new_identity(Owner::Lease, None));
        fill(&mut leased);
        let identity = leased.identity.unwrap();
        assert_eq!((identity.owner, identity.expires_at_ms), (Owner::Lease, Some(identity.created_at_ms + 1000)));
    }
}
