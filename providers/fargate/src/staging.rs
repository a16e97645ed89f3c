//! Large files by way of a bucket: this machine and the task each move them at their own pace, and no connection between
//! the two has to carry them.
//!
//! The task needs no program of the image for that: the agent speaks plain HTTP to a socket in the volume that the
//! containers share, behind which a container of the sidecar's image speaks TLS to the bucket and to nothing else. What the
//! agent is given is the right to one transfer of one object.

use std::{path::Path, sync::Arc, time::Duration};

use reqwest::Method;
use sandbox_agent_client::{open_source, random_hex, receive_file};
use sandbox_core::{ByteString, ErrorKind, FileStat, ReadRange, Result, SandboxError, Secret, WriteOptions, tracing};
use sandbox_protocol::{
    Body, Client,
    methods::{self, BytesMoved, FileHttpGet, FileHttpPut, FileHttpPutDone, FileRead, HttpPlace},
};
use tokio::time::Instant;

use crate::{
    aws::{Allowed, Bucket, OBJECT_MAX_BYTES, Object, transfer_limit},
    error::NAME,
    provider::{CALL_LIMIT, Shared},
    sandbox::Sandbox,
};

/// The socket of the way to the bucket, in the volume that the containers share.
pub(crate) const RELAY_SOCKET: &str = "/.sandbox/s3.sock";

/// How often the agent tries; the relay may be a moment later than the agent.
const TRIES: u32 = 4;
const PAUSE: Duration = Duration::from_millis(250);
/// How long after a transfer was given up its object is removed, and once more: what was under way may still get there.
const REMOVED_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(28)];

/// The bucket of one sandbox.
pub(crate) struct Staging<'a> {
    shared: &'a Arc<Shared>,
    sandbox: &'a Arc<Sandbox>,
    bucket: Bucket,
}

impl<'a> Staging<'a> {
    /// None where none is set, or where the sandbox was made without a way to it.
    ///
    /// # Errors
    /// What the settings failed with.
    pub(crate) async fn of(shared: &'a Arc<Shared>, sandbox: &'a Arc<Sandbox>) -> Result<Option<Self>> {
        let Some(relay) = &sandbox.labels.relay else { return Ok(None) };
        let settings = shared.settings(Instant::now() + CALL_LIMIT).await?;
        let Some(name) = &settings.s3_bucket else { return Ok(None) };
        let bucket = shared.aws.bucket(name)?;
        Ok((bucket.address() == *relay).then_some(Self { shared, sandbox, bucket }))
    }

    fn goes(&self, bytes: u64) -> bool {
        (self.shared.config.s3_threshold_bytes..=OBJECT_MAX_BYTES).contains(&bytes)
    }

    fn object(&self) -> Result<Staged> {
        let key = format!("{}/{}", self.shared.config.s3_prefix, random_hex(16)?);
        Ok(Staged { shared: self.shared.clone(), object: self.bucket.object(&key), is_left: true })
    }

    /// Uploads a file if it is large. False: it is not, and nothing was done.
    ///
    /// # Errors
    /// What the bucket or the agent failed with. The object is removed all the same.
    pub(crate) async fn upload(&self, local: &Path, remote: &ByteString) -> Result<bool> {
        let source = open_source(local).await?;
        let (size, mode) = (source.size, source.mode);
        drop(source);
        if !self.goes(size) {
            return Ok(false);
        }
        let client = self.sandbox.client(self.shared).await?;
        if !client.peer().has(methods::FILE_HTTP_GET) {
            return Ok(false);
        }
        let staged = self.object()?;
        let work = async {
            let size = self.shared.aws.put_file(&staged.object, local).await?;
            let allowed = self.shared.aws.allow(&Method::GET, &staged.object, size).await?;
            let options = WriteOptions { mode: Some(mode), ..WriteOptions::default() };
            let request = FileHttpGet { path: remote.clone(), options, from: place(&allowed), size };
            let moved: BytesMoved = ask(&client, methods::FILE_HTTP_GET, &request, size).await?;
            check_size(moved.bytes, size)
        };
        let done = work.await;
        staged.remove().await;
        done.map(|()| true)
    }

    /// Downloads a file if it is large. False: it is not, and nothing was done.
    ///
    /// # Errors
    /// As [`Staging::upload`].
    pub(crate) async fn download(&self, remote: &ByteString, local: &Path) -> Result<bool> {
        let client = self.sandbox.client(self.shared).await?;
        if !client.peer().has(methods::FILE_HTTP_PUT) {
            return Ok(false);
        }
        // Of what a link leads to, not of the link.
        let range = ReadRange { length: Some(0), ..ReadRange::default() };
        let request = FileRead { path: remote.clone(), range };
        let (stat, _): (FileStat, Body) = client.call_for_body(methods::FILE_READ, &request).await?;
        if !self.goes(stat.size) {
            return Ok(false);
        }
        let staged = self.object()?;
        let work = async {
            let allowed = self.shared.aws.allow(&Method::PUT, &staged.object, stat.size).await?;
            let request = FileHttpPut { path: remote.clone(), to: place(&allowed), size_max: OBJECT_MAX_BYTES };
            let sent: FileHttpPutDone = ask(&client, methods::FILE_HTTP_PUT, &request, stat.size).await?;
            let stat = sent.stat.ok_or_else(|| SandboxError::internal("the agent tells nothing of what it sent"))?;
            let (sender, body) = Body::channel();
            let fetch = self.shared.aws.get(&staged.object, stat.size, sender);
            let (fetched, received) = tokio::join!(fetch, receive_file(body, stat.mode, local));
            fetched.and(received)
        };
        let done = work.await;
        staged.remove().await;
        done.map(|()| true)
    }
}

fn place(allowed: &Allowed) -> HttpPlace {
    HttpPlace { socket: RELAY_SOCKET.into(), host: allowed.host(), target: Secret::new(allowed.target()) }
}

fn check_size(found: u64, size: u64) -> Result<()> {
    match found == size {
        true => Ok(()),
        false => Err(SandboxError::internal(format!("{found} bytes came of a file of {size}"))),
    }
}

/// Asks the agent for a transfer, again where it was not begun: the same object in the same place is the same.
async fn ask<R: serde::de::DeserializeOwned>(
    client: &Client,
    method: &str,
    request: &impl serde::Serialize,
    size: u64,
) -> Result<R> {
    let end = Instant::now() + transfer_limit(size);
    for attempt in 1.. {
        let asked = tokio::time::timeout_at(end, client.call(method, request)).await;
        let error =
            match asked.unwrap_or_else(|_| Err(SandboxError::timed_out("the transfer to the bucket took too long"))) {
                Err(error) if error.kind() == ErrorKind::Unavailable && client.close_reason().is_none() => error,
                done => return done,
            };
        if attempt >= TRIES {
            let help = "does the sidecar's image have socat and certificates, and may tasks reach the bucket?";
            return Err(error.with_provider(NAME).with_help(help));
        }
        tokio::time::sleep(PAUSE * attempt).await;
    }
    Err(SandboxError::internal("no tries are left"))
}

/// An object that is removed, whatever becomes of its transfer.
struct Staged {
    shared: Arc<Shared>,
    object: Object,
    is_left: bool,
}

impl Staged {
    async fn remove(mut self) {
        self.is_left = false;
        remove(&self.shared, &self.object).await;
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_left {
            return;
        }
        // Nobody waits any more. Outside of a runtime nothing is left to do it.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (shared, object) = (self.shared.clone(), self.object.clone());
        runtime.spawn(async move {
            for wait in REMOVED_AFTER {
                tokio::time::sleep(wait).await;
                remove(&shared, &object).await;
            }
        });
    }
}

/// Removes an object; what stays is told by the log.
pub(crate) async fn remove(shared: &Shared, object: &Object) {
    if let Err(error) = shared.aws.remove_object(object).await {
        tracing::warn!(kind = %error.kind(), "an object of a transfer could not be removed");
    }
}
