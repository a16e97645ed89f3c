//! Users by name or number, from the bytes of a passwd and a group file: no NSS, no plugins, no network.

use std::fmt;

/// Whom a command runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The primary group's number.
    pub gid: u32,
    /// The supplementary groups, ascending, without doubles; the primary group is one of them only if listed.
    pub groups: Vec<u32>,
    /// The home directory; `/` for a number without an entry.
    pub home: Vec<u8>,
    /// The login shell, `None` for a number without an entry or an empty field.
    pub shell: Option<Vec<u8>>,
    /// The name, `None` for a number without an entry.
    pub name: Option<Vec<u8>>,
}

/// Why a user could not be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UserErrorKind {
    /// The passwd file has no such name.
    UnknownUser,
    /// The group file has no such name.
    UnknownGroup,
    /// Not `name`, `uid`, `name:group` or `uid:gid`, or a number out of range.
    Malformed,
}

/// A user that does not exist here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserError {
    kind: UserErrorKind,
}

impl UserError {
    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> UserErrorKind {
        self.kind
    }
}

impl fmt::Display for UserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            UserErrorKind::UnknownUser => "no such user",
            UserErrorKind::UnknownGroup => "no such group",
            UserErrorKind::Malformed => "user must be name, uid, name:group or uid:gid",
        })
    }
}

impl std::error::Error for UserError {}

struct Entry<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
    home: &'a [u8],
    shell: &'a [u8],
}

impl User {
    /// Resolves `name`, `uid`, `name:group`, `uid:gid` and the mixed forms.
    ///
    /// - A name is looked up; a number is taken as it is, and its entry, if there is one, gives the rest.
    /// - All digits is always a number, also where a user has such a name.
    /// - Without a group: the entry's primary group and every group that lists the name; a number without an
    ///   entry gets the group of the same number (never group 0 by default).
    /// - With a group: that group alone, no supplementary ones.
    /// - Lines that are not well formed are skipped.
    ///
    /// # Errors
    /// [`UserErrorKind`]; never another user instead.
    pub fn resolve(spec: &[u8], passwd: &[u8], group: &[u8]) -> Result<User, UserError> {
        let fail = |kind| Err(UserError { kind });
        let (user, wanted_group) = match spec.iter().position(|&byte| byte == b':') {
            Some(at) => (&spec[..at], Some(&spec[at + 1..])),
            None => (spec, None),
        };
        if user.is_empty() || wanted_group.is_some_and(|group| group.is_empty() || group.contains(&b':')) {
            return fail(UserErrorKind::Malformed);
        }
        let mut resolved = match find_user(user, passwd)? {
            Some(entry) => User {
                uid: entry.uid,
                gid: entry.gid,
                groups: groups_of(entry.name, group),
                home: if entry.home.is_empty() { b"/".to_vec() } else { entry.home.to_vec() },
                shell: Some(entry.shell.to_vec()).filter(|shell| !shell.is_empty()),
                name: Some(entry.name.to_vec()),
            },
            None => match number(user)? {
                Some(uid) => User { uid, gid: uid, groups: Vec::new(), home: b"/".to_vec(), shell: None, name: None },
                None => return fail(UserErrorKind::UnknownUser),
            },
        };
        if let Some(wanted) = wanted_group {
            resolved.gid = match number(wanted)? {
                Some(gid) => gid,
                None => match group_lines(group).find(|(name, _, _)| *name == wanted) {
                    Some((_, gid, _)) => gid,
                    None => return fail(UserErrorKind::UnknownGroup),
                },
            };
            resolved.groups.clear();
        }
        Ok(resolved)
    }
}

fn find_user<'a>(user: &[u8], passwd: &'a [u8]) -> Result<Option<Entry<'a>>, UserError> {
    let wanted = number(user)?;
    Ok(passwd_lines(passwd).find(|entry| match wanted {
        Some(uid) => entry.uid == uid,
        None => entry.name == user,
    }))
}

/// `Ok(None)` for a name. All digits is a number, and one that does not fit (or is -1, "no change") an error.
fn number(text: &[u8]) -> Result<Option<u32>, UserError> {
    if !text.iter().all(u8::is_ascii_digit) {
        return Ok(None);
    }
    match parse(text) {
        Some(value) if value != u32::MAX => Ok(Some(value)),
        _ => Err(UserError { kind: UserErrorKind::Malformed }),
    }
}

fn parse(text: &[u8]) -> Option<u32> {
    if !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn passwd_lines(passwd: &[u8]) -> impl Iterator<Item = Entry<'_>> {
    passwd.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let uid = parse(fields.nth(1)?)?;
        let gid = parse(fields.next()?)?;
        let home = fields.nth(1).unwrap_or_default();
        let shell = fields.next().unwrap_or_default();
        Some(Entry { name, uid, gid, home, shell })
    })
}

fn group_lines(group: &[u8]) -> impl Iterator<Item = (&[u8], u32, &[u8])> {
    group.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        let gid = parse(fields.nth(1)?)?;
        Some((name, gid, fields.next().unwrap_or_default()))
    })
}

fn groups_of(name: &[u8], group: &[u8]) -> Vec<u32> {
    let mut groups: Vec<u32> = group_lines(group)
        .filter(|(_, _, members)| members.split(|&byte| byte == b',').any(|member| member == name))
        .map(|(_, gid, _)| gid)
        .collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::{User, UserErrorKind};

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/bash\nbad line\n:x:7:7::/:/x\nann:x:1000:1001:Ann,,,:/home/ann:/bin/sh\n\
        nohome:x:1002:1002:::\nbig:x:99999999999:1::/:/x\nneg:x:-1:-1::/:/x\n77:x:1003:1003::/srv:\n\xff\xfe:x:1004:1004::/h\xff:/bin/sh";
    const GROUP: &[u8] =
        b"root:x:0:\nann:x:1001:\nwheel:x:10:root,ann\nvideo:x:44:annex,ann\ndup:x:44:ann\nbroken\nother:x:55:annex\n";

    fn resolve(spec: &[u8]) -> Result<(u32, u32, Vec<u32>, Vec<u8>), UserErrorKind> {
        User::resolve(spec, PASSWD, GROUP)
            .map(|user| (user.uid, user.gid, user.groups, user.home))
            .map_err(|error| error.kind())
    }

    #[test]
    fn every_form_resolves_to_exactly_one_identity() {
        assert_eq!(resolve(b"root"), Ok((0, 0, vec![10], b"/root".to_vec())));
        assert_eq!(resolve(b"ann"), Ok((1000, 1001, vec![10, 44], b"/home/ann".to_vec())));
        assert_eq!(resolve(b"1000"), Ok((1000, 1001, vec![10, 44], b"/home/ann".to_vec())));
        assert_eq!(resolve(b"ann:video"), Ok((1000, 44, vec![], b"/home/ann".to_vec())));
        assert_eq!(resolve(b"ann:77"), Ok((1000, 77, vec![], b"/home/ann".to_vec())));
        assert_eq!(resolve(b"12345"), Ok((12345, 12345, vec![], b"/".to_vec())));
        assert_eq!(resolve(b"12345:678"), Ok((12345, 678, vec![], b"/".to_vec())));
        assert_eq!(resolve(b"nohome"), Ok((1002, 1002, vec![], b"/".to_vec())));
        assert_eq!(resolve(b"\xff\xfe"), Ok((1004, 1004, vec![], b"/h\xff".to_vec())));
    }

    #[test]
    fn an_unknown_or_malformed_user_is_never_someone_else() {
        use UserErrorKind::{Malformed, UnknownGroup, UnknownUser};
        for (spec, kind) in [
            (&b"nosuch"[..], UnknownUser),
            (b"bad line", UnknownUser),
            (b"big", UnknownUser),
            (b"neg", UnknownUser),
            (b"-1", UnknownUser),
            (b"roo", UnknownUser),
            (b"root\n", UnknownUser),
            (b"root:nosuch", UnknownGroup),
            (b"root:broken", UnknownGroup),
            (b"", Malformed),
            (b":", Malformed),
            (b"root:", Malformed),
            (b":root", Malformed),
            (b"a:b:c", Malformed),
            (b"root:b:c", Malformed),
            (b"4294967295", Malformed),
            (b"99999999999", Malformed),
            (b"0:4294967295", Malformed),
        ] {
            assert_eq!(resolve(spec), Err(kind), "{}", spec.escape_ascii());
        }
    }
}
