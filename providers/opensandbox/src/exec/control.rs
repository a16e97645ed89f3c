//! What the holder of a command's stream can ask for.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use sandbox_core::{ControlReply, ControlRequest, Result, SandboxError, SessionControl, async_trait};
use tokio::sync::Notify;

use crate::error::NAME;

/// Between the stream's holder and the task that runs the command.
#[derive(Debug, Default)]
pub(crate) struct Handle {
    kill: Notify,
    is_over: AtomicBool,
}

impl Handle {
    /// Resolves when the command is to be killed.
    pub(crate) async fn killed(&self) {
        self.kill.notified().await;
    }
}

/// Says that it is over when it is dropped.
pub(crate) struct Over(pub(crate) Arc<Handle>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
    }
}

pub(crate) struct Control(pub(crate) Arc<Handle>);

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, _data: Bytes) -> Result<()> {
        Err(SandboxError::invalid_state("the input is closed").with_provider(NAME))
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        if self.0.is_over.load(Ordering::Acquire) {
            return Err(SandboxError::invalid_state("the command is over").with_provider(NAME));
        }
        match request {
            ControlRequest::Kill => {
                self.0.kill.notify_one();
                Ok(ControlReply::default())
            }
            // It is closed from the start, or after the bytes that were given.
            ControlRequest::CloseInput => Ok(ControlReply::default()),
            _ => Err(SandboxError::unsupported_control(NAME, None)),
        }
    }
}
