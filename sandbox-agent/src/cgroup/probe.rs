//! Which limits can be honoured here, found out without changing anything.

use std::collections::BTreeMap;

use serde::Serialize;

use super::place::Places;
use super::{CgroupError, Limit, Limits, Version, files, v2};

/// What cgroups offer this process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Probe {
    /// `None` when no hierarchy is mounted.
    pub version: Option<Version>,
    /// For each limit: `None` if it can be honoured, else why not.
    pub limits: BTreeMap<Limit, Option<String>>,
}

impl Probe {
    /// Why a limit cannot be honoured; `None` if it can.
    pub fn refusal(&self, limit: Limit) -> Option<&str> {
        self.limits.get(&limit).and_then(|refusal| refusal.as_deref())
    }
}

/// Says which limits [`Cgroup::create`](super::Cgroup::create) can honour for this process, and why not the others.
pub fn probe() -> Probe {
    match Places::of_this_process() {
        Ok(places) => {
            let limits = Limit::ALL.iter().map(|limit| (*limit, refusal(&places, *limit))).collect();
            Probe { version: places.version(), limits }
        }
        Err(error) => {
            let limits = Limit::ALL.iter().map(|limit| (*limit, Some(error.to_string()))).collect();
            Probe { version: None, limits }
        }
    }
}

/// Refuses the first limit that cannot be honoured.
pub(super) fn check(places: &Places, limits: &Limits) -> Result<(), CgroupError> {
    for limit in limits.wanted() {
        if let Some(reason) = refusal(places, limit) {
            return Err(CgroupError::refused(Some(limit), reason));
        }
    }
    Ok(())
}

fn refusal(places: &Places, limit: Limit) -> Option<String> {
    match places.version() {
        None => Some("no cgroup hierarchy is mounted".to_owned()),
        Some(Version::V1) => {
            let controller = limit.controller();
            let Some(folder) = places.v1.get(controller) else {
                return Some(format!("the cgroup v1 controller {controller} is not mounted"));
            };
            (!files::is_writable(folder))
                .then(|| format!("{} cannot be written by this user (cgroup v1 is not delegated)", folder.display()))
        }
        Some(Version::V2) => v2::refusal(places, limit),
    }
}
