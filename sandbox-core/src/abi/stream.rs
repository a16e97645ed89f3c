//! Sessions, both halves.

use std::{marker::PhantomData, sync::Arc};

use abi_stable::{sabi_trait::TD_Opaque, std_types::RVec};
use async_ffi::FutureExt;
use bytes::Bytes;
use tokio::sync::Mutex;

use super::{
    codec::{decode, encode, from_ffi, to_bytes, to_ffi, to_rvec},
    layout::{FfiFrame, FfiResult, FfiStream, FfiStream_TO, Fut, StreamObject},
    runtime::{CatchPanic, Guarded, spawned},
};
use crate::{
    ControlReply, ControlRequest, Result, SandboxError, Session, SessionControl, SessionEvent, async_trait,
    session::SessionSource,
};

// ---- the plugin's half ----

struct Exported<E: SessionEvent> {
    inner: Arc<Inner<E>>,
}

struct Inner<E: SessionEvent> {
    session: Mutex<Option<Guarded<Session<E>>>>,
    control: Guarded<Arc<dyn SessionControl>>,
}

/// Hands a session to the host.
pub(super) fn export<E: SessionEvent>(session: Session<E>) -> StreamObject {
    let control = Guarded::new(session.control());
    let session = Mutex::new(Some(Guarded::new(session)));
    FfiStream_TO::from_value(Exported { inner: Arc::new(Inner { session, control }) }, TD_Opaque)
}

impl<E: SessionEvent> FfiStream for Exported<E> {
    fn next(&self) -> Fut<RVec<FfiFrame>> {
        let inner = self.inner.clone();
        // Not spawned: only the queue is touched, none of the author's code.
        let work = CatchPanic(Box::pin(async move {
            let mut session = inner.session.lock().await;
            let Some(session) = session.as_mut() else { return Ok(RVec::new()) };
            let events = session.get_mut().next_batch().await?;
            let frames = events.into_iter().map(|event| {
                let (channel, data) = event.into_frame();
                FfiFrame { channel, data: to_rvec(data) }
            });
            Ok(frames.collect())
        }));
        async move { to_ffi(work.await) }.into_ffi()
    }

    fn write(&self, data: RVec<u8>) -> Fut<()> {
        let control = Arc::clone(&self.inner.control);
        spawned(async move { control.write(to_bytes(data)).await })
    }

    fn control(&self, request: RVec<u8>) -> Fut<RVec<u8>> {
        let control = Arc::clone(&self.inner.control);
        spawned(async move {
            // A request of a newer host that this side does not know.
            let request: ControlRequest =
                decode(&request).map_err(|_| SandboxError::unsupported_control("plugin", None))?;
            encode(&control.control(request).await?)
        })
    }

    fn cancel(&self) {
        // Held only while a `next` is polled; the host drops that future before it cancels.
        if let Ok(mut session) = self.inner.session.try_lock() {
            drop(session.take());
        }
    }
}

// ---- the host's half ----

/// A stream of a plugin, and the provider that it is of.
struct Foreign {
    stream: StreamObject,
    provider: String,
}

impl Foreign {
    fn result<T>(&self, result: FfiResult<T>) -> Result<T> {
        from_ffi(result).map_err(|error| error.with_provider(&self.provider))
    }
}

struct Imported<E> {
    foreign: Arc<Foreign>,
    event: PhantomData<fn() -> E>,
}

/// Takes a session from the plugin of a provider.
pub(super) fn import<E: SessionEvent>(stream: StreamObject, provider: &str) -> Session<E> {
    let foreign = Arc::new(Foreign { stream, provider: provider.to_owned() });
    let source = Imported { foreign: foreign.clone(), event: PhantomData };
    Session::from_source(Box::new(source), Arc::new(ImportedControl(foreign)))
}

#[async_trait]
impl<E: SessionEvent> SessionSource<E> for Imported<E> {
    async fn next_batch(&mut self) -> Result<Vec<E>> {
        loop {
            let next = self.foreign.stream.next();
            let frames = self.foreign.result(next.await)?;
            if frames.is_empty() {
                return Ok(Vec::new());
            }
            let mut events = Vec::with_capacity(frames.len());
            for frame in frames {
                // Channels of a newer plugin that this side does not know are skipped.
                events.extend(E::from_frame(frame.channel, to_bytes(frame.data))?);
            }
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }
}

impl<E> Drop for Imported<E> {
    fn drop(&mut self) {
        // The control half may live on; the work must not.
        self.foreign.stream.cancel();
    }
}

struct ImportedControl(Arc<Foreign>);

#[async_trait]
impl SessionControl for ImportedControl {
    async fn write(&self, data: Bytes) -> Result<()> {
        let write = self.0.stream.write(to_rvec(data));
        self.0.result(write.await)
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        let control = self.0.stream.control(encode(&request)?);
        decode(&self.0.result(control.await)?)
    }
}
