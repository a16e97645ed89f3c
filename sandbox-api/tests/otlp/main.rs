//! Spans and metrics arrive at a collector, and nothing of what ran is in them.

#[path = "../local/mod.rs"]
mod local;

mod collector;
mod wire;

use std::time::{Duration, Instant};

use collector::Collector;
use local::Local;
use sandbox_api::{
    AsyncSandbox, DURATION_BUCKETS_MS, ErrorKind, ExecRequest, OtlpExport, OtlpOptions, SandboxSpec, Secret,
    bytes::Bytes, describe_metrics,
};
use tracing_subscriber::layer::SubscriberExt;

/// Everything that was given in is marked with this.
const CANARY: &str = "CANARY-of-otlp";

const TOKEN: &str = "token-of-the-collector";

/// Uses a sandbox. `between` runs while it is there.
async fn use_a_sandbox(between: impl AsyncFnOnce()) -> String {
    let local = Local::isolated();
    let sandbox = AsyncSandbox::new(local.provider.clone());
    let refused = SandboxSpec::default().with_env("E", CANARY).with_workdir("not/absolute");
    assert_eq!(sandbox.start(Some(refused)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    let spec = SandboxSpec::default().with_env("F", CANARY).with_file("start", CANARY);
    sandbox.start(Some(spec)).await.unwrap();
    let id = sandbox.handle().unwrap().sandbox_id;
    let command = ExecRequest::shell(format!("cat; echo {CANARY}; echo {CANARY} >&2; exit 7"))
        .with_env("WHAT", CANARY)
        .with_stdin(sandbox_api::StdinSource::Bytes(Bytes::from(CANARY)));
    let result = sandbox.exec(command).await.unwrap();
    assert_eq!(result.return_code(), 7);
    assert_eq!(result.stdout_text().matches(CANARY).count(), 2);
    sandbox.exec(ExecRequest::shell(format!("{CANARY}\0"))).await.unwrap_err();
    between().await;
    sandbox.stop().await.unwrap();
    id
}

#[test]
fn spans_and_metrics_arrive_and_hold_nothing_of_what_ran() {
    let collector = Collector::start();
    let options = OtlpOptions::default()
        .with_endpoint(collector.url())
        .with_header("x-token", Secret::new(TOKEN))
        .with_service_name("the-service")
        .with_attribute("run", "run-17")
        .with_interval(Duration::from_secs(3600));
    assert!(!format!("{options:?}").contains(TOKEN));
    let export = std::sync::Arc::new(OtlpExport::new(&options).unwrap());
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(export.layer())).unwrap();
    metrics::set_global_recorder(export.recorder()).unwrap();
    describe_metrics();
    // Somebody else's spans are not ours to send, and somebody else's metrics have no other recorder.
    tracing::info_span!(target: "somebody", "theirs", text = CANARY).in_scope(|| ());
    metrics::counter!("their.count", "kind" => "x").absolute(5);
    metrics::counter!("their.count", "kind" => "x").increment(2);
    metrics::gauge!("their.level").set(3.0);
    metrics::gauge!("their.level").set(1.5);

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let flush = || {
        let export = export.clone();
        async move { tokio::task::spawn_blocking(move || export.flush().unwrap()).await.unwrap() }
    };
    let during = std::sync::Mutex::new(Vec::new());
    let id = runtime.block_on(use_a_sandbox(async || {
        flush().await;
        *during.lock().unwrap() = collector.metrics();
    }));
    drop(runtime);
    export.flush().unwrap();

    let spans = collector.spans();
    let named = |name: &str| spans.iter().filter(|span| span.name == name).collect::<Vec<_>>();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert!(!names.contains(&"theirs"), "{names:?}");
    let (starts, execs, stops) = (named("sandbox.start"), named("sandbox.exec"), named("sandbox.stop"));
    assert_eq!((starts.len(), execs.len(), stops.len()), (2, 1, 1), "{names:?}");
    for span in &spans {
        assert_eq!(span.attribute("provider"), "local", "{span:?}");
        assert!(span.end > span.start && span.attribute("duration_ms").parse::<f64>().unwrap() > 0.0, "{span:?}");
        let resource = |key: &str| span.resource.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        assert_eq!((resource("service.name"), resource("run")), (Some("the-service"), Some("run-17")));
    }
    // 2 is an error, 0 says nothing.
    assert_eq!((starts[0].status, starts[0].attribute("error_kind")), (2, "invalid_input"));
    assert_eq!((starts[1].status, starts[1].attribute("sandbox_id")), (0, id.as_str()));
    assert_eq!((execs[0].attribute("return_code"), execs[0].attribute("sandbox_id")), ("7", id.as_str()));
    assert_eq!((stops[0].status, stops[0].attribute("sandbox_id")), (0, id.as_str()));

    let during = during.into_inner().unwrap();
    let after = collector.metrics();
    let last = |metrics: &[wire::Metric], name: &str| {
        metrics.iter().rfind(|metric| metric.name == name).unwrap_or_else(|| panic!("no {name}")).clone()
    };
    assert_eq!(last(&during, "sandbox.active").values, [1.0], "while it is there");
    assert_eq!(last(&after, "sandbox.active").values, [0.0], "after it was removed");
    assert!(!last(&after, "sandbox.active").is_monotonic);
    for (name, count) in [("sandbox.startup_duration_ms", 1), ("sandbox.exec_duration_ms", 1)] {
        let metric = last(&after, name);
        assert_eq!((metric.unit.as_str(), metric.counts.as_slice()), ("ms", &[count][..]), "{metric:?}");
        assert_eq!(metric.bounds, DURATION_BUCKETS_MS, "{name}");
        assert_eq!(metric.attributes, [("provider".to_owned(), "local".to_owned())], "{name}");
        assert!(!metric.description.is_empty());
    }
    assert_eq!(last(&after, "their.count").values, [7.0]);
    assert!(last(&after, "their.count").is_monotonic);
    assert_eq!(last(&after, "their.level").values, [1.5]);

    let requests = collector.requests();
    assert!(requests.iter().all(|request| request.headers.contains(&format!("x-token: {TOKEN}"))));
    let types = |request: &&collector::Request| request.headers.contains("content-type: application/x-protobuf");
    assert_eq!(requests.iter().filter(types).count(), requests.len());
    for request in &requests {
        let holds = request.body.windows(CANARY.len()).any(|bytes| bytes == CANARY.as_bytes());
        assert!(!holds, "something of what ran went to {}", request.path);
    }
}

#[test]
fn a_collector_that_is_not_there_is_told_by_a_flush_and_delays_no_sandbox() {
    let gone = Collector::start();
    let url = gone.url();
    drop(gone);
    let options = OtlpOptions::default().with_endpoint(url).with_timeout(Duration::from_secs(2));
    let export = OtlpExport::new(&options).unwrap();
    let subscriber = tracing_subscriber::registry().with(export.layer());
    let began = Instant::now();
    tracing::subscriber::with_default(subscriber, || {
        for _ in 0..10_000 {
            tracing::debug_span!(target: "sandbox_api", "sandbox.exec").in_scope(|| ());
        }
    });
    assert!(began.elapsed() < Duration::from_secs(10), "spans wait for the collector");
    let error = export.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // It ends all the same.
    let began = Instant::now();
    let _ = export.shutdown();
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
fn what_cannot_be_meant_is_refused_by_name_without_its_value() {
    let new = |options: OtlpOptions| OtlpExport::new(&options).unwrap_err();
    for endpoint in ["localhost:4318", "ftp://host", "http://", "http://user:hush@host:4318", "http://host/?key=hush"] {
        let error = new(OtlpOptions::default().with_endpoint(endpoint));
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("endpoint")), "{endpoint}");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
    }
    for (name, value) in [("", "v"), ("a b", "v"), ("token", "line\nhush")] {
        let error = new(OtlpOptions::default().with_header(name, Secret::new(value)));
        assert_eq!(error.field(), Some("header"), "{name:?}");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
    }
    assert_eq!(new(OtlpOptions::default().with_interval(Duration::ZERO)).field(), Some("interval"));
    assert_eq!(new(OtlpOptions::default().with_timeout(Duration::ZERO)).field(), Some("timeout"));
}

#[tokio::test]
async fn it_is_made_in_async_code_and_ends_on_a_thread_of_its_own() {
    let collector = Collector::start();
    let export = OtlpExport::new(&OtlpOptions::default().with_endpoint(collector.url())).unwrap();
    tokio::task::spawn_blocking(move || export.shutdown().unwrap()).await.unwrap();
}
