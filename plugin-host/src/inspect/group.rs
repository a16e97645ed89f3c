//! Whether a group is one user's alone. Many systems give each user a group of its own and let it write (umask 002).

use std::fs;

/// True if the group is the primary and private one of the user, after `/etc/passwd` and `/etc/group`.
///
/// A user or group that is not in these files counts as shared: what cannot be seen cannot be trusted.
pub(crate) fn is_private(uid: u32, gid: u32) -> bool {
    let (Ok(passwd), Ok(group)) = (fs::read_to_string("/etc/passwd"), fs::read_to_string("/etc/group")) else {
        return false;
    };
    is_private_in(uid, gid, &passwd, &group)
}

fn is_private_in(uid: u32, gid: u32, passwd: &str, group: &str) -> bool {
    // name:password:uid:gid:…
    let users: Vec<(&str, Option<u32>, Option<u32>)> = passwd
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            Some((*fields.first()?, fields.get(2)?.parse().ok(), fields.get(3)?.parse().ok()))
        })
        .collect();
    let Some((user, _, Some(primary))) = users.iter().find(|(_, id, _)| *id == Some(uid)) else {
        return false;
    };
    // Another name of the same uid is the same user.
    let shared = users.iter().any(|(_, id, primary)| *primary == Some(gid) && *id != Some(uid));
    // name:password:gid:member,member
    let lines: Vec<Vec<&str>> = group
        .lines()
        .map(|line| line.split(':').collect())
        .filter(|fields: &Vec<&str>| fields.get(2).and_then(|id| id.parse().ok()) == Some(gid))
        .collect();
    let named_after_user = lines.first().and_then(|fields| fields.first()) == Some(user);
    let others = lines
        .iter()
        .filter_map(|fields| fields.get(3))
        .flat_map(|members| members.split(','))
        .any(|member| !member.trim().is_empty() && member.trim() != *user);
    *primary == gid && named_after_user && !shared && !others
}

#[cfg(test)]
mod tests {
    use super::is_private_in;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n\
                          bob:x:1001:100::/home/bob:/bin/sh\ncarol:x:1002:100::/home/carol:/bin/sh\nbroken\n";
    const GROUP: &str = "root:x:0:\nusers:x:100:\nalice:x:1000:\nstaff:x:50:alice,bob\n";

    #[test]
    fn a_group_of_ones_own_is_private() {
        assert!(is_private_in(1000, 1000, PASSWD, GROUP));
        assert!(is_private_in(1000, 1000, PASSWD, "alice:x:1000:alice\n"));
        assert!(is_private_in(0, 0, PASSWD, GROUP));
    }

    #[test]
    fn a_group_with_another_member_name_or_user_is_not_private() {
        assert!(!is_private_in(1000, 50, PASSWD, GROUP), "not the primary group");
        assert!(!is_private_in(1001, 100, PASSWD, GROUP), "two users have it as their primary group");
        assert!(!is_private_in(1000, 1000, PASSWD, "alice:x:1000:bob\n"), "bob is a member");
        assert!(!is_private_in(1000, 1000, PASSWD, "family:x:1000:\n"), "named after something else");
        assert!(!is_private_in(1000, 1000, PASSWD, "users:x:100:\n"), "not in the file");
        assert!(!is_private_in(4242, 4242, PASSWD, GROUP), "an unknown user");
    }
}
