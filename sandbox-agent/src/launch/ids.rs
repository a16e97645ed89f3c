//! Which ids of the host a sandbox's ids are.

use std::fs;

use rustix::process::Pid;
use rustix::thread::CapabilitySet;

use crate::config::Ids;
use crate::error::{Context, LaunchError, Stage};
use crate::report::IdMap;

const RANGE: u32 = 65536;
/// What says which ids of the host are free.
pub(super) const ACCOUNTS: [&str; 4] = ["/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"];
/// Where no distribution's `useradd` and no systemd range (524288..=1878982655 for containers) gives ids out.
const DEFAULT_BASE: u32 = 1_879_048_192;

/// The id map of a sandbox.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) map: IdMap,
    /// The launcher may map a range and act for others.
    pub(super) privileged: bool,
}

impl Plan {
    pub(super) fn new(ids: &Ids) -> Result<Plan, LaunchError> {
        let own = OwnIds::read()?;
        let capabilities = rustix::thread::capabilities(None).stage(Stage::Ids, "reading capabilities")?;
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::SYS_ADMIN;
        let uid_base = ids.host_base.unwrap_or_else(|| default_base("/etc/subuid"));
        let gid_base = ids.host_base.unwrap_or_else(|| default_base("/etc/subgid"));
        let has_range = covers(&own.uids, uid_base) && covers(&own.gids, gid_base);
        if capabilities.effective.contains(needed) && has_range {
            refuse_accounts("/etc/passwd", uid_base)?;
            refuse_accounts("/etc/group", gid_base)?;
            let (inside_uid, inside_gid) = (0, 0);
            let map = IdMap { inside_uid, outside_uid: uid_base, inside_gid, outside_gid: gid_base, count: RANGE };
            return Ok(Plan { map, privileged: true });
        }
        let outside_uid = rustix::process::geteuid().as_raw();
        let outside_gid = rustix::process::getegid().as_raw();
        // In a user namespace, 0 may be anybody; the namespace's own map says who.
        if outside_uid == 0 && maps_to_root(&own.uids) || outside_gid == 0 && maps_to_root(&own.gids) {
            return Err(LaunchError::new(
                Stage::Ids,
                "the only id that could be mapped is the host's root, which never is",
            )
            .with_hint("run as an ordinary user, or as root with CAP_SETUID, CAP_SETGID and CAP_SYS_ADMIN"));
        }
        if ids.host_base.is_some() {
            let error = LaunchError::new(Stage::Ids, "ids.host_base needs CAP_SETUID, CAP_SETGID and CAP_SYS_ADMIN");
            return Err(error.with_hint("leave it out to use the caller's own id"));
        }
        let (inside_uid, inside_gid) = (ids.inside_uid, ids.inside_gid);
        let map = IdMap { inside_uid, outside_uid, inside_gid, outside_gid, count: 1 };
        Ok(Plan { map, privileged: false })
    }

    /// Writes the maps of the user namespace that `pid` is in.
    pub(super) fn write(&self, pid: Pid) -> Result<(), LaunchError> {
        let IdMap { inside_uid, outside_uid, inside_gid, outside_gid, count } = self.map;
        let write = |file: &str, value: String| {
            let path = format!("/proc/{}/{file}", pid.as_raw_pid());
            fs::write(&path, value).stage_at(Stage::IdMaps, "writing", path)
        };
        if !self.privileged {
            write("setgroups", "deny".to_owned())?;
        }
        write("uid_map", format!("{inside_uid} {outside_uid} {count}"))?;
        write("gid_map", format!("{inside_gid} {outside_gid} {count}"))
    }
}

/// Lines of a uid or gid map: first inside, first outside, count.
type Map = Vec<[u32; 3]>;

struct OwnIds {
    uids: Map,
    gids: Map,
}

impl OwnIds {
    fn read() -> Result<OwnIds, LaunchError> {
        let read = |path: &str| -> Result<Map, LaunchError> {
            Ok(parse_map(&fs::read_to_string(path).stage_at(Stage::Ids, "reading", path)?))
        };
        Ok(OwnIds { uids: read("/proc/self/uid_map")?, gids: read("/proc/self/gid_map")? })
    }
}

fn parse_map(text: &str) -> Map {
    let line = |line: &str| -> Option<[u32; 3]> {
        let mut numbers = line.split_whitespace().map(|word| word.parse().ok());
        Some([numbers.next()??, numbers.next()??, numbers.next()??])
    };
    text.lines().filter_map(line).collect()
}

fn covers(map: &Map, base: u32) -> bool {
    map.iter().any(|[inside, _, count]| {
        base >= *inside && u64::from(base) + u64::from(RANGE) <= u64::from(*inside) + u64::from(*count)
    })
}

fn maps_to_root(map: &Map) -> bool {
    map.iter().any(|[inside, outside, _]| *inside == 0 && *outside == 0)
}

/// root's first range that is long enough.
fn default_base(file: &str) -> u32 {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().find_map(subordinate_base).unwrap_or(DEFAULT_BASE)
}

fn subordinate_base(line: &str) -> Option<u32> {
    let mut parts = line.trim().split(':');
    let (name, first, count) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?.parse::<u32>().ok()?);
    ((name == "root" || name == "0") && count >= RANGE && first >= RANGE).then_some(first)
}

/// Refuses a range that holds an id of an account: its files would be the sandbox's.
fn refuse_accounts(file: &str, base: u32) -> Result<(), LaunchError> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let ids = text.lines().filter_map(|line| line.split(':').nth(2)?.parse::<u32>().ok());
    match ids.into_iter().find(|id| id.checked_sub(base).is_some_and(|offset| offset < RANGE)) {
        None => Ok(()),
        Some(id) => {
            let message = format!("the sandbox's ids {base}..={} hold the account {id}", base + RANGE - 1);
            Err(LaunchError::new(Stage::Ids, message)
                .at(file)
                .with_hint("set ids.host_base to a range without accounts"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_subordinate_range_counts_only_if_it_is_long_enough_and_not_low() {
        assert_eq!(subordinate_base("root:100000:65536"), Some(100_000));
        assert_eq!(subordinate_base("root:100000:1000"), None);
        assert_eq!(subordinate_base("root:0:65536"), None);
        assert_eq!(subordinate_base("me:100000:65536"), None);
        assert_eq!(subordinate_base("root:100000"), None);
    }

    #[test]
    fn a_range_is_usable_only_if_the_own_namespace_has_it_whole() {
        assert!(covers(&parse_map("         0          0 4294967295\n"), DEFAULT_BASE));
        assert!(!covers(&parse_map("0 1000 1\n"), DEFAULT_BASE));
        assert!(!covers(&parse_map("0 0 1879080000\n"), DEFAULT_BASE));
    }

    #[test]
    fn an_account_in_the_range_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "root:x:0:0::/:/bin/sh\nx:x:131071:1::/:/bin/sh\n").unwrap();
        let path = file.path().to_str().unwrap();
        assert!(refuse_accounts(path, 65536).is_err());
        assert!(refuse_accounts(path, 131_072).is_ok());
    }

    #[test]
    fn uid_0_of_a_namespace_is_not_host_root_if_the_namespace_says_so() {
        assert!(maps_to_root(&parse_map("0 0 4294967295")));
        assert!(!maps_to_root(&parse_map("0 65534 1")));
    }
}
