//! What is said of a file, and who owns it.

use std::{
    collections::HashMap,
    fs::Metadata,
    io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    time::{Duration, UNIX_EPOCH},
};

use serde::Deserialize;
use serde_json::{Value, json};

/// Mode and owner as a request names them.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Permissions {
    owner: String,
    group: String,
    /// Decimal digits that are meant as octal ones; 0: as it is.
    mode: u32,
}

/// Names of users and groups, read once for each request.
pub(super) struct Names {
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

/// Names of a passwd or group file, by number. The first of a number counts.
fn read(file: &str) -> HashMap<u32, String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let mut names = HashMap::new();
    for line in text.lines() {
        let mut parts = line.split(':');
        let (Some(name), Some(number)) = (parts.next(), parts.nth(1).and_then(|number| number.parse().ok())) else {
            continue;
        };
        names.entry(number).or_insert_with(|| name.to_owned());
    }
    names
}

/// The number of a name, which may be a number itself.
fn number(names: &HashMap<u32, String>, name: &str) -> Option<u32> {
    let named = names.iter().find_map(|(number, other)| (other == name).then_some(*number));
    named.or_else(|| name.parse().ok())
}

impl Names {
    pub(super) fn read() -> Self {
        Self { users: read("/etc/passwd"), groups: read("/etc/group") }
    }

    pub(super) fn describe(&self, path: &str, found: &Metadata) -> Value {
        let kind = match found.file_type() {
            kind if kind.is_file() => "file",
            kind if kind.is_dir() => "directory",
            kind if kind.is_symlink() => "symlink",
            _ => "other",
        };
        let name = |names: &HashMap<u32, String>, id: u32| names.get(&id).cloned().unwrap_or_else(|| id.to_string());
        // Octal digits, read as decimal ones.
        let mode: u32 = format!("{:o}", found.permissions().mode() & 0o7777).parse().unwrap_or_default();
        let modified = UNIX_EPOCH + Duration::from_secs(u64::try_from(found.mtime()).unwrap_or_default());
        let time = |time| humantime::format_rfc3339_millis(time).to_string();
        let created = found.created().unwrap_or(modified);
        json!({ "path": path, "type": kind, "size": found.len(), "modified_at": time(modified),
                "created_at": time(created), "owner": name(&self.users, found.uid()),
                "group": name(&self.groups, found.gid()), "mode": mode })
    }

    /// Whose a file is to be: names that are not known count as none, as with execd; without any it is the daemon's own.
    pub(super) fn owner(&self, wanted: &Permissions) -> (Option<u32>, Option<u32>) {
        let find = |names: &HashMap<u32, String>, name: &str| (!name.is_empty()).then(|| number(names, name)).flatten();
        match (find(&self.users, &wanted.owner), find(&self.groups, &wanted.group)) {
            (None, None) => (Some(rustix::process::getuid().as_raw()), Some(rustix::process::getgid().as_raw())),
            owner => owner,
        }
    }

    /// Gives an existing file its mode and owner.
    pub(super) fn apply(&self, path: &Path, wanted: &Permissions) -> io::Result<()> {
        let (uid, gid) = self.owner(wanted);
        chown(path, uid, gid)?;
        // After the owner: a change of owner clears bits.
        match wanted.mode()? {
            Some(mode) => std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)),
            None => Ok(()),
        }
    }
}

impl Permissions {
    /// The permission bits; none: as they are.
    pub(super) fn mode(&self) -> io::Result<Option<u32>> {
        if self.mode == 0 {
            return Ok(None);
        }
        let mode = u32::from_str_radix(&self.mode.to_string(), 8).ok().filter(|mode| *mode <= 0o7777);
        mode.map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "mode must be octal digits, such as 755"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Names, Permissions};

    #[test]
    fn a_mode_is_octal_digits() {
        let mode = |mode| Permissions { mode, ..Permissions::default() }.mode().ok();
        assert_eq!(mode(755), Some(Some(0o755)));
        assert_eq!(mode(0), Some(None));
        assert_eq!(mode(8), None);
        assert_eq!(mode(77777), None);
    }

    #[test]
    fn an_owner_is_a_name_or_a_number_and_an_unknown_one_is_none() {
        let names = Names { users: [(0, "root".to_owned())].into(), groups: [(5, "five".to_owned())].into() };
        let wanted = |owner: &str, group: &str| Permissions { owner: owner.into(), group: group.into(), mode: 0 };
        assert_eq!(names.owner(&wanted("root", "five")), (Some(0), Some(5)));
        assert_eq!(names.owner(&wanted("77", "nobody")), (Some(77), None));
        let own = (Some(rustix::process::getuid().as_raw()), Some(rustix::process::getgid().as_raw()));
        assert_eq!(names.owner(&wanted("nobody", "")), own);
    }
}
