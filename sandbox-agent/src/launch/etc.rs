//! `/etc`: made up, but for a few files that hold no secret and without which programs do not run.

use std::fmt::Write;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::ids::Plan;
use super::mounts::{self, NODEV, NOEXEC, NOSUID, READ_ONLY};
use super::network::DEFAULT_HOSTNAME;
use crate::config::{Basis, LaunchConfig, Network, Root};
use crate::error::{Context, LaunchError, Stage};

/// Shown read-only. Folders only if whatever an administrator puts into them is meant for everybody: never
/// `/etc/ssl` or `/etc/pki`, which hold private keys too.
pub(super) const SHOWN: [&str; 15] = [
    "/etc/alternatives",
    "/etc/crypto-policies",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/os-release",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/services",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
];
const NSSWITCH: &str = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\n\
                        protocols: files\nservices: files\nethers: files\nrpc: files\n";
const NOBODY: u32 = 65534;
const HOSTNAME: &str = "/etc/hostname";
const HOSTS: &str = "/etc/hosts";

enum Shown {
    Link(PathBuf),
    Mount { mount: OwnedFd, is_folder: bool },
}

/// What `/etc` takes from the host.
pub(super) struct Etc {
    shown: Vec<(&'static str, Shown)>,
    resolver: Option<Vec<u8>>,
}

impl Etc {
    /// Collects it while the host's `/etc` is in view.
    pub(super) fn collect(basis: &Basis) -> Result<Etc, LaunchError> {
        let mut shown = Vec::new();
        let paths = if basis.is_system { SHOWN.as_slice() } else { &[] };
        for path in paths {
            match std::fs::symlink_metadata(path) {
                Ok(metadata) if metadata.is_symlink() => {
                    let target = std::fs::read_link(path).stage_at(Stage::Source, "reading", path)?;
                    shown.push((*path, Shown::Link(target)));
                }
                Ok(metadata) => {
                    let mount = mounts::clone(path, READ_ONLY | NOSUID | NODEV | NOEXEC);
                    let mount = mount.stage_at(Stage::Source, "mounting", path)?;
                    shown.push((*path, Shown::Mount { mount, is_folder: metadata.is_dir() }));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).stage_at(Stage::Source, "looking at", path),
            }
        }
        // Often a link to a file that a resolver rewrites: its content of now.
        let resolver = if basis.network == Network::Host { std::fs::read("/etc/resolv.conf").ok() } else { None };
        Ok(Etc { shown, resolver })
    }

    /// Fills the new root's `/etc` with what does not depend on one sandbox; of a given root folder hardly anything.
    pub(super) fn fill(&self, basis: &Basis, plan: &Plan) -> Result<(), LaunchError> {
        let etc = "/etc";
        mounts::make_folders(Path::new(etc)).stage_at(Stage::Root, "making", etc)?;
        if let Some(resolver) = &self.resolver {
            put("/etc/resolv.conf", resolver)?;
        }
        if !basis.is_system {
            return Ok(());
        }
        put("/etc/nsswitch.conf", NSSWITCH.as_bytes())?;
        put("/etc/passwd", passwd(basis, plan).as_bytes())?;
        put("/etc/group", group(basis, plan).as_bytes())?;
        std::os::unix::fs::symlink("/proc/self/mounts", "/etc/mtab").stage_at(Stage::Root, "linking", "/etc/mtab")?;
        for (path, shown) in &self.shown {
            match shown {
                Shown::Link(target) => {
                    Path::new(path).parent().map_or(Ok(()), mounts::make_folders).stage_at(
                        Stage::Root,
                        "making",
                        path,
                    )?;
                    std::os::unix::fs::symlink(target, path).stage_at(Stage::Root, "linking", path)?;
                }
                Shown::Mount { mount, is_folder } => {
                    let attached = mounts::attach_making(mount, Path::new(path), *is_folder);
                    attached.stage_at(Stage::Root, "mounting", path)?;
                }
            }
        }
        Ok(())
    }
}

/// Puts the names into the new root's `/etc` that are this sandbox's; `is_sealed`: it has placeholders for them.
pub(super) fn put_names(config: &LaunchConfig, is_sealed: bool) -> Result<(), LaunchError> {
    let name = config.hostname.as_deref().unwrap_or(DEFAULT_HOSTNAME);
    let line = format!("{name}\n");
    if !is_sealed {
        put(HOSTNAME, line.as_bytes())?;
    } else if name != DEFAULT_HOSTNAME {
        show(HOSTNAME, line.as_bytes(), true)?;
    }
    let hosts = hosts(config, name);
    // It changes when networks do, so on a root that cannot be written to it is a mount of its own.
    if config.root == Root::System { show(HOSTS, hosts.as_bytes(), is_sealed) } else { put(HOSTS, hosts.as_bytes()) }
}

/// Makes what names are mounted over that are one sandbox's.
pub(super) fn put_placeholders() -> Result<(), LaunchError> {
    put(HOSTNAME, format!("{DEFAULT_HOSTNAME}\n").as_bytes())?;
    put(HOSTS, b"")
}

/// Writes a file in place of whatever is there: a given root may have a link that leads nowhere.
fn put(path: &str, content: &[u8]) -> Result<(), LaunchError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).stage_at(Stage::Root, "replacing", path),
        _ => put_new(path, content),
    }
}

fn put_new(path: &str, content: &[u8]) -> Result<(), LaunchError> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    file.and_then(|mut file| std::io::Write::write_all(&mut file, content)).stage_at(Stage::Root, "writing", path)
}

/// Mounts a file in memory that has no other name, over one that is there if the root is sealed.
fn show(path: &str, content: &[u8], is_sealed: bool) -> Result<(), LaunchError> {
    let elsewhere = "/run/.shown";
    put_new(elsewhere, content)?;
    if !is_sealed {
        mounts::make_target(Path::new(path), false).stage_at(Stage::Root, "making", path)?;
    }
    mounts::show(elsewhere, path, NOSUID | NODEV | NOEXEC).stage_at(Stage::Root, "mounting", path)?;
    std::fs::remove_file(elsewhere).stage_at(Stage::Root, "removing", elsewhere)
}

fn hosts(config: &LaunchConfig, name: &str) -> String {
    let mut text = format!("127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n127.0.1.1 {name}\n");
    for entry in &config.hosts {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {}", entry.address, entry.names.join(" "));
    }
    text
}

/// The one id that is mapped without privileges, or the configured user's.
fn user_ids(basis: &Basis, plan: &Plan) -> (u32, u32) {
    if plan.map.count == 1 { (plan.map.inside_uid, plan.map.inside_gid) } else { (basis.user.uid, basis.user.gid) }
}

fn passwd(basis: &Basis, plan: &Plan) -> String {
    let (uid, gid) = user_ids(basis, plan);
    let (name, shell) = (&basis.user.name, if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" });
    let mut text = format!("root:x:0:0:root:/root:{shell}\n{name}:x:{uid}:{gid}::/home/{name}:{shell}\n");
    text.push_str("nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n");
    text
}

fn group(basis: &Basis, plan: &Plan) -> String {
    let (_, gid) = user_ids(basis, plan);
    format!("root:x:0:\ntty:x:5:\n{}:x:{gid}:\nnogroup:x:{NOBODY}:\n", basis.user.name)
}
