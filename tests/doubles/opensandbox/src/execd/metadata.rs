//! What the daemon says of a file, and who owns it.

use std::{
    collections::HashMap,
    fs::Metadata,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use serde_json::{Value, json};

use super::command::rfc3339;

/// Names of a passwd or group file, by number.
fn names(file: &str) -> HashMap<u32, String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut parts = line.split(':');
            let name = parts.next()?.to_owned();
            Some((parts.nth(1)?.parse().ok()?, name))
        })
        .collect()
}

fn number(file: &str, name: &str) -> Option<u32> {
    names(file).into_iter().find_map(|(number, other)| (other == name).then_some(number))
}

pub(super) fn file_info(path: &str, found: &Metadata) -> Value {
    let kind = match found.file_type() {
        kind if kind.is_file() => "file",
        kind if kind.is_dir() => "directory",
        kind if kind.is_symlink() => "symlink",
        _ => "other",
    };
    let name = |file: &str, id: u32| names(file).remove(&id).unwrap_or_else(|| id.to_string());
    let mode: u32 = format!("{:o}", found.permissions().mode() & 0o7777).parse().unwrap_or_default();
    let modified = rfc3339(u64::try_from(found.mtime()).unwrap_or_default() * 1000);
    json!({ "path": path, "type": kind, "size": found.len(), "modified_at": modified, "created_at": modified,
            "owner": name("/etc/passwd", found.uid()), "group": name("/etc/group", found.gid()), "mode": mode })
}

/// Sets mode and owner. As in the real one, names that are not known are only logged there, and the file is the
/// daemon's own then.
pub(super) fn apply(path: &Path, wanted: &Value) -> std::io::Result<()> {
    if let Some(mode) = wanted["mode"].as_u64().filter(|mode| *mode != 0) {
        // Decimal digits that are meant as octal ones.
        if let Ok(mode) = u32::from_str_radix(&mode.to_string(), 8) {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        }
    }
    let uid = wanted["owner"].as_str().and_then(|name| number("/etc/passwd", name));
    let gid = wanted["group"].as_str().and_then(|name| number("/etc/group", name));
    match (uid, gid) {
        (None, None) => {
            let own = std::fs::metadata("/proc/self")?;
            std::os::unix::fs::chown(path, Some(own.uid()), Some(own.gid()))
        }
        (uid, gid) => std::os::unix::fs::chown(path, uid, gid),
    }
}

/// A path with `~` and variables in their place, as the real daemon reads it.
pub(super) fn expand(path: &str) -> Result<String, String> {
    let home = || std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    let mut text = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{}{rest}", home()),
        _ => path.to_owned(),
    };
    while let Some(at) = text.find('$') {
        let rest = &text[at + 1..];
        let (name, after) = match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((name, after)) => (name, after),
            None => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                rest.split_at(end)
            }
        };
        let value = std::env::var(name).map_err(|_| format!("undefined environment variable in the path: {name}"))?;
        text = format!("{}{}{}", &text[..at], value.replace('$', ""), after);
    }
    Ok(text)
}
