//! A start as a whole: up, or nothing left.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use sandbox_core::SandboxError;
use tokio::{sync::watch, time::timeout};

use super::{
    boot::{self, Boot},
    logs::ServiceLogs,
    stack::Stack,
};
use crate::flush_cleanup;

/// How long the removal of what a dropped start leaves may take.
const ROLLBACK_LIMIT: Duration = Duration::from_secs(300);

/// Why a stack did not start, and what its services wrote.
pub(super) type Failed = (SandboxError, BTreeMap<(String, u32), ServiceLogs>);

/// The logs of every sandbox.
pub(super) fn logs_of(stack: &Stack) -> BTreeMap<(String, u32), ServiceLogs> {
    stack.members().iter().map(|member| ((member.service.clone(), member.replica), member.logs.clone())).collect()
}

/// Starts a stack, or removes what was made of it.
pub(super) async fn start_or_remove(
    stack: Arc<Stack>,
    boot: Boot,
    limit: Duration,
    mut dropped: watch::Receiver<()>,
) -> Result<(), Failed> {
    let error = tokio::select! {
        result = timeout(limit, boot::boot(&stack, &boot)) => match result {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error,
            Err(_) => SandboxError::timed_out(format!("the stack was not up within {} s", limit.as_secs_f64())),
        },
        _ = dropped.changed() => SandboxError::invalid_state("the start was given up"),
    };
    // Sandboxes whose start was dropped are removed there; networks cannot go before them.
    flush_cleanup(ROLLBACK_LIMIT).await;
    let logs = logs_of(&stack);
    if let Err(left) = stack.tear_down().await {
        tracing::warn!(
            kind = left.kind().as_str(),
            id = stack.id,
            "a stack that failed to start was not removed as a whole"
        );
    }
    Err((error, logs))
}
