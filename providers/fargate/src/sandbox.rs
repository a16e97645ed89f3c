//! One sandbox, seen from here.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sandbox_agent_client::AgentWay;
use sandbox_core::{
    Admitted, ErrorKind, Result, SandboxError, SandboxHandle, SandboxStatus, async_trait, serde_json::json,
};
use sandbox_protocol::Client;
use tokio::time::Instant;

use crate::{
    aws::Task,
    config::TransportKind,
    ending::ending,
    endpoint::Endpoints,
    error::{NAME, not_found},
    key::Keys,
    link::Link,
    provider::Shared,
    tags::Labels,
    transport::{Direct, Ssh, Transport},
};

/// The generation of every handle: what tells incarnations apart is their own text.
pub(crate) const GENERATION: u64 = 1;

/// How long is asked why a sandbox does not answer.
const EXPLAIN_LIMIT: Duration = Duration::from_secs(15);

/// A sandbox that this provider knows.
pub(crate) struct Sandbox {
    pub(crate) arn: String,
    pub(crate) id: String,
    pub(crate) labels: Labels,
    pub(crate) address: IpAddr,
    pub(crate) link: Link,
    pub(crate) endpoints: Endpoints,
    /// When it ends, if that was moved from here.
    renewed: Mutex<Option<u64>>,
}

impl Sandbox {
    /// A sandbox whose task has an address.
    ///
    /// # Errors
    /// `PermissionDenied` where its keys come from another secret.
    pub(crate) fn new(
        task: &Task,
        labels: Labels,
        address: IpAddr,
        keys: &Keys,
        host_key: Option<String>,
    ) -> Result<Self> {
        let incarnation = labels.incarnation.clone();
        if labels.key_id != keys.id() {
            let text = format!("sandbox {} was made with another key: {}, not {}", task.id(), labels.key_id, keys.id());
            return Err(SandboxError::new(ErrorKind::PermissionDenied, text)
                .with_provider(NAME)
                .with_field("key")
                .with_help("use the same key.file or key.secret_arn as whoever made it"));
        }
        let at = SocketAddr::new(address, labels.port);
        let transport: Box<dyn Transport> = match labels.transport {
            TransportKind::Ssh => Box::new(Ssh::new(at, keys.ssh(&incarnation), host_key)),
            TransportKind::Direct => Box::new(Direct { address: at }),
        };
        Ok(Self {
            arn: task.task_arn.clone(),
            id: task.id().to_owned(),
            address,
            link: Link::new(transport, keys.token(&incarnation), incarnation),
            endpoints: Endpoints::default(),
            labels,
            renewed: Mutex::new(None),
        })
    }

    pub(crate) fn handle(&self) -> SandboxHandle {
        handle(&self.arn, &self.labels, self.link.host_key())
    }

    /// True if the handle is of this incarnation.
    pub(crate) fn is_meant_by(&self, handle: &SandboxHandle) -> bool {
        text(handle, "incarnation") == Some(self.labels.incarnation.as_str())
    }

    pub(crate) fn renew_until(&self, at_ms: u64) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(at_ms);
    }

    pub(crate) fn expires_at_ms(&self) -> Option<u64> {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.or(self.labels.identity.expires_at_ms)
    }

    /// Does work through the agent. Nothing is done twice: what breaks off under way is told.
    pub(crate) async fn ask<T>(&self, shared: &Shared, work: impl AsyncFnOnce(Client) -> Result<T>) -> Result<T> {
        self.explained(shared, async { work(self.client(shared).await?).await }).await
    }

    /// Does work, whose failure may be the sandbox's own end.
    pub(crate) async fn explained<T>(&self, shared: &Shared, work: impl Future<Output = Result<T>>) -> Result<T> {
        match work.await {
            Ok(done) => Ok(done),
            Err(error) => Err(self.explain(shared, error).await),
        }
    }

    /// The connection. Where it has to be made again, it is not tried for long when the task has ended.
    pub(crate) async fn client(&self, shared: &Shared) -> Result<Client> {
        let mut connecting = std::pin::pin!(self.link.client());
        tokio::select! {
            biased;
            client = &mut connecting => return client,
            () = tokio::time::sleep(Duration::from_millis(250)) => {}
        }
        tokio::select! {
            client = &mut connecting => client,
            ended = self.wait_for_end(shared) => Err(ended),
        }
    }

    /// Looks now and then whether the task still runs; returns when it does not.
    async fn wait_for_end(&self, shared: &Shared) -> SandboxError {
        const PAUSE: Duration = Duration::from_secs(2);
        loop {
            if let Ok(found) = shared.describe(&self.arn, Instant::now() + EXPLAIN_LIMIT).await
                && found.as_ref().is_none_or(|task| task.status() == SandboxStatus::Stopped)
            {
                return SandboxError::unavailable("the task has ended");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What an error means when the sandbox itself is the reason.
    pub(crate) async fn explain(&self, shared: &Shared, error: SandboxError) -> SandboxError {
        if !matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable | ErrorKind::InvalidState) {
            return error.with_provider(NAME);
        }
        let found = shared.describe(&self.arn, Instant::now() + EXPLAIN_LIMIT).await;
        let why = match found {
            Ok(None) => "it was closed, or stopped by somebody else".to_owned(),
            Ok(Some(task)) if task.status() == SandboxStatus::Stopped => ending(&task, self.expires_at_ms()),
            _ => return error.with_provider(NAME),
        };
        match error.admitted() {
            Some(admitted) if admitted != Admitted::No => {
                SandboxError::lost(format!("sandbox {} is gone: {why}", self.id), admitted).with_provider(NAME)
            }
            _ => not_found(&self.id, &format!("is gone: {why}")),
        }
        .with_source(error)
    }
}

/// The way to the agent of a sandbox.
pub(crate) struct Way {
    pub(crate) shared: Arc<Shared>,
    pub(crate) sandbox: Arc<Sandbox>,
}

#[async_trait]
impl AgentWay for Way {
    async fn client(&self) -> Result<Client> {
        self.sandbox.client(&self.shared).await
    }

    async fn explain(&self, error: SandboxError) -> SandboxError {
        self.sandbox.explain(&self.shared, error).await
    }
}

/// The handle of a task with these tags. Holds no secret.
pub(crate) fn handle(arn: &str, labels: &Labels, host_key: Option<String>) -> SandboxHandle {
    let state = json!({ "task_arn": arn, "incarnation": labels.incarnation, "host_key": host_key });
    let mut handle = SandboxHandle::new(crate::aws::task_id(arn), NAME).with_state(state);
    handle.generation = GENERATION;
    handle
}

/// A text of a handle's state.
pub(crate) fn text<'a>(handle: &'a SandboxHandle, key: &str) -> Option<&'a str> {
    handle.state.get(key).and_then(|text| text.as_str())
}
