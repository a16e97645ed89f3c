use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use sandbox_core::{ExecEvent, SessionSink, bytes::Bytes};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::watch,
};

use super::world::World;
use crate::fault::Fault;

/// How long output may be silent after the end of a command, in all.
const DRAIN: Duration = Duration::from_millis(150);

pub(super) struct Pump {
    pub(super) world: Arc<World>,
    pub(super) wrap: fn(Bytes) -> ExecEvent,
    pub(super) sink: SessionSink<ExecEvent>,
    pub(super) last_output: Arc<Mutex<Instant>>,
    pub(super) exited: watch::Receiver<bool>,
}

impl Pump {
    /// Sends what a pipe gives until its end, or until the command is over and the pipe is silent. True if somebody
    /// still holds it.
    pub(super) async fn run(mut self, mut pipe: impl AsyncRead + Unpin + Send + 'static) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        let (mut silence_left, mut drained, mut sent) = (DRAIN, 0, 0);
        let mut held: Option<Bytes> = None;
        let is_open = loop {
            let is_over = *self.exited.borrow();
            let started = Instant::now();
            let read = if is_over && !self.world.has(Fault::BackgroundHoldsCaller) {
                tokio::time::timeout(silence_left, pipe.read(&mut buffer)).await
            } else {
                tokio::select! {
                    read = pipe.read(&mut buffer) => Ok(read),
                    changed = self.exited.changed(), if !is_over => {
                        let _ = changed;
                        continue;
                    }
                }
            };
            let size = match read {
                Ok(Ok(0) | Err(_)) => break false,
                Ok(Ok(size)) => size,
                Err(_) => break true,
            };
            if is_over {
                silence_left = silence_left.saturating_sub(started.elapsed());
                drained += size;
            }
            *self.last_output.lock().unwrap() = Instant::now();
            if self.world.has(Fault::DropsLastChunk) && is_over {
                continue;
            }
            if self.world.has(Fault::ExitBeforeOutput) || self.world.has(Fault::TimeoutLosesOutput) {
                // What is on its way when the end is told is lost.
                tokio::time::sleep(Duration::from_millis(1500)).await;
            }
            let bytes = self.change(&buffer[..size], sent);
            sent += size;
            if self.world.has(Fault::OutputOnlyAtTheEnd) {
                held = Some([held.unwrap_or_default(), bytes].concat().into());
            } else if self.world.has(Fault::SlowReaderLosesBytes) {
                let _ = tokio::time::timeout(Duration::from_millis(300), self.sink.send((self.wrap)(bytes))).await;
            } else {
                self.target().send((self.wrap)(bytes)).await;
            }
            if drained > 512 * 1024 {
                break true;
            }
        };
        if let Some(bytes) = held {
            self.sink.send((self.wrap)(bytes)).await;
        }
        if is_open && !self.world.has(Fault::BackgroundGetsSigpipe) {
            // Whoever holds the pipe may go on writing.
            tokio::spawn(async move { while pipe.read(&mut buffer).await.is_ok_and(|size| size > 0) {} });
        }
        is_open
    }

    fn target(&self) -> SessionSink<ExecEvent> {
        if !self.world.has(Fault::OutputsMixed) {
            return self.sink.clone();
        }
        let other = self.world.other_sink.lock().unwrap().replace(self.sink.clone());
        other.filter(|sink| !sink.is_closed()).unwrap_or_else(|| self.sink.clone())
    }

    fn change(&self, bytes: &[u8], sent: usize) -> Bytes {
        const MIB: usize = 1024 * 1024;
        if self.world.has(Fault::LossyText) || self.world.has(Fault::DecodesEachChunk) {
            return String::from_utf8_lossy(bytes).into_owned().into();
        }
        if self.world.has(Fault::TerminalLineEnds) {
            return Bytes::from(
                bytes
                    .iter()
                    .flat_map(|byte| if *byte == b'\n' { vec![b'\r', b'\n'] } else { vec![*byte] })
                    .collect::<Vec<u8>>(),
            );
        }
        if self.world.has(Fault::StreamCutAt4MiB) {
            return Bytes::copy_from_slice(&bytes[..bytes.len().min((4 * MIB).saturating_sub(sent))]);
        }
        if self.world.has(Fault::OutputCutAt1MiB) {
            return Bytes::copy_from_slice(&bytes[..bytes.len().min(MIB.saturating_sub(sent))]);
        }
        Bytes::copy_from_slice(bytes)
    }
}
