//! Commands in the background of the daemon: polled, and by byte offset.

use std::time::Duration;

use opensandbox_double::{ControlOptions, ExecdOptions, Fault};
use sandbox_core::{ErrorKind, ExecOutcome, ExecRequest, SandboxProvider, StartFailure};
use serde_json::{Value, json};

use crate::support::{World, options, soon};

fn background() -> Value {
    json!({ "operations": { "background_exec": true } })
}

fn stock() -> ControlOptions {
    ControlOptions { execd: ExecdOptions { extensions: false, ..ExecdOptions::default() }, ..options() }
}

#[tokio::test]
async fn bytes_are_exact_and_streams_separate_with_a_stock_daemon() {
    let world = World::with(stock(), background()).await;
    let handle = world.sandbox().await;
    let script = "printf 'a\\000\\377\\n'; printf 'e\\200' >&2; exit 4";
    let result = world.run(&handle, ExecRequest::shell(script)).await.unwrap();
    assert_eq!((&result.stdout[..], &result.stderr[..]), (&b"a\0\xff\n"[..], &b"e\x80"[..]));
    assert_eq!(*result.outcome(), ExecOutcome::Exited(4));
    let result = world.run(&handle, ExecRequest::argv(["no-such-program"])).await.unwrap();
    let is_right = matches!(result.outcome(), ExecOutcome::StartFailed { reason: StartFailure::NotFound, .. });
    assert!(is_right && result.stderr.is_empty(), "{:?}", result.outcome());
    let many = world.text(&handle, "seq 1 50000").await;
    assert_eq!((many.lines().count(), many.len()), (50_000, 288_894));
    world.control.end().await;
}

#[tokio::test]
async fn limits_kills_and_signals_are_told_apart() {
    let world = World::with(stock(), background()).await;
    let handle = world.sandbox().await;
    for (request, expected) in [
        (ExecRequest::shell("sleep 60").with_timeout_s(0.3), ExecOutcome::TimedOut { idle: false }),
        (ExecRequest::shell("sleep 60").with_idle_timeout_s(0.3), ExecOutcome::TimedOut { idle: true }),
        (ExecRequest::shell("kill -TERM $$"), ExecOutcome::Signalled(15)),
    ] {
        assert_eq!(*world.run(&handle, request).await.unwrap().outcome(), expected);
    }
    world.control.end().await;
}

#[tokio::test]
async fn f04_polls_that_fail_for_a_while_lose_nothing() {
    let world = World::with(stock(), background()).await;
    let handle = world.sandbox().await;
    let stream = soon(world.provider.exec(&handle, ExecRequest::shell("sleep 0.5; echo done; exit 3"))).await.unwrap();
    for fault in [Fault::Drop, Fault::html(502), Fault::error(503, "BUSY")] {
        world.control.faults().plan("GET", "/command/status", fault.clone(), 1);
        world.control.faults().plan("GET", "/logs", fault, 1);
    }
    let result = soon(stream.collect(Default::default())).await.unwrap();
    assert_eq!((result.stdout_text().as_ref(), result.outcome()), ("done\n", &ExecOutcome::Exited(3)));
    world.control.end().await;
}

#[tokio::test]
async fn f04_a_poll_without_an_answer_is_asked_again_before_long() {
    let settings = json!({ "operations": { "background_exec": true, "status_poll_timeout_s": 0.4 } });
    let world = World::with(stock(), settings).await;
    let handle = world.sandbox().await;
    world.control.faults().plan("GET", "/command/status", Fault::Delay(Duration::from_secs(60)), 2);
    let result = world.run(&handle, ExecRequest::shell("echo done; exit 3")).await.unwrap();
    assert_eq!((result.stdout_text().as_ref(), result.outcome()), ("done\n", &ExecOutcome::Exited(3)));
    world.control.end().await;
}

#[tokio::test]
async fn a_command_that_dies_with_its_sandbox_is_lost_with_the_reason() {
    for is_background in [true, false] {
        let settings = json!({ "operations": { "background_exec": is_background, "retries": 1 } });
        let world = World::with(stock(), settings).await;
        let handle = world.sandbox().await;
        let mut stream = soon(world.provider.exec(&handle, ExecRequest::shell("echo up; sleep 60"))).await.unwrap();
        assert_eq!(soon(stream.next()).await.unwrap(), Some(sandbox_core::ExecEvent::Stdout("up\n".into())));
        world.control.set_state(&handle.sandbox_id, "Failed", "PodFailed", "the node is out of memory");
        world.control.break_streams();
        let error = soon(stream.next()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{is_background}: {error:?}");
        assert!(error.to_string().contains("killed for memory"), "{is_background}: {error}");
        world.control.end().await;
    }
}

#[tokio::test]
async fn a_daemon_that_has_forgotten_a_command_is_lost_and_no_success() {
    let world = World::with(stock(), background()).await;
    let handle = world.sandbox().await;
    for fault in [
        Fault::error(404, "INVALID_REQUEST_BODY"),
        Fault::Answer { status: 200, headers: Vec::new(), body: "{}".to_owned() },
        Fault::Answer { status: 200, headers: Vec::new(), body: "{\"running\":false}".to_owned() },
    ] {
        world.execd(&handle).faults.plan("GET", "/command/status", fault.clone(), 1);
        let error = world.run(&handle, ExecRequest::shell("true")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{fault:?}: {error:?}");
    }
    world.control.end().await;
}
