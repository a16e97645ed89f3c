//! What is counted, and that nothing secret is among it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use crate::fake::Fake;
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};
use sandbox_api::{AsyncSandbox, describe_metrics};
use sandbox_core::{Capability, ExecRequest, SandboxSpec};

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, Vec<f64>>>>);

impl Seen {
    fn of(&self, name: &str) -> Vec<f64> {
        self.0.lock().unwrap().get(name).cloned().unwrap_or_default()
    }
}

struct One(Seen, String);

impl One {
    fn new(seen: &Seen, key: &Key) -> Arc<Self> {
        let labels: Vec<_> = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        assert_eq!(labels, [("provider".to_owned(), "fake".to_owned())], "{}", key.name());
        Arc::new(Self(seen.clone(), key.name().to_owned()))
    }

    fn push(&self, value: f64) {
        self.0.0.lock().unwrap().entry(self.1.clone()).or_default().push(value);
    }
}

impl CounterFn for One {
    fn increment(&self, value: u64) {
        self.push(value as f64);
    }

    fn absolute(&self, value: u64) {
        self.push(value as f64);
    }
}

impl GaugeFn for One {
    fn increment(&self, value: f64) {
        self.push(value);
    }

    fn decrement(&self, value: f64) {
        self.push(-value);
    }

    fn set(&self, value: f64) {
        self.push(value);
    }
}

impl HistogramFn for One {
    fn record(&self, value: f64) {
        self.push(value);
    }
}

impl metrics::Recorder for Seen {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(One::new(self, key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(One::new(self, key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(One::new(self, key))
    }
}

#[test]
fn sandboxes_starts_and_commands_are_counted_once_each() {
    let seen = Seen::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&seen, || {
        describe_metrics();
        runtime.block_on(async {
            let fake = Fake::with(&[Capability::Connect]);
            fake.seen().fail_create = 1;
            let sandbox = AsyncSandbox::new(fake.clone());
            sandbox.start(Some(SandboxSpec::default())).await.unwrap_err();
            assert!(seen.of("sandbox.startup_duration_ms").is_empty() && seen.of("sandbox.active").is_empty());
            sandbox.start(Some(SandboxSpec::default())).await.unwrap();
            sandbox.run("canary").await.unwrap();
            sandbox.exec(ExecRequest::shell("canary").with_timeout_s(-1.0)).await.unwrap_err();
            assert_eq!(seen.of("sandbox.exec_duration_ms").len(), 1, "nothing for an error");
            // Connected ones never count.
            let descriptor = sandbox.serialize(None).await.unwrap();
            let connected = AsyncSandbox::connect(fake.clone(), descriptor).await.unwrap();
            connected.disconnect().await.unwrap();
            fake.seen().fail_close = 1;
            sandbox.stop().await.unwrap_err();
            assert_eq!(seen.of("sandbox.active"), [1.0], "it is still there");
            sandbox.stop().await.unwrap();
            sandbox.stop().await.unwrap();
        });
    });
    assert_eq!(seen.of("sandbox.active"), [1.0, -1.0]);
    assert_eq!(seen.of("sandbox.startup_duration_ms").len(), 1);
}
