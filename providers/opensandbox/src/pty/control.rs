//! What the holder of a session can ask for.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use sandbox_core::{
    Capability, ControlReply, ControlRequest, Result, SandboxError, SessionControl, async_trait, serde_json::json,
};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};
use tokio_tungstenite::tungstenite::Message;

use crate::error::NAME;

/// So many messages wait for the socket.
const QUEUE: usize = 16;

/// So much input goes in one message.
const PIECE_BYTES: usize = 32 * 1024;

/// Between the holder of a session and its task.
#[derive(Debug)]
pub(crate) struct Shared {
    orders: mpsc::Sender<Message>,
    pub(super) kill: Notify,
    pub(super) detach: Notify,
    is_over: AtomicBool,
    is_detached: AtomicBool,
    is_terminal: bool,
}

/// A session that can be let go of from outside.
pub(crate) trait Detachable: Send + Sync + std::fmt::Debug {
    /// Leaves it running and ends the connection to it.
    fn detach(&self);
}

impl Detachable for Shared {
    fn detach(&self) {
        // The stream may be dropped before its task looks: it is no reason to end the session then.
        self.is_detached.store(true, Ordering::Release);
        self.detach.notify_one();
    }
}

impl Shared {
    pub(super) fn new(is_terminal: bool) -> (Self, mpsc::Receiver<Message>) {
        let (orders, receiver) = mpsc::channel(QUEUE);
        let shared = Self {
            orders,
            kill: Notify::new(),
            detach: Notify::new(),
            is_over: AtomicBool::new(false),
            is_detached: AtomicBool::new(false),
            is_terminal,
        };
        (shared, receiver)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(super) fn is_detached(&self) -> bool {
        self.is_detached.load(Ordering::Acquire)
    }

    fn check(&self) -> Result<()> {
        if self.is_over.load(Ordering::Acquire) { Err(over()) } else { Ok(()) }
    }

    async fn send(&self, message: Message) -> Result<()> {
        self.orders.send(message).await.map_err(|_| over())
    }
}

fn over() -> SandboxError {
    SandboxError::invalid_state("the terminal session is over").with_provider(NAME)
}

/// The message for a new size.
pub(super) fn resize(rows: u16, cols: u16) -> Message {
    Message::text(json!({ "type": "resize", "cols": cols, "rows": rows }).to_string())
}

pub(super) struct Control(pub(super) Arc<Shared>);

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, data: Bytes) -> Result<()> {
        self.0.check()?;
        for piece in data.chunks(PIECE_BYTES) {
            let mut frame = Vec::with_capacity(piece.len() + 1);
            frame.push(0);
            frame.extend_from_slice(piece);
            self.0.send(Message::binary(frame)).await?;
        }
        Ok(())
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        self.0.check()?;
        match request {
            ControlRequest::Resize { rows, cols } if self.0.is_terminal => self.0.send(resize(rows, cols)).await?,
            // What a terminal takes as the end of its input.
            ControlRequest::CloseInput if self.0.is_terminal => self.0.send(Message::binary(vec![0, 4])).await?,
            ControlRequest::Signal(number) => {
                let name = match number {
                    1 => "SIGHUP",
                    2 => "SIGINT",
                    3 => "SIGQUIT",
                    9 => "SIGKILL",
                    15 => "SIGTERM",
                    _ => {
                        let why = "a terminal session takes the signals 1, 2, 3, 9 and 15 only";
                        return Err(SandboxError::invalid_input("signal", why).with_provider(NAME));
                    }
                };
                let text = json!({ "type": "signal", "signal": name }).to_string();
                self.0.send(Message::text(text)).await?;
            }
            ControlRequest::Kill => self.0.kill.notify_one(),
            ControlRequest::Detach => Detachable::detach(&*self.0),
            _ => return Err(SandboxError::unsupported_control(NAME, Some(Capability::Pty))),
        }
        Ok(ControlReply::default())
    }
}
