use std::{
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    sync::atomic::Ordering,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{
    BackgroundServices, ByteString, Capability, Connect, DirEntry, Endpoint, ExecRequest, ExecStream, FileKind,
    FileStat, Files, Metrics, PauseResume, ReadRange, Renew, Result, SandboxEndpoint, SandboxError, SandboxHandle,
    SandboxMetrics, SandboxProvider, WriteOptions,
    bytes::Bytes,
    serde_json::{Value, json},
};

use super::{directory::copy, path::resolve, processes, provider::Fake, transfer::place, world::NAME};
use crate::fault::Fault;

fn io<T>(end: std::io::Result<T>, what: &str) -> Result<T> {
    end.map_err(|error| SandboxError::io(what, error))
}

#[sandbox_core::async_trait]
impl Renew for Fake {
    async fn renew(&self, handle: &SandboxHandle, ttl_s: f64) -> Result<u64> {
        let ttl = Duration::from_secs_f64(ttl_s);
        if !self.has(Fault::RenewIgnored) && !self.has(Fault::RenewOfGoneAccepted) {
            self.world.find(handle)?.expiry.send_replace(Some(Instant::now() + ttl));
        }
        Ok((SystemTime::now() + ttl).duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64)
    }
}

#[sandbox_core::async_trait]
impl PauseResume for Fake {
    async fn pause(&self, handle: &SandboxHandle) -> Result<()> {
        let sandbox = self.world.find(handle)?;
        sandbox.is_paused.store(true, Ordering::SeqCst);
        processes::with(processes::SANDBOX, &sandbox.id).into_iter().for_each(|pid| processes::kill(pid, 19));
        Ok(())
    }

    async fn resume(&self, handle: &SandboxHandle) -> Result<SandboxHandle> {
        let sandbox =
            self.world.get(&handle.sandbox_id).ok_or_else(|| SandboxError::not_found("the sandbox is gone"))?;
        if !sandbox.is_paused.swap(false, Ordering::SeqCst) {
            return Err(SandboxError::invalid_state("the sandbox is not paused"));
        }
        processes::with(processes::SANDBOX, &sandbox.id).into_iter().for_each(|pid| processes::kill(pid, 18));
        Ok(handle.clone())
    }
}

#[sandbox_core::async_trait]
impl Connect for Fake {
    async fn serialize_handle(&self, handle: &SandboxHandle, _scope: Option<String>) -> Result<Value> {
        let sandbox = self.world.find(handle)?;
        Ok(match self.has(Fault::SecretInDescriptor) {
            true => json!({"fake": sandbox.id, "env": sandbox.spec.env}),
            false => json!({"fake": sandbox.id}),
        })
    }

    async fn connect(&self, descriptor: Value) -> Result<SandboxHandle> {
        let id = match descriptor["fake"].as_str() {
            Some(id) => id.to_owned(),
            None if self.has(Fault::AnyDescriptorTaken) => String::new(),
            None => return Err(SandboxError::invalid_input("descriptor", "is not one of this provider")),
        };
        let other = self.world.boxes.lock().unwrap().keys().find(|other| **other != id).cloned();
        let id = other.filter(|_| self.has(Fault::ConnectFindsAnother)).unwrap_or(id);
        let handle = Self::handle(&id);
        if !self.has(Fault::AnyDescriptorTaken) {
            self.world.find(&handle)?;
        }
        Ok(handle)
    }
}

#[sandbox_core::async_trait]
impl Endpoint for Fake {
    async fn endpoint(&self, handle: &SandboxHandle, port: u16) -> Result<SandboxEndpoint> {
        if !self.world.find(handle)?.spec.ports.contains(&port) && !self.has(Fault::EveryPortHasEndpoint) {
            return Err(SandboxError::invalid_input("port", "was not declared"));
        }
        SandboxEndpoint::new(format!("http://127.0.0.1:{port}"), Default::default())
    }
}

#[sandbox_core::async_trait]
impl Metrics for Fake {
    async fn metrics(&self, handle: &SandboxHandle) -> Result<SandboxMetrics> {
        if !self.has(Fault::MetricsOfTheGone) {
            self.world.find(handle)?;
        }
        let processes = processes::with(processes::SANDBOX, &handle.sandbox_id).len() as u64;
        Ok(SandboxMetrics { processes: Some(processes), ..Default::default() })
    }
}

#[sandbox_core::async_trait]
impl BackgroundServices for Fake {
    async fn exec_with_background_services(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        self.exec(handle, request).await
    }
}

impl Fake {
    fn stat_of(&self, path: &Path) -> Result<FileStat> {
        let follows = self.has(Fault::StatFollowsLinks) && path.exists();
        let found = io(if follows { path.metadata() } else { path.symlink_metadata() }, "the path")?;
        Ok(FileStat {
            kind: match found.file_type() {
                kind if kind.is_file() => FileKind::File,
                kind if kind.is_dir() => FileKind::Directory,
                kind if kind.is_symlink() => FileKind::Symlink,
                _ => FileKind::Other,
            },
            size: found.size(),
            mode: found.mode() & 0o7777,
            uid: found.uid(),
            gid: found.gid(),
            modified_ms: found.mtime() * 1000,
            link_target: path.read_link().ok().map(ByteString::from),
        })
    }

    fn place_of(&self, handle: &SandboxHandle, path: &ByteString) -> Result<std::path::PathBuf> {
        if self.has(Fault::FilesUnsupported) {
            return Err(SandboxError::unsupported(NAME, Capability::Files));
        }
        resolve(&self.world, &*self.world.find(handle)?, path)
    }
}

#[sandbox_core::async_trait]
impl Files for Fake {
    async fn read_file(&self, handle: &SandboxHandle, path: ByteString, range: ReadRange) -> Result<Bytes> {
        let bytes = io(std::fs::read(self.place_of(handle, &path)?), "the file")?;
        if self.has(Fault::RangeIgnored) {
            return Ok(bytes.into());
        }
        let start = bytes.len().min(range.offset as usize);
        let end = range.length.map_or(bytes.len(), |length| bytes.len().min(start + length as usize));
        Ok(Bytes::copy_from_slice(&bytes[start..end]))
    }

    async fn write_file(
        &self,
        handle: &SandboxHandle,
        path: ByteString,
        data: Bytes,
        options: WriteOptions,
    ) -> Result<()> {
        let path = self.place_of(handle, &path)?;
        let old = path.metadata().ok().map(|old| old.permissions().mode() & 0o7777);
        let asked = options.mode.filter(|_| !self.has(Fault::WriteModeIgnored));
        place(&*self.world.find(handle)?, &data, asked.or(old).or(Some(0o644)), &path)
    }

    async fn list_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<Vec<DirEntry>> {
        let folder = self.place_of(handle, &path)?;
        let mut entries = Vec::new();
        for entry in io(std::fs::read_dir(&folder), "the folder")? {
            let name = io(entry, "the folder")?.file_name();
            entries.push(DirEntry { stat: self.stat_of(&folder.join(&name))?, name: name.into() });
        }
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        if self.has(Fault::ListUnsorted) {
            entries.reverse();
        }
        Ok(entries)
    }

    async fn stat(&self, handle: &SandboxHandle, path: ByteString) -> Result<FileStat> {
        self.stat_of(&self.place_of(handle, &path)?)
    }

    async fn remove(&self, handle: &SandboxHandle, path: ByteString, recursive: bool) -> Result<()> {
        let mut path = self.place_of(handle, &path)?;
        if self.has(Fault::RemoveFollowsLinks) {
            path = io(path.canonicalize(), "the path")?;
        }
        let is_folder = io(path.symlink_metadata(), "the path")?.is_dir();
        let end = match (is_folder, recursive || self.has(Fault::RemoveAlwaysRecursive)) {
            (false, _) => std::fs::remove_file(path),
            (true, false) => std::fs::remove_dir(path),
            (true, true) => std::fs::remove_dir_all(path),
        };
        io(end, "the path")
    }

    async fn make_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<()> {
        let path = self.place_of(handle, &path)?;
        if path.is_file() && self.has(Fault::MakeDirReplaces) {
            io(std::fs::remove_file(&path), "the file")?;
        }
        if path.exists() && !path.is_dir() {
            return Err(SandboxError::already_exists("something else is there"));
        }
        io(std::fs::create_dir_all(path), "the folder")
    }

    async fn upload_dir(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        let mut target = self.place_of(handle, remote)?;
        if self.has(Fault::UploadDirNests) && target.is_dir() {
            target = target.join(local.file_name().unwrap_or_default());
        }
        copy(&self.world, local, &target, false)
    }

    async fn download_dir(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        copy(&self.world, &self.place_of(handle, remote)?, local, true)
    }
}
