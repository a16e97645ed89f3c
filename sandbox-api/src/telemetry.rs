//! What is counted, through the `metrics` facade. Spans are where the work is. Neither ever holds a command,
//! environment, directory, user, output or file name.

use std::time::{Duration, Instant};

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use sandbox_core::{Result, SandboxError};
use tracing::{Instrument, Span};

const ACTIVE: &str = "sandbox.active";
const STARTUP: &str = "sandbox.startup_duration_ms";
const EXEC: &str = "sandbox.exec_duration_ms";
const RETRIES: &str = "sandbox.create_retry_total";

/// Upper bounds for histograms of the durations, in milliseconds, as in the model.
pub const DURATION_BUCKETS_MS: [f64; 12] = [
    250.0,
    500.0,
    1_000.0,
    2_000.0,
    5_000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    120_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
];

/// Describes the metrics to the recorder. Call it after the recorder was installed; without it they are counted all the
/// same. Every metric has one label, `provider`.
///
/// | name | kind | what |
/// |---|---|---|
/// | `sandbox.active` | gauge | sandboxes that this process made and has not removed |
/// | `sandbox.startup_duration_ms` | histogram | creating one, when it succeeds; start-up files not included |
/// | `sandbox.exec_duration_ms` | histogram | one command with a result, timeouts included |
/// | `sandbox.create_retry_total` | counter | creates that were tried again |
pub fn describe_metrics() {
    describe_gauge!(ACTIVE, Unit::Count, "sandboxes that this process made and has not removed");
    describe_histogram!(STARTUP, Unit::Milliseconds, "time to create a sandbox");
    describe_histogram!(EXEC, Unit::Milliseconds, "time of a command");
    describe_counter!(RETRIES, Unit::Count, "creates that were tried again");
}

pub(crate) fn startup(provider: &str, took: Duration) {
    histogram!(STARTUP, "provider" => provider.to_owned()).record(took.as_secs_f64() * 1e3);
}

pub(crate) fn exec(provider: &str, took: Duration) {
    histogram!(EXEC, "provider" => provider.to_owned()).record(took.as_secs_f64() * 1e3);
}

pub(crate) fn create_retry(provider: &str) {
    counter!(RETRIES, "provider" => provider.to_owned()).increment(1);
}

/// Work in a span that has room for `duration_ms` and `error_kind`; they are filled in when it ends.
pub(crate) async fn in_span<T>(span: Span, work: impl Future<Output = Result<T>>) -> Result<T> {
    let began = Instant::now();
    let result = work.instrument(span.clone()).await;
    span.record("duration_ms", began.elapsed().as_secs_f64() * 1e3);
    result.inspect_err(|error| failed(&span, error))
}

/// Notes the kind of an error, never its text.
pub(crate) fn failed(span: &Span, error: &SandboxError) {
    span.record("error_kind", error.kind().as_str());
}

/// Counts one sandbox as active until dropped.
#[derive(Debug)]
pub(crate) struct Active(String);

impl Active {
    pub(crate) fn new(provider: &str) -> Self {
        gauge!(ACTIVE, "provider" => provider.to_owned()).increment(1.0);
        Self(provider.to_owned())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        gauge!(ACTIVE, "provider" => self.0.clone()).decrement(1.0);
    }
}
