//! A stream as a session of core.

use std::sync::{Arc, atomic::Ordering};

use bytes::Bytes;
use sandbox_core::{
    Admitted, ControlReply, ControlRequest, Result, SandboxError, Session, SessionControl, SessionEvent, async_trait,
};
use tokio::sync::oneshot;

use crate::{
    client::CancelOnDrop,
    dispatch::ControlPayload,
    frame::{FLAG_END, Frame, FrameKind},
    inbox::Inbox,
    state::Stream,
};

/// A session fed from the inbox. Dropping it cancels the stream at once.
pub(crate) fn start<E: SessionEvent>(
    mut inbox: Inbox,
    cancel: Arc<CancelOnDrop>,
    control: RemoteControl,
) -> Session<E> {
    let cancel_now = CancelNow(cancel);
    let session = Session::spawn(control, |sink| async move {
        while let Some((channel, bytes)) = inbox.next_event().await? {
            // Channels of a newer agent that this side does not know are skipped.
            if let Some(event) = E::from_frame(channel.into(), bytes)? {
                let is_last = event.is_last();
                if !sink.send(event).await || is_last {
                    return Ok(());
                }
            }
        }
        // The sink is dropped without a last event: lost.
        Ok(())
    });
    session.with_guard(cancel_now)
}

/// Cancels when the session is dropped, though its control half may live on.
struct CancelNow(Arc<CancelOnDrop>);

impl Drop for CancelNow {
    fn drop(&mut self) {
        self.0.handle.conn.cancel(self.0.link.id);
    }
}

/// The control half of a session at the other side.
pub(crate) struct RemoteControl {
    stream: Arc<CancelOnDrop>,
}

impl RemoteControl {
    pub(crate) fn new(stream: Arc<CancelOnDrop>) -> Self {
        Self { stream }
    }

    /// Why nothing can be sent any more.
    fn gone(&self) -> SandboxError {
        match (self.stream.link.stopped(), self.stream.handle.conn.reason()) {
            (Some(error), _) => error,
            (None, Some(reason)) => reason.lost(Admitted::Unknown),
            (None, None) => SandboxError::invalid_state("it is over already"),
        }
    }
}

#[async_trait]
impl SessionControl for RemoteControl {
    async fn write(&self, data: Bytes) -> Result<()> {
        let (conn, link) = (&self.stream.handle.conn, &self.stream.link);
        if link.is_input_closed.load(Ordering::Acquire) {
            return Err(SandboxError::invalid_state("the input is closed"));
        }
        if data.is_empty() {
            return Ok(());
        }
        conn.send_bytes(link, 0, data, false, false).await.map_err(|_| self.gone())
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        let (conn, link) = (&self.stream.handle.conn, &self.stream.link);
        if request == ControlRequest::CloseInput {
            // In order behind the input, so that nothing of it is cut off.
            if !link.is_input_closed.swap(true, Ordering::AcqRel) {
                conn.send_data(link, 0, FLAG_END, Bytes::new()).await.map_err(|_| self.gone())?;
            }
            return Ok(ControlReply::default());
        }
        let place = link.controls.clone().acquire_owned().await.map_err(|_| self.gone())?;
        let number = link.next_control();
        // Whoever lets go of a session is done with all that was written before.
        let is_behind = request == ControlRequest::Detach;
        let request = serde_json::to_value(request)
            .map_err(|_| SandboxError::internal("a control request could not be written"))?;
        let payload = serde_json::to_vec(&ControlPayload { number, request })
            .map_err(|_| SandboxError::internal("a control request could not be written"))?;
        let (waiter, reply) = oneshot::channel();
        let frame = Frame::new(FrameKind::Control, link.id, payload);
        let then = |stream: &mut Stream| drop(stream.controls.insert(number, (waiter, place)));
        match is_behind {
            true => conn.send_control_behind(frame, then),
            false => conn.send_control(frame, then).await,
        }
        .map_err(|_| self.gone())?;
        reply.await.unwrap_or_else(|_| Err(self.gone()))
    }
}
