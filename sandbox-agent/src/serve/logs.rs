//! Reading what is kept of a command's output, beside whoever has the command.

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use sandbox_core::{
    ControlReply, ControlRequest, Result, SandboxError, Session, SessionControl, SessionSink, async_trait,
};
use sandbox_protocol::{
    LogEvent, StreamResponder,
    methods::{ExecLogs, ExecLogsAt},
};

use super::{
    agent::Agent,
    job::{End, Job},
    log::{Cursor, Piece, Stream},
};

impl Agent {
    pub(super) fn exec_logs(&self, request: &ExecLogs) -> Result<StreamResponder> {
        let job = self.find_exec(&request.exec_id)?;
        let known = [request.stdout_offset, request.stderr_offset];
        let (cursor, [stdout_offset, stderr_offset], until) = {
            let state = job.state();
            let (cursor, starts) = state.log.read_from(known);
            (cursor, starts, if request.follow { u64::MAX } else { state.log.end() })
        };
        let session = Session::spawn(ReadOnly, move |sink| async move { read(&job, cursor, until, &sink).await });
        StreamResponder::session_with_reply(&ExecLogsAt { stdout_offset, stderr_offset }, session)
    }
}

/// Reads up to an offset of the log. A reader that is too slow for the command finds a gap; the command never waits.
async fn read(job: &Arc<Job>, mut cursor: Cursor, until: u64, sink: &SessionSink<LogEvent>) -> Result<()> {
    loop {
        let mut grown = pin!(job.grown.notified());
        grown.as_mut().enable();
        let (piece, end) = {
            let state = job.state();
            let is_enough = cursor.at >= until && state.log.end() > until;
            match is_enough {
                true => (None, None),
                false => (state.log.next(&mut cursor), state.end.clone()),
            }
        };
        let event = match (piece, end) {
            (Some(Piece::Bytes(Stream::Stdout, bytes)), _) => LogEvent::Stdout(bytes),
            (Some(Piece::Bytes(Stream::Stderr, bytes)), _) => LogEvent::Stderr(bytes),
            (Some(Piece::Gap(_, [stdout_bytes, stderr_bytes])), _) => LogEvent::Gap { stdout_bytes, stderr_bytes },
            (None, Some(End::Error(kind, message))) => return Err(End::to_error(kind, &message)),
            (None, Some(End::Exit(exit))) => LogEvent::End(Some(exit)),
            (None, None) if until < u64::MAX => LogEvent::End(None),
            (None, None) => {
                tokio::select! { () = grown => {} () = sink.closed() => return Ok(()) }
                continue;
            }
        };
        let is_last = matches!(event, LogEvent::End(_));
        if !sink.send(event).await || is_last {
            return Ok(());
        }
    }
}

/// The control half of a session that takes nothing.
pub(super) struct ReadOnly;

#[async_trait]
impl SessionControl for ReadOnly {
    async fn write(&self, _: Bytes) -> Result<()> {
        Err(SandboxError::invalid_state("this takes no input"))
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        match request {
            // It does not outlive its client.
            ControlRequest::Detach | ControlRequest::CloseInput => Ok(ControlReply::default()),
            _ => Err(SandboxError::unsupported_control("agent", None)),
        }
    }
}
