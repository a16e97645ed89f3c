//! Log events, from the plugin to the host's `tracing` subscriber.
//!
//! Events are handed over one by one, on the thread that emits them: nothing is queued, so nothing grows. What the host
//! would not show is not even formatted. Spans stay inside the plugin.

use std::{
    fmt::Debug,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
};

use abi_stable::prefix_type::PrefixTypeTrait;
use tracing::{Event, Level, Metadata, Subscriber, field::Field, field::Visit, span};

use super::layout::{HostApi, HostApiRef, LogRecord};

/// Its address names this copy of the crate.
static IMAGE: u8 = 0;

fn image() -> usize {
    std::ptr::from_ref(&IMAGE).addr()
}

// ---- the host's half ----

/// The table that the host gives to every plugin.
pub(super) fn host_api() -> HostApiRef {
    static API: OnceLock<HostApiRef> = OnceLock::new();
    *API.get_or_init(|| HostApi { image: image(), log_enabled, log }.leak_into_prefix())
}

macro_rules! by_level {
    ($level:expr, $macro:ident) => {
        match $level {
            1 => $macro!(Level::ERROR),
            2 => $macro!(Level::WARN),
            3 => $macro!(Level::INFO),
            4 => $macro!(Level::DEBUG),
            _ => $macro!(Level::TRACE),
        }
    };
}

extern "C" fn log_enabled(level: u8) -> bool {
    macro_rules! enabled {
        ($level:expr) => {
            tracing::enabled!(target: "sandbox::plugin", $level)
        };
    }
    catch_unwind(|| by_level!(level, enabled)).unwrap_or(false)
}

extern "C" fn log(record: &LogRecord<'_>) {
    macro_rules! emit {
        ($level:expr) => {{
            let fields = String::from_utf8_lossy(record.fields_json.as_slice());
            tracing::event!(
                target: "sandbox::plugin", $level,
                plugin.target = record.target.as_str(), plugin.fields = %fields, "{}", record.message.as_str()
            )
        }};
    }
    let _ = catch_unwind(AssertUnwindSafe(|| by_level!(record.level, emit)));
}

// ---- the plugin's half ----

static HOST: OnceLock<HostApiRef> = OnceLock::new();

/// From now on every event of this library goes to the host. A linked provider needs no such thing.
pub(super) fn forward_to(host: HostApiRef) {
    if host.image() == image() || HOST.set(host).is_err() {
        return;
    }
    // Fails only when the author has set a subscriber: then the author's choice stands.
    if tracing::subscriber::set_global_default(Forward).is_ok() {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if host_wants(1) {
                let location = panic.location().map(ToString::to_string).unwrap_or_default();
                tracing::error!(location, "panic: {}", panic.payload_as_str().unwrap_or("no message"));
            } else {
                // Never invisible.
                default_hook(panic);
            }
        }));
    }
}

fn host_wants(level: u8) -> bool {
    HOST.get().and_then(|host| host.log_enabled()).is_some_and(|enabled| enabled(level))
}

fn number(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        Level::DEBUG => 4,
        Level::TRACE => 5,
    }
}

struct Forward;

impl Subscriber for Forward {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // The host's filter may change at any time: ask for each event.
        tracing::subscriber::Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && host_wants(number(metadata.level()))
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let Some(log) = HOST.get().and_then(|host| host.log()) else { return };
        let mut fields = Fields::default();
        event.record(&mut fields);
        let json = serde_json::to_vec(&fields.others).unwrap_or_default();
        log(&LogRecord {
            level: number(event.metadata().level()),
            target: event.metadata().target().into(),
            message: fields.message.as_str().into(),
            fields_json: json.as_slice().into(),
        });
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Fields {
    message: String,
    others: serde_json::Map<String, serde_json::Value>,
}

impl Fields {
    fn insert(&mut self, field: &Field, value: impl Into<serde_json::Value>) {
        self.others.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.to_owned();
        } else {
            self.insert(field, value);
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value);
    }
}
