//! The agent's own protocol, where the daemon is ours.

use std::time::Duration;

use opensandbox_double::{ControlOptions, ExecdOptions};
use sandbox_core::{
    BackgroundServices, CaptureLimits, ControlRequest, ErrorKind, ExecEvent, ExecOutcome, ExecRequest, JobOffsets,
    SandboxProvider, StdinSource,
};
use serde_json::json;

use crate::support::{World, eventually, options, soon};

async fn world(native: &str, execd: ExecdOptions) -> World {
    World::with(ControlOptions { execd, ..options() }, json!({ "operations": { "native": native } })).await
}

fn stock() -> ExecdOptions {
    ExecdOptions { extensions: false, ..ExecdOptions::default() }
}

#[tokio::test]
async fn a_daemon_of_ours_is_not_asked_by_its_api() {
    let world = world("auto", ExecdOptions::default()).await;
    let handle = world.sandbox().await;
    let request = ExecRequest::shell("read a; echo \"[$a]\"; exec sleep 1000").with_stdin(StdinSource::Stream);
    let mut stream = soon(world.provider.exec(&handle, request)).await.unwrap();
    soon(stream.write("in\n")).await.unwrap();
    let mut output = Vec::new();
    while !output.ends_with(b"[in]\n") {
        match soon(stream.next()).await.unwrap() {
            Some(ExecEvent::Stdout(bytes)) => output.extend_from_slice(&bytes),
            other => panic!("{other:?} after {output:?}"),
        }
    }
    soon(stream.control().control(ControlRequest::Signal(15))).await.unwrap();
    let result = soon(stream.collect(CaptureLimits::default())).await.unwrap();
    assert_eq!(*result.outcome(), ExecOutcome::Signalled(15));
    let background = world.provider.exec_with_background_services(&handle, ExecRequest::shell("printf x"));
    let result = soon(soon(background).await.unwrap().collect(CaptureLimits::default())).await.unwrap();
    assert_eq!(result.stdout, b"x");
    // One connection for all of it, and no command by the other way.
    assert_eq!(world.calls("GET", "/sandbox-agent"), 1);
    assert!(world.execd(&handle).started().is_empty());
    let info = world.provider.info();
    assert_eq!(info.details.get("native").map(String::as_str), Some("auto"));
    assert!(world.provider.as_jobs().is_none(), "not every daemon has jobs");
    world.control.end().await;
}

#[tokio::test]
async fn another_daemon_is_asked_by_its_api_or_refused_where_the_settings_say_so() {
    let tolerant = world("auto", stock()).await;
    let handle = tolerant.sandbox().await;
    assert_eq!(tolerant.text(&handle, "printf x").await, "x");
    assert_eq!(tolerant.calls("GET", "/sandbox-agent"), 0);
    tolerant.control.end().await;
    let strict = world("required", stock()).await;
    let error = soon(strict.provider.create(Default::default())).await.unwrap_err();
    assert!(error.help().is_some_and(|help| help.contains("operations.native")), "{error:?}");
    // One that is refused is removed.
    eventually(|| strict.control.ids().is_empty()).await;
    strict.control.end().await;
    let off = world("off", ExecdOptions::default()).await;
    let handle = off.sandbox().await;
    assert_eq!(off.text(&handle, "printf x").await, "x");
    assert_eq!(off.calls("GET", "/sandbox-agent"), 0);
    off.control.end().await;
}

#[tokio::test]
async fn commands_in_the_background_of_the_daemon_are_what_the_settings_ask_for() {
    let settings = json!({ "operations": { "native": "auto", "background_exec": true } });
    let world = World::new(settings).await;
    let handle = world.sandbox().await;
    assert_eq!(world.text(&handle, "printf x").await, "x");
    assert!(!world.execd(&handle).started().is_empty());
    world.control.end().await;
}

#[tokio::test]
async fn a_command_goes_on_over_another_connection_when_its_own_breaks() {
    let world = world("required", ExecdOptions::default()).await;
    let handle = world.sandbox().await;
    let script = "for i in $(seq 40); do echo line $i; sleep 0.05; done; cat; exit 4";
    let request = ExecRequest::shell(script).with_stdin_bytes("input");
    let stream = soon(world.provider.exec(&handle, request)).await.unwrap();
    let breaking = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(400)).await;
            world.control.break_streams();
        }
    };
    let (result, ()) = soon(async { tokio::join!(stream.collect(CaptureLimits::default()), breaking) }).await;
    let result = result.unwrap();
    let lines: String = (1..=40).map(|i| format!("line {i}\n")).collect();
    assert_eq!(result.stdout_text(), format!("{lines}input"));
    assert_eq!(*result.outcome(), ExecOutcome::Exited(4));
    assert!(world.calls("GET", "/sandbox-agent") > 1, "nothing broke");
    world.control.end().await;
}

#[tokio::test]
async fn a_sandbox_that_ends_is_told_at_once_and_not_waited_for() {
    let world = world("required", ExecdOptions::default()).await;
    let handle = world.sandbox().await;
    let stream = soon(world.provider.exec(&handle, ExecRequest::shell("sleep 1000"))).await.unwrap();
    let jobs = world.provider.as_jobs().unwrap();
    let job = soon(jobs.start_job(&handle, ExecRequest::shell("echo out; sleep 1000"))).await.unwrap();
    let attached = soon(jobs.attach_job(&handle, job.job_id, JobOffsets::default())).await.unwrap();
    let closing = tokio::time::Instant::now();
    soon(world.provider.close(&handle)).await.unwrap();
    for stream in [stream, attached] {
        let error = soon(stream.collect(CaptureLimits::default())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    }
    assert!(closing.elapsed() < Duration::from_secs(15), "{:?}", closing.elapsed());
    world.control.end().await;
}
