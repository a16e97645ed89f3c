//! What a sandbox sees beside its system.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A file or folder of the host that the sandbox sees. Always nosuid and nodev.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// Absolute, without links; a folder or a regular file.
    pub source: PathBuf,
    /// Absolute; not `/`, nor in `/proc`, `/sys` or `/dev`.
    pub target: PathBuf,
    /// Default: read-only.
    #[serde(default)]
    pub access: Access,
    /// As root: whose its files are inside. Default: theirs who own them, as the host counts.
    #[serde(default)]
    pub owner: BindOwner,
}

/// What may be done with a bind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Reading and executing.
    #[default]
    ReadOnly,
    /// Everything.
    ReadWrite,
}

/// Whose the files of a bind are inside, if the launcher is root. Without privileges everything is the caller's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BindOwner {
    /// Those whose ids the files have on the host: nobody, unless they are the sandbox's own ids.
    #[default]
    Unchanged,
    /// What belongs to the owner of the source on the host is this user's inside, and the other way round; what belongs
    /// to others is nobody's. What is mounted below the source is not seen. Never of the host's root: a source of root
    /// can only be read, by the rights that everybody has.
    Mapped {
        /// Inside.
        uid: u32,
        /// Inside.
        gid: u32,
    },
    /// A source that still is root's is given to this user, itself and not what is in it. For folders that were made for
    /// sandboxes.
    Given {
        /// Inside.
        uid: u32,
        /// Inside.
        gid: u32,
    },
}

/// A folder in memory, writable by everybody inside, nosuid and nodev.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryFolder {
    /// Absolute; not `/`, nor in `/proc`, `/sys` or `/dev`.
    pub target: PathBuf,
    /// Its size, 1..=1048576. Counts against the memory limit, if there is one.
    pub mib: u32,
    /// Default: everything, unlike that of a bind.
    #[serde(default = "read_write")]
    pub access: Access,
}

fn read_write() -> Access {
    Access::ReadWrite
}
