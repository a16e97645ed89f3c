//! Mounts of a service in their short and long forms.

use std::path::{Component, Path, PathBuf};

use serde::Serialize;

use super::{
    node::Node,
    shape::flag,
    values::{bytes, mebibytes},
};

/// Where a mount comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MountSource {
    /// A file or folder of this machine, absolute.
    Bind {
        /// The path.
        path: PathBuf,
    },
    /// A volume of the document, by its key there.
    Volume {
        /// The key.
        name: String,
    },
    /// A volume of this service alone, that goes with it.
    Anonymous,
    /// Memory.
    Tmpfs {
        /// The largest size in MiB.
        size_mib: Option<u64>,
        /// Permission bits of its root.
        mode: Option<u32>,
    },
}

/// One mount of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ComposeMount {
    /// Where it comes from.
    pub source: MountSource,
    /// Where it is seen, an absolute path.
    pub target: String,
    /// Whether it can only be read.
    pub read_only: bool,
    /// Whether an empty volume is filled with what the image has at the target.
    pub copy_up: bool,
    /// A part of the volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subpath: Option<String>,
}

/// What is odd about a mount, beside what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Oddity {
    /// An option that has no effect here.
    NoEffect(&'static str),
    /// Something that is not supported.
    Unsupported(&'static str),
}

/// The target of an entry, for merging.
pub(crate) fn target(node: &Node) -> Option<String> {
    let target = match node.as_text() {
        Some(text) => split(text).1.to_owned(),
        None => node.get("target").and_then(Node::as_text)?.to_owned(),
    };
    Some(clean(&target))
}

/// Reads an entry. `base` is what relative paths are relative to, `home` what `~` stands for.
pub(crate) fn read(node: &Node, base: &Path, home: Option<&str>) -> Result<(ComposeMount, Vec<Oddity>), String> {
    let (mount, oddities) = match node.as_text() {
        Some(text) => short(text, base, home)?,
        None => long(node, base, home)?,
    };
    if !mount.target.starts_with('/') {
        return Err("the target must be an absolute path inside the service".to_owned());
    }
    if mount.target == "/" {
        return Err("the target must not be the root of the service".to_owned());
    }
    Ok((mount, oddities))
}

/// Source, target and options of a short form.
fn split(text: &str) -> (Option<&str>, &str, Option<&str>) {
    let mut parts = text.splitn(3, ':');
    let first = parts.next().unwrap_or_default();
    match (parts.next(), parts.next()) {
        (None, _) => (None, first, None),
        (Some(target), options) => (Some(first), target, options),
    }
}

fn short(text: &str, base: &Path, home: Option<&str>) -> Result<(ComposeMount, Vec<Oddity>), String> {
    let (source, target, options) = split(text);
    if target.is_empty() || source.is_some_and(str::is_empty) {
        return Err("must be [SOURCE:]TARGET[:OPTIONS]".to_owned());
    }
    let source = match source {
        None => MountSource::Anonymous,
        Some(source) if source.starts_with(['.', '/', '~']) => MountSource::Bind { path: resolve(source, base, home)? },
        Some(source) => MountSource::Volume { name: source.to_owned() },
    };
    let mut mount = ComposeMount { source, target: clean(target), read_only: false, copy_up: true, subpath: None };
    let mut oddities = Vec::new();
    for option in options.into_iter().flat_map(|options| options.split(',')) {
        match option {
            "ro" => mount.read_only = true,
            "rw" | "" => {}
            "nocopy" => mount.copy_up = false,
            "z" | "Z" => oddities.push(Oddity::NoEffect("labels of SELinux are left as they are")),
            "cached" | "delegated" | "consistent" | "default" => {
                oddities.push(Oddity::NoEffect("consistency modes have no effect on Linux"));
            }
            "rprivate" | "private" => {}
            "shared" | "rshared" | "slave" | "rslave" => {
                oddities.push(Oddity::Unsupported("mounts that propagate between host and service"));
            }
            other => return Err(format!("option {other:?} is none of ro, rw, nocopy, z, Z")),
        }
    }
    Ok((mount, oddities))
}

fn long(node: &Node, base: &Path, home: Option<&str>) -> Result<(ComposeMount, Vec<Oddity>), String> {
    let text = |key: &str| node.get(key).and_then(Node::as_text);
    let inner = |section: &str, key: &str| node.get(section).and_then(|node| node.get(key)).and_then(Node::as_text);
    let mut oddities = Vec::new();
    let source = match (text("type").unwrap_or_default(), text("source")) {
        ("bind", Some(source)) => MountSource::Bind { path: resolve(source, base, home)? },
        ("bind", None) => return Err("a bind mount needs a source".to_owned()),
        ("volume", None | Some("")) => MountSource::Anonymous,
        ("volume", Some(source)) => MountSource::Volume { name: source.to_owned() },
        ("tmpfs", None) => {
            let size_mib = inner("tmpfs", "size").map(|size| bytes(size).map(mebibytes)).transpose()?;
            MountSource::Tmpfs {
                size_mib: size_mib.filter(|size| *size > 0),
                mode: tmpfs_mode(inner("tmpfs", "mode"))?,
            }
        }
        ("tmpfs", Some(_)) => return Err("a tmpfs mount has no source".to_owned()),
        (kind, _) => {
            let why = match kind {
                "image" => "mounts of images",
                "npipe" => "named pipes of Windows",
                _ => "volumes of a cluster",
            };
            oddities.push(Oddity::Unsupported(why));
            MountSource::Anonymous
        }
    };
    if matches!(inner("bind", "propagation"), Some("shared" | "rshared" | "slave" | "rslave")) {
        oddities.push(Oddity::Unsupported("mounts that propagate between host and service"));
    }
    if inner("bind", "selinux").is_some() {
        oddities.push(Oddity::NoEffect("labels of SELinux are left as they are"));
    }
    if text("consistency").is_some() {
        oddities.push(Oddity::NoEffect("consistency modes have no effect on Linux"));
    }
    let is_set = |text: Option<&str>| text.and_then(flag).unwrap_or(false);
    let mount = ComposeMount {
        source,
        target: clean(text("target").ok_or("target is missing")?),
        read_only: is_set(text("read_only")),
        copy_up: !is_set(inner("volume", "nocopy")),
        subpath: inner("volume", "subpath").map(str::to_owned),
    };
    Ok((mount, oddities))
}

/// Reads an entry of `tmpfs`: `PATH[:size=64m,mode=1777,…]`.
pub(crate) fn read_tmpfs(text: &str) -> Result<ComposeMount, String> {
    let (target, options) = text.split_once(':').unwrap_or((text, ""));
    let (mut size_mib, mut mode, mut read_only) = (None, None, false);
    for option in options.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            Some(("size", size)) => size_mib = Some(mebibytes(bytes(size)?)).filter(|size| *size > 0),
            Some(("mode", bits)) => mode = tmpfs_mode(Some(bits))?,
            None if option == "ro" => read_only = true,
            Some(("uid" | "gid" | "nr_inodes", _)) => return Err(format!("option {option:?} is not supported")),
            // What every memory file system has anyway, or may have without harm.
            _ if matches!(option, "rw" | "noexec" | "exec" | "nosuid" | "nodev" | "noatime") => {}
            _ => return Err(format!("option {option:?} is none of size, mode, ro, rw")),
        }
    }
    if !target.starts_with('/') || target == "/" {
        return Err("must be an absolute path inside the service".to_owned());
    }
    let source = MountSource::Tmpfs { size_mib, mode };
    Ok(ComposeMount { source, target: clean(target), read_only, copy_up: false, subpath: None })
}

fn tmpfs_mode(text: Option<&str>) -> Result<Option<u32>, String> {
    let Some(text) = text else { return Ok(None) };
    let digits = text.strip_prefix("0o").unwrap_or(text);
    match u32::from_str_radix(digits, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(Some(mode)),
        _ => Err("mode must be octal permission bits such as 1777".to_owned()),
    }
}

/// An absolute path without `.` and `..`, as the text says it: links are looked at when something is started.
pub(crate) fn resolve(path: &str, base: &Path, home: Option<&str>) -> Result<PathBuf, String> {
    let path = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            let home = home.ok_or("~ cannot be followed: HOME is not set")?;
            PathBuf::from(format!("{home}{rest}"))
        }
        _ => base.join(path),
    };
    Ok(lexical(&path))
}

/// The path without `.` and `..`.
pub(crate) fn lexical(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

/// A path inside a service without doubled and closing slashes.
fn clean(target: &str) -> String {
    if !target.starts_with('/') {
        return target.to_owned();
    }
    lexical(Path::new(target)).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{ComposeMount, MountSource, read, read_tmpfs};
    use crate::compose::{load::node::Node, report::Place};

    fn mount(text: &str) -> Result<ComposeMount, String> {
        read(&Node::text(text, Place::default()), Path::new("/p"), Some("/home/u")).map(|(mount, _)| mount)
    }

    #[test]
    fn short_forms_of_mounts() {
        let bind = |path: &str| MountSource::Bind { path: PathBuf::from(path) };
        let cases = [
            ("/data", MountSource::Anonymous, "/data", false),
            ("db:/var/lib//x/", MountSource::Volume { name: "db".into() }, "/var/lib/x", false),
            ("./a:/b:ro", bind("/p/a"), "/b", true),
            (".:/b", bind("/p"), "/b", false),
            ("../a:/b:rw", bind("/a"), "/b", false),
            ("/a/./b:/c:ro,z", bind("/a/b"), "/c", true),
            ("~/x:/c", bind("/home/u/x"), "/c", false),
        ];
        for (text, source, target, read_only) in cases {
            let mount = mount(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((mount.source, mount.target.as_str(), mount.read_only), (source, target, read_only), "{text}");
        }
        assert!(!mount("v:/x:nocopy").unwrap().copy_up);
        for bad in ["", ":", "a:", ":/b", "v:relative", "v:/x:what", "v:/", "relative"] {
            assert!(mount(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn h12_tmpfs_has_size_and_mode() {
        let mount = read_tmpfs("/run:size=64m,mode=1777").unwrap();
        assert_eq!(mount.source, MountSource::Tmpfs { size_mib: Some(64), mode: Some(0o1777) });
        assert_eq!(read_tmpfs("/run").unwrap().source, MountSource::Tmpfs { size_mib: None, mode: None });
        for bad in ["run", "/run:size=x", "/run:mode=9", "/run:what", "/"] {
            assert!(read_tmpfs(bad).is_err(), "{bad}");
        }
    }
}
