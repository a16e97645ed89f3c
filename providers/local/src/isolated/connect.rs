//! Isolated sandboxes that another process has made, or another provider of this one.

use std::{sync::Arc, time::Duration};

use sandbox_agent_client::{boot_id, host_name};
use sandbox_core::{
    Connect, ErrorKind, Result, SandboxError, SandboxHandle, SandboxStatus, async_trait,
    serde_json::{Value, json},
};
use sandbox_protocol::methods::{self, AgentInfo, Nothing};
use serde::Deserialize;
use tokio::sync::Mutex;

use crate::{
    error::{NAME, not_open},
    fate::Fate,
    isolated::{
        door::Door,
        endpoint::Endpoints,
        inside::{Inside, paused},
        memory::MemoryWatch,
        running::Running,
    },
    paths::Paths,
    provider::{LocalProvider, Shared, blocking},
    record::{Record, VERSION},
    records::check_version,
    sandbox::{Parts, Sandbox},
    user::Identity,
};

/// How long an agent may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// One attachment at a time: two for the same sandbox would be two objects for it.
static ATTACHING: Mutex<()> = Mutex::const_new(());

/// Names a sandbox for another process. The token is not in it: whoever may read that finds it by the id.
#[derive(Deserialize)]
struct Descriptor {
    provider: String,
    sandbox_id: String,
    incarnation: String,
    host: String,
    boot: String,
}

#[async_trait]
impl Connect for LocalProvider {
    async fn serialize_handle(&self, handle: &SandboxHandle, scope: Option<String>) -> Result<Value> {
        if scope.is_some() {
            let why = "must not be given: a local sandbox is there for every process of its user";
            return Err(SandboxError::invalid_input("scope", why).with_provider(NAME));
        }
        let record = self.shared.record_of(handle).await?;
        let record = record.filter(|record| record.inside.is_some() && record.status() != SandboxStatus::Stopped);
        let Some(record) = record else { return Err(not_open(&handle.sandbox_id, Fate::Closed)) };
        Ok(json!({
            "provider": NAME,
            "version": VERSION,
            "sandbox_id": record.id,
            "incarnation": record.incarnation,
            "host": host_name(),
            "boot": boot_id(),
        }))
    }

    async fn connect(&self, descriptor: Value) -> Result<SandboxHandle> {
        let bad = |why: &str| SandboxError::invalid_input("descriptor", why).with_provider(NAME);
        if descriptor.get("provider").and_then(Value::as_str) != Some(NAME) {
            return Err(bad("is not one of a local sandbox"));
        }
        // First: in a newer one everything else may be different.
        check_version(Some(descriptor.get("version").unwrap_or(&Value::Null)))?;
        let found: Descriptor = serde_json::from_value(descriptor).map_err(|_| bad("is not whole"))?;
        debug_assert_eq!(found.provider, NAME);
        if found.host != host_name() {
            let why = format!("is that of another machine: connect to it on {:?}", found.host);
            return Err(SandboxError::invalid_input("host", why).with_provider(NAME));
        }
        let id = found.sandbox_id;
        if found.boot != boot_id() {
            let message = format!("sandbox {id} has ended: this machine was started again since");
            return Err(SandboxError::not_found(message).with_provider(NAME));
        }
        let records = self.shared.records.clone();
        let wanted = id.clone();
        let record = blocking("reading", move || records.find(&wanted)).await?;
        let record = match record {
            None => return Err(not_open(&id, Fate::Closed)),
            Some(record) if record.incarnation != found.incarnation => {
                let message = format!("sandbox {id} is gone: another one has its id now");
                return Err(SandboxError::not_found(message).with_provider(NAME));
            }
            Some(record) => record,
        };
        let handle = record.handle();
        if record.status() != SandboxStatus::Paused {
            self.open(&handle).await?;
        }
        Ok(handle)
    }
}

impl Shared {
    /// What is written down of the very sandbox of a handle.
    pub(crate) async fn record_of(&self, handle: &SandboxHandle) -> Result<Option<Record>> {
        let (records, handle) = (self.records.clone(), handle.clone());
        blocking("reading", move || Ok(records.find(&handle.sandbox_id)?.filter(|record| record.is_meant_by(&handle))))
            .await
    }

    /// The open sandbox of a handle that this object did not make. None when it is gone.
    ///
    /// # Errors
    /// `InvalidState` while it is paused; `Unavailable` or `TimedOut` when its agent does not answer.
    pub(crate) async fn reattach(&self, handle: &SandboxHandle) -> Result<Option<Arc<Sandbox>>> {
        let _one_at_a_time = ATTACHING.lock().await;
        let here = self
            .find(handle)
            .or_else(|| Sandbox::find_here(&handle.sandbox_id).filter(|sandbox| sandbox.is_meant_by(handle)));
        match here {
            Some(sandbox) if sandbox.is_open() => {
                self.connected(&sandbox);
                return Ok(Some(sandbox));
            }
            // It is being closed.
            Some(sandbox) if sandbox.gate.fate() != Fate::Open => return Ok(None),
            _ => {}
        }
        let Some(record) = self.record_of(handle).await? else { return Ok(None) };
        match record.status() {
            SandboxStatus::Running => {}
            SandboxStatus::Paused => return Err(paused(&record.id).with_provider(NAME)),
            _ => return Ok(None),
        }
        let attached = match tokio::time::timeout(ANSWER_WITHIN, self.attach(record)).await {
            Ok(attached) => attached?,
            Err(_) => return Err(SandboxError::timed_out("the agent of the sandbox does not answer")),
        };
        if let Some(sandbox) = &attached {
            self.connected(sandbox);
        }
        Ok(attached)
    }

    /// Connects to the agent of a sandbox. None when there is none any more, or another one.
    async fn attach(&self, record: Record) -> Result<Option<Arc<Sandbox>>> {
        let Some((leftover, access)) = record.inside.clone().and_then(|inside| Some((inside.clone(), inside.access?)))
        else {
            // It is still being made.
            return Ok(None);
        };
        let root = record.root(&self.root);
        let door = Door::made(&self.records, &record)?;
        let token = record.token.clone().unwrap_or_default();
        let socket = match blocking("connecting", move || door.connect()).await {
            Err(error) if is_gone(&error) => return Ok(None),
            opened => opened?,
        };
        let running = Running::found(leftover);
        let mut inside = match Inside::connect(running, access.ids, socket, token).await {
            Ok(inside) => inside,
            Err(error) => return Err(error.with_kind(ErrorKind::Unavailable).with_provider(NAME)),
        };
        let info: AgentInfo = inside.client.call(methods::INFO, &Nothing {}).await?;
        if info.incarnation != record.incarnation {
            return Ok(None);
        }
        inside.endpoints = Endpoints::new(record.ports.clone());
        inside.memory = inside.cgroup().and_then(MemoryWatch::new);
        Ok(Some(Sandbox::new(Parts {
            record,
            root,
            records: self.records.clone(),
            paths: Paths::new(access.workdir.as_path().to_owned(), None),
            user: Identity::own(),
            env: Default::default(),
            shell: None,
            inside: Some(inside),
        })))
    }
}

/// Nobody listens there any more.
fn is_gone(error: &SandboxError) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable)
}
