//! A provider under measurement.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use sandbox_core::{ByteString, CaptureLimits, ExecEvent, ExecRequest, SandboxHandle, SandboxProvider, SandboxSpec};

use crate::peer::HELLO;

/// Runs the command of every comparison to its end.
pub async fn exec(provider: &dyn SandboxProvider, handle: &SandboxHandle) -> Duration {
    let begin = Instant::now();
    let stream = provider.exec(handle, ExecRequest::argv(HELLO)).await.expect("it starts");
    let result = stream.collect(CaptureLimits::default()).await.expect("it ends");
    assert_eq!(result.stdout, b"hi\n");
    begin.elapsed()
}

/// The same, so many at once, in all `count` times: each one's time, and that of all.
pub async fn exec_many(
    provider: &dyn SandboxProvider,
    handle: &SandboxHandle,
    at_once: usize,
    count: usize,
) -> (Vec<Duration>, Duration) {
    many(at_once, count, async || exec(provider, handle).await).await
}

/// Does work so many times, a number of them at once, on this thread.
pub async fn many(at_once: usize, count: usize, work: impl AsyncFn() -> Duration) -> (Vec<Duration>, Duration) {
    let begin = Instant::now();
    let left = Cell::new(count);
    let lane = async || {
        let mut times = Vec::new();
        while left.get() > 0 {
            left.set(left.get() - 1);
            times.push(work().await);
        }
        times
    };
    let times = join_all((0..at_once).map(|_| Box::pin(lane())).collect()).await;
    (times.into_iter().flatten().collect(), begin.elapsed())
}

/// Waits for all of them.
async fn join_all<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut done: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in futures.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(output) = std::pin::Pin::new(future).poll(cx)
            {
                *done = Some(output);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// A provider, and the spec of its sandboxes.
pub struct Place<'a> {
    /// The provider.
    pub provider: &'a dyn SandboxProvider,
    /// What every sandbox is made from.
    pub spec: SandboxSpec,
}

impl Place<'_> {
    /// Makes a sandbox.
    pub async fn create(&self) -> SandboxHandle {
        self.provider.create(self.spec.clone()).await.expect("it is made")
    }

    /// Removes one.
    pub async fn close(&self, handle: &SandboxHandle) {
        self.provider.close(handle).await.expect("it is removed");
    }

    /// From nothing to the first output, and the removal.
    pub async fn cold(&self) -> (Duration, Duration) {
        let begin = Instant::now();
        let handle = self.create().await;
        let mut stream = self.provider.exec(&handle, ExecRequest::argv(HELLO)).await.expect("it starts");
        let first = stream.next().await.expect("it goes on");
        assert!(matches!(first, Some(ExecEvent::Stdout(_))));
        let first = begin.elapsed();
        drop(stream);
        let begin = Instant::now();
        self.close(&handle).await;
        (first, begin.elapsed())
    }

    /// So many made at once, and then removed at once: both times.
    pub async fn burst(&self, count: usize) -> (Duration, Duration) {
        let begin = Instant::now();
        let handles = join_all((0..count).map(|_| Box::pin(self.create())).collect()).await;
        let made = begin.elapsed();
        let begin = Instant::now();
        join_all(handles.iter().map(|handle| Box::pin(self.close(handle))).collect()).await;
        (made, begin.elapsed())
    }

    /// Made, used once and removed: so many, a number of them at once.
    pub async fn cycles(&self, at_once: usize, count: usize) -> Duration {
        let cycle = async || {
            let begin = Instant::now();
            let handle = self.create().await;
            exec(self.provider, &handle).await;
            self.close(&handle).await;
            begin.elapsed()
        };
        many(at_once, count, cycle).await.1
    }

    /// A file into the sandbox and out of it again, to where nothing was before.
    pub async fn transfer(
        &self,
        handle: &SandboxHandle,
        file: &std::path::Path,
        back: &std::path::Path,
    ) -> (Duration, Duration) {
        let remote = ByteString::from("transferred");
        let request = ExecRequest::argv(["/bin/sh", "-c", "rm -f transferred"]);
        let removed = self.provider.exec(handle, request).await.expect("it starts");
        removed.collect(CaptureLimits::default()).await.expect("it ends");
        let _ = std::fs::remove_file(back);
        let begin = Instant::now();
        self.provider.upload_file(handle, file, &remote).await.expect("it is uploaded");
        let up = begin.elapsed();
        let begin = Instant::now();
        self.provider.download_file(handle, &remote, back).await.expect("it is downloaded");
        (up, begin.elapsed())
    }

    /// So many bytes of output, thrown away as they come.
    pub async fn flood(&self, handle: &SandboxHandle, mib: u64) -> Duration {
        let begin = Instant::now();
        let request = ExecRequest::argv(["/bin/sh", "-c", &format!("head -c {} /dev/zero", mib << 20)]);
        let mut stream = self.provider.exec(handle, request).await.expect("it starts");
        let mut bytes = 0;
        while let Some(event) = stream.next().await.expect("it goes on") {
            if let ExecEvent::Stdout(chunk) = event {
                bytes += chunk.len() as u64;
            }
        }
        assert_eq!(bytes, mib << 20);
        begin.elapsed()
    }

    /// How long after its limit of `limit_s` seconds a command with children that went off on their own is answered.
    pub async fn overdue(&self, handle: &SandboxHandle, limit_s: f64) -> Duration {
        let script = "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; sleep 1000";
        let begin = Instant::now();
        let request = ExecRequest::shell(script).with_timeout_s(limit_s);
        let stream = self.provider.exec(handle, request).await.expect("it starts");
        let result = stream.collect(CaptureLimits::default()).await.expect("it ends");
        assert_eq!(result.error_type(), Some("timeout"));
        begin.elapsed().saturating_sub(Duration::from_secs_f64(limit_s))
    }

    /// How many of those children are still there.
    pub async fn survivors(&self, handle: &SandboxHandle) -> usize {
        let script = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f 2>/dev/null; echo; done | grep -c '^sleep 1000' || true";
        let stream = self.provider.exec(handle, ExecRequest::shell(script)).await.expect("it starts");
        let result = stream.collect(CaptureLimits::default()).await.expect("it ends");
        result.stdout_text().trim().parse().expect("a number")
    }
}
