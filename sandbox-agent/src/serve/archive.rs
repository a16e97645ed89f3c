//! The methods about trees: between the connection and the worker that packs or unpacks.

use std::io::{self, Read, Write};

use bytes::{Buf, Bytes};
use sandbox_core::{Result, SandboxError};
use sandbox_protocol::{
    Body, BodySender, StreamResponder,
    methods::{BytesMoved, FilePath, Nothing, TarIn},
};
use tokio::{runtime::Handle, sync::mpsc};

use super::{agent::Agent, files::work, pack::pack, paths::stat, transfer::READ, unpack::unpack};

/// Chunks between the connection and the worker.
const QUEUE_CHUNKS: usize = 4;
/// What is sent at once.
const CHUNK_BYTES: usize = 64 * 1024;
impl Agent {
    pub(super) async fn tar_in(&self, request: TarIn, input: &mut Body) -> Result<StreamResponder> {
        let TarIn { path, owner } = request;
        let place = self.place(&path)?;
        let owner = self.surroundings.owner(owner.as_deref())?;
        let _permit = self.archives.acquire().await;
        let (sender, receiver) = mpsc::channel(QUEUE_CHUNKS);
        let unpacking =
            work(move || unpack(&place, owner, Incoming { receiver, current: Bytes::new(), is_over: false }));
        let feeding = async {
            let mut bytes = 0;
            while let Some(chunk) = input.next().await? {
                bytes += chunk.len() as u64;
                // Taken to the end, also when the worker has stopped: the answer is the worker's.
                let _ = sender.send(Some(chunk)).await;
            }
            let _ = sender.send(None).await;
            drop(sender);
            Ok::<u64, SandboxError>(bytes)
        };
        let mut unpacking = std::pin::pin!(unpacking);
        let mut feeding = std::pin::pin!(feeding);
        let bytes = tokio::select! {
            biased;
            fed = &mut feeding => fed?,
            unpacked = &mut unpacking => {
                unpacked?;
                // What follows the archive's end is padding.
                let bytes = feeding.await?;
                return StreamResponder::reply(&BytesMoved { bytes });
            }
        };
        unpacking.await?;
        StreamResponder::reply(&BytesMoved { bytes })
    }

    pub(super) async fn tar_out(&self, request: FilePath) -> Result<StreamResponder> {
        let place = self.place(&request.path)?;
        let permit = self.archives.clone().acquire_owned().await;
        let (file, found) = work({
            let place = place.clone();
            move || {
                let file = place.open(READ)?;
                let found = stat(&file, b"").map_err(place.failed())?;
                Ok((file, found))
            }
        })
        .await?;
        let (sender, body) = Body::channel();
        let handle = Handle::current();
        tokio::spawn(async move {
            let _permit = permit;
            // The error is told on the body; a panic is seen as a body that broke off.
            let _ = work(move || {
                let output = Outgoing { sender, handle: handle.clone(), buffer: Vec::new() };
                let (packed, output) = pack(output, &place, file, &found);
                match (packed, output) {
                    (Ok(()), Some(output)) => handle.block_on(output.sender.finish()),
                    (Err(error), Some(output)) => handle.block_on(output.sender.fail(error)),
                    // Nobody reads any more.
                    (_, None) => {}
                }
                Ok(())
            })
            .await;
        });
        StreamResponder::body(&Nothing {}, body)
    }
}

/// The stream that comes in, for a worker.
struct Incoming {
    receiver: mpsc::Receiver<Option<Bytes>>,
    current: Bytes,
    is_over: bool,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            if self.is_over {
                return Ok(0);
            }
            match self.receiver.blocking_recv() {
                Some(Some(bytes)) => self.current = bytes,
                Some(None) => self.is_over = true,
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        let count = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

/// The stream that goes out, for a worker.
struct Outgoing {
    sender: BodySender,
    handle: Handle,
    buffer: Vec<u8>,
}

impl Write for Outgoing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..count]);
        if self.buffer.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let chunk = std::mem::take(&mut self.buffer);
        match self.handle.block_on(self.sender.send(chunk)) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}
