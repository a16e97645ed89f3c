//! What a server does with the streams that clients open.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use sandbox_core::{Result, SandboxError, Session, SessionControl, SessionEvent, async_trait};
use serde::Serialize;
use serde_json::Value;

use crate::Body;

/// Serves the methods of an agent.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Takes a request on, or refuses it. `input` is what the client sends behind it: a body to be read here, or the
    /// input of the session that is returned (it is written to the session's control then).
    ///
    /// The future is dropped when the client cancels or the connection ends.
    ///
    /// # Errors
    /// They reach the client as they are. `Unsupported` for a method that is not known: see [`unknown_method`].
    async fn open(&self, method: &str, request: Value, input: &mut Body) -> Result<StreamResponder>;
}

/// The refusal of a method that a service does not have.
pub fn unknown_method(method: &str) -> SandboxError {
    SandboxError::new(sandbox_core::ErrorKind::Unsupported, format!("the agent has no method {method:?}"))
}

/// A request as the type that its method takes.
///
/// # Errors
/// `InvalidInput`. The text of the JSON error is left out: it may quote values.
pub fn parse_request<T: serde::de::DeserializeOwned>(request: Value) -> Result<T> {
    serde_json::from_value(request).map_err(|_| {
        SandboxError::invalid_input("request", "does not fit its method; the client is of another release")
    })
}

/// The answer to a request, and what follows it.
pub struct StreamResponder {
    pub(crate) reply: Value,
    pub(crate) rest: Rest,
}

pub(crate) enum Rest {
    Nothing,
    Body(Body),
    Session(Box<dyn Events>),
}

impl StreamResponder {
    /// An answer, and nothing else.
    ///
    /// # Errors
    /// `Internal` when the answer cannot be written as JSON.
    pub fn reply(reply: &impl Serialize) -> Result<Self> {
        Ok(Self { reply: to_value(reply)?, rest: Rest::Nothing })
    }

    /// An answer and bytes. What the body fails with reaches the client behind the bytes before it.
    ///
    /// # Errors
    /// As [`StreamResponder::reply`].
    pub fn body(reply: &impl Serialize, body: Body) -> Result<Self> {
        Ok(Self { reply: to_value(reply)?, rest: Rest::Body(body) })
    }

    /// A session: its events go to the client, the client's input and control requests to its control half.
    ///
    /// It is dropped at once when the client cancels. When the connection ends it gets
    /// [`ControlRequest::Detach`](sandbox_core::ControlRequest::Detach) first, within
    /// [`DETACH_LIMIT`](crate::limits::DETACH_LIMIT): what shall outlive a lost connection is kept there.
    pub fn session<E: SessionEvent>(session: Session<E>) -> Self {
        Self { reply: Value::Null, rest: Rest::Session(Box::new(session)) }
    }

    /// A session, with an answer beside it.
    ///
    /// # Errors
    /// As [`StreamResponder::reply`].
    pub fn session_with_reply<E: SessionEvent>(reply: &impl Serialize, session: Session<E>) -> Result<Self> {
        Ok(Self { reply: to_value(reply)?, rest: Rest::Session(Box::new(session)) })
    }
}

impl fmt::Debug for StreamResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamResponder").finish_non_exhaustive()
    }
}

fn to_value(reply: &impl Serialize) -> Result<Value> {
    serde_json::to_value(reply).map_err(|_| SandboxError::internal("a reply could not be written"))
}

/// One event on its way: the last one ends the session.
pub(crate) struct EventFrame {
    pub(crate) channel: u32,
    pub(crate) bytes: Bytes,
    pub(crate) is_last: bool,
}

/// A session of any kind of event.
#[async_trait]
pub(crate) trait Events: Send {
    async fn next(&mut self) -> Result<Option<EventFrame>>;
    fn control(&self) -> Arc<dyn SessionControl>;
}

#[async_trait]
impl<E: SessionEvent> Events for Session<E> {
    async fn next(&mut self) -> Result<Option<EventFrame>> {
        Ok(Session::next(self).await?.map(|event| {
            let is_last = event.is_last();
            let (channel, bytes) = event.into_frame();
            EventFrame { channel, bytes, is_last }
        }))
    }

    fn control(&self) -> Arc<dyn SessionControl> {
        Session::control(self)
    }
}
