//! The `metrics` facade onto the meters of OpenTelemetry.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit};
use opentelemetry::{KeyValue, metrics as otel};

use crate::DURATION_BUCKETS_MS;

/// A recorder of the `metrics` facade whose metrics go to a collector. Made by
/// [`OtlpExport::recorder`](super::OtlpExport::recorder).
pub struct OtlpRecorder {
    meter: otel::Meter,
    described: Mutex<HashMap<String, Described>>,
    counters: Known<Total>,
    gauges: Known<Level>,
    histograms: Known<Distribution>,
}

#[derive(Clone, Default)]
struct Described {
    unit: Option<Unit>,
    text: String,
}

/// One series for each name and set of labels.
struct Known<T>(RwLock<HashMap<Key, Arc<T>>>);

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<T> Known<T> {
    fn get(&self, key: &Key, make: impl FnOnce() -> T) -> Arc<T> {
        if let Some(known) = self.0.read().unwrap_or_else(PoisonError::into_inner).get(key) {
            return known.clone();
        }
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        known.entry(key.clone()).or_insert_with(|| Arc::new(make())).clone()
    }
}

impl OtlpRecorder {
    pub(super) fn new(meter: otel::Meter) -> Self {
        Self {
            meter,
            described: Mutex::default(),
            counters: Known::default(),
            gauges: Known::default(),
            histograms: Known::default(),
        }
    }

    fn describe(&self, name: &KeyName, unit: Option<Unit>, text: &str) {
        let mut described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        described.insert(name.as_str().to_owned(), Described { unit, text: text.to_owned() });
    }

    fn described(&self, key: &Key) -> (Described, &'static str) {
        let described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        let described = described.get(key.name()).cloned().unwrap_or_default();
        let label = described.unit.map_or("", |unit| unit.as_canonical_label());
        (described, if label.is_empty() { "1" } else { label })
    }
}

impl std::fmt::Debug for OtlpRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtlpRecorder").finish_non_exhaustive()
    }
}

fn attributes(key: &Key) -> Vec<KeyValue> {
    key.labels().map(|label| KeyValue::new(label.key().to_owned(), label.value().to_owned())).collect()
}

impl metrics::Recorder for OtlpRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&name, unit, &text);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&name, unit, &text);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.describe(&name, unit, &text);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.counters.get(key, || {
            let (described, unit) = self.described(key);
            let counter = self.meter.u64_counter(key.name().to_owned());
            let counter = counter.with_unit(unit).with_description(described.text).build();
            Total { counter, attributes: attributes(key), total: Mutex::default() }
        }))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.gauges.get(key, || {
            let (described, unit) = self.described(key);
            let counter = self.meter.f64_up_down_counter(key.name().to_owned());
            let counter = counter.with_unit(unit).with_description(described.text).build();
            Level { counter, attributes: attributes(key), level: Mutex::default() }
        }))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.histograms.get(key, || {
            let (described, unit) = self.described(key);
            let mut histogram = self.meter.f64_histogram(key.name().to_owned()).with_unit(unit);
            if described.unit == Some(Unit::Milliseconds) {
                histogram = histogram.with_boundaries(DURATION_BUCKETS_MS.to_vec());
            }
            let histogram = histogram.with_description(described.text).build();
            Distribution { histogram, attributes: attributes(key) }
        }))
    }
}

/// A sum that only grows.
struct Total {
    counter: otel::Counter<u64>,
    attributes: Vec<KeyValue>,
    total: Mutex<u64>,
}

impl CounterFn for Total {
    fn increment(&self, value: u64) {
        *self.total.lock().unwrap_or_else(PoisonError::into_inner) += value;
        self.counter.add(value, &self.attributes);
    }

    fn absolute(&self, value: u64) {
        let mut total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        let more = value.saturating_sub(*total);
        *total += more;
        self.counter.add(more, &self.attributes);
    }
}

/// A value that goes up and down: the sum of its changes, so that their order does not matter.
struct Level {
    counter: otel::UpDownCounter<f64>,
    attributes: Vec<KeyValue>,
    level: Mutex<f64>,
}

impl Level {
    fn change(&self, to: impl FnOnce(f64) -> f64) {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let next = to(*level);
        self.counter.add(next - *level, &self.attributes);
        *level = next;
    }
}

impl GaugeFn for Level {
    fn increment(&self, value: f64) {
        self.change(|level| level + value);
    }

    fn decrement(&self, value: f64) {
        self.change(|level| level - value);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

struct Distribution {
    histogram: otel::Histogram<f64>,
    attributes: Vec<KeyValue>,
}

impl HistogramFn for Distribution {
    fn record(&self, value: f64) {
        self.histogram.record(value, &self.attributes);
    }
}
