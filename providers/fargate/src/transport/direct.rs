//! Straight to the agent, by the task's own address: for networks that may carry plain text.

use std::net::SocketAddr;

use sandbox_core::{Result, async_trait};

use super::{Stream, Transport, connect};

/// The agent's own port.
pub(crate) struct Direct {
    pub(crate) address: SocketAddr,
}

#[async_trait]
impl Transport for Direct {
    async fn open(&self) -> Result<Stream> {
        let (read, write) = connect(self.address).await?.into_split();
        Ok(Stream { read: Box::new(read), write: Box::new(write) })
    }
}
