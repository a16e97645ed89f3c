//! A file system of EFS.

use sandbox_core::{Result, SandboxError};
use serde::Deserialize;

/// A file system of EFS, which must have a mount target in every subnet. What goes to it is always encrypted.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct EfsConfig {
    /// Its id, `fs-` and hexadecimal digits.
    pub file_system_id: String,
    /// An access point, `fsap-` and hexadecimal digits: it decides over folder and user. Default: none.
    #[serde(default)]
    pub access_point_id: Option<String>,
    /// The folder that counts as its root, absolute, at most 4096 characters. It must be there. Default `/`, and nothing
    /// else with an access point.
    #[serde(default = "root")]
    pub root_directory: String,
    /// Whether the file system asks for the rights of `task_role_arn`, which the sandboxed code has, too. Default false.
    #[serde(default)]
    pub iam: bool,
    /// The port of the encrypted way, 1 to 65535. Default: what the mount helper chooses.
    #[serde(default)]
    pub transit_encryption_port: Option<u16>,
}

fn root() -> String {
    "/".to_owned()
}

impl EfsConfig {
    /// The longest root directory, in characters.
    pub(crate) const ROOT_MAX: usize = 4096;

    /// # Errors
    /// `InvalidInput`, naming the key below `field`.
    pub(super) fn check(&self, field: &str) -> Result<()> {
        let invalid = |key: &str, why: &str| Err(SandboxError::invalid_input(format!("{field}.{key}"), why));
        let is_id = |text: &str, prefix: &str| {
            let digits = text.strip_prefix(prefix).unwrap_or_default();
            !digits.is_empty() && digits.len() <= 40 && digits.chars().all(|c| c.is_ascii_hexdigit())
        };
        if !is_id(&self.file_system_id, "fs-") {
            return invalid("file_system_id", "must be fs- and hexadecimal digits");
        }
        if self.access_point_id.as_deref().is_some_and(|id| !is_id(id, "fsap-")) {
            return invalid("access_point_id", "must be fsap- and hexadecimal digits");
        }
        let root = &self.root_directory;
        let is_path = root.starts_with('/') && !root.split('/').any(|name| name == "..") && !root.contains('\0');
        if !is_path || root.len() > Self::ROOT_MAX {
            return invalid("root_directory", "must be an absolute path without \"..\", at most 4096 characters");
        }
        if self.access_point_id.is_some() && root != "/" {
            return invalid("root_directory", "must be left out with an access point, which has its own");
        }
        match self.transit_encryption_port {
            Some(0) => invalid("transit_encryption_port", "must be 1 to 65535"),
            _ => Ok(()),
        }
    }
}
