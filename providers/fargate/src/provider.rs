//! The provider: every call finds its sandbox and passes the work on.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandbox_agent_client::AgentFiles;
use sandbox_core::{
    BackgroundServices, BuildImage, ByteString, Connect, Endpoint, ExecRequest, ExecStream, Files, Jobs, ListSweep,
    Metrics, PortForwarding, ProviderInfo, Pty, PtyAttach, Renew, Result, SandboxError, SandboxHandle, SandboxProvider,
    SandboxSpec, SandboxStatus, SharedStorage, async_trait, tracing,
};
use tokio::{
    sync::{OnceCell, Semaphore},
    time::Instant,
};

use crate::{
    aws::{Aws, Bucket, Cluster, Environment, Task},
    bootstrap::Fetched,
    config::FargateConfig,
    create::create,
    definition::Definitions,
    ending::ending,
    error::{NAME, not_found},
    images::Images,
    info::info,
    key::Keys,
    poller::Poller,
    sandbox::{GENERATION, Sandbox, Way, text},
    settings::Settings,
    staging::Staging,
    tags::Labels,
};

/// How long one question to AWS may take, tries included, where nobody says.
pub(crate) const CALL_LIMIT: Duration = Duration::from_secs(60);
/// How long `status` waits for AWS before it says that it does not know.
const STATUS_LIMIT: Duration = Duration::from_secs(10);

/// The Fargate provider. Dropping it ends its connections; sandboxes stay, and are swept when their owner is gone.
pub struct FargateProvider {
    pub(crate) shared: Arc<Shared>,
}

/// What calls need beside their sandbox.
pub(crate) struct Shared {
    pub(crate) config: FargateConfig,
    pub(crate) aws: Arc<Aws>,
    pub(crate) definitions: Definitions,
    /// Of sandboxes whose spec does not say whose they are.
    pub(crate) run_id: String,
    settings: OnceCell<Settings>,
    keys: OnceCell<Keys>,
    fetched: OnceCell<Fetched>,
    pub(crate) images: Images,
    poller: Mutex<Option<Arc<Poller>>>,
    turns: Option<Arc<Semaphore>>,
    sandboxes: Mutex<HashMap<String, Arc<Sandbox>>>,
}

impl FargateProvider {
    /// A provider with these settings. Reaches nothing yet.
    ///
    /// # Errors
    /// `InvalidInput`, naming the setting.
    pub fn new(config: FargateConfig) -> Result<Self> {
        config.validate()?;
        let aws = Aws::new(&config, Environment::of_process()).map_err(|error| error.with_provider(NAME))?;
        let turns = config.concurrency.map(|count| Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS))));
        let shared = Shared {
            aws: Arc::new(aws),
            config,
            definitions: Definitions::default(),
            run_id: sandbox_agent_client::random_hex(8)?,
            settings: OnceCell::new(),
            keys: OnceCell::new(),
            fetched: OnceCell::new(),
            images: Images::default(),
            poller: Mutex::default(),
            turns,
            sandboxes: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

/// Refuses a handle that another provider made.
pub(crate) fn check_provider(handle: &SandboxHandle) -> Result<()> {
    if handle.provider_name == NAME {
        return Ok(());
    }
    let message = format!("sandbox {} belongs to provider {:?}", handle.sandbox_id, handle.provider_name);
    Err(SandboxError::not_found(message).with_provider(NAME))
}

impl Shared {
    pub(crate) fn sandboxes(&self) -> MutexGuard<'_, HashMap<String, Arc<Sandbox>>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where and as what tasks run; looked for once.
    pub(crate) async fn settings(&self, deadline: Instant) -> Result<&Settings> {
        let load = || Settings::load(&self.config, &self.aws, deadline);
        self.settings.get_or_try_init(load).await.map_err(|error| error.with_provider(NAME))
    }

    /// The keys of sandboxes; their secret is looked for once.
    pub(crate) async fn keys(&self, deadline: Instant) -> Result<&Keys> {
        let load = || Keys::load(&self.config.key, &self.aws, deadline);
        self.keys.get_or_try_init(load).await.map_err(|error| error.with_provider(NAME))
    }

    /// The agent that images fetch; put into the bucket once.
    pub(crate) async fn fetched(&self, bucket: &Bucket) -> Result<&Fetched> {
        let find = || Fetched::find(&self.config, &self.aws, bucket);
        self.fetched.get_or_try_init(find).await.map_err(|error| error.with_provider(NAME))
    }

    /// Who asks for the tasks that start.
    pub(crate) fn poller(&self, cluster: &str) -> Arc<Poller> {
        let mut poller = self.poller.lock().unwrap_or_else(PoisonError::into_inner);
        poller.get_or_insert_with(|| Poller::new(self.aws.clone(), cluster.to_owned())).clone()
    }

    /// What AWS knows of a task; none when it is gone.
    pub(crate) async fn describe(&self, task: &str, deadline: Instant) -> Result<Option<Task>> {
        let cluster = Cluster { aws: &self.aws, name: &self.settings(deadline).await?.cluster };
        let found = cluster.describe(&[task.to_owned()], deadline).await.map_err(SandboxError::from)?;
        Ok(found.tasks.into_iter().next())
    }

    /// Stops a task. One that is gone is fine.
    pub(crate) async fn stop(&self, task: &str) -> Result<()> {
        let deadline = Instant::now() + CALL_LIMIT;
        let cluster = Cluster { aws: &self.aws, name: &self.settings(deadline).await?.cluster };
        Ok(cluster.stop(task, "the sandbox was closed", deadline).await?)
    }

    fn known(&self, handle: &SandboxHandle) -> Option<Arc<Sandbox>> {
        self.sandboxes().get(&handle.sandbox_id).filter(|sandbox| sandbox.is_meant_by(handle)).cloned()
    }

    pub(crate) async fn open(&self, handle: &SandboxHandle) -> Result<Arc<Sandbox>> {
        check_provider(handle)?;
        let id = &handle.sandbox_id;
        if handle.generation != GENERATION {
            return Err(not_found(id, "was replaced: the handle is of another generation"));
        }
        if let Some(sandbox) = self.known(handle) {
            return Ok(sandbox);
        }
        let deadline = Instant::now() + CALL_LIMIT;
        let task = self.find(id, deadline).await?;
        let task = task.ok_or_else(|| not_found(id, "is closed or was never made by this provider"))?;
        let labels = Labels::read(&task.tags());
        let labels = labels.ok_or_else(|| not_found(id, "is a task that this system has not made"))?;
        if text(handle, "incarnation") != Some(labels.incarnation.as_str()) {
            return Err(not_found(id, "was replaced by another one"));
        }
        match task.status() {
            SandboxStatus::Running => {}
            SandboxStatus::Starting => {
                let text = format!("sandbox {id} is still being made");
                return Err(SandboxError::invalid_state(text).with_provider(NAME));
            }
            _ => return Err(not_found(id, &format!("is gone: {}", ending(&task, labels.identity.expires_at_ms)))),
        }
        let address = self.address(&task, deadline).await?;
        let address = address.ok_or_else(|| SandboxError::unavailable(format!("sandbox {id} has no address yet")))?;
        let keys = self.keys(deadline).await?;
        let host_key = text(handle, "host_key").map(str::to_owned);
        let sandbox = Arc::new(Sandbox::new(&task, labels, address, keys, host_key)?);
        Ok(self.sandboxes().entry(id.clone()).or_insert(sandbox).clone())
    }

    /// The task of an id. What cannot be an id is none.
    async fn find(&self, id: &str, deadline: Instant) -> Result<Option<Task>> {
        let is_id = (1..=64).contains(&id.len()) && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if is_id { self.describe(id, deadline).await } else { Ok(None) }
    }

    /// Stops the task of a handle.
    pub(crate) async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        check_provider(handle)?;
        let id = &handle.sandbox_id;
        let arn = match self.known(handle) {
            Some(sandbox) => {
                // What still runs is ended with the task.
                let _ = tokio::time::timeout(Duration::from_millis(200), sandbox.link.close()).await;
                sandbox.endpoints.close();
                sandbox.arn.clone()
            }
            None => match self.find(id, Instant::now() + CALL_LIMIT).await? {
                None => return Ok(()),
                Some(task) => match Labels::read(&task.tags()) {
                    // Another one has its place, or it is over: what was meant is gone.
                    Some(labels) if text(handle, "incarnation") != Some(labels.incarnation.as_str()) => return Ok(()),
                    Some(_) if task.status() == SandboxStatus::Stopped => return Ok(()),
                    Some(_) => task.task_arn,
                    None => return Err(not_found(id, "is a task that this system has not made")),
                },
            },
        };
        self.stop(&arn).await?;
        self.sandboxes().remove(id);
        tracing::debug!(sandbox_id = %id, "sandbox was closed");
        Ok(())
    }
}

#[async_trait]
impl SandboxProvider for FargateProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn info(&self) -> ProviderInfo {
        info(&self.shared.config, &self.shared.aws.region)
    }

    async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle> {
        spec.validate()?;
        self.info().check_spec(&spec)?;
        let sandbox = create(&self.shared, spec).await.map_err(|error| error.with_provider(NAME))?;
        tracing::debug!(sandbox_id = %sandbox.id, "sandbox was made");
        let handle = sandbox.handle();
        self.shared.sandboxes().insert(handle.sandbox_id.clone(), sandbox);
        Ok(handle)
    }

    async fn exec(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        request.validate()?;
        let sandbox = self.shared.open(handle).await?;
        let permit = match &self.shared.turns {
            Some(turns) => Some(turns.clone().acquire_owned().await.map_err(|_| SandboxError::internal("no turns"))?),
            None => None,
        };
        let way = Arc::new(Way { shared: self.shared.clone(), sandbox });
        let stream = sandbox_agent_client::exec(way, request).await?;
        Ok(match permit {
            Some(permit) => stream.with_guard(permit),
            None => stream,
        })
    }

    async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        let sandbox = self.shared.open(handle).await?;
        if let Some(staging) = Staging::of(&self.shared, &sandbox).await?
            && sandbox.explained(&self.shared, staging.upload(local, remote)).await?
        {
            return Ok(());
        }
        let work = async |client| AgentFiles(&client).upload_file(local, remote.clone()).await;
        sandbox.ask(&self.shared, work).await
    }

    async fn download_file(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        let sandbox = self.shared.open(handle).await?;
        if let Some(staging) = Staging::of(&self.shared, &sandbox).await?
            && sandbox.explained(&self.shared, staging.download(remote, local)).await?
        {
            return Ok(());
        }
        let work = async |client| AgentFiles(&client).download_file(remote.clone(), local).await;
        sandbox.ask(&self.shared, work).await
    }

    async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus> {
        check_provider(handle)?;
        let deadline = Instant::now() + STATUS_LIMIT;
        let Ok(found) = self.shared.find(&handle.sandbox_id, deadline).await else {
            return Ok(SandboxStatus::Unknown);
        };
        let found = found.filter(|task| {
            Labels::read(&task.tags()).is_some_and(|labels| text(handle, "incarnation") == Some(&labels.incarnation))
        });
        Ok(found.map_or(SandboxStatus::Stopped, |task| task.status()))
    }

    async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        self.shared.close(handle).await
    }

    async fn aclose(&self) -> Result<()> {
        let all: Vec<_> = self.shared.sandboxes().drain().map(|(_, sandbox)| sandbox).collect();
        for sandbox in all {
            sandbox.endpoints.close();
            // Commands under way are the sandbox's: they wait for a client for a while.
            let _ = tokio::time::timeout(Duration::from_secs(1), sandbox.link.close()).await;
        }
        Ok(())
    }

    fn as_background_services(&self) -> Option<&dyn BackgroundServices> {
        Some(self)
    }

    fn as_build_image(&self) -> Option<&dyn BuildImage> {
        let config = &self.shared.config;
        (config.ecr_repository.is_some() && config.build.project.is_some()).then_some(self as _)
    }

    fn as_connect(&self) -> Option<&dyn Connect> {
        Some(self)
    }

    fn as_endpoint(&self) -> Option<&dyn Endpoint> {
        Some(self)
    }

    fn as_files(&self) -> Option<&dyn Files> {
        Some(self)
    }

    fn as_jobs(&self) -> Option<&dyn Jobs> {
        Some(self)
    }

    fn as_list_sweep(&self) -> Option<&dyn ListSweep> {
        Some(self)
    }

    fn as_metrics(&self) -> Option<&dyn Metrics> {
        Some(self)
    }

    fn as_port_forwarding(&self) -> Option<&dyn PortForwarding> {
        Some(self)
    }

    fn as_pty(&self) -> Option<&dyn Pty> {
        Some(self)
    }

    fn as_pty_attach(&self) -> Option<&dyn PtyAttach> {
        Some(self)
    }

    fn as_shared_storage(&self) -> Option<&dyn SharedStorage> {
        self.shared.config.shared_storage.as_ref().map(|_| self as _)
    }

    fn as_renew(&self) -> Option<&dyn Renew> {
        Some(self)
    }
}
