//! What a spec mounts beside the system: files of this machine, memory, named volumes, shared storage.

mod named;
mod shared;

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use sandbox_agent::{Bind, BindOwner, LaunchConfig, LaunchError, MemoryFolder};
use sandbox_core::{Result, SandboxError, SandboxSpec, VolumeSource};
use sandbox_process::User;

use crate::records::Records;
use crate::{
    config::LocalConfig,
    isolated::{
        image::Image,
        plan::{access, plain},
    },
    workspace::Root,
};

use named::HeldVolume;
pub(crate) use named::{Volumes, check_name};
pub(crate) use shared::check as check_shared;

/// The size of a folder in memory when a spec names none, in MiB.
const MEMORY_DEFAULT_MIB: u64 = 512;

/// The most that is read of a system's files that name users.
const USER_FILES_MAX: u64 = 16 << 20;

/// The users of a sandbox that runs on this machine's system folders.
const PASSWD: &[u8] =
    b"root:x:0:0::/root:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\nnobody:x:65534:65534::/:\n";
const GROUP: &[u8] = b"root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n";

/// The mounts of one sandbox.
#[derive(Default)]
pub(crate) struct Mounts {
    binds: Vec<Bind>,
    memory: Vec<MemoryFolder>,
    /// Kept until the sandbox's record names them.
    held: Vec<HeldVolume>,
}

impl Mounts {
    /// Finds everything that the spec mounts, and makes nothing but folders of shared storage.
    pub(crate) fn find(
        config: &LocalConfig,
        root: &Root,
        records: &Records,
        spec: &SandboxSpec,
        image: Option<&Image>,
    ) -> Result<Self> {
        let mut mounts = Self::default();
        let options = shared::Options::read(spec)?;
        if spec.volumes.is_empty() && options.is_empty() {
            return Ok(mounts);
        }
        let (uid, gid) = default_user(spec, image)?;
        let mut seen: Vec<PathBuf> = Vec::new();
        for (index, volume) in spec.volumes.iter().enumerate() {
            let field = |name: &str| format!("volumes[{index}].{name}");
            let target = plain(&volume.target);
            if seen.contains(&target) {
                let why = format!("{} is used twice", volume.target);
                return Err(SandboxError::invalid_input(field("target"), why));
            }
            seen.push(target.clone());
            let access = access(volume.read_only);
            let bind = |source, owner| Bind { source, target: target.clone(), access, owner };
            match &volume.source {
                VolumeSource::Bind(source) => {
                    mounts.binds.push(bind(plain(source), BindOwner::Mapped { uid, gid }));
                }
                VolumeSource::Named(name) => {
                    let held =
                        Volumes::new(root, records).hold(name).map_err(|error| error.with_field(field("source")))?;
                    mounts.binds.push(bind(held.data()?, BindOwner::Given { uid, gid }));
                    mounts.held.push(held);
                }
                VolumeSource::Tmpfs(mib) => {
                    let mib = u32::try_from(mib.unwrap_or(MEMORY_DEFAULT_MIB)).unwrap_or(u32::MAX);
                    mounts.memory.push(MemoryFolder { target: target.clone(), mib, access });
                }
                _ => {
                    let why = "only files of this machine, memory and named volumes can be mounted";
                    return Err(SandboxError::unsupported_field(crate::error::NAME, field("source"), why));
                }
            }
        }
        mounts.binds.extend(options.binds(config, (uid, gid))?);
        Ok(mounts)
    }

    /// The named volumes among them, for the record.
    pub(crate) fn names(&self) -> Vec<String> {
        self.held.iter().map(|held| held.name().to_owned()).collect()
    }

    pub(crate) fn apply(&self, launch: &mut LaunchConfig) {
        launch.binds.extend(self.binds.iter().cloned());
        launch.memory.extend(self.memory.iter().cloned());
        // Made by the sandbox's root, which as root is nobody in a folder that is not its own.
        if let Some(workdir) = &mut launch.workdir {
            let targets =
                self.binds.iter().map(|bind| &bind.target).chain(self.memory.iter().map(|memory| &memory.target));
            workdir.chown = targets.into_iter().any(|target| target.starts_with(&workdir.target));
        }
    }
}

/// Says which volume a launch has failed for.
pub(crate) fn blame(error: SandboxError, cause: Option<&Path>, spec: &SandboxSpec) -> SandboxError {
    let is_of = |volume: &sandbox_core::VolumeMount| match &volume.source {
        VolumeSource::Bind(source) => cause == Some(&plain(source)) || cause == Some(&plain(&volume.target)),
        _ => cause == Some(&plain(&volume.target)),
    };
    match spec.volumes.iter().position(is_of) {
        Some(index) => error.with_field(format!("volumes[{index}]")),
        None => error,
    }
}

/// The path that a failed launch was about.
pub(crate) fn cause(error: &LaunchError) -> Option<PathBuf> {
    error.path().map(Path::to_owned)
}

/// The ids of the spec's default user, as they are inside.
fn default_user(spec: &SandboxSpec, image: Option<&Image>) -> Result<(u32, u32)> {
    let Some(user) = &spec.user else { return Ok(if image.is_some() { (0, 0) } else { (1000, 1000) }) };
    let (passwd, group) = match image {
        None => (PASSWD.to_vec(), GROUP.to_vec()),
        Some(image) => (read_inside(&image.lower, "etc/passwd")?, read_inside(&image.lower, "etc/group")?),
    };
    let found = User::resolve(user.as_bytes(), &passwd, &group)
        .map_err(|error| SandboxError::invalid_input("user", error.to_string()))?;
    Ok((found.uid, found.gid))
}

/// A file of a system; links count as they would inside. Empty when there is none.
fn read_inside(lower: &Path, name: &str) -> Result<Vec<u8>> {
    let shown = format!("{}/{name}", lower.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = openat(CWD, lower, flags, Mode::empty()).and_then(|folder| {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        openat2(folder, name, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)
    });
    let Ok(file) = opened else { return Ok(Vec::new()) };
    let file = std::fs::File::from(file);
    let mut text = Vec::new();
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        file.take(USER_FILES_MAX).read_to_end(&mut text).map_err(|error| SandboxError::io(shown, error))?;
    }
    Ok(text)
}
