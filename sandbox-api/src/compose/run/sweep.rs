//! Networks and volumes of stacks that nobody answers for any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{
    Capability, ListFilter, Owner, Result, SandboxError, SandboxIdentity, SandboxProvider, SweepReport,
};

use crate::{checks, identity::is_gone, timeouts::within};

/// The label with the id of a stack.
pub(super) const ID: &str = "sandbox.compose.id";
/// On networks and volumes: who answers for them, as a sandbox's identity has it.
const IDENTITY: &str = "sandbox.compose.identity";

/// How long one call may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Labels, and who answers for what has them.
pub(super) fn marked(
    labels: &BTreeMap<String, String>,
    identity: &SandboxIdentity,
) -> Result<BTreeMap<String, String>> {
    let text = serde_json::to_string(identity)
        .map_err(|error| SandboxError::internal("an identity is no JSON").with_source(error))?;
    let mut labels = labels.clone();
    labels.insert(IDENTITY.to_owned(), text);
    Ok(labels)
}

/// A network or volume of a stack that may go.
struct Lonely {
    name: String,
    is_network: bool,
}

/// Removes networks and volumes of stacks whose owner is gone, or whose lease is over, once no sandbox of the stack is
/// left. Meant to follow a sweep of sandboxes: `removed` are the ids that it removed, or with `dry_run` would remove.
/// What the report names are `network:NAME` and `volume:NAME`.
///
/// # Errors
/// `Unsupported` without `list_sweep`; whatever kept the provider from listing.
pub async fn sweep_stacks(
    provider: &Arc<dyn SandboxProvider>,
    filter: &ListFilter,
    removed: &[String],
    dry_run: bool,
) -> Result<SweepReport> {
    let mut report = SweepReport::default();
    let lister = checks::require(provider.name(), provider.as_list_sweep(), Capability::ListSweep)?;
    let candidates = candidates(provider, filter).await?;
    if candidates.is_empty() {
        return Ok(report);
    }
    // Asked for after the networks: a stack that came meanwhile is not among the candidates.
    let all = within("listing sandboxes", LIMIT, lister.list(ListFilter::default())).await?;
    let used: BTreeSet<String> = all
        .into_iter()
        .filter(|record| !dry_run || !removed.contains(&record.handle.sandbox_id))
        .filter_map(|record| record.metadata.get(ID).cloned())
        .collect();
    for (id, lonely) in candidates.into_iter().filter(|(id, _)| !used.contains(id)) {
        let kind = if lonely.is_network { "network" } else { "volume" };
        let shown = format!("{kind}:{}", lonely.name);
        match if dry_run { Ok(()) } else { remove(provider, lonely).await } {
            Ok(()) => report.removed.push(shown),
            Err(error) => report.failed.push((shown, error.to_string())),
        }
        tracing::debug!(id, kind, dry_run, "swept of a stack");
    }
    Ok(report)
}

/// What belongs to stacks that nobody answers for, by the stack's id; networks first.
async fn candidates(provider: &Arc<dyn SandboxProvider>, filter: &ListFilter) -> Result<Vec<(String, Lonely)>> {
    let mut found = Vec::new();
    if let Some(networks) = provider.as_networks() {
        let all = within("listing networks", LIMIT, networks.list_networks()).await?;
        found.extend(all.into_iter().map(|network| (network.metadata, network.name, true)));
    }
    if let Some(volumes) = provider.as_volumes() {
        let all = within("listing volumes", LIMIT, volumes.list_volumes()).await?;
        found.extend(all.into_iter().map(|volume| (volume.metadata, volume.name, false)));
    }
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let stale = |(labels, name, is_network): (BTreeMap<String, String>, String, bool)| {
        let id = labels.get(ID)?.clone();
        let identity: SandboxIdentity = serde_json::from_str(labels.get(IDENTITY)?).ok()?;
        let is_meant = matches(filter, &identity, &labels, now_ms);
        (is_meant && is_stale(&identity, now_ms)).then_some((id, Lonely { name, is_network }))
    };
    Ok(found.into_iter().filter_map(stale).collect())
}

fn matches(filter: &ListFilter, identity: &SandboxIdentity, labels: &BTreeMap<String, String>, now_ms: u64) -> bool {
    let age_s = now_ms.saturating_sub(identity.created_at_ms) as f64 / 1000.0;
    filter.run_id.as_ref().is_none_or(|run_id| *run_id == identity.run_id)
        && filter.older_than_s.is_none_or(|older_than_s| age_s > older_than_s)
        && filter.metadata.iter().all(|(key, value)| labels.get(key) == Some(value))
}

/// A lease that was renewed has sandboxes; without them it is over at its first expiry.
fn is_stale(identity: &SandboxIdentity, now_ms: u64) -> bool {
    match identity.owner {
        Owner::Lease => identity.expires_at_ms.is_some_and(|at| at <= now_ms),
        _ => is_gone(&identity.owner),
    }
}

async fn remove(provider: &Arc<dyn SandboxProvider>, lonely: Lonely) -> Result<()> {
    match (lonely.is_network, provider.as_networks(), provider.as_volumes()) {
        (true, Some(networks), _) => within("removing a network", LIMIT, networks.remove_network(lonely.name)).await,
        (false, _, Some(volumes)) => within("removing a volume", LIMIT, volumes.remove_volume(lonely.name)).await,
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::Owner;

    use super::is_stale;
    use crate::identity::{new_identity, process_owner};

    #[test]
    fn only_what_nobody_answers_for_is_stale() {
        let now = |identity: &sandbox_core::SandboxIdentity| identity.created_at_ms + 1000;
        let alive = new_identity(process_owner(), Some(0.5));
        assert!(!is_stale(&alive, now(&alive)), "its process lives");
        let mut gone = alive.clone();
        if let Owner::Process { start_time, .. } = &mut gone.owner {
            *start_time += 1;
        }
        assert!(is_stale(&gone, now(&gone)));
        if let Owner::Process { host, .. } = &mut gone.owner {
            host.push_str("-elsewhere");
        }
        assert!(!is_stale(&gone, now(&gone)), "nobody here knows");
        let over = new_identity(Owner::Lease, Some(0.5));
        let later = new_identity(Owner::Lease, Some(5.0));
        assert!(is_stale(&over, now(&over)) && !is_stale(&later, now(&later)));
    }
}
