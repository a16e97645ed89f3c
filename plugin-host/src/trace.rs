//! Writing down the steps while they are taken.

use std::time::Instant;

use sandbox_core::Result;

use crate::LoadStep;

/// The steps so far.
#[derive(Debug, Default)]
pub(crate) struct Trace(Vec<LoadStep>);

impl Trace {
    /// Runs one step, which gives its result and what to write down about it.
    pub(crate) fn step<T>(&mut self, name: &'static str, check: impl FnOnce() -> Result<(T, String)>) -> Result<T> {
        let start = Instant::now();
        let result = check();
        let outcome = match &result {
            Ok((_, detail)) => Ok(detail.clone()),
            Err(error) => Err(error.to_string()),
        };
        self.0.push(LoadStep { name, outcome, duration: start.elapsed() });
        result.map(|(value, _)| value)
    }

    pub(crate) fn into_steps(self) -> Vec<LoadStep> {
        self.0
    }
}
