//! What was asked of the services.

use std::collections::BTreeMap;

use serde_json::Value;

/// Requests of an operation that are kept.
const KEPT: usize = 1000;

/// How often each operation was called, with what, and what was answered.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    calls: BTreeMap<String, Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    count: u64,
    requests: Vec<Value>,
    statuses: BTreeMap<u16, u64>,
}

impl Journal {
    pub(crate) fn asked(&mut self, operation: &str, request: &Value) {
        let calls = self.calls.entry(operation.to_owned()).or_default();
        calls.count += 1;
        if calls.requests.len() < KEPT {
            calls.requests.push(request.clone());
        }
    }

    pub(crate) fn answered(&mut self, operation: &str, status: u16) {
        *self.calls.entry(operation.to_owned()).or_default().statuses.entry(status).or_default() += 1;
    }

    pub(crate) fn count(&self, operation: &str) -> u64 {
        self.calls.get(operation).map_or(0, |calls| calls.count)
    }

    pub(crate) fn requests(&self, operation: &str) -> Vec<Value> {
        self.calls.get(operation).map(|calls| calls.requests.clone()).unwrap_or_default()
    }

    pub(crate) fn answers(&self, operation: &str, status: u16) -> u64 {
        self.calls.get(operation).and_then(|calls| calls.statuses.get(&status)).copied().unwrap_or_default()
    }

    pub(crate) fn operations(&self) -> Vec<String> {
        self.calls.keys().cloned().collect()
    }
}
