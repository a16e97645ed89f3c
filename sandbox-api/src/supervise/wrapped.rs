//! Where the provider keeps no jobs: a shell around the worker, and the deadline here.

use std::time::Duration;

use sandbox_core::{
    ByteString, CaptureLimits, ExecCollector, ExecEvent, ExecRequest, ExecStream, Result, SandboxError, StdinSource,
    bytes::Bytes,
};

use super::{Supervised, SupervisionReceipt};
use crate::{AsyncSandbox, ExecOptions, pty::Marker};

/// The wrapper: tells the worker's exit code and then waits to be ended with everything that is below it. The marker is
/// in two halves, so that no listing of processes or trace of the shell holds it whole.
const WRAPPER: &str = "trap : TERM INT HUP; a=$1 b=$2; shift 2; \"$@\" </dev/null; \
                       printf '%s%s:%d\\n' \"$a\" \"$b\" \"$?\" >&2; read -r _";

pub(super) async fn supervise(
    sandbox: &AsyncSandbox,
    argv: Vec<ByteString>,
    timeout: Duration,
    cleanup: Duration,
) -> Result<Supervised> {
    let marker = Marker::new()?;
    let [first, second] = marker.halves();
    let wrapper = ["sh", "-c", WRAPPER, "sh", first, second].map(ByteString::from);
    let request = ExecRequest::argv(wrapper.into_iter().chain(argv)).with_stdin(StdinSource::Stream);
    // The limits are kept here; the command's own is the last resort.
    let last_resort = timeout + cleanup * 3 + Duration::from_secs(30);
    let request = request.with_timeout_s(last_resort.as_secs_f64());
    let mut stream = sandbox.exec_stream_with(request, ExecOptions::new()).await?;

    let mut worker = Worker {
        scanner: marker.stderr_scanner(),
        collector: ExecCollector::new(CaptureLimits::default()),
        code: None,
        exit: None,
    };
    let mut receipt = SupervisionReceipt::default();
    let ended = tokio::time::timeout(timeout, worker.until_told(&mut stream)).await;
    let ended = match ended {
        Ok(ended) => ended,
        Err(_) => {
            receipt.timed_out = true;
            let _ = stream.signal(15).await;
            tokio::time::timeout(cleanup, worker.until_told(&mut stream)).await.unwrap_or(Ok(()))
        }
    };
    receipt.return_code = worker.code;
    // Also after a normal end: what the worker left in the background is below the wrapper.
    let killed = match worker.exit {
        Some(_) => Ok(()),
        None => stream.kill().await,
    };
    let gone = tokio::time::timeout(cleanup, worker.until_exit(&mut stream)).await;
    receipt.cleanup_confirmed = matches!(gone, Ok(Ok(())));
    receipt.error = match (ended, killed, gone) {
        (Err(error), ..) => Some(error.message().to_owned()),
        (_, _, Ok(Err(error))) | (_, Err(error), _) if !receipt.cleanup_confirmed => {
            Some(format!("cleanup failed: {}", error.message()))
        }
        (_, _, Err(_)) => Some("cleanup failed: its processes did not end in time".to_owned()),
        _ => worker.start_failure(),
    };
    let exit = worker
        .exit
        .clone()
        .unwrap_or_else(|| sandbox_core::ExecExit::new(sandbox_core::ExecOutcome::TimedOut { idle: false }));
    Ok(Supervised { receipt, output: worker.collector.finish(exit) })
}

struct Worker {
    scanner: crate::pty::Scanner,
    collector: ExecCollector,
    code: Option<i32>,
    exit: Option<sandbox_core::ExecExit>,
}

impl Worker {
    /// Reads until the wrapper tells the worker's code, or is over itself.
    async fn until_told(&mut self, stream: &mut ExecStream) -> Result<()> {
        while self.code.is_none() && self.exit.is_none() {
            self.step(stream).await?;
        }
        Ok(())
    }

    async fn until_exit(&mut self, stream: &mut ExecStream) -> Result<()> {
        while self.exit.is_none() {
            self.step(stream).await?;
        }
        Ok(())
    }

    async fn step(&mut self, stream: &mut ExecStream) -> Result<()> {
        match stream.next().await? {
            Some(ExecEvent::Exit(exit)) => self.exit = Some(exit),
            Some(ExecEvent::Stderr(bytes)) if self.code.is_none() => {
                let collector = &mut self.collector;
                let mut keep = |bytes: &[u8]| drop(collector.push(ExecEvent::Stderr(Bytes::copy_from_slice(bytes))));
                self.code = self.scanner.push(&bytes, &mut keep)?;
            }
            Some(event) => drop(self.collector.push(event)),
            None => return Err(SandboxError::lost("the worker broke off without an end", sandbox_core::Admitted::Yes)),
        }
        Ok(())
    }

    /// The wrapper itself did not start, or ended without a word.
    fn start_failure(&self) -> Option<String> {
        match &self.exit {
            Some(exit) if self.code.is_none() => match &exit.outcome {
                sandbox_core::ExecOutcome::StartFailed { reason, .. } => {
                    Some(format!("the worker could not be started: {reason:?}"))
                }
                _ => None,
            },
            _ => None,
        }
    }
}
