//! A running stack and its end.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sandbox_core::{PortStream, Result, SandboxError, SandboxProvider};
use tokio::{
    sync::Mutex as AsyncMutex,
    task::{JoinHandle, JoinSet},
};

use super::{
    events::Events,
    member::{Ask, Member},
    relay::Relay,
    resources::Resources,
    running::Running,
    state::ServiceStatus,
    storage,
};

/// Beyond its grace period, what a program has until it must have ended.
const STOP_SLACK: Duration = Duration::from_secs(30);

/// A stack that is running, or on its way there or back.
pub(super) struct Stack {
    pub(super) provider: Arc<dyn SandboxProvider>,
    pub(super) id: String,
    pub(super) project: String,
    pub(super) events: Events,
    pub(super) resources: AsyncMutex<Resources>,
    /// In the order of starting.
    pub(super) members: Mutex<Vec<Arc<Member>>>,
    pub(super) tasks: Mutex<Vec<JoinHandle<()>>>,
    pub(super) relays: Mutex<Vec<Relay>>,
    /// Forwarded ports of `network_mode: service:`; ended when dropped.
    pub(super) forwards: Mutex<Vec<PortStream>>,
    /// The services of the document, each with those that it needs.
    pub(super) needs: BTreeMap<String, Vec<String>>,
    /// The image of the helper that removes the stack's folders from a shared storage, once there are some.
    pub(super) folders_by: Mutex<Option<String>>,
    /// Somebody else started the programs.
    pub(super) is_connected: bool,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stack {
    pub(super) fn members(&self) -> Vec<Arc<Member>> {
        locked(&self.members).clone()
    }

    pub(super) fn member(&self, service: &str, replica: u32) -> Result<Arc<Member>> {
        let members = self.members();
        if let Some(member) = members.iter().find(|member| member.service == service && member.replica == replica) {
            return Ok(member.clone());
        }
        let mut names: Vec<_> = members.iter().map(|member| member.service.clone()).collect();
        names.dedup();
        let message = match names.iter().any(|name| name == service) {
            true => format!("service {service:?} has no sandbox number {replica}"),
            false => format!("there is no running service {service:?}; there is: {}", names.join(", ")),
        };
        Err(SandboxError::not_found(message).with_field("service"))
    }

    pub(super) fn status(&self) -> Vec<ServiceStatus> {
        let of = |member: &Arc<Member>| ServiceStatus {
            service: member.service.clone(),
            replica: member.replica,
            sandbox_id: member.sandbox.handle().map(|handle| handle.sandbox_id).unwrap_or_default(),
            state: member.state.borrow().clone(),
        };
        self.members().iter().map(of).collect()
    }

    /// Ends everything: programs in reverse order with their grace periods, then sandboxes, networks and volumes.
    /// Everything is tried; the first error is told, and what is still there is kept for the next attempt.
    pub(super) async fn tear_down(&self) -> Result<()> {
        locked(&self.relays).clear();
        self.stop_programs().await;
        locked(&self.forwards).clear();
        let tasks = std::mem::take(&mut *locked(&self.tasks));
        for task in tasks {
            task.abort();
            // A task that was aborted or is over: nothing to learn.
            let _ = task.await;
        }
        let mut removals = JoinSet::new();
        for member in self.members() {
            removals.spawn(async move {
                let result = member.sandbox.stop().await;
                (member, result)
            });
        }
        let mut first = Ok(());
        let mut left = Vec::new();
        while let Some(joined) = removals.join_next().await {
            match joined {
                Ok((member, Ok(()))) => self.events.tell(Some((&member.service, member.replica)), "removed", None),
                Ok((member, Err(error))) => {
                    first = first.and(Err(error));
                    left.push(member);
                }
                Err(error) => first = first.and(Err(SandboxError::internal(format!("removing a sandbox: {error}")))),
            }
        }
        *locked(&self.members) = left;
        // Networks and volumes cannot go before the sandboxes that use them.
        first?;
        self.resources.lock().await.remove(&self.provider).await?;
        let helper = locked(&self.folders_by).clone();
        if let Some(helper) = helper {
            storage::remove_folders(&self.provider, &self.id, &helper).await?;
            *locked(&self.folders_by) = None;
        }
        self.events.tell(None, "removed", None);
        Ok(())
    }

    /// Nobody looks after it any more.
    pub(super) fn abandon(&self) {
        for task in locked(&self.tasks).drain(..) {
            task.abort();
        }
    }

    /// Ends the looking after: programs run on where their sandboxes keep them.
    pub(super) async fn leave(&self) -> Result<()> {
        for member in self.members() {
            if !Running::can_keep(&member.sandbox, member.policy.keeps_input) {
                let message =
                    format!("the program of service {:?} runs in this process and ends with it", member.service);
                return Err(SandboxError::invalid_state(message).with_field(format!("services.{}", member.service)));
            }
        }
        // What is refused is refused for all of them: they have one owner.
        for member in self.members() {
            member.sandbox.leave().await.map_err(|error| error.context(format!("service {:?}", member.service)))?;
        }
        locked(&self.relays).clear();
        locked(&self.forwards).clear();
        let tasks = std::mem::take(&mut *locked(&self.tasks));
        for task in tasks {
            task.abort();
            // A task that was aborted or is over: nothing to learn.
            let _ = task.await;
        }
        locked(&self.members).clear();
        Ok(())
    }

    /// Stops programs, those first that nobody needs.
    async fn stop_programs(&self) {
        let mut waves: Vec<Vec<Arc<Member>>> = Vec::new();
        let mut left: Vec<_> = self.members().into_iter().filter(|member| member.is_watched).collect();
        while !left.is_empty() {
            let is_needed = |member: &Arc<Member>| {
                left.iter().any(|other| {
                    other.service != member.service
                        && self.needs.get(&other.service).is_some_and(|needs| needs.contains(&member.service))
                })
            };
            let (later, now): (Vec<_>, Vec<_>) = left.iter().cloned().partition(is_needed);
            // There are no circles, but an empty wave would never end.
            if now.is_empty() {
                waves.push(later);
                break;
            }
            waves.push(now);
            left = later;
        }
        for wave in waves {
            let mut stopping = JoinSet::new();
            for member in wave {
                member.ask.send_replace(Ask::Stop);
                stopping.spawn(async move {
                    let limit = member.policy.stop_grace + STOP_SLACK;
                    let mut state = member.state.subscribe();
                    let over =
                        state.wait_for(|state| state.is_over() || state.phase == super::state::ServicePhase::Waiting);
                    let _ = tokio::time::timeout(limit, over).await;
                });
            }
            while stopping.join_next().await.is_some() {}
        }
    }
}
