//! Scripted faults: what goes wrong, for which requests, how often.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Something that goes wrong.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fault {
    /// Of requests of this method only; empty: of any.
    pub method: String,
    /// Of requests whose path ends with this, without the query.
    pub path: String,
    /// So many matching requests pass first.
    pub skip: u32,
    /// So many requests are hit; 0 counts as 1.
    pub times: u32,
    /// Answer with this status.
    pub status: Option<u16>,
    /// Its body.
    pub body: String,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// Wait so long first, in milliseconds.
    pub delay_ms: u64,
    /// Hang up without an answer, before the request is looked at.
    pub drop_before: bool,
    /// Do what the request asks, and hang up without an answer.
    pub drop_after: bool,
    /// Do what the request asks, but break off the answer's body in the middle.
    pub truncate: bool,
}

/// The faults that are still to come.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<Fault>);

impl Faults {
    pub(crate) fn add(&mut self, mut fault: Fault) {
        fault.times = fault.times.max(1);
        self.0.push(fault);
    }

    /// The fault that hits this request, if one does.
    pub(crate) fn hit(&mut self, method: &str, path: &str) -> Option<Fault> {
        let is_hit = |fault: &Fault| (fault.method.is_empty() || fault.method == method) && path.ends_with(&fault.path);
        let index = self.0.iter().position(is_hit)?;
        let fault = &mut self.0[index];
        if fault.skip > 0 {
            fault.skip -= 1;
            return None;
        }
        fault.times -= 1;
        let hit = fault.clone();
        if fault.times == 0 {
            self.0.remove(index);
        }
        Some(hit)
    }

    /// How many are still to come.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }
}
