//! The whole stack as data, and back.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sandbox_core::{Result, SandboxError, SandboxProvider, from_json};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::{
    events::Events,
    logs::ServiceLogs,
    member::{Ask, Member, Policy},
    resources::{Named, Resources},
    running::{Running, last_run},
    stack::Stack,
    state::{ServicePhase, ServiceState},
};
use crate::{AsyncSandbox, Ownership, compose::ComposeRestart};

/// Output that does not come for so long is no longer kept, or another process reads it.
const QUIET: Duration = Duration::from_secs(2);

/// A stack as data. `services` is the model's form: the first sandbox of each by the name of its service; further ones
/// as `NAME#2`.
#[derive(Serialize, Deserialize)]
struct Descriptor {
    services: BTreeMap<String, Value>,
    #[serde(default)]
    id: String,
    #[serde(default)]
    project: String,
    #[serde(default)]
    networks: BTreeMap<String, String>,
    #[serde(default)]
    volumes: BTreeMap<String, String>,
    #[serde(default)]
    needs: BTreeMap<String, Vec<String>>,
    /// How the programs are asked to stop, by service.
    #[serde(default)]
    stop: BTreeMap<String, StopRule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    folders_by: Option<String>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct StopRule {
    signal: i32,
    grace_s: f64,
}

impl Default for StopRule {
    fn default() -> Self {
        Self { signal: 15, grace_s: 10.0 }
    }
}

pub(super) async fn serialize(stack: &Stack, scope: Option<&str>) -> Result<Value> {
    let (mut services, mut stop) = (BTreeMap::new(), BTreeMap::new());
    for member in stack.members() {
        let (signal, grace) = (member.policy.stop_signal, member.policy.stop_grace);
        stop.insert(member.service.clone(), StopRule { signal, grace_s: grace.as_secs_f64() });
        let name = match member.replica {
            1 => member.service.clone(),
            replica => format!("{}#{replica}", member.service),
        };
        services.insert(name, member.sandbox.serialize(scope).await?);
    }
    let resources = stack.resources.lock().await;
    let own = |named: &BTreeMap<String, Named>| {
        let own = named.iter().filter(|(_, named)| named.is_own);
        own.map(|(key, named)| (key.clone(), named.name.clone())).collect()
    };
    let descriptor = Descriptor {
        services,
        id: stack.id.clone(),
        project: stack.project.clone(),
        networks: own(&resources.networks),
        volumes: own(&resources.volumes),
        needs: stack.needs.clone(),
        stop,
        folders_by: stack.folders_by.lock().unwrap_or_else(PoisonError::into_inner).clone(),
    };
    serde_json::to_value(descriptor)
        .map_err(|error| SandboxError::internal("the descriptor of a stack is no JSON").with_source(error))
}

pub(super) async fn connect(provider: &Arc<dyn SandboxProvider>, descriptor: Value) -> Result<Stack> {
    let descriptor: Descriptor = from_json(descriptor, "descriptor")?;
    let events = Events::new();
    let (mut members, mut tasks, mut said) = (Vec::new(), Vec::new(), Vec::new());
    for (name, value) in descriptor.services {
        let (service, replica) = match name.rsplit_once('#') {
            Some((service, replica)) => (service.to_owned(), replica.parse().unwrap_or(1)),
            None => (name, 1),
        };
        let context = |error: SandboxError| error.context(format!("service {service:?}"));
        let sandbox = AsyncSandbox::connect(provider.clone(), value).await.map_err(context)?;
        let sandbox = sandbox.with_ownership(Ownership::Shared);
        // Where the sandbox does not keep its program, that is somebody else's, and cannot be asked to stop.
        let job = match provider.as_jobs() {
            Some(_) => last_run(sandbox.jobs().await.map_err(context)?),
            None => None,
        };
        let mut state = ServiceState::new();
        state.phase = match job.as_ref().and_then(|job| job.exit.as_ref()) {
            Some(exit) => ServicePhase::Exited(exit.outcome.return_code()),
            None => ServicePhase::Running,
        };
        let rule = descriptor.stop.get(&service).copied().unwrap_or_default();
        let member = Arc::new(Member {
            service,
            replica,
            sandbox: Arc::new(sandbox),
            logs: ServiceLogs::new(),
            state: watch::Sender::new(state),
            ask: watch::Sender::new(Ask::Run),
            policy: Policy {
                restart: ComposeRestart::No,
                stop_signal: rule.signal,
                stop_grace: Duration::try_from_secs_f64(rule.grace_s).unwrap_or_default(),
                keeps_input: false,
            },
            events: events.clone(),
            is_watched: job.is_some(),
        });
        match job {
            Some(job) => {
                let member = member.clone();
                said.push((member.logs.clone(), job.stdout_bytes + job.stderr_bytes));
                tasks.push(tokio::spawn(async move { member.follow(Running::of(&job)).await }));
            }
            None => member.logs.end(),
        }
        members.push(member);
    }
    // What they have said so far is here when the stack is.
    for (logs, bytes) in said {
        logs.reach(bytes, QUIET).await;
    }
    let own = |names: BTreeMap<String, String>| {
        names.into_iter().map(|(key, name)| (key, Named { name, is_own: true })).collect()
    };
    let resources = Resources { networks: own(descriptor.networks), volumes: own(descriptor.volumes) };
    Ok(Stack {
        provider: provider.clone(),
        id: descriptor.id,
        project: descriptor.project,
        events,
        resources: AsyncMutex::new(resources),
        members: Mutex::new(members),
        tasks: Mutex::new(tasks),
        relays: Mutex::default(),
        forwards: Mutex::default(),
        needs: descriptor.needs,
        folders_by: Mutex::new(descriptor.folders_by),
        is_connected: true,
    })
}
