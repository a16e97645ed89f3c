//! Spans and metrics to a collector of OpenTelemetry, over OTLP/HTTP.

mod options;
mod recorder;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use opentelemetry::{KeyValue, metrics::MeterProvider as _, trace::Status, trace::TracerProvider as _};
use opentelemetry_otlp::{Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    metrics::{PeriodicReader, SdkMeterProvider},
    trace::{BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter},
};
use sandbox_core::{ErrorKind, Result, SandboxError};
use tracing::{Level, Subscriber};
use tracing_subscriber::{Layer, filter::Targets, registry::LookupSpan};

pub use options::OtlpOptions;
pub use recorder::OtlpRecorder;

/// What names this library as the origin of spans and metrics.
const SCOPE: &str = "sandbox";

/// How long [`OtlpExport::shutdown`] waits for what is still to be sent.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// Sends spans and metrics to a collector, in the background.
///
/// It installs nothing: a program puts [`layer`](Self::layer) into its subscriber and [`recorder`](Self::recorder) into
/// the `metrics` facade, and calls [`shutdown`](Self::shutdown) before it ends. A collector that is slow or gone delays
/// no sandbox; what cannot be sent is dropped.
///
/// ```no_run
/// use sandbox_api::{OtlpExport, OtlpOptions, describe_metrics};
/// use tracing_subscriber::{layer::SubscriberExt as _, util::SubscriberInitExt as _};
///
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let export = OtlpExport::new(&OtlpOptions::default().with_service_name("evaluation"))?;
/// tracing_subscriber::registry().with(export.layer()).init();
/// metrics::set_global_recorder(export.recorder())?;
/// describe_metrics();
/// // … the program …
/// export.shutdown()?;
/// # Ok(())
/// # }
/// ```
pub struct OtlpExport {
    traces: SdkTracerProvider,
    meters: SdkMeterProvider,
    /// Spans were not taken since the last look.
    has_failed: Arc<AtomicBool>,
}

impl OtlpExport {
    /// Starts the two background threads. Sends nothing yet, and does not look whether the collector is there.
    ///
    /// # Errors
    /// `InvalidInput` for an endpoint, header or time that is none; `Internal` when a thread cannot be started.
    pub fn new(options: &OtlpOptions) -> Result<Self> {
        options.validate()?;
        let client = client(options)?;
        let mut spans = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(client.clone())
            .with_headers(options.exposed_headers());
        let mut metrics = opentelemetry_otlp::MetricExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(client)
            .with_headers(options.exposed_headers());
        if let Some(endpoint) = &options.endpoint {
            // Given in code it is taken as it is, so the signal's path is added here.
            let endpoint = endpoint.trim_end_matches('/');
            spans = spans.with_endpoint(format!("{endpoint}/v1/traces"));
            metrics = metrics.with_endpoint(format!("{endpoint}/v1/metrics"));
        }
        if let Some(timeout) = options.timeout {
            spans = spans.with_timeout(timeout);
            metrics = metrics.with_timeout(timeout);
        }
        // Their texts may hold what was configured.
        let refused = |what: &str| {
            SandboxError::invalid_input("opentelemetry", format!("the exporter of {what} could not be made"))
                .with_help("look at the variables whose names begin with OTEL_EXPORTER_OTLP_")
        };
        let spans = spans.build().map_err(|_| refused("spans"))?;
        let metrics = metrics.build().map_err(|_| refused("metrics"))?;
        let resource = resource(options);
        let has_failed = Arc::new(AtomicBool::new(false));
        let spans = Marked { exporter: spans, has_failed: has_failed.clone() };
        let traces = SdkTracerProvider::builder()
            .with_resource(resource.clone())
            .with_span_processor(BatchSpanProcessor::builder(spans).build())
            .build();
        let mut reader = PeriodicReader::builder(metrics);
        if let Some(interval) = options.interval {
            reader = reader.with_interval(interval);
        }
        let meters = SdkMeterProvider::builder().with_resource(resource).with_reader(reader.build()).build();
        Ok(Self { traces, meters, has_failed })
    }

    /// A layer of a subscriber, which takes the spans and events of this library and nobody else's.
    pub fn layer<S>(&self) -> impl Layer<S> + use<S>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        tracing_opentelemetry::layer()
            .with_tracer(self.traces.tracer(SCOPE))
            // Where in the source and on which thread is nobody's business; errors are told by their kind.
            .with_location(false)
            .with_threads(false)
            .with_target(false)
            .with_tracked_inactivity(false)
            .with_error_fields_to_exceptions(false)
            .with_error_events_to_status(false)
            .with_error_events_to_exceptions(false)
            .with_error_records_to_exceptions(false)
            .with_filter(Targets::new().with_target("sandbox_api", Level::DEBUG))
    }

    /// A recorder of the `metrics` facade. It takes all metrics of the program, as the facade has one recorder.
    pub fn recorder(&self) -> OtlpRecorder {
        OtlpRecorder::new(self.meters.meter(SCOPE))
    }

    /// Sends what there is. Blocks: not to be called in async code.
    ///
    /// # Errors
    /// `Unavailable` when the collector did not take it, or did not take spans since the flush before.
    pub fn flush(&self) -> Result<()> {
        let (traces, meters) = (self.traces.force_flush(), self.meters.force_flush());
        self.sent(traces).and(self.sent(meters))
    }

    /// Sends what there is and ends the background threads. Blocks for some seconds at most: not to be called in async
    /// code. Without it, what was not sent yet is lost.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn shutdown(self) -> Result<()> {
        let traces = self.traces.shutdown_with_timeout(SHUTDOWN_LIMIT);
        let meters = self.meters.shutdown_with_timeout(SHUTDOWN_LIMIT);
        self.sent(traces).and(self.sent(meters))
    }

    fn sent(&self, result: OTelSdkResult) -> Result<()> {
        if result.is_ok() && !self.has_failed.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        Err(SandboxError::new(ErrorKind::Unavailable, "the collector did not take everything")
            .with_help("look whether a collector listens at the endpoint, and what it says"))
    }
}

impl fmt::Debug for OtlpExport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OtlpExport").finish_non_exhaustive()
    }
}

fn resource(options: &OtlpOptions) -> Resource {
    // The variables OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES are in it already.
    let mut resource = Resource::builder();
    for (key, value) in &options.attributes {
        resource = resource.with_attribute(KeyValue::new(key.clone(), value.clone()));
    }
    match &options.service_name {
        Some(name) => resource.with_service_name(name.clone()).build(),
        None => resource.build(),
    }
}

/// The background threads have no async runtime, so the client is one that blocks. It is made on a thread of its own, as
/// it must not be made in async code.
fn client(options: &OtlpOptions) -> Result<reqwest::blocking::Client> {
    let timeout = options.timeout.unwrap_or(options::DEFAULT_TIMEOUT);
    let make = move || {
        // Of this library's own copy; a second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        reqwest::blocking::Client::builder()
            .timeout(timeout)
            // A redirect would take the headers elsewhere.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("sandbox-api/", env!("CARGO_PKG_VERSION")))
            .build()
    };
    let failed = || SandboxError::internal("no HTTP client for the collector");
    std::thread::spawn(make).join().map_err(|_| failed())?.map_err(|error| failed().with_source(error.without_url()))
}

/// Spans of calls that failed are marked as such. Notes that something was not taken.
#[derive(Debug)]
struct Marked {
    exporter: opentelemetry_otlp::SpanExporter,
    has_failed: Arc<AtomicBool>,
}

impl SpanExporter for Marked {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        for span in &mut batch {
            let kind = span.attributes.iter().find(|attribute| attribute.key.as_str() == "error_kind");
            if let Some(kind) = kind.map(|attribute| attribute.value.to_string()) {
                span.status = Status::error(kind);
            }
        }
        let result = self.exporter.export(batch).await;
        if result.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
