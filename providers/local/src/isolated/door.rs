//! The socket by which an agent is reached: a file in a private folder that no sandbox sees.

use std::{
    fs::DirBuilder,
    io::{self, ErrorKind},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, FileTypeExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with},
    process::geteuid,
};
use sandbox_core::{Result, SandboxError};

use crate::{
    record::{Record, is_id},
    records::{Records, file_names},
    workspace::check_private,
};

/// Of a sandbox that outlives its program: in its folder.
const SOCKET: &str = "agent.sock";
/// Of another one: behind its id.
const SUFFIX: &str = ".sock";
/// In the folder for what lives as long as the machine is up, which is in memory.
const FOLDER: &str = "sandbox-local";

/// A socket that is being made listens in no time.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// Connections that the agent has not taken yet.
const BACKLOG: i32 = 64;

/// A socket without a place, for an agent that starts while that is made.
pub(crate) fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| SandboxError::io("the agent's socket", errno.into()))
}

/// Where this user's sockets go, if there is such a place: the same for every program, whatever its environment.
fn runtime_folder() -> PathBuf {
    let user = geteuid();
    let folder = if user.is_root() { PathBuf::from("/run") } else { format!("/run/user/{}", user.as_raw()).into() };
    folder.join(FOLDER)
}

/// The same, made if need be. None where there is no such place, or others can write there.
fn make_runtime_folder() -> Option<PathBuf> {
    let folder = runtime_folder();
    if let Err(error) = DirBuilder::new().mode(0o700).create(&folder)
        && error.kind() != ErrorKind::AlreadyExists
    {
        return None;
    }
    check_private(&folder, "").ok().map(|()| folder)
}

/// The place of the socket of one sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    folder: PathBuf,
    name: String,
}

impl Door {
    fn new(folder: PathBuf, id: &str) -> Self {
        Self { folder, name: format!("{id}{SUFFIX}") }
    }

    fn of_lasting(records: &Records, record: &Record) -> Result<Option<Self>> {
        if record.lasting.is_none() {
            return Ok(None);
        }
        match records.state().folder(&record.id) {
            Some(folder) => Ok(Some(Self { folder, name: SOCKET.to_owned() })),
            None => Err(SandboxError::internal("a sandbox that outlives this program has no state_root")),
        }
    }

    /// That of a sandbox which is being made.
    pub(crate) fn to_make(records: &Records, record: &Record) -> Result<Self> {
        let folder = || make_runtime_folder().unwrap_or_else(|| records.folder().to_owned());
        Ok(Self::of_lasting(records, record)?.unwrap_or_else(|| Self::new(folder(), &record.id)))
    }

    /// That of a sandbox which is there.
    pub(crate) fn made(records: &Records, record: &Record) -> Result<Self> {
        if let Some(door) = Self::of_lasting(records, record)? {
            return Ok(door);
        }
        let [first, second] = Self::places(records, &record.id);
        Ok(if first.path().exists() { first } else { second })
    }

    /// Where a sandbox that ends with its program may have it.
    fn places(records: &Records, id: &str) -> [Self; 2] {
        [Self::new(runtime_folder(), id), Self::new(records.folder().to_owned(), id)]
    }

    /// Removes what a sandbox that ends with its program has of it.
    ///
    /// # Errors
    /// That of a file which is there and cannot be removed.
    pub(crate) fn remove(records: &Records, id: &str) -> io::Result<()> {
        for place in Self::places(records, id) {
            match std::fs::remove_file(place.path()) {
                // A folder that this user may not enter is none of its own.
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the sockets of sandboxes that are gone, of which nothing else may be left: their records were.
    pub(crate) fn sweep() -> Result<()> {
        let folder = runtime_folder();
        match check_private(&folder, "") {
            Ok(()) => sweep(&folder, ABANDONED_AFTER),
            // It is not there, or none of this user's.
            Err(_) => Ok(()),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// Gives a socket of [`socket`] its place.
    pub(crate) fn make(&self, socket: &OwnedFd) -> Result<()> {
        let (folder, path) = self.short_path()?;
        SocketAddrUnix::new(path)
            .and_then(|address| bind(socket, &address))
            .and_then(|()| listen(socket, BACKLOG))
            .map_err(|errno| SandboxError::io("the agent's socket", errno.into()))?;
        drop(folder);
        Ok(())
    }

    /// Connects to whoever listens.
    pub(crate) fn connect(&self) -> Result<UnixStream> {
        let (folder, path) = self.short_path()?;
        let stream = UnixStream::connect(path).map_err(|error| SandboxError::io("the agent's socket", error));
        drop(folder);
        stream
    }

    /// Whether nobody listens: what has so many connections that it takes no other is not.
    fn is_deserted(&self) -> bool {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let connected = || {
            let (folder, path) = self.short_path().ok()?;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
            let connected = connect(&socket, &SocketAddrUnix::new(path).ok()?);
            drop(folder);
            Some(connected)
        };
        let is_socket = std::fs::symlink_metadata(self.path()).is_ok_and(|found| found.file_type().is_socket());
        is_socket && connected() == Some(Err(Errno::CONNREFUSED))
    }

    /// The socket's path by way of its opened folder: a socket's own has 108 bytes at most.
    fn short_path(&self) -> Result<(OwnedFd, PathBuf)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, &self.folder, flags, Mode::empty())
            .map_err(|errno| SandboxError::io(self.folder.display(), errno.into()))?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(&self.name);
        Ok((folder, path))
    }
}

fn sweep(folder: &Path, older: Duration) -> Result<()> {
    for name in file_names(folder)? {
        let Some(id) = name.strip_suffix(SUFFIX).filter(|id| is_id(id)) else { continue };
        let door = Door::new(folder.to_owned(), id);
        let age = std::fs::symlink_metadata(door.path()).and_then(|found| found.modified()).ok();
        let is_old = age.and_then(|at| at.elapsed().ok()).is_some_and(|age| age >= older);
        if is_old && door.is_deserted() {
            // Somebody else may sweep at the same time.
            let _ = std::fs::remove_file(door.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Door, socket, sweep};

    #[test]
    fn only_old_sockets_of_sandboxes_to_which_nobody_listens_are_swept() {
        let temp = tempfile::tempdir().unwrap();
        let door = |id: &str| Door::new(temp.path().to_owned(), id);
        let ids = ["local-0123456789ab", "local-0123456789ac", "stranger"];
        let mut listeners: Vec<_> = ids.iter().map(|_| socket().unwrap()).collect();
        for (id, listener) in ids.iter().zip(&listeners) {
            door(id).make(listener).unwrap();
        }
        std::fs::write(temp.path().join("local-0123456789ad.sock"), "no socket").unwrap();
        let left = || {
            let names = std::fs::read_dir(temp.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            names
        };
        let all = left();
        listeners.drain(1..);
        sweep(temp.path(), Duration::from_secs(60)).unwrap();
        assert_eq!(left(), all, "they are young");
        sweep(temp.path(), Duration::ZERO).unwrap();
        assert_eq!(left(), ["local-0123456789ab.sock", "local-0123456789ad.sock", "stranger.sock"]);
        door(ids[0]).connect().expect("it was not disturbed");
    }

    #[test]
    fn a_long_path_is_no_obstacle() {
        let temp = tempfile::tempdir().unwrap();
        let long = temp.path().join("x".repeat(200));
        std::fs::create_dir(&long).unwrap();
        let door = Door::new(long, "local-0123456789ab");
        let listener = socket().unwrap();
        door.make(&listener).unwrap();
        door.connect().unwrap();
    }
}
