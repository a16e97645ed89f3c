//! Storage that several sandboxes share: folders below one folder of this machine, which the settings name.

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2},
    io::Errno,
};
use sandbox_agent::{Bind, BindOwner};
use sandbox_core::{Result, SandboxError, SandboxSpec, from_json, serde_json::Value};
use serde::{Deserialize, Serialize};

use crate::{
    config::LocalConfig,
    error::{NAME, os},
    isolated::plan::{access, plain},
};

/// The options of a spec that only this provider knows.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Options {
    /// Where a part of the shared storage is seen → which one.
    shared_volumes: BTreeMap<String, SharedVolume>,
}

/// A part of the shared storage.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SharedVolume {
    /// A folder below the shared one, made when it is absent; none: the whole.
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    read_only: bool,
}

impl Options {
    pub(super) fn read(spec: &SandboxSpec) -> Result<Self> {
        from_json(Value::Object(spec.provider_options.clone()), "provider_options")
    }

    pub(super) fn is_empty(&self) -> bool {
        self.shared_volumes.is_empty()
    }

    /// What is to be mounted. Makes folders that are absent.
    pub(super) fn binds(&self, config: &LocalConfig, user: (u32, u32)) -> Result<Vec<Bind>> {
        let bind = |(target, volume): (&String, &SharedVolume)| -> Result<Bind> {
            let root = root(config)?;
            let (uid, gid) = user;
            let (source, owner) = match &volume.source {
                None => (root, BindOwner::Mapped { uid, gid }),
                Some(source) => (make(&root, &parts(source)?)?, BindOwner::Given { uid, gid }),
            };
            Ok(Bind { source, target: plain(target), access: access(volume.read_only), owner })
        };
        self.shared_volumes.iter().map(bind).collect()
    }
}

/// The options that mount a part of the shared storage, checked.
pub(crate) fn check(config: &LocalConfig, source: Option<String>, target: String, read_only: bool) -> Result<Value> {
    root(config)?;
    if let Some(source) = &source {
        parts(source)?;
    }
    if !target.starts_with('/') || target.contains('\0') {
        return Err(SandboxError::invalid_input("target", "must be an absolute path"));
    }
    let options = Options { shared_volumes: BTreeMap::from([(target, SharedVolume { source, read_only })]) };
    sandbox_core::serde_json::to_value(options).map_err(|error| SandboxError::internal(error.to_string()))
}

fn root(config: &LocalConfig) -> Result<PathBuf> {
    config.shared_root.clone().ok_or_else(|| {
        SandboxError::unsupported_field(NAME, "shared_root", "no shared storage is configured")
            .with_help("set shared_root to a folder of this machine")
    })
}

/// The folders of a source. One that could lead out is refused.
fn parts(source: &str) -> Result<Vec<&str>> {
    let parts = Path::new(source).components().map(|component| match component {
        Component::Normal(name) => name.to_str().filter(|name| !name.contains('\0')),
        _ => None,
    });
    match parts.collect::<Option<Vec<_>>>() {
        Some(parts) if !parts.is_empty() => Ok(parts),
        _ => Err(SandboxError::invalid_input(
            "source",
            format!("{} must be a folder below the shared one: names with / between", source.escape_debug()),
        )),
    }
}

/// Makes a folder below another one, never through a link, and gives its path.
fn make(root: &Path, parts: &[&str]) -> Result<PathBuf> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut path = root.to_owned();
    let mut folder: OwnedFd = openat2(CWD, root, flags, Mode::empty(), resolve)
        .map_err(|errno| os(root.display(), errno).with_field("shared_root"))?;
    for part in parts {
        path.push(part);
        let failed = |errno| os(path.display(), errno).with_field("source");
        match mkdirat(&folder, *part, Mode::from_raw_mode(0o755)) {
            Err(Errno::EXIST) | Ok(()) => {}
            Err(errno) => return Err(failed(errno)),
        }
        folder = openat2(&folder, *part, flags, Mode::empty(), resolve | ResolveFlags::BENEATH).map_err(failed)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use sandbox_core::{ErrorKind, serde_json::json};

    use super::{check, make, parts};
    use crate::config::LocalConfig;

    #[test]
    fn a_source_never_leads_out_of_the_shared_folder() {
        for bad in ["", "/", "/etc", "..", "a/../..", "./a", "a\0b"] {
            assert!(parts(bad).is_err(), "{bad:?}");
        }
        let temp = tempfile::tempdir().unwrap();
        let root = temp.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("shared")).unwrap();
        symlink("/etc", root.join("shared/link")).unwrap();
        symlink(root.join("shared"), root.join("by-link")).unwrap();
        assert!(make(&root.join("shared"), &["link"]).is_err());
        assert!(make(&root.join("shared"), &["link", "new"]).is_err());
        assert!(make(&root.join("by-link"), &["a"]).is_err());
        assert!(make(&root.join("shared"), &["a", "b"]).unwrap().is_dir());
    }

    #[test]
    fn options_are_those_that_a_spec_takes() {
        let mut config = LocalConfig::default();
        let refused = check(&config, None, "/data".to_owned(), false).unwrap_err();
        assert_eq!((refused.kind(), refused.field()), (ErrorKind::Unsupported, Some("shared_root")));
        config.shared_root = Some("/srv".into());
        let options = check(&config, Some("claim".to_owned()), "/data".to_owned(), true).unwrap();
        assert_eq!(options, json!({ "shared_volumes": { "/data": { "source": "claim", "read_only": true } } }));
        let refused = check(&config, Some("../x".to_owned()), "/data".to_owned(), true).unwrap_err();
        assert_eq!((refused.kind(), refused.field()), (ErrorKind::InvalidInput, Some("source")));
    }
}
