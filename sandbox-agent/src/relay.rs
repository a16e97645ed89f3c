//! Standard input and output joined with a unix socket: how a client reaches the agent through an exec of its backend.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
    thread,
};

const CHUNK_BYTES: usize = 256 * 1024;

/// Copies both ways until the socket ends. The end of the input ends only its own direction.
///
/// # Errors
/// When nothing listens at the path, or this process stays open to others.
pub fn relay(path: &Path) -> io::Result<()> {
    // What passes here is the sandbox's owner's.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
    let socket = UnixStream::connect(path)?;
    let to = socket.try_clone()?;
    // It ends with the process: a client that keeps its half open holds nobody.
    thread::spawn(move || {
        if let Ok(input) = io::stdin().as_fd().try_clone_to_owned() {
            let _ = copy(&mut File::from(input), &mut &to);
        }
        let _ = to.shutdown(Shutdown::Write);
    });
    // Not the buffered form, which would cut what passes at its line ends.
    copy(&mut &socket, &mut File::from(io::stdout().as_fd().try_clone_to_owned()?))
}

/// Copies to the end, and never waits for more than what is there.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            count => count?,
        };
        to.write_all(&chunk[..count])?;
    }
}
