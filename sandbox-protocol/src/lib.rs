//! The wire between a provider on the host and the agent in its sandbox.
//!
//! One connection over any duplex byte stream (a unix socket, TCP, an attached container stream, stdio, an SSH channel)
//! carries many streams at once. A stream is a call, a transfer, or a [`Session`](sandbox_core::Session) of core: what
//! a provider holds here is what the agent's handler returned there.
//!
//! - **Frames**: 12 bytes of header ([`Frame::header`]) and a payload with a limit for each [`FrameKind`]. What is
//!   frozen is in `schema/v1.json`, and a test holds the code to it. Kinds, flags and keys of a newer peer are skipped.
//! - **Handshake**: the client shows itself first ([`ClientOptions`]); without the right token it learns nothing. The
//!   lower generation is spoken; a method that the peer does not announce fails here, before anything is sent.
//! - **Flow control**: each stream has credit in each direction, given back as its reader takes bytes. A reader that
//!   stalls, stalls its own stream. Control and credit overtake data; streams with data take turns.
//! - **Bounds**: a connection holds at most, for each open stream, one window of received bytes and (client) one queue
//!   of a session; and, whatever the streams do, [`DATA_QUEUE_BYTES`](limits::DATA_QUEUE_BYTES) +
//!   [`CONTROL_QUEUE_BYTES`](limits::CONTROL_QUEUE_BYTES) for the transport. [`Client::stats`] counts it.
//! - **Loss**: PINGs keep a silent connection open and find a dead one. When it ends every stream fails at once, with
//!   what is known about its work; see [`Client`] for how to go on.
//!
//! ```
//! use std::sync::Arc;
//!
//! use sandbox_core::{ExecEvent, ExecExit, ExecOutcome, ExecRequest, ExecStream, Result, async_trait};
//! use sandbox_protocol::{
//!     Body, Client, ClientOptions, ServerOptions, Service, StreamResponder, methods, serve, unknown_method,
//! };
//!
//! struct Agent;
//!
//! #[async_trait]
//! impl Service for Agent {
//!     async fn open(&self, method: &str, _: serde_json::Value, _: &mut Body) -> Result<StreamResponder> {
//!         match method {
//!             methods::EXEC => {
//!                 let exit = ExecExit::new(ExecOutcome::Exited(0));
//!                 Ok(StreamResponder::session(ExecStream::finished("hi\n", "", exit)))
//!             }
//!             _ => Err(unknown_method(method)),
//!         }
//!     }
//! }
//!
//! # async fn example() -> Result<()> {
//! let (here, there) = tokio::io::duplex(1024);
//! tokio::spawn(serve(there, ServerOptions::default(), Arc::new(Agent)));
//! let client = Client::connect(here, ClientOptions::default()).await?;
//! let exec = client.exec(ExecRequest::shell("echo hi")).await?;
//! assert_eq!(exec.collect(Default::default()).await?.stdout, b"hi\n");
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(example()).unwrap();
//! ```

#![forbid(unsafe_code)]

mod body;
mod client;
mod client_session;
mod close;
mod conn;
mod descriptors;
mod dispatch;
mod events;
mod exec;
mod frame;
mod hello;
mod inbox;
pub mod limits;
mod link;
pub mod methods;
mod options;
mod read;
#[cfg(test)]
mod schema;
mod serve;
mod server_stream;
mod service;
mod state;
#[cfg(feature = "websocket")]
mod websocket;
mod wire_error;
mod write;

pub use body::{Body, BodySender};
pub use client::Client;
pub use close::{CloseCause, CloseReason, Violation};
pub use descriptors::{ReceivedDescriptors, serve_unix};
pub use events::{ForwardEvent, ListenEvent, LogEvent};
pub use frame::{FLAG_END, FLAG_MORE, Frame, FrameKind};
pub use hello::{FEATURE_FD_PASSING, GENERATION, MAGIC, MIN_GENERATION, PeerInfo};
pub use options::{ClientOptions, KeepAlive, ServerOptions};
pub use read::FrameReader;
pub use serve::{serve, serve_halves};
pub use service::{Service, StreamResponder, parse_request, unknown_method};
pub use state::ConnectionStats;
#[cfg(feature = "websocket")]
pub use websocket::WebSocketIo;
