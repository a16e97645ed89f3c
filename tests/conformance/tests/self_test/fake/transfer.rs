use std::{
    io::Read,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use sandbox_core::{ByteString, Result, SandboxError};

use super::{
    launch::ids,
    path::resolve,
    world::{FakeBox, World},
};
use crate::fault::Fault;

fn io<T>(end: std::io::Result<T>, what: &str) -> Result<T> {
    end.map_err(|error| SandboxError::io(what, error))
}

/// A name beside the target that nothing else has.
fn beside(target: &Path) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    target.with_file_name(format!(".part-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// Makes the parents of a file, for the sandbox's user.
pub(super) fn make_parents(sandbox: &FakeBox, file: &Path) -> Result<()> {
    let missing: Vec<_> = file.ancestors().skip(1).take_while(|folder| !folder.exists()).collect();
    for folder in missing.into_iter().rev() {
        let made = std::fs::create_dir(folder);
        if !folder.is_dir() {
            io(made, "a parent folder")?;
        }
        give(sandbox, folder);
    }
    Ok(())
}

pub(super) fn give(sandbox: &FakeBox, path: &Path) {
    if let Some((uid, gid)) = sandbox.spec.user.as_deref().and_then(ids) {
        let _ = chown(path, Some(uid), Some(gid));
    }
}

/// Writes a file beside its place and moves it there.
pub(super) fn place(sandbox: &FakeBox, bytes: &[u8], mode: Option<u32>, target: &Path) -> Result<()> {
    if target.is_dir() {
        return Err(SandboxError::invalid_input("remote", "is a folder"));
    }
    make_parents(sandbox, target)?;
    let part = beside(target);
    let all = || {
        std::fs::write(&part, bytes)?;
        if let Some(mode) = mode {
            std::fs::set_permissions(&part, std::fs::Permissions::from_mode(mode))?;
        }
        give(sandbox, &part);
        std::fs::rename(&part, target)
    };
    let end = all();
    let _ = std::fs::remove_file(&part);
    io(end, "the target")
}

pub(super) fn upload(world: &World, sandbox: &FakeBox, local: &Path, remote: &ByteString) -> Result<()> {
    let mut target = resolve(world, sandbox, remote)?;
    if world.has(Fault::MissingLocalFileIsEmpty) && !local.exists() {
        return place(sandbox, b"", None, &target);
    }
    let mode = io(local.metadata(), "the local file")?.permissions().mode() & 0o7777;
    let mut bytes = io(std::fs::read(local), "the local file")?;
    if world.has(Fault::UploadCutAt18K) && bytes.len() > 18_000 {
        bytes.truncate(18_000);
    }
    if world.has(Fault::UploadIntoFolder) && target.is_dir() {
        target = target.join(local.file_name().unwrap_or_default());
    }
    if world.has(Fault::UploadWithoutParents) && !target.parent().is_some_and(Path::exists) {
        return Err(SandboxError::not_found("the parent folder"));
    }
    if world.has(Fault::SecretInError) && target.is_dir() {
        return Err(SandboxError::invalid_input("remote", format!("cannot hold {}", String::from_utf8_lossy(&bytes))));
    }
    if world.has(Fault::SecretInLog) {
        sandbox_core::tracing::debug!(data = %String::from_utf8_lossy(&bytes), "upload");
    }
    if world.has(Fault::UploadOverwritesInPlace) && target.is_file() {
        let old = io(std::fs::read(&target), "the target")?;
        bytes.extend_from_slice(&old[bytes.len().min(old.len())..]);
    }
    place(sandbox, &bytes, (!world.has(Fault::ModeLost)).then_some(mode), &target)
}

pub(super) fn download(world: &World, sandbox: &FakeBox, remote: &ByteString, local: &Path) -> Result<()> {
    let source = resolve(world, sandbox, remote)?;
    if world.has(Fault::DownloadLeavesHalf) {
        let _ = std::fs::write(local, b"");
    }
    if world.has(Fault::LinkMadeOnHost) && source.is_symlink() {
        return io(std::os::unix::fs::symlink(io(source.read_link(), "the link")?, local), "the local link");
    }
    let found = io(source.metadata(), "the remote file")?;
    if found.is_dir() && world.has(Fault::DownloadOfFolderIsEmptyFile) {
        return io(std::fs::write(local, b""), "the local file");
    }
    if !found.is_file() {
        return Err(SandboxError::invalid_input("remote", "is not a regular file"));
    }
    if !world.has(Fault::DownloadWithoutParents)
        && let Some(parent) = local.parent()
    {
        io(std::fs::create_dir_all(parent), "the local folder")?;
    }
    let mut bytes = Vec::new();
    let file = io(std::fs::File::open(&source), "the remote file")?;
    io(file.take(64 * 1024 * 1024).read_to_end(&mut bytes), "the remote file")?;
    if world.has(Fault::LocalLinkFollowed) {
        return io(std::fs::write(local, bytes), "the local file");
    }
    let part = beside(local);
    let all = || {
        std::fs::write(&part, bytes)?;
        std::fs::set_permissions(&part, found.permissions())?;
        if world.has(Fault::TemporaryFileLeft) {
            std::fs::copy(&part, beside(local))?;
        }
        std::fs::rename(&part, local)
    };
    let end = all();
    let _ = std::fs::remove_file(&part);
    io(end, "the local file")
}
