//! The socket by which an agent is reached: a file in a private folder that no sandbox sees.

use std::{
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};
use sandbox_core::{Result, SandboxError};

const SOCKET: &str = "agent.sock";

/// Connections that the agent has not taken yet.
const BACKLOG: i32 = 64;

/// A socket without a place, for an agent that starts while that is made.
pub(crate) fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| SandboxError::io("the agent's socket", errno.into()))
}

/// The folder that holds the socket.
#[derive(Clone, Debug)]
pub(crate) struct Door(PathBuf);

impl Door {
    pub(crate) fn at(folder: &Path) -> Self {
        Self(folder.to_owned())
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

    /// The socket's path by way of its opened folder: a socket's own has 108 bytes at most.
    fn short_path(&self) -> Result<(OwnedFd, PathBuf)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, &self.0, flags, Mode::empty())
            .map_err(|errno| SandboxError::io(self.0.display(), errno.into()))?;
        let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(SOCKET);
        Ok((folder, path))
    }
}

#[cfg(test)]
mod tests {
    use super::{Door, socket};

    #[test]
    fn a_long_path_is_no_obstacle() {
        let temp = tempfile::tempdir().unwrap();
        let long = temp.path().join("x".repeat(200));
        std::fs::create_dir(&long).unwrap();
        let door = Door::at(&long);
        let listener = socket().unwrap();
        door.make(&listener).unwrap();
        door.connect().unwrap();
    }
}
