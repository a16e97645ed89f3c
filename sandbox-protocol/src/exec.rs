//! Commands, with their input.

use bytes::Bytes;
use sandbox_core::{ControlRequest, ExecRequest, ExecStream, Result, StdinSource};

use crate::{
    Client,
    methods::{self, ExecStart, ExecStarted},
};

impl Client {
    /// Runs a command. Input given as bytes is sent along and closed; it is part of the stream, never of a retry.
    ///
    /// # Errors
    /// As [`Client::open`]. A `Lost` start may be repeated under the same `exec_id`.
    pub async fn exec(&self, request: ExecRequest) -> Result<ExecStream> {
        Ok(self.exec_start(ExecStart::new(request)).await?.1)
    }

    /// As [`Client::exec`], with every option and with what the agent replied.
    ///
    /// # Errors
    /// As there.
    pub async fn exec_start(&self, start: ExecStart) -> Result<(ExecStarted, ExecStream)> {
        let input = match &start.request.stdin {
            StdinSource::Bytes(bytes) => Some(bytes.clone()),
            _ => None,
        };
        let (started, stream): (ExecStarted, ExecStream) = self.open_with_reply(methods::EXEC, &start).await?;
        Ok((started, feed(stream, input)))
    }
}

/// Writes the input beside the reading of the output; ends with the stream.
fn feed(stream: ExecStream, input: Option<Bytes>) -> ExecStream {
    let Some(input) = input else { return stream };
    let control = stream.control();
    let task = tokio::spawn(async move {
        // A command that does not read its input is no error.
        if control.write(input).await.is_ok() {
            let _ = control.control(ControlRequest::CloseInput).await;
        }
    });
    stream.with_guard(AbortOnDrop(task.abort_handle()))
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
