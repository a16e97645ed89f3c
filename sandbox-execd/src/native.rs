//! The agent's own protocol through a WebSocket: the bytes of its binary messages are those of a connection to the agent.
//! Whoever may use the API of this daemon may use the agent.

use std::sync::Arc;

use sandbox_protocol::WebSocketIo;

use crate::{
    execd::Execd,
    http::{Answer, Request},
    websocket::Handshake,
};

/// The route.
pub(crate) const ROUTE: &str = "sandbox-agent";

/// The header of `GET /ping` that tells of it, and what it holds: the generation of this way in.
pub(crate) const HEADER: &str = "x-sandbox-agent";
pub(crate) const GENERATION: &str = "1";

impl Execd {
    pub(crate) fn native(self: &Arc<Self>, request: Request) -> Answer {
        let (response, socket) = Handshake::of(request)?.accept();
        let agent = self.agent.clone();
        tokio::spawn(async move {
            let Some(socket) = socket.await else { return };
            // When the sandbox is over, so is the connection.
            let _ = agent.serve(WebSocketIo::new(socket)).await;
        });
        Ok(response)
    }
}
