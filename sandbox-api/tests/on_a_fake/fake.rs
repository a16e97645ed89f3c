//! A provider in this process that does what its script says and remembers what it was asked.
#![allow(dead_code, unreachable_pub, reason = "every test program uses a part of it")]

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::PermissionsExt,
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use sandbox_core::{
    ByteString, Capability, Connect, DirEntry, Endpoint, ErrorKind, ExecEvent, ExecExit, ExecOutcome, ExecRequest,
    ExecStream, Field, FileKind, FileStat, Files, PauseResume, ProviderInfo, ReadRange, Renew, Result, SandboxEndpoint,
    SandboxError, SandboxHandle, SandboxProvider, SandboxSpec, SandboxStatus, Sidecars, WriteOptions, async_trait,
    bytes::Bytes,
};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// Longer than anything here takes; reached only by a test that fails.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
pub struct Seen {
    /// The calls in order: `create 1`, `upload 1 /path`, `close 1`, `aclose`, ….
    pub calls: Vec<String>,
    pub open: BTreeSet<String>,
    pub files: BTreeMap<String, (Vec<u8>, u32)>,
    pub specs: Vec<SandboxSpec>,
    pub requests: Vec<ExecRequest>,
    pub descriptors: Vec<Value>,
    pub closing_at_once: usize,
    pub most_closing_at_once: usize,
    /// How often each of these still fails.
    pub fail_create: usize,
    pub create_kind: Option<ErrorKind>,
    pub creating_at_once: usize,
    pub most_creating_at_once: usize,
    pub most_open: usize,
    pub execs_at_once: usize,
    pub most_execs_at_once: usize,
    pub exec_yields: usize,
    pub fail_close: usize,
    pub fail_aclose: usize,
    pub fail_upload_of: Option<String>,
    pub close_kind: Option<ErrorKind>,
    pub endpoint: Option<String>,
    pub exec_never_ends: bool,
    next: usize,
}

/// Where a call waits until the test lets it through.
#[derive(Clone)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    pub fn shut() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub fn open(&self) {
        self.0.add_permits(1_000_000);
    }

    async fn pass(gate: &Option<Gate>) {
        if let Some(Gate(semaphore)) = gate {
            let _ = semaphore.acquire().await;
        }
    }
}

pub struct Fake {
    pub name: String,
    pub capabilities: Vec<Capability>,
    pub refused: Vec<Field>,
    pub create_gate: Option<Gate>,
    pub upload_gate: Option<Gate>,
    pub close_gate: Option<Gate>,
    pub status_gate: Option<Gate>,
    pub create_panics: bool,
    pub close_panics: bool,
    pub create_yields: usize,
    pub seen: Mutex<Seen>,
    pub changed: Condvar,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            name: "fake".to_owned(),
            capabilities: Vec::new(),
            refused: Vec::new(),
            create_gate: None,
            upload_gate: None,
            close_gate: None,
            status_gate: None,
            create_panics: false,
            close_panics: false,
            create_yields: 0,
            seen: Mutex::default(),
            changed: Condvar::new(),
        }
    }
}

impl Fake {
    pub fn with(capabilities: &[Capability]) -> Arc<Self> {
        Arc::new(Self { capabilities: capabilities.to_vec(), ..Self::default() })
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    pub fn calls(&self) -> Vec<String> {
        self.seen().calls.clone()
    }

    /// Blocks until something is true.
    pub fn wait(&self, what: &str, is_true: impl Fn(&Seen) -> bool) {
        let end = Instant::now() + PATIENCE;
        let mut seen = self.seen();
        while !is_true(&seen) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "never: {what}; calls: {:?}", seen.calls);
            seen = self.changed.wait_timeout(seen, left).unwrap().0;
        }
    }

    /// The same in async code.
    pub async fn until(self: &Arc<Self>, what: &'static str, is_true: impl Fn(&Seen) -> bool + Send + 'static) {
        let fake = self.clone();
        tokio::task::spawn_blocking(move || fake.wait(what, is_true)).await.unwrap();
    }

    /// Blocks until it has made sandboxes and all of them are closed.
    pub fn wait_all_closed(&self, made: usize) {
        self.wait("all closed", |seen| seen.next == made && seen.open.is_empty());
    }

    fn note(&self, call: String) -> MutexGuard<'_, Seen> {
        let mut seen = self.seen();
        seen.calls.push(call);
        self.changed.notify_all();
        seen
    }

    fn has<'a, T: ?Sized>(&self, capability: Capability, interface: &'a T) -> Option<&'a T> {
        self.capabilities.contains(&capability).then_some(interface)
    }
}

/// Takes one from a count of failures.
fn fails(count: &mut usize) -> bool {
    let fails = *count > 0;
    *count -= usize::from(fails);
    fails
}

#[async_trait]
impl SandboxProvider for Fake {
    fn name(&self) -> &str {
        &self.name
    }

    fn info(&self) -> ProviderInfo {
        let fields = Field::ALL.iter().copied().filter(|field| !self.refused.contains(field));
        ProviderInfo::new(&self.name).honours(fields)
    }

    async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle> {
        let id = {
            let mut seen = self.note("create".to_owned());
            seen.specs.push(spec);
            seen.next += 1;
            seen.creating_at_once += 1;
            seen.most_creating_at_once = seen.most_creating_at_once.max(seen.creating_at_once);
            seen.next.to_string()
        };
        assert!(!self.create_panics, "scripted panic");
        Gate::pass(&self.create_gate).await;
        for _ in 0..self.create_yields {
            tokio::task::yield_now().await;
        }
        let mut seen = self.note(format!("created {id}"));
        seen.creating_at_once -= 1;
        if fails(&mut seen.fail_create) {
            return Err(SandboxError::new(seen.create_kind.unwrap_or(ErrorKind::Create), "scripted"));
        }
        seen.open.insert(id.clone());
        seen.most_open = seen.most_open.max(seen.open.len());
        Ok(SandboxHandle::new(id, &self.name))
    }

    async fn exec(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        let (never_ends, yields) = {
            let mut seen = self.note(format!("exec {}", handle.sandbox_id));
            seen.requests.push(request);
            seen.execs_at_once += 1;
            seen.most_execs_at_once = seen.most_execs_at_once.max(seen.execs_at_once);
            (seen.exec_never_ends, seen.exec_yields)
        };
        for _ in 0..yields {
            tokio::task::yield_now().await;
        }
        self.seen().execs_at_once -= 1;
        if never_ends {
            std::future::pending::<()>().await;
        }
        Ok(ExecStream::finished("out", "err", ExecExit::new(ExecOutcome::Exited(3))))
    }

    async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        drop(self.note(format!("upload {} {remote}", handle.sandbox_id)));
        Gate::pass(&self.upload_gate).await;
        let contents = std::fs::read(local).map_err(|error| SandboxError::io("local", error))?;
        let mode = std::fs::metadata(local).unwrap().permissions().mode() & 0o7777;
        let mut seen = self.seen();
        if seen.fail_upload_of.as_deref() == remote.as_str() {
            return Err(SandboxError::exhausted("scripted: no space"));
        }
        seen.files.insert(remote.to_string(), (contents, mode));
        Ok(())
    }

    async fn download_file(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        let seen = self.note(format!("download {} {remote}", handle.sandbox_id));
        let Some((contents, _)) = seen.files.get(&remote.to_string()) else {
            return Err(SandboxError::not_found(format!("{remote}")));
        };
        std::fs::write(local, contents).map_err(|error| SandboxError::io("local", error))
    }

    async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus> {
        Gate::pass(&self.status_gate).await;
        let seen = self.note(format!("status {}", handle.sandbox_id));
        Ok(if seen.open.contains(&handle.sandbox_id) { SandboxStatus::Running } else { SandboxStatus::Stopped })
    }

    async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        {
            let mut seen = self.note(format!("close {}", handle.sandbox_id));
            seen.closing_at_once += 1;
            seen.most_closing_at_once = seen.most_closing_at_once.max(seen.closing_at_once);
        }
        assert!(!self.close_panics, "scripted panic");
        Gate::pass(&self.close_gate).await;
        let mut seen = self.seen();
        seen.closing_at_once -= 1;
        self.changed.notify_all();
        if fails(&mut seen.fail_close) {
            return Err(SandboxError::new(seen.close_kind.unwrap_or(ErrorKind::Internal), "scripted close failure"));
        }
        seen.open.remove(&handle.sandbox_id);
        Ok(())
    }

    async fn aclose(&self) -> Result<()> {
        let mut seen = self.note("aclose".to_owned());
        if fails(&mut seen.fail_aclose) {
            return Err(SandboxError::internal("scripted aclose failure"));
        }
        Ok(())
    }

    fn as_endpoint(&self) -> Option<&dyn Endpoint> {
        self.has(Capability::Endpoint, self as &dyn Endpoint)
    }

    fn as_pause_resume(&self) -> Option<&dyn PauseResume> {
        self.has(Capability::PauseResume, self as &dyn PauseResume)
    }

    fn as_connect(&self) -> Option<&dyn Connect> {
        self.has(Capability::Connect, self as &dyn Connect)
    }

    fn as_renew(&self) -> Option<&dyn Renew> {
        self.has(Capability::Renew, self as &dyn Renew)
    }

    fn as_sidecars(&self) -> Option<&dyn Sidecars> {
        self.has(Capability::Sidecars, self as &dyn Sidecars)
    }

    fn as_files(&self) -> Option<&dyn Files> {
        self.has(Capability::Files, self as &dyn Files)
    }
}

#[async_trait]
impl Endpoint for Fake {
    async fn endpoint(&self, _handle: &SandboxHandle, port: u16) -> Result<SandboxEndpoint> {
        let url = self.seen().endpoint.clone().unwrap_or_else(|| format!("http://host:{port}"));
        Ok(SandboxEndpoint { endpoint: url, headers: BTreeMap::from([("x".into(), "y".into())]) })
    }
}

#[async_trait]
impl PauseResume for Fake {
    async fn pause(&self, handle: &SandboxHandle) -> Result<()> {
        drop(self.note(format!("pause {}", handle.sandbox_id)));
        Ok(())
    }

    async fn resume(&self, handle: &SandboxHandle) -> Result<SandboxHandle> {
        drop(self.note(format!("resume {}", handle.sandbox_id)));
        Ok(SandboxHandle { generation: handle.generation + 1, ..handle.clone() })
    }
}

#[async_trait]
impl Connect for Fake {
    async fn serialize_handle(&self, handle: &SandboxHandle, scope: Option<String>) -> Result<Value> {
        Ok(json!({"id": handle.sandbox_id, "scope": scope, "workdir": null}))
    }

    async fn connect(&self, descriptor: Value) -> Result<SandboxHandle> {
        drop(self.note("connect".to_owned()));
        self.seen().descriptors.push(descriptor.clone());
        let id = descriptor["id"].as_str().ok_or_else(|| SandboxError::invalid_input("id", "is missing"))?;
        Ok(SandboxHandle::new(id, &self.name))
    }
}

#[async_trait]
impl Renew for Fake {
    async fn renew(&self, handle: &SandboxHandle, ttl_s: f64) -> Result<u64> {
        drop(self.note(format!("renew {} {ttl_s}", handle.sandbox_id)));
        Ok(17)
    }
}

#[async_trait]
impl Sidecars for Fake {
    async fn sidecar_exec(&self, handle: &SandboxHandle, sidecar: String, request: ExecRequest) -> Result<ExecStream> {
        self.note(format!("sidecar exec {} {sidecar}", handle.sandbox_id)).requests.push(request);
        let pieces =
            [&b"a\xe2"[..], b"\x82", b"\xac", b"z\xff"].map(|piece| ExecEvent::Stdout(Bytes::from_static(piece)));
        let exit = ExecEvent::Exit(ExecExit::new(ExecOutcome::Exited(4)));
        Ok(ExecStream::from_events(pieces.into_iter().chain([exit]).collect()))
    }

    async fn download_sidecar_file(
        &self,
        handle: &SandboxHandle,
        sidecar: &str,
        remote: &ByteString,
        local: &Path,
    ) -> Result<()> {
        drop(self.note(format!("sidecar download {} {sidecar} {remote}", handle.sandbox_id)));
        std::fs::write(local, "of the sidecar").map_err(|error| SandboxError::io("local", error))
    }
}

#[async_trait]
impl Files for Fake {
    async fn read_file(&self, _handle: &SandboxHandle, path: ByteString, _range: ReadRange) -> Result<Bytes> {
        Ok(Bytes::from(format!("read {path}")))
    }

    async fn write_file(&self, _handle: &SandboxHandle, path: ByteString, data: Bytes, o: WriteOptions) -> Result<()> {
        self.note(format!("write {path}")).files.insert(path.to_string(), (data.to_vec(), o.mode.unwrap_or(0)));
        Ok(())
    }

    async fn list_dir(&self, _handle: &SandboxHandle, path: ByteString) -> Result<Vec<DirEntry>> {
        drop(self.note(format!("list {path}")));
        Ok(Vec::new())
    }

    async fn stat(&self, _handle: &SandboxHandle, path: ByteString) -> Result<FileStat> {
        drop(self.note(format!("stat {path}")));
        Ok(FileStat { kind: FileKind::File, size: 0, mode: 0, uid: 0, gid: 0, modified_ms: 0, link_target: None })
    }

    async fn remove(&self, _handle: &SandboxHandle, path: ByteString, recursive: bool) -> Result<()> {
        drop(self.note(format!("remove {path} {recursive}")));
        Ok(())
    }

    async fn make_dir(&self, _handle: &SandboxHandle, path: ByteString) -> Result<()> {
        drop(self.note(format!("make_dir {path}")));
        Ok(())
    }

    async fn upload_dir(&self, _handle: &SandboxHandle, _local: &Path, remote: &ByteString) -> Result<()> {
        drop(self.note(format!("upload_dir {remote}")));
        Ok(())
    }

    async fn download_dir(&self, _handle: &SandboxHandle, remote: &ByteString, _local: &Path) -> Result<()> {
        drop(self.note(format!("download_dir {remote}")));
        Ok(())
    }
}
