//! What a program's subscriber sees of a sandbox's life, and that nothing of what ran is in it: not the command, not its
//! environment, input, output or files, not a secret. One test for all: the subscriber belongs to the whole process.

mod local;

use std::{
    collections::BTreeMap,
    fmt::{Debug, Write},
    sync::{Arc, Mutex},
};

use local::Local;
use sandbox_api::{
    AsyncSandbox, AttachOptions, ErrorKind, ExecRequest, PtyExec, SandboxError, SandboxPtySpec, SandboxSpec, Secret,
    StdinSource, bytes::Bytes, describe_metrics,
};
use tracing_subscriber::{Layer, layer::Context, layer::SubscriberExt, registry::LookupSpan};

/// Everything that was given in is marked with this.
const CANARY: &str = "CANARY7f3";

type Fields = BTreeMap<String, String>;

#[derive(Default)]
struct Heard {
    /// Spans that are over, by name.
    spans: Vec<(String, Fields)>,
    /// Everything that came to the subscriber.
    text: String,
}

#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Heard>>);

impl Seen {
    fn spans(&self, name: &str) -> Vec<Fields> {
        self.0.lock().unwrap().spans.iter().filter(|(of, _)| of == name).map(|(_, fields)| fields.clone()).collect()
    }
}

#[derive(Default)]
struct Values(Fields);

impl tracing::field::Visit for Values {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &tracing::span::Attributes<'_>, id: &tracing::Id, context: Context<'_, S>) {
        let mut values = Values::default();
        attributes.record(&mut values);
        context.span(id).unwrap().extensions_mut().insert(values);
    }

    fn on_record(&self, id: &tracing::Id, record: &tracing::span::Record<'_>, context: Context<'_, S>) {
        let span = context.span(id).unwrap();
        record.record(span.extensions_mut().get_mut::<Values>().unwrap());
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut values = Values::default();
        event.record(&mut values);
        let mut seen = self.0.lock().unwrap();
        let _ = writeln!(seen.text, "{} {:?}", event.metadata().target(), values.0);
    }

    fn on_close(&self, id: tracing::Id, context: Context<'_, S>) {
        let span = context.span(&id).unwrap();
        let fields = std::mem::take(&mut span.extensions_mut().get_mut::<Values>().unwrap().0);
        let mut seen = self.0.lock().unwrap();
        let _ = writeln!(seen.text, "{} {fields:?}", span.name());
        seen.spans.push((span.name().to_owned(), fields));
    }
}

fn canary(what: &str) -> String {
    format!("{CANARY}-{what}")
}

/// Uses everything that takes something of the caller's, and notes what `Debug` and the errors say.
async fn use_everything(sandbox: &AsyncSandbox, shown: &mut String) {
    let mut note = |what: &dyn Debug| {
        let _ = writeln!(shown, "{what:?}");
    };
    let request = ExecRequest::shell(format!("cat; echo {}; echo {} >&2; exit 7", canary("command"), canary("stderr")))
        .with_env("WHAT", canary("env"))
        .with_stdin(StdinSource::Bytes(Bytes::from(canary("stdin"))));
    note(&request);
    let result = sandbox.exec(request.clone()).await.unwrap();
    assert_eq!(result.return_code(), 7);
    assert!(result.stdout_text().contains(&canary("stdin")) && result.stdout_text().contains(&canary("command")));
    note(&result);
    let slow = sandbox.exec(ExecRequest::shell(format!("echo {}; sleep 60", canary("out"))).with_timeout_s(0.5)).await;
    assert_eq!(slow.as_ref().unwrap().error_type(), Some("timeout"));
    note(&slow);
    // Wrong in many ways, and each time the error is shown as a program shows it.
    let mut errors: Vec<SandboxError> = Vec::new();
    errors.push(sandbox.exec(request.clone().with_timeout_s(-1.0)).await.unwrap_err());
    errors.push(sandbox.exec(ExecRequest::shell(format!("{}\0", canary("nul")))).await.unwrap_err());
    errors.push(sandbox.exec(request.clone().with_env("A=B", canary("bad env"))).await.unwrap_err());
    sandbox.write_file("/tmp/f", canary("contents")).await.unwrap();
    note(&sandbox.list("/tmp").await.unwrap());
    errors.push(sandbox.write_file("/tmp", canary("contents of a folder")).await.unwrap_err());
    let spec =
        SandboxPtySpec { command: Some(format!("read x; echo {}", canary("pty")).into()), ..SandboxPtySpec::default() };
    note(&spec);
    let session = sandbox.pty().create(spec).await.unwrap();
    note(&session);
    session.write(format!("{}\n", canary("typed"))).await.unwrap();
    while let Some(chunk) = session.read(None).await.unwrap() {
        note(&chunk);
    }
    errors.push(session.write(canary("late")).await.unwrap_err());
    let command = PtyExec::new(format!("echo {}", canary("pty exec"))).with_env("B", canary("pty env"));
    note(&command);
    note(&sandbox.pty().exec(command.clone()).await.unwrap());
    errors.push(sandbox.pty().exec(command.with_size(0, 0)).await.unwrap_err());
    errors.push(sandbox.pty().attach("no-such-session", AttachOptions::default()).await.unwrap_err());
    let job = ExecRequest::shell(format!("echo {}", canary("job"))).with_env("C", canary("job env"));
    note(&sandbox.exec_stream(job).await.unwrap());
    note(&Secret::new(canary("secret")));
    errors.push(sandbox.start(Some(SandboxSpec::default().with_env("D", canary("second")))).await.unwrap_err());
    for error in errors {
        note(&format_args!("{error} {error:?} {error:#?} {:?}", error.help()));
    }
}

#[test]
fn spans_say_what_happened_and_nothing_of_what_ran() {
    let seen = Seen::default();
    let subscriber = tracing_subscriber::registry().with(seen.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    describe_metrics();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (mut shown, mut id) = (String::new(), String::new());
    runtime.block_on(async {
        let local = Local::isolated();
        let sandbox = AsyncSandbox::new(local.provider.clone());
        let refused = SandboxSpec::default().with_env("E", canary("refused")).with_workdir("not/absolute");
        let error = sandbox.start(Some(refused)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let _ = writeln!(shown, "{error} {error:?}");
        let spec = SandboxSpec::default().with_env("F", canary("spec")).with_file("start", canary("startup file"));
        let _ = writeln!(shown, "{spec:?}");
        sandbox.start(Some(spec)).await.unwrap();
        id = sandbox.handle().unwrap().sandbox_id;
        use_everything(&sandbox, &mut shown).await;
        let _ = writeln!(shown, "{sandbox:?}");
        sandbox.stop().await.unwrap();
    });
    drop(runtime);

    let is_duration = |fields: &Fields| fields["duration_ms"].parse::<f64>().is_ok_and(|ms| ms > 0.0 && ms < 600_000.0);
    let starts = seen.spans("sandbox.start");
    // Refused, made, and refused again because it runs.
    assert_eq!(starts.len(), 3, "{starts:?}");
    assert!(starts.iter().all(|fields| fields["provider"] == "local" && is_duration(fields)), "{starts:?}");
    let (kinds, ids): (Vec<_>, Vec<_>) =
        starts.iter().map(|fields| (fields.get("error_kind").cloned(), fields.get("sandbox_id").cloned())).unzip();
    assert_eq!(kinds, [Some("invalid_input".to_owned()), None, Some("invalid_state".to_owned())]);
    assert_eq!(ids, [None, Some(id.clone()), None]);
    let execs = seen.spans("sandbox.exec");
    assert!(execs.iter().all(|fields| fields["provider"] == "local" && fields["sandbox_id"] == id), "{execs:?}");
    let with_code = |code: &str| -> Vec<&Fields> {
        execs.iter().filter(|fields| fields.get("return_code").is_some_and(|found| found == code)).collect()
    };
    assert!(with_code("7").len() == 1 && is_duration(with_code("7")[0]), "{execs:?}");
    let timeouts = with_code("125");
    assert!(timeouts.iter().any(|fields| fields["error_type"] == "timeout" && is_duration(fields)), "{execs:?}");
    let stops = seen.spans("sandbox.stop");
    assert_eq!(stops.len(), 1);
    assert!(stops[0]["sandbox_id"] == id && stops[0]["provider"] == "local" && is_duration(&stops[0]), "{stops:?}");
    assert!(!stops[0].contains_key("error_kind"));

    let heard = &seen.0.lock().unwrap().text;
    assert!(heard.contains(&id) && shown.contains("invalid_state"), "the net is empty: {shown}");
    for (place, text) in [("a span or an event", heard), ("Debug or an error", &shown)] {
        let line = text.lines().find(|line| line.contains(CANARY));
        assert!(line.is_none(), "in {place}: {}", line.unwrap_or_default());
    }
}
