//! Where the command's input comes from.

use std::{
    io::IsTerminal,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    sync::Arc,
};

use sandbox_core::{ControlRequest, SessionControl, bytes::BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::failure::Failure;

/// How much is read ahead of the command: as much as a pipe holds.
const CHUNK_BYTES: usize = 64 * 1024;

/// The input of a command.
pub(crate) enum Input {
    /// At end-of-file from the start.
    Null,
    /// Our own standard input.
    Ours {
        /// True if that was asked for and is not only so because it is no terminal.
        is_asked: bool,
    },
    /// A file.
    File(std::fs::File),
}

impl Input {
    /// The file if one is given; else ours, unless it is a terminal (and not asked for), closed or the null device.
    ///
    /// # Errors
    /// Exit code 2 for a file that cannot be read.
    pub(crate) fn choose(file: Option<&Path>, is_interactive: bool) -> Result<Self, Failure> {
        if let Some(path) = file {
            return std::fs::File::open(path).map(Self::File).map_err(|error| {
                Failure::usage(format!("cannot read the input {}", path.display())).because(error).with_field("--stdin")
            });
        }
        if is_interactive {
            return Ok(Self::Ours { is_asked: true });
        }
        if std::io::stdin().is_terminal() || is_null_or_closed() {
            return Ok(Self::Null);
        }
        Ok(Self::Ours { is_asked: false })
    }

    /// True if the command should rather have no input than not run.
    pub(super) fn is_optional(&self) -> bool {
        matches!(self, Self::Ours { is_asked: false })
    }

    /// Feeds the command until the input or the command ends. Reads no more than the command takes, and one chunk.
    pub(super) async fn feed(self, control: Arc<dyn SessionControl>) {
        match self {
            Self::Null => {}
            Self::Ours { .. } => copy(tokio::io::stdin(), &*control).await,
            Self::File(file) => copy(tokio::fs::File::from_std(file), &*control).await,
        }
    }
}

async fn copy(mut source: impl AsyncRead + Unpin, control: &dyn SessionControl) {
    loop {
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        match source.read_buf(&mut chunk).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                // The command sees an early end; what it makes of that is its affair, but it must not look like nothing.
                tracing::warn!(%error, "the input broke off");
                break;
            }
        }
        // A command that reads no further is not an error.
        if control.write(chunk.freeze()).await.is_err() {
            return;
        }
    }
    let _ = control.control(ControlRequest::CloseInput).await;
}

/// Rust opens the null device where a standard descriptor is closed.
fn is_null_or_closed() -> bool {
    match (std::fs::metadata("/proc/self/fd/0"), std::fs::metadata("/dev/null")) {
        (Ok(input), Ok(null)) => input.file_type().is_char_device() && input.rdev() == null.rdev(),
        (Err(_), _) => true,
        (_, Err(_)) => false,
    }
}
