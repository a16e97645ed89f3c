//! A sandbox of the double: namespaces of its own for mounts and processes, with the daemon as the first process.
//!
//! The network is this machine's. It needs root, as the mounts do.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::process::{Child, Command};

use crate::{execd::wait_for_port, program::execd_program};

const SYSTEM_FOLDERS: [&str; 6] = ["usr", "bin", "sbin", "lib", "lib64", "lib32"];

const SETUP: &str = r#"set -e
root=$1; shift
while [ "$1" != -- ]; do
    if [ "$3" = ro ]; then mount --bind -- "$1" "$root$2"; mount -o remount,bind,ro -- "$root$2"
    else mount --bind -- "$1" "$root$2"; fi
    shift 3
done
shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
exec chroot "$root" /usr/bin/env -i "$@"
"#;

/// What is mounted into a container beside the system's folders.
#[derive(Clone, Debug)]
pub(crate) struct Mount {
    pub(crate) source: PathBuf,
    pub(crate) target: String,
    pub(crate) read_only: bool,
}

/// A running container. Dropping it kills it; `end` also removes its files.
#[derive(Debug)]
pub struct Container {
    root: Option<tempfile::TempDir>,
    child: Child,
    /// Where the daemon listens, on this machine's loopback.
    pub port: u16,
}

impl Container {
    /// Starts a container with this environment.
    pub(crate) async fn start(env: &[(String, String)], mounts: &[Mount], from: Option<&Path>) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("opensandbox-double-").tempdir()?;
        let root = folder.path().to_path_buf();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
        let mut all = prepare(&root)?;
        if let Some(from) = from {
            let copied = Command::new("cp").arg("-a").arg(from.join(".")).arg(&root).status().await?;
            if !copied.success() {
                return Err(io::Error::other("the snapshot could not be copied"));
            }
        }
        for mount in mounts {
            let target = root.join(mount.target.trim_start_matches('/'));
            if mount.source.is_dir() {
                fs::create_dir_all(&target)?;
            } else {
                fs::create_dir_all(target.parent().unwrap_or(&root))?;
                fs::write(&target, "")?;
            }
            all.push(mount.clone());
        }
        let program = root.join("opt/opensandbox/execd");
        if !program.exists() {
            fs::copy(execd_program(), &program)?;
        }
        let _ = fs::remove_file(root.join("run/execd.port"));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--", "sh", "-c", SETUP, "sh"]).arg(&root);
        for mount in &all {
            command.arg(&mount.source).arg(&mount.target).arg(if mount.read_only { "ro" } else { "rw" });
        }
        command.arg("--");
        command.args(env.iter().map(|(name, value)| format!("{name}={value}")));
        command.args(["/opt/opensandbox/execd", "--listen", "127.0.0.1:0", "--port-file", "/run/execd.port"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let port = wait_for_port(&root.join("run/execd.port"), &mut child).await?;
        Ok(Self { root: Some(folder), child, port })
    }

    /// Where its files are.
    pub(crate) fn root(&self) -> &Path {
        self.root.as_ref().map_or(Path::new("/nowhere"), tempfile::TempDir::path)
    }

    /// Stops or continues every process in it.
    pub(crate) fn freeze(&self, stop: bool) {
        let signal = if stop { "-STOP" } else { "-CONT" };
        let Some(space) = self.child.id().and_then(first_inside) else { return };
        let mut pids: Vec<u32> = all_pids().filter(|pid| space_of(*pid) == Some(space)).collect();
        pids.sort_unstable();
        let words: Vec<String> = pids.iter().map(u32::to_string).collect();
        let _ = std::process::Command::new("kill").arg(signal).args(words).stderr(Stdio::null()).status();
    }

    /// Kills it and removes its files.
    pub(crate) async fn end(mut self) {
        let _ = self.child.start_kill();
        let _ = self.child.wait().await;
        if let Some(folder) = self.root.take() {
            // The namespaces go a moment after their first process.
            let path = folder.keep();
            for _ in 0..50 {
                match fs::remove_dir_all(&path) {
                    Ok(()) => return,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        }
    }
}

fn space_of(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid")).ok().map(|data| data.ino())
}

fn all_pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// The namespace of the processes below `unshare`.
fn first_inside(pid: u32) -> Option<u64> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    space_of(children.split_whitespace().next()?.parse().ok()?)
}

/// Makes the folders and files of a small system, and gives what is to be mounted into it.
fn prepare(root: &Path) -> io::Result<Vec<Mount>> {
    let mut mounts = Vec::new();
    for name in SYSTEM_FOLDERS {
        let (host, inside) = (Path::new("/").join(name), root.join(name));
        match fs::symlink_metadata(&host) {
            Ok(data) if data.is_symlink() => std::os::unix::fs::symlink(fs::read_link(&host)?, inside)?,
            Ok(data) if data.is_dir() => {
                fs::create_dir(&inside)?;
                mounts.push(Mount { source: host, target: format!("/{name}"), read_only: true });
            }
            _ => {}
        }
    }
    for name in ["proc", "dev", "etc", "run", "root", "home", "var/tmp", "opt/opensandbox"] {
        fs::create_dir_all(root.join(name))?;
    }
    fs::create_dir(root.join("tmp"))?;
    for name in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o1777))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nworker:x:1500:1500:w:/home/worker:/bin/sh\n")?;
    fs::write(root.join("etc/group"), "root:x:0:\nworker:x:1500:\n")?;
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    for name in ["etc/ld.so.cache", "etc/alternatives", "etc/nsswitch.conf"] {
        let host = Path::new("/").join(name);
        if host.is_file() {
            fs::copy(&host, root.join(name))?;
        } else if host.is_dir() {
            fs::create_dir(root.join(name))?;
            mounts.push(Mount { source: host, target: format!("/{name}"), read_only: true });
        }
    }
    Ok(mounts)
}
