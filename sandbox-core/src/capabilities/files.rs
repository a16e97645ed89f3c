use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{ByteString, Result, SandboxHandle};

/// File operations by bytes, and directory transfer.
///
/// Paths are absolute, or relative to the sandbox's workdir. Links inside the sandbox are followed there, as a program
/// inside would; nothing of the host can be reached through them.
#[crate::async_trait]
pub trait Files: Send + Sync {
    /// Reads a file or a part of it.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidInput` (a folder).
    async fn read_file(&self, handle: &SandboxHandle, path: ByteString, range: ReadRange) -> Result<Bytes>;

    /// Writes a whole file; parent folders are made. The old file stays as it was if this fails.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `InvalidInput` (a folder), `Exhausted` (no space).
    async fn write_file(
        &self,
        handle: &SandboxHandle,
        path: ByteString,
        data: Bytes,
        options: WriteOptions,
    ) -> Result<()>;

    /// The entries of a folder, sorted by name, without `.` and `..`.
    ///
    /// # Errors
    /// `NotFound` (also when it is not a folder), `PermissionDenied`.
    async fn list_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<Vec<DirEntry>>;

    /// What a path is. A link is described itself, not what it points to.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`.
    async fn stat(&self, handle: &SandboxHandle, path: ByteString) -> Result<FileStat>;

    /// Removes a file, a link, or (with `recursive`) a folder and everything in it.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `AlreadyExists` (a folder that is not empty).
    async fn remove(&self, handle: &SandboxHandle, path: ByteString, recursive: bool) -> Result<()>;

    /// Makes a folder and its parents. One that is there already is fine.
    ///
    /// # Errors
    /// `AlreadyExists` (something else is there), `PermissionDenied`.
    async fn make_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<()>;

    /// Copies the contents of a folder of this host into a folder of the sandbox, which is made if absent. Links are
    /// copied as links, never followed; special files are refused.
    ///
    /// # Errors
    /// As `upload_file`.
    async fn upload_dir(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()>;

    /// Copies the contents of a folder of the sandbox into a folder of this host, which is made if absent. Nothing is
    /// written outside of it: links that lead out, absolute ones among them, and special files are refused.
    ///
    /// # Errors
    /// As `download_file`.
    async fn download_dir(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()>;
}

/// Which part of a file to read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReadRange {
    /// From this byte on.
    pub offset: u64,
    /// At most so many bytes; none: to the end.
    pub length: Option<u64>,
}

/// How to write a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WriteOptions {
    /// Permission bits, such as 0o644. Default: those of the old file, else 0o644.
    pub mode: Option<u32>,
    /// Owner, in the forms of a user. Default: the sandbox's user.
    pub owner: Option<String>,
}

/// What kind of file something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A folder.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or pipe.
    #[serde(other)]
    Other,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// Its kind.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change, in milliseconds since the Unix epoch.
    pub modified_ms: i64,
    /// Where a link points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_target: Option<ByteString>,
}

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Its name, without the folder.
    pub name: ByteString,
    /// What it is.
    pub stat: FileStat,
}
