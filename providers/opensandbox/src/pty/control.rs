//! What the holder of a session can ask for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use sandbox_core::{
    Capability, ControlReply, ControlRequest, Result, SandboxError, SessionControl, async_trait, serde_json::json,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio_tungstenite::tungstenite::Message;

use crate::error::NAME;

/// So many messages wait for the socket.
const QUEUE: usize = 16;

/// So much input goes in one message.
const PIECE_BYTES: usize = 32 * 1024;

/// How long a daemon may take to take what was written, and the end of the connection.
pub(super) const LETS_GO_WITHIN: Duration = Duration::from_secs(5);

/// Between the holder of a session and its task.
#[derive(Debug)]
pub(crate) struct Shared {
    orders: mpsc::Sender<Message>,
    pub(super) kill: Notify,
    /// Whether it is to be let go of. The stream may be dropped before its task looks: it is no reason to end the session
    /// then.
    detach: watch::Sender<bool>,
    is_over: AtomicBool,
    is_terminal: bool,
}

/// A session that can be let go of from outside.
pub(crate) trait Detachable: Send + Sync + std::fmt::Debug {
    /// Leaves it running and ends the connection to it.
    fn detach(&self);
}

impl Detachable for Shared {
    fn detach(&self) {
        self.detach.send_replace(true);
    }
}

impl Shared {
    pub(super) fn new(is_terminal: bool) -> (Self, mpsc::Receiver<Message>) {
        let (orders, receiver) = mpsc::channel(QUEUE);
        let shared = Self {
            orders,
            kill: Notify::new(),
            detach: watch::Sender::new(false),
            is_over: AtomicBool::new(false),
            is_terminal,
        };
        (shared, receiver)
    }

    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    pub(super) fn is_detached(&self) -> bool {
        *self.detach.borrow()
    }

    /// Comes when it is to be let go of.
    pub(super) async fn detached(&self) {
        // It fails only when the other end is gone, and that is here.
        let _ = self.detach.subscribe().wait_for(|detach| *detach).await;
    }

    /// Lets go of it, and comes back when all that was written has arrived.
    async fn let_go(&self) {
        Detachable::detach(self);
        // A task that is busy with a broken connection sees it later.
        let _ = tokio::time::timeout(LETS_GO_WITHIN, self.orders.closed()).await;
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
            ControlRequest::Detach => self.0.let_go().await,
            _ => return Err(SandboxError::unsupported_control(NAME, Some(Capability::Pty))),
        }
        Ok(ControlReply::default())
    }
}
