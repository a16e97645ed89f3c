//! The engine's socket at another path: it can be taken away, and somebody can do something before a request arrives.

use std::{path::PathBuf, sync::Arc};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    task::{JoinHandle, JoinSet},
};

/// What is done before a request arrives, of which it gets the first line.
type Before = Arc<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Proxy {
    path: PathBuf,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) fn start(path: &std::path::Path) -> Self {
        Self::before(path, |_| {})
    }

    /// Does something before each request, which waits for it.
    pub(crate) fn before(path: &std::path::Path, before: impl Fn(&str) + Send + Sync + 'static) -> Self {
        let before: Before = Arc::new(before);
        let engine = crate::engine::host().strip_prefix("unix://").unwrap().to_owned();
        let listener = UnixListener::bind(path).unwrap();
        let task = tokio::spawn(async move {
            let mut streams = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let (engine, before) = (engine.clone(), before.clone());
                streams.spawn(async move {
                    if let Ok(far) = UnixStream::connect(engine).await {
                        serve(near, far, before).await;
                    }
                });
            }
        });
        Self { path: path.to_owned(), task }
    }

    pub(crate) fn host(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// Breaks every connection off, and takes no more.
    pub(crate) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
        std::fs::remove_file(&self.path).unwrap();
    }
}

async fn serve(near: UnixStream, far: UnixStream, before: Before) {
    let (mut near_in, mut near_out) = near.into_split();
    let (mut far_in, mut far_out) = far.into_split();
    let there = async {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(count @ 1..) = near_in.read(&mut chunk).await {
            let head = String::from_utf8_lossy(&chunk[..count.min(512)]);
            let line = head.lines().next().unwrap_or_default();
            // The client writes the head of a request in one piece.
            if line.ends_with(" HTTP/1.1") {
                tokio::task::block_in_place(|| before(line));
            }
            if far_out.write_all(&chunk[..count]).await.is_err() {
                break;
            }
        }
        let _ = far_out.shutdown().await;
    };
    let back = async {
        let _ = tokio::io::copy(&mut far_in, &mut near_out).await;
        let _ = near_out.shutdown().await;
    };
    tokio::join!(there, back);
}
