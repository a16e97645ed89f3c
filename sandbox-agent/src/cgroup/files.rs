//! The files of a cgroup.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use super::CgroupError;

pub(super) fn write(folder: &Path, file: &str, value: &str) -> Result<(), CgroupError> {
    let path = folder.join(file);
    let written = fs::OpenOptions::new().write(true).open(&path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|error| CgroupError::system(&path, &error))
}

pub(super) fn read(folder: &Path, file: &str) -> Result<String, CgroupError> {
    let path = folder.join(file);
    fs::read_to_string(&path).map_err(|error| CgroupError::system(&path, &error))
}

/// The number that a file holds.
pub(super) fn number(folder: &Path, file: &str) -> Option<u64> {
    fs::read_to_string(folder.join(file)).ok()?.trim().parse().ok()
}

/// The number after `key` in a file of lines "key number".
pub(super) fn keyed(folder: &Path, file: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(folder.join(file)).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.trim().parse().ok())
}

pub(super) fn make(folder: &Path) -> Result<(), CgroupError> {
    fs::create_dir(folder).map_err(|error| CgroupError::system(folder, &error))
}

pub(super) fn remove(folder: &Path) -> Result<(), CgroupError> {
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(CgroupError::system(folder, &error)),
        _ => Ok(()),
    }
}

pub(super) fn is_writable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}
