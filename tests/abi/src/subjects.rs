//! What is measured: the same work without the boundary and over it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use plugin_host::{Checksum, load};
use sandbox_core::{
    CaptureLimits, ExecEvent, ExecRequest, SandboxHandle, SandboxProvider, SandboxStatus, WriteOptions, abi::HostInfo,
    bytes::Bytes,
};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::{
    bare,
    build::{Fixture, Profile},
    hosting::{create, entry, run},
    native::{Acme, AcmeSettings},
};

/// Bytes that a stream is measured with.
pub const STREAM_BYTES: usize = 32 * 1024 * 1024;
const STREAM_CHUNK_BYTES: usize = 64 * 1024;
/// Bytes that a file is written with.
pub const FILE_BYTES: usize = 1024 * 1024;

/// One provider with a sandbox.
#[derive(Clone)]
pub struct Subject {
    provider: Arc<dyn SandboxProvider>,
    handle: SandboxHandle,
}

/// The same provider, compiled in and loaded.
pub struct Subjects {
    /// Called as a trait object.
    pub native: Subject,
    /// Called over the boundary.
    pub loaded: Subject,
}

/// A host like an application's: two workers, timers and sockets.
///
/// # Panics
/// When there are no threads left.
pub fn host_runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads can be started")
}

impl Subjects {
    /// Builds and loads the plugin, optimised.
    ///
    /// # Panics
    /// When that fails.
    pub async fn new() -> Self {
        let loaded = entry(&plugin()).expect("the fixture is sound").new_provider(&serde_json::Value::Null);
        let native = Acme::new(AcmeSettings::default()).expect("these settings are fine");
        Self {
            native: Subject::new(Arc::new(native)).await,
            loaded: Subject::new(loaded.expect("no settings are fine")).await,
        }
    }

    /// Removes the sandboxes.
    pub async fn close(self) {
        for subject in [self.native, self.loaded] {
            let _ = subject.provider.close(&subject.handle).await;
        }
    }
}

/// The plugin that is measured.
///
/// # Panics
/// When it cannot be built.
pub fn plugin() -> PathBuf {
    Fixture::Good.path_in(Profile::Release)
}

impl Subject {
    async fn new(provider: Arc<dyn SandboxProvider>) -> Self {
        let handle = create(&*provider).await.expect("the temporary folder can be written");
        Self { provider, handle }
    }

    /// The cheapest call there is.
    ///
    /// # Panics
    /// When it fails.
    pub async fn status(&self) -> SandboxStatus {
        self.provider.status(&self.handle).await.expect("the sandbox is there")
    }

    /// The same in a task of the host.
    ///
    /// # Panics
    /// When it fails.
    pub async fn status_in_a_task(&self) -> SandboxStatus {
        let subject = self.clone();
        tokio::spawn(async move { subject.status().await }).await.expect("it does not panic")
    }

    /// Runs a program to its end.
    ///
    /// # Panics
    /// When it fails.
    pub async fn exec(&self, request: ExecRequest) {
        let result = run(&*self.provider, &self.handle, request).await.expect("the program can be run");
        assert_eq!(result.return_code(), 0);
    }

    /// The same, started on another runtime of this program: what the boundary does, without the boundary.
    ///
    /// # Panics
    /// When it fails.
    pub async fn exec_elsewhere(&self, runtime: &Handle, request: ExecRequest) {
        let Self { provider, handle } = self.clone();
        let started = runtime.spawn(async move { provider.exec(&handle, request).await });
        let stream = started.await.expect("it does not panic").expect("the program can be run");
        let result = stream.collect(CaptureLimits::default()).await.expect("it ends");
        assert_eq!(result.return_code(), 0);
    }

    /// Reads a stream of [`STREAM_BYTES`] to its end.
    ///
    /// # Panics
    /// When it fails.
    pub async fn stream(&self) {
        let chunks = (STREAM_BYTES / STREAM_CHUNK_BYTES).to_string();
        let request = ExecRequest::argv(["@flood", &chunks, &STREAM_CHUNK_BYTES.to_string()]);
        let mut stream = self.provider.exec(&self.handle, request).await.expect("it starts");
        let mut received = 0;
        while let Some(event) = stream.next().await.expect("it ends") {
            if let ExecEvent::Stdout(bytes) = event {
                received += bytes.len();
            }
        }
        assert_eq!(received, STREAM_BYTES);
    }

    /// Hands over the contents of a file of [`FILE_BYTES`]; they are not written to a disk.
    ///
    /// # Panics
    /// When it fails.
    pub async fn write_file(&self, data: Bytes) {
        let files = self.provider.as_files().expect("it has files");
        let written = files.write_file(&self.handle, "/dev/null".into(), data, WriteOptions::default());
        written.await.expect("nothing is written");
    }
}

/// The contents of a file, alone in their allocation as what a caller has read is.
pub fn file_contents() -> Bytes {
    Bytes::from(vec![0x5a; FILE_BYTES])
}

/// Times the loading of a plugin that no image exists of yet.
pub struct Loading {
    folder: tempfile::TempDir,
    next: usize,
    plugin: PathBuf,
}

impl Loading {
    /// For the plugin that is measured.
    ///
    /// # Panics
    /// When there is no temporary folder.
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder"), next: 0, plugin: plugin() }
    }

    /// A copy, which is another library to the linker, in the page cache.
    fn copy(&mut self) -> PathBuf {
        self.next += 1;
        let copy = self.folder.path().join(format!("lib{}.so", self.next));
        fs::copy(&self.plugin, &copy).expect("the temporary folder can be written");
        copy
    }

    /// dlopen and dlsym, and nothing else.
    pub fn bare(&mut self) -> Duration {
        let copy = self.copy();
        timed(|| bare::open(&copy, "sandbox_provider_entry_acme-good"))
    }

    /// The whole loader, up to the handshake.
    pub fn verified(&mut self, checksum: &Checksum<'_>) -> Duration {
        let copy = self.copy();
        timed(|| verified(&copy, checksum))
    }

    /// Everything before dlopen.
    ///
    /// # Panics
    /// When the plugin is refused.
    pub fn inspected(&mut self, checksum: &Checksum<'_>) -> Duration {
        let copy = self.copy();
        timed(|| assert!(plugin_host::inspect(&copy, checksum).outcome.is_ok()))
    }
}

impl Default for Loading {
    fn default() -> Self {
        Self::new()
    }
}

fn verified(path: &Path, checksum: &Checksum<'_>) {
    assert!(load(path, checksum, &HostInfo::new()).outcome.is_ok());
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
