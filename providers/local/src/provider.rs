//! The provider: every call finds its sandbox and passes the work on.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sandbox_agent_client::Life;
use sandbox_core::{
    BackgroundServices, ByteString, Connect, Endpoint, ExecRequest, ExecStream, Files, Jobs, ListSweep, Metrics,
    Network, Networks as NamedNetworks, PauseResume, PortForwarding, ProviderInfo, Pty, PtyAttach, Renew, Result,
    SandboxError, SandboxHandle, SandboxProvider, SandboxSpec, SandboxStatus, SharedStorage, Volumes, async_trait,
    tracing,
};
use tokio::sync::Semaphore;

use crate::{
    config::LocalConfig,
    copy::Cancel,
    create::create,
    error::{NAME, not_open},
    exec::exec,
    fate::Fate,
    info::info,
    isolated::{self, Abilities, IsolatedFiles, Networks, Standby},
    records::Records,
    sandbox::{Sandbox, incarnation},
    state::State,
    transfer,
    user::is_privileged,
    workspace::Root,
};

/// So many sandboxes are kept after their time to live has passed, to say so; then the closed ones are forgotten.
const EXPIRED_KEPT: usize = 1024;

/// The time to live of a lease that names none, in seconds.
const LEASE_DEFAULT_S: f64 = 3600.0;

/// The local provider.
///
/// Dropping it ends every process of its sandboxes at once, and removes their folders as far as that takes less than
/// half a second. Sandboxes whose owner is a lease live on.
pub struct LocalProvider {
    pub(crate) shared: Arc<Shared>,
}

/// What calls need beside their sandbox.
pub(crate) struct Shared {
    pub(crate) config: LocalConfig,
    pub(crate) root: Root,
    pub(crate) records: Records,
    /// Turns for commands, where the settings limit how many run at once.
    pub(crate) turns: Option<Arc<Semaphore>>,
    /// Whether this provider has taken what killed programs left behind.
    pub(crate) has_swept: AtomicBool,
    sandboxes: Mutex<HashMap<String, Arc<Sandbox>>>,
    /// Those that another process or object has made, and that are used here. They live on when this object is gone.
    connected: Mutex<HashMap<String, Arc<Sandbox>>>,
    /// Of isolated sandboxes.
    pub(crate) standby: Standby,
    /// Looked up when first needed.
    abilities: OnceLock<Abilities>,
}

impl LocalProvider {
    /// A provider with these settings. Touches no file: folders are made with the first sandbox.
    ///
    /// # Errors
    /// `InvalidInput` or `Unsupported`, naming the setting.
    pub fn new(config: LocalConfig) -> Result<Self> {
        config.validate()?;
        let root = Root::new(config.root());
        let records = Records::new(&root, State::new(&config));
        let turns = config.concurrency.map(|count| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))));
        Ok(Self {
            shared: Arc::new(Shared {
                config,
                root,
                records,
                turns,
                has_swept: AtomicBool::default(),
                sandboxes: Mutex::default(),
                connected: Mutex::default(),
                standby: Standby::default(),
                abilities: OnceLock::new(),
            }),
        })
    }

    /// The open sandbox of a handle. An isolated one that another process has made is connected to.
    pub(crate) async fn open(&self, handle: &SandboxHandle) -> Result<Arc<Sandbox>> {
        check_provider(handle)?;
        let known = self.shared.find(handle);
        if let Some(sandbox) = known.as_ref().filter(|sandbox| sandbox.is_open()) {
            return Ok(sandbox.clone());
        }
        if self.shared.config.is_isolated()
            && let Some(sandbox) = self.shared.reattach(handle).await?
        {
            return Ok(sandbox);
        }
        Err(known.map_or_else(|| not_open(&handle.sandbox_id, Fate::Closed), |sandbox| sandbox.not_open()))
    }

    /// Does work on files on a thread where it may block. It ends early when nobody waits for it any more.
    pub(crate) async fn file_work<T: Send + 'static>(
        &self,
        handle: &SandboxHandle,
        work: impl FnOnce(&Sandbox, &Cancel) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let sandbox = self.open(handle).await?;
        let busy = sandbox.enter()?;
        let (cancel, _set_on_drop) = SetOnDrop::cancel(&sandbox);
        let task = tokio::task::spawn_blocking(move || {
            let done = work(&sandbox, &cancel);
            drop(busy);
            done
        });
        let done = task.await.unwrap_or_else(|_| Err(SandboxError::internal("file work panicked")));
        done.map_err(|error| error.with_provider(NAME))
    }
}

/// Does work on a thread where it may block; `what` is for the case that it panics.
pub(crate) async fn blocking<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(SandboxError::internal(format!("{what} panicked"))))
}

pub(crate) struct SetOnDrop(Arc<AtomicBool>);

impl SetOnDrop {
    /// What tells work on a sandbox that it is not wanted any more, when the other one is dropped.
    pub(crate) fn cancel(sandbox: &Sandbox) -> (Cancel, Self) {
        let is_dropped = Arc::new(AtomicBool::new(false));
        let set_on_drop = Self(is_dropped.clone());
        (Cancel { id: sandbox.id.clone(), fate: sandbox.gate.watch(), is_dropped }, set_on_drop)
    }
}

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Refuses a handle that another provider made.
fn check_provider(handle: &SandboxHandle) -> Result<()> {
    if handle.provider_name == NAME {
        return Ok(());
    }
    Err(SandboxError::not_found(format!(
        "sandbox {} belongs to provider {:?}",
        handle.sandbox_id, handle.provider_name
    ))
    .with_provider(NAME))
}

impl Shared {
    /// What this machine lets isolated sandboxes do; none where sandboxes are not isolated.
    pub(crate) fn abilities(&self) -> Option<&Abilities> {
        self.config.is_isolated().then(|| self.abilities.get_or_init(Abilities::look_up))
    }

    pub(crate) fn sandboxes(&self) -> MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connections(&self) -> MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
        self.connected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sandbox of a handle, open or expired.
    pub(crate) fn find(&self, handle: &SandboxHandle) -> Option<Arc<Sandbox>> {
        let made = self.sandboxes().get(&handle.sandbox_id).cloned();
        let found = made.or_else(|| self.connections().get(&handle.sandbox_id).cloned());
        found.filter(|sandbox| sandbox.is_meant_by(handle))
    }

    /// Keeps a sandbox that something else has made.
    pub(crate) fn connected(&self, sandbox: &Arc<Sandbox>) {
        // One that this object made itself, but lost its connection to, is no longer the one to use.
        let stale = self.sandboxes().get(&sandbox.id).is_some_and(|made| !Arc::ptr_eq(made, sandbox));
        if stale {
            self.sandboxes().remove(&sandbox.id);
        }
        if self.sandboxes().contains_key(&sandbox.id) {
            return;
        }
        let mut connections = self.connections();
        connections.retain(|_, sandbox| sandbox.is_open());
        connections.insert(sandbox.id.clone(), sandbox.clone());
    }

    /// Forgets a sandbox that is closed.
    fn forget(&self, id: &str) {
        self.sandboxes().remove(id);
        self.connections().remove(id);
    }

    fn add(&self, sandbox: &Arc<Sandbox>) {
        let mut sandboxes = self.sandboxes();
        if sandboxes.len() >= EXPIRED_KEPT {
            sandboxes.retain(|_, sandbox| !sandbox.is_gone.initialized());
        }
        sandboxes.insert(sandbox.id.clone(), sandbox.clone());
    }

    async fn create(self: &Arc<Self>, spec: SandboxSpec) -> Result<Arc<Sandbox>> {
        let started = tokio::time::Instant::now();
        let mut spec = spec;
        if self.config.is_isolated() && isolated::is_lease(&spec) && !has_end(&spec) {
            spec.ttl_s = Some(LEASE_DEFAULT_S);
        }
        let (ttl, limit) = (spec.ttl(), spec.ready_timeout());
        let shared = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let made = match shared.abilities() {
                Some(abilities) => isolated::create(&shared, abilities, spec)?,
                None => create(&shared, spec)?,
            };
            // Dropped here, where it may block, it is removed again.
            if limit.is_some_and(|limit| started.elapsed() > limit) { Err(not_ready(limit)) } else { Ok(made) }
        });
        let made = match limit {
            None => task.await,
            Some(time) => tokio::time::timeout(time, task).await.map_err(|_| not_ready(limit))?,
        };
        let sandbox = made.unwrap_or_else(|_| Err(SandboxError::internal("creation panicked")))?.claim()?;
        self.add(&sandbox);
        Standby::refill(self);
        if let Some(ttl) = ttl {
            sandbox.live_until(started + ttl);
        }
        Ok(sandbox)
    }

    /// Closes a sandbox that this object did not make: another one of this process did, or a process that is gone.
    async fn close_foreign(&self, handle: &SandboxHandle) -> Result<()> {
        let id = &handle.sandbox_id;
        if let Some(sandbox) = Sandbox::find_here(id).filter(|sandbox| sandbox.is_meant_by(handle)) {
            return sandbox.close(Fate::Closed).await;
        }
        let (records, root, id) = (self.records.clone(), self.root.clone(), id.clone());
        let wanted = incarnation(handle).map(str::to_owned);
        let task = tokio::task::spawn_blocking(move || match records.read(&id) {
            Some(record) if Some(&record.incarnation) == wanted.as_ref() => {
                remove_left_behind(&root, &records, &record)
            }
            _ => Ok(()),
        });
        task.await.unwrap_or_else(|_| Err(SandboxError::internal("closing panicked")))
    }
}

/// A lease without an end would be nobody's to remove.
fn has_end(spec: &SandboxSpec) -> bool {
    spec.ttl_s.is_some() || spec.identity.as_ref().is_some_and(|identity| identity.expires_at_ms.is_some())
}

/// Removes what a process left that is gone, or a sandbox that belongs to none.
pub(crate) fn remove_left_behind(root: &Root, records: &Records, record: &crate::record::Record) -> Result<()> {
    let is_of_another_machine = record.life() == Life::Unknown;
    if is_of_another_machine || (record.lasting.is_none() && record.status() != SandboxStatus::Stopped) {
        return Err(SandboxError::invalid_state(format!(
            "sandbox {} is held by another process that still runs: end it there",
            record.id
        ))
        .with_provider(NAME));
    }
    if let Some(inside) = &record.inside {
        inside.end()?;
    }
    if record.is_owned {
        // The path is made from the id, never taken from the file.
        record.root(root).remove_workspace(&record.id)?;
    }
    records.remove(&record.id)?;
    isolated::leave(&Networks::new(&record.root(root), records), &record.id, &record.networks);
    Ok(())
}

fn not_ready(limit: Option<Duration>) -> SandboxError {
    let limit_s = limit.unwrap_or_default().as_secs_f64();
    SandboxError::timed_out(format!("the sandbox was not ready within ready_timeout_s = {limit_s}"))
}

#[async_trait]
impl SandboxProvider for LocalProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn info(&self) -> ProviderInfo {
        match self.shared.abilities() {
            Some(abilities) => isolated::info(&self.shared.config, abilities),
            None => info(&self.shared.config),
        }
    }

    async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle> {
        spec.validate()?;
        self.info().check_spec(&spec)?;
        self.shared.sweep_in_background();
        let created = self.shared.create(spec).await;
        let sandbox = created.map_err(|error| error.with_provider(NAME))?;
        tracing::debug!(sandbox_id = sandbox.id, "sandbox was made");
        let handle = sandbox.record.lock().unwrap_or_else(PoisonError::into_inner).handle();
        Ok(handle)
    }

    async fn exec(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        let sandbox = self.open(handle).await?;
        match &sandbox.inside {
            Some(inside) => isolated::exec(&self.shared, &sandbox, inside, request).await,
            None => exec(&self.shared, &sandbox, request).await,
        }
    }

    async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.upload_file(local, remote.clone()).await;
        }
        let (local, remote) = (local.to_owned(), remote.clone());
        self.file_work(handle, move |sandbox, cancel| transfer::upload(sandbox, &local, &remote, cancel)).await
    }

    async fn download_file(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        if let Some(files) = IsolatedFiles::of(&*self.open(handle).await?) {
            return files.download_file(remote.clone(), local).await;
        }
        let (local, remote) = (local.to_owned(), remote.clone());
        self.file_work(handle, move |sandbox, cancel| transfer::download(sandbox, &remote, &local, cancel)).await
    }

    async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus> {
        check_provider(handle)?;
        if let Some(sandbox) = self.shared.find(handle) {
            let is_paused = sandbox.inside.as_ref().is_some_and(|inside| inside.is_paused());
            match sandbox.is_open() {
                true if is_paused => return Ok(SandboxStatus::Paused),
                true => return Ok(SandboxStatus::Running),
                false if !sandbox.is_lasting => return Ok(SandboxStatus::Stopped),
                // Its connection says nothing of a sandbox that is not bound to it.
                false => {}
            }
        }
        let record = self.shared.record_of(handle).await?;
        Ok(record.map_or(SandboxStatus::Stopped, |record| record.status()))
    }

    async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        check_provider(handle)?;
        let Some(sandbox) = self.shared.find(handle) else { return self.shared.close_foreign(handle).await };
        sandbox.close(Fate::Closed).await?;
        self.shared.forget(&sandbox.id);
        Ok(())
    }

    async fn aclose(&self) -> Result<()> {
        for sandbox in self.shared.sandboxes().values() {
            sandbox.stop_timer();
        }
        let shared = self.shared.clone();
        blocking("ending a launcher", move || {
            shared.standby.end();
            Ok(())
        })
        .await
    }

    fn as_background_services(&self) -> Option<&dyn BackgroundServices> {
        Some(self)
    }

    fn as_connect(&self) -> Option<&dyn Connect> {
        self.shared.abilities().map(|_| self as _)
    }

    fn as_endpoint(&self) -> Option<&dyn Endpoint> {
        self.shared.abilities().map(|_| self as _)
    }

    fn as_files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn as_jobs(&self) -> Option<&dyn Jobs> {
        self.shared.abilities().map(|_| self as _)
    }

    fn as_list_sweep(&self) -> Option<&dyn ListSweep> {
        Some(self)
    }

    fn as_metrics(&self) -> Option<&dyn Metrics> {
        self.shared.abilities().map(|_| self as _)
    }

    fn as_network(&self) -> Option<&dyn Network> {
        self.shared.abilities().filter(|_| is_privileged()).map(|_| self as _)
    }

    fn as_networks(&self) -> Option<&dyn NamedNetworks> {
        self.shared.abilities().filter(|_| is_privileged()).map(|_| self as _)
    }

    fn as_pause_resume(&self) -> Option<&dyn PauseResume> {
        self.shared.abilities().filter(|abilities| abilities.can_pause).map(|_| self as _)
    }

    fn as_port_forwarding(&self) -> Option<&dyn PortForwarding> {
        self.shared.abilities().map(|_| self as _)
    }

    fn as_pty(&self) -> Option<&dyn Pty> {
        self.shared.abilities().map(|_| self as _)
    }

    fn as_pty_attach(&self) -> Option<&dyn PtyAttach> {
        self.shared.abilities().map(|_| self as _)
    }

    fn as_shared_storage(&self) -> Option<&dyn SharedStorage> {
        self.shared.abilities().filter(|_| self.shared.config.shared_root.is_some()).map(|_| self as _)
    }

    fn as_volumes(&self) -> Option<&dyn Volumes> {
        self.shared.abilities().map(|_| self as _)
    }

    fn as_renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }
}

/// What a command leaves in the background lives until the sandbox closes: an ordinary exec does all of it.
#[async_trait]
impl BackgroundServices for LocalProvider {
    async fn exec_with_background_services(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        self.exec(handle, request).await
    }
}
