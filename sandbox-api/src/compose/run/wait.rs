//! Waiting: for what a service needs, and for a stack to be up.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use sandbox_core::{ErrorKind, Result, SandboxError};
use tokio::task::JoinSet;

use super::{
    member::{Ask, Member},
    stack::Stack,
    state::{ServiceHealth, ServicePhase, ServiceState},
};
use crate::compose::{ComposeCondition, ComposeRestart};

/// Waits for what a service needs. False when it was asked to stop before; an error says which need failed.
pub(super) async fn needs(
    stack: &Stack,
    member: &Member,
    needs: &BTreeMap<String, (ComposeCondition, bool)>,
) -> Result<bool, String> {
    let mut ask = member.ask.subscribe();
    let all = async {
        for (name, (condition, is_required)) in needs {
            for needed in stack.members().iter().filter(|other| other.service == *name) {
                if let Err(why) = need(needed, *condition).await
                    && *is_required
                {
                    return Err(format!("service {name:?}, which it needs, {why}"));
                }
            }
        }
        Ok(true)
    };
    let stopped = async {
        // Only that it came counts.
        let _ = ask.wait_for(|ask| *ask == Ask::Stop).await;
    };
    tokio::select! {
        result = all => result,
        () = stopped => Ok(false),
    }
}

async fn need(needed: &Member, condition: ComposeCondition) -> Result<(), String> {
    let mut state = needed.state.subscribe();
    let is_there = move |state: &ServiceState| match (condition, &state.phase) {
        (_, ServicePhase::Failed(_)) => true,
        (ComposeCondition::ServiceStarted, phase) => *phase != ServicePhase::Waiting,
        (ComposeCondition::ServiceHealthy, phase) => {
            matches!(state.health, ServiceHealth::Healthy | ServiceHealth::Unhealthy)
                || matches!(phase, ServicePhase::Exited(_))
        }
        (ComposeCondition::ServiceCompletedSuccessfully, phase) => matches!(phase, ServicePhase::Exited(_)),
    };
    let Ok(state) = state.wait_for(is_there).await.map(|state| state.clone()) else {
        return Err("is gone".to_owned());
    };
    match (condition, state.phase, state.health) {
        (_, ServicePhase::Failed(why), _) => Err(format!("failed: {why}")),
        (ComposeCondition::ServiceStarted, ..)
        | (ComposeCondition::ServiceCompletedSuccessfully, ServicePhase::Exited(0), _) => Ok(()),
        (ComposeCondition::ServiceHealthy, ServicePhase::Running, ServiceHealth::Healthy) => Ok(()),
        (_, ServicePhase::Exited(code), _) => Err(format!("exited ({code})")),
        _ => Err("is unhealthy".to_owned()),
    }
}

/// Waits until every service is up: started, and healthy where it can be. Fails when one cannot be any more.
pub(super) async fn until_up(stack: &Arc<Stack>, waits_for_health: bool, settle: Duration) -> Result<()> {
    let mut waiting = JoinSet::new();
    for member in stack.members() {
        waiting.spawn(async move { up(&member, waits_for_health).await });
    }
    while let Some(joined) = waiting.join_next().await {
        joined.map_err(|error| SandboxError::internal(format!("waiting for a service: {error}")))??;
    }
    // A program that cannot be started at all is told right after it was.
    let mut settling = JoinSet::new();
    for member in stack.members() {
        settling.spawn(async move {
            let mut state = member.state.subscribe();
            let _ = state.wait_for(|state| matches!(state.phase, ServicePhase::Failed(_))).await;
        });
    }
    if !settling.is_empty() {
        let _ = tokio::time::timeout(settle, settling.join_next()).await;
    }
    for member in stack.members() {
        if let ServicePhase::Failed(why) = &member.state.borrow().phase {
            return Err(failed(&member, why));
        }
    }
    Ok(())
}

async fn up(member: &Member, waits_for_health: bool) -> Result<()> {
    let mut state = member.state.subscribe();
    let is_checked = member.state.borrow().health != ServiceHealth::Unchecked;
    let waits = is_checked && waits_for_health;
    let restarts = !matches!(member.policy.restart, ComposeRestart::No);
    let is_decided = move |state: &ServiceState| match &state.phase {
        ServicePhase::Waiting => false,
        ServicePhase::Running if waits => matches!(state.health, ServiceHealth::Healthy | ServiceHealth::Unhealthy),
        _ => true,
    };
    let gone = |_| SandboxError::internal("a service is gone");
    let now = state.wait_for(is_decided).await.map_err(gone)?.clone();
    match now.phase {
        ServicePhase::Failed(why) => Err(failed(member, &why)),
        ServicePhase::Exited(code) if waits && !restarts => {
            Err(with_help(member, format!("service {:?} exited ({code}) before it was healthy", member.service)))
        }
        ServicePhase::Running if waits && now.health == ServiceHealth::Unhealthy => {
            Err(with_help(member, format!("service {:?} is unhealthy", member.service)))
        }
        _ => Ok(()),
    }
}

fn failed(member: &Member, why: &str) -> SandboxError {
    with_help(member, format!("service {:?} failed: {why}", member.service))
}

/// What it wrote is in its logs, which outlive the failure; output is never part of an error.
fn with_help(member: &Member, message: String) -> SandboxError {
    SandboxError::new(ErrorKind::Create, message)
        .with_field(format!("services.{}", member.service))
        .with_help("its logs say more")
}
