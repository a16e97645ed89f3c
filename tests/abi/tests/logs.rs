//! Log events of a plugin, in the host's subscriber. One test for all of it: the subscriber and its level belong to the
//! whole process.

use std::{
    fmt::{Debug, Write},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

use sandbox_abi_tests::{
    build::Fixture,
    child::{self, Ending},
    hosting::{create, provider, run},
    measure::resident_kib,
    wait::PATIENCE,
};
use sandbox_core::{ExecRequest, SandboxHandle, SandboxProvider};
use serde_json::{Value, json};
use tracing::{Event, Level, Metadata, Subscriber, field::Field, field::Visit, span};

/// What the host wants to see: 1 is error, 5 is trace.
static WANTED: AtomicU8 = AtomicU8::new(5);
/// Whether the host's subscriber panics.
static BROKEN: AtomicBool = AtomicBool::new(false);
static EVENTS: AtomicU64 = AtomicU64::new(0);
/// The last events as text: level, target, and every field.
static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
const KEPT: usize = 64;

struct Recorder;

impl Subscriber for Recorder {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let wanted = match WANTED.load(Ordering::SeqCst) {
            1 => Level::ERROR,
            2 => Level::WARN,
            3 => Level::INFO,
            4 => Level::DEBUG,
            _ => Level::TRACE,
        };
        metadata.target() == "sandbox::plugin" && *metadata.level() <= wanted
    }

    fn event(&self, event: &Event<'_>) {
        EVENTS.fetch_add(1, Ordering::SeqCst);
        assert!(!BROKEN.load(Ordering::SeqCst), "as asked: the subscriber of the host");
        let mut text = Text(format!("{} {}", event.metadata().level(), event.metadata().target()));
        event.record(&mut text);
        let mut seen = SEEN.lock().unwrap();
        if seen.len() == KEPT {
            seen.remove(0);
        }
        seen.push(text.0);
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.0, " {}={value}", field.name());
    }
}

/// What came in since the last time.
fn seen() -> Vec<String> {
    std::mem::take(&mut *SEEN.lock().unwrap())
}

async fn log(provider: &dyn SandboxProvider, handle: &SandboxHandle, level: &str, lines: u64) -> u64 {
    let before = EVENTS.load(Ordering::SeqCst);
    let request = ExecRequest::argv(["@log", level, &lines.to_string()]);
    assert_eq!(run(provider, handle, request).await.unwrap().stdout_text(), "logged");
    EVENTS.load(Ordering::SeqCst) - before
}

#[tokio::test]
async fn events_reach_the_subscriber_with_level_target_and_fields_and_what_it_does_not_want_is_not_formatted() {
    tracing::subscriber::set_global_default(Recorder).unwrap();
    let settings = json!({"api_key": "canary-api-key", "greeting": "hello", "limits": {"retries": 3}});
    let acme = provider(&Fixture::Good.path(), "acme", &settings).unwrap();
    let ready = seen();
    let [ready] = ready.as_slice() else { panic!("one event of the constructor: {ready:?}") };
    assert!(ready.starts_with("INFO sandbox::plugin ") && ready.contains("acme is ready"), "{ready}");
    assert!(ready.contains("plugin.target=acme_good::provider"), "{ready}");
    assert!(ready.contains("\"retries\":3") && ready.contains("\"greeting_bytes\":5"), "{ready}");
    assert!(!ready.contains("canary"), "{ready}");

    let handle = create(&*acme).await.unwrap();
    let levels = ["error", "warn", "info", "debug", "trace"];
    for (number, level) in levels.iter().enumerate() {
        assert_eq!(log(&*acme, &handle, level, 3).await, 3);
        let lines = seen();
        assert!(lines[0].starts_with(&format!("{} sandbox::plugin", level.to_uppercase())), "{lines:?}");
        for (line, text) in lines.iter().enumerate() {
            assert!(text.contains(&format!("\"line\":{line}")) && text.contains(&format!("at {level}")), "{text}");
            assert!(text.contains("\"counted\":\"counted\""), "{text}");
        }
        if number == 2 {
            let fields: Value = serde_json::from_str(
                lines[0].split("plugin.fields=").nth(1).unwrap().split(" message=").next().unwrap(),
            )
            .unwrap();
            assert_eq!(fields, json!({"line": 0, "counted": "counted", "ratio": 0.5, "big": true, "text": "a \"b\""}));
        }
    }

    let formatted = || acme.info().details["formatted"].parse::<u64>().unwrap();
    for wanted in 1..=5_u8 {
        WANTED.store(wanted, Ordering::SeqCst);
        for (level, name) in (1..).zip(levels) {
            let before = formatted();
            let expected = if level <= wanted { 100 } else { 0 };
            assert_eq!(log(&*acme, &handle, name, 100).await, expected, "{name} with {wanted}");
            assert_eq!(formatted() - before, expected, "{name} with {wanted}: what nobody reads is not formatted");
        }
    }
    BROKEN.store(true, Ordering::SeqCst);
    assert_eq!(log(&*acme, &handle, "info", 3).await, 3, "a subscriber that panics does not hurt the plugin");
    BROKEN.store(false, Ordering::SeqCst);
    acme.close(&handle).await.unwrap();
    noise_is_bounded_and_shows_no_secret().await;
    a_panic_is_an_event().await;
}

async fn noise_is_bounded_and_shows_no_secret() {
    let noisy = provider(&Fixture::Misbehaving.path(), "misbehaving", &json!({"fault": "noisy"})).unwrap();
    let (events, memory) = (EVENTS.load(Ordering::SeqCst), resident_kib());
    create(&*noisy).await.unwrap();
    assert_eq!(EVENTS.load(Ordering::SeqCst) - events, 100_000, "every line came");
    let grown_mib = resident_kib().saturating_sub(memory) / 1024;
    assert!(grown_mib < 16, "nothing is kept of them: {grown_mib} MiB");
    let lines = seen();
    assert!(lines.last().unwrap().contains("\"line\":99999"), "{:?}", lines.last());
    assert!(lines.iter().all(|line| line.contains("\"token\":\"***\"") && !line.contains("canary")), "{lines:?}");
}

async fn a_panic_is_an_event() {
    let faulty = provider(&Fixture::Misbehaving.path(), "misbehaving", &json!({"fault": "panic_in_create"})).unwrap();
    create(&*faulty).await.unwrap_err();
    let lines = seen();
    let panic = lines.iter().find(|line| line.contains("as asked: PanicInCreate"));
    let panic = panic.unwrap_or_else(|| panic!("{lines:?}"));
    assert!(panic.starts_with("ERROR") && panic.contains("src/fault.rs:"), "{panic}");
}

#[test]
fn a_panic_in_a_plugin_is_on_stderr_when_the_host_shows_no_logs() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_probe"));
    command.arg("exec").arg(Fixture::Misbehaving.path()).args(["misbehaving", r#"{"fault": "panic_in_exec"}"#]);
    let ended = child::run(&mut command, PATIENCE);
    assert_eq!(ended.ending, Ending::Code(3), "{ended:?}");
    assert!(ended.stdout.starts_with("refused internal at exec: the provider panicked: as asked"), "{ended:?}");
    assert!(ended.stderr.contains("as asked: PanicInExec") && ended.stderr.contains("src/fault.rs:"), "{ended:?}");
}
