//! The socket by which an agent is reached: a file in a private folder that no sandbox sees, and a token beside it.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{fs::OpenOptionsExt, net::UnixStream},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
};
use sandbox_core::{Result, SandboxError, Secret};

use crate::folder::random_hex;

const SOCKET: &str = "agent.sock";
const TOKEN: &str = "token";
/// What is read of a token's file.
const TOKEN_MAX: u64 = 256;

/// Connections that the agent has not taken yet.
const BACKLOG: i32 = 64;

/// A socket without a place, for an agent that starts while that is made.
pub(crate) fn socket() -> Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| SandboxError::io("the agent's socket", errno.into()))
}

/// The folder that holds the socket and the token.
#[derive(Clone, Debug)]
pub(crate) struct Door(PathBuf);

impl Door {
    pub(crate) fn at(folder: &Path) -> Self {
        Self(folder.to_owned())
    }

    /// Gives a socket of [`socket`] its place, and makes a token for it.
    pub(crate) fn make(&self, socket: &OwnedFd) -> Result<Secret> {
        let failed = |error| SandboxError::io("the agent's socket", error);
        let token = random_hex(32)?;
        let mut file = OpenOptions::new();
        file.write(true).create_new(true).mode(0o600);
        file.open(self.0.join(TOKEN)).and_then(|mut file| file.write_all(token.as_bytes())).map_err(failed)?;
        let (folder, path) = self.short_path()?;
        SocketAddrUnix::new(path)
            .and_then(|address| bind(socket, &address))
            .and_then(|()| listen(socket, BACKLOG))
            .map_err(|errno| failed(errno.into()))?;
        drop(folder);
        Ok(Secret::new(token))
    }

    /// Connects to whoever listens.
    pub(crate) fn connect(&self) -> Result<UnixStream> {
        let (folder, path) = self.short_path()?;
        let stream = UnixStream::connect(path).map_err(|error| SandboxError::io("the agent's socket", error));
        drop(folder);
        stream
    }

    /// What the agent wants to be shown.
    pub(crate) fn token(&self) -> Result<Secret> {
        let mut token = String::new();
        File::open(self.0.join(TOKEN))
            .and_then(|file| file.take(TOKEN_MAX).read_to_string(&mut token))
            .map_err(|error| SandboxError::io("the agent's token", error))?;
        Ok(Secret::new(token))
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
    fn a_long_path_is_no_obstacle_and_the_token_is_for_this_user_only() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().unwrap();
        let long = temp.path().join("x".repeat(200));
        std::fs::create_dir(&long).unwrap();
        let door = Door::at(&long);
        let listener = socket().unwrap();
        let token = door.make(&listener).unwrap();
        door.connect().unwrap();
        assert_eq!(door.token().unwrap(), token);
        assert_eq!(std::fs::metadata(long.join("token")).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
