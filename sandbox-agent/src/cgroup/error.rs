//! What goes wrong with cgroups.

use std::path::{Path, PathBuf};

use super::Limit;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CgroupErrorKind {
    /// This host does not let this process do it: do without, or refuse the request.
    Refused,
    /// The name is taken.
    Exists,
    /// The cgroup has been removed.
    Gone,
    /// Processes have not ended or stopped in time.
    Busy,
    /// A file could not be read or written.
    System,
}

/// An error of a cgroup.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}{message}{}",
    .limit.map(|limit| format!("the {limit} limit cannot be honoured: ")).unwrap_or_default(),
    .path.as_deref().map(|path| format!(": {}", path.display())).unwrap_or_default())]
pub struct CgroupError {
    kind: CgroupErrorKind,
    limit: Option<Limit>,
    message: String,
    path: Option<PathBuf>,
    errno: Option<i32>,
}

impl CgroupError {
    pub(super) fn refused(limit: Option<Limit>, reason: impl Into<String>) -> CgroupError {
        CgroupError { kind: CgroupErrorKind::Refused, limit, message: reason.into(), path: None, errno: None }
    }

    pub(super) fn busy(path: &Path, message: &str) -> CgroupError {
        let (message, path) = (message.to_owned(), Some(path.to_path_buf()));
        CgroupError { kind: CgroupErrorKind::Busy, limit: None, message, path, errno: None }
    }

    pub(super) fn gone(path: &Path) -> CgroupError {
        let message = "the cgroup has been removed".to_owned();
        CgroupError { kind: CgroupErrorKind::Gone, limit: None, message, path: Some(path.to_path_buf()), errno: None }
    }

    pub(super) fn system(path: &Path, error: &std::io::Error) -> CgroupError {
        let kind = match error.kind() {
            std::io::ErrorKind::AlreadyExists => CgroupErrorKind::Exists,
            std::io::ErrorKind::ResourceBusy => CgroupErrorKind::Busy,
            _ => CgroupErrorKind::System,
        };
        let (message, path) = (error.to_string(), Some(path.to_path_buf()));
        CgroupError { kind, limit: None, message, path, errno: error.raw_os_error() }
    }

    /// What can be done about it.
    pub fn kind(&self) -> CgroupErrorKind {
        self.kind
    }

    /// The limit that cannot be honoured.
    pub fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// The file or folder.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The errno of the failed system call.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }
}
