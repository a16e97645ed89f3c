//! The command's output, byte for byte.

use std::io;

use sandbox_core::{Admitted, ExecEvent, ExecExit, ExecStream, SandboxError};
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Why the output could not be followed to its end.
#[derive(Debug)]
pub(super) enum PumpError {
    /// Nobody reads our output any more.
    BrokenPipe,
    /// Our output cannot be written.
    Output(io::Error),
    /// The command's side broke.
    Sandbox(SandboxError),
}

/// Copies both streams to ours until the command is over. Dropping the future loses what was not written yet.
pub(super) async fn pump(stream: &mut ExecStream) -> Result<ExecExit, PumpError> {
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    while let Some(event) = stream.next().await.map_err(PumpError::Sandbox)? {
        match event {
            ExecEvent::Stdout(bytes) => write(&mut stdout, &bytes).await?,
            ExecEvent::Stderr(bytes) => write(&mut stderr, &bytes).await?,
            ExecEvent::Exit(exit) => return Ok(exit),
            // An event that this version does not know.
            _ => {}
        }
    }
    Err(PumpError::Sandbox(SandboxError::lost("the command broke off without an end", Admitted::Yes)))
}

/// Writes and flushes, so that the order of the two streams is kept as well as it came.
async fn write(target: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), PumpError> {
    let result = async {
        target.write_all(bytes).await?;
        target.flush().await
    };
    result.await.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => PumpError::BrokenPipe,
        _ => PumpError::Output(error),
    })
}
