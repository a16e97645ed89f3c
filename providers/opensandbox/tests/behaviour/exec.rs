//! Commands in the foreground.

use std::time::Duration;

use opensandbox_double::{ControlOptions, ExecdOptions, Fault, OutputDialect};
use sandbox_core::{Admitted, ErrorKind, ExecEvent, ExecOutcome, ExecRequest, SandboxProvider, StartFailure};
use serde_json::json;

use crate::support::{World, eventually, options, soon};

fn with_daemon(execd: ExecdOptions) -> ControlOptions {
    ControlOptions { execd, ..options() }
}

/// Every kind of daemon that there is: ours, 1.1, June 2026, and one that wraps its events.
fn daemons() -> [(&'static str, ExecdOptions); 4] {
    let stock = ExecdOptions { extensions: false, ..ExecdOptions::default() };
    [
        ("ours", ExecdOptions::default()),
        ("1.1", stock.clone()),
        ("standard events", ExecdOptions { standard_events: true, ..stock.clone() }),
        ("june", ExecdOptions { dialect: OutputDialect::Lines, argv: false, ..stock }),
    ]
}

#[tokio::test]
async fn output_and_ending_are_right_with_every_daemon() {
    for (name, execd) in daemons() {
        let lines = execd.dialect == OutputDialect::Lines;
        let world = World::with(with_daemon(execd), json!({})).await;
        let handle = world.sandbox().await;
        let result =
            world.run(&handle, ExecRequest::shell("printf 'a\\n\\nb\\n'; echo err >&2; exit 3")).await.unwrap();
        // Whether the last line had an end is not told by a daemon of June.
        let expected: (&[u8], &[u8]) = if lines { (b"a\n\nb", b"err") } else { (b"a\n\nb\n", b"err\n") };
        assert_eq!((&result.stdout[..], &result.stderr[..]), expected, "{name}");
        assert_eq!(*result.outcome(), ExecOutcome::Exited(3), "{name}");
        let text = "\u{2028}x\u{85}\u{20ac}";
        assert_eq!(world.text(&handle, &format!("printf '{text}'")).await, text, "{name}");
        let result = world.run(&handle, ExecRequest::shell("kill -TERM $$")).await.unwrap();
        assert_eq!(*result.outcome(), ExecOutcome::Signalled(15), "{name}");
        let result = world.run(&handle, ExecRequest::shell("sleep 60").with_timeout_s(0.3)).await.unwrap();
        assert_eq!(*result.outcome(), ExecOutcome::TimedOut { idle: false }, "{name}");
        assert_eq!(result.error_type(), Some("timeout"), "{name}");
        world.control.end().await;
    }
}

#[tokio::test]
async fn arguments_input_environment_and_failed_starts_are_right_with_every_daemon() {
    for (name, execd) in daemons() {
        let world = World::with(with_daemon(execd), json!({})).await;
        let handle = world.sandbox().await;
        let argv = ExecRequest::argv(["printf", "%s|", "a'b", "$HOME", "c d"]);
        let result = world.run(&handle, argv).await.unwrap();
        assert_eq!(result.stdout_text(), "a'b|$HOME|c d|", "{name}");
        let input = ExecRequest::argv(["cat"]).with_stdin_bytes("in\0put");
        assert_eq!(world.run(&handle, input).await.unwrap().stdout, b"in\0put", "{name}");
        let bytes = ExecRequest::shell("printf %s \"$A\" | od -An -tx1").with_env("A", &b"x\xff\n"[..]);
        assert_eq!(world.run(&handle, bytes).await.unwrap().stdout_text().trim(), "78 ff 0a", "{name}");
        for (program, reason) in [
            ("no-such-program", StartFailure::NotFound),
            ("/no/such/program", StartFailure::NotFound),
            ("/etc/passwd", StartFailure::NotExecutable),
        ] {
            let result = world.run(&handle, ExecRequest::argv([program])).await.unwrap();
            let outcome = result.outcome();
            let is_right = matches!(outcome, ExecOutcome::StartFailed { reason: found, .. } if *found == reason);
            assert!(is_right, "{name}: {program}: {outcome:?}");
            assert!(result.stderr.is_empty(), "{name}");
        }
        let own = world.run(&handle, ExecRequest::argv(["sh", "-c", "exit 127"])).await.unwrap();
        assert_eq!(*own.outcome(), ExecOutcome::Exited(127), "{name}");
        let missing = world.run(&handle, ExecRequest::shell("pwd").with_cwd("/no/such")).await.unwrap();
        assert_eq!(missing.return_code(), 125, "{name}");
        world.control.end().await;
    }
}

#[tokio::test]
async fn f04_a_stream_cut_at_any_byte_is_lost_and_never_a_success() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let execd = world.execd(&handle);
    for broken in [true, false] {
        // Byte for byte, until the last event is whole.
        let whole = 'cut: {
            for at in 0..2000 {
                execd.faults.plan("POST", "/command", Fault::Cut(at, broken), 1);
                let error = match world.run(&handle, ExecRequest::shell("echo out; exit 0")).await {
                    Ok(result) => break 'cut (at, result),
                    Err(error) => error,
                };
                assert_eq!(error.kind(), ErrorKind::Lost, "cut at {at}: {error:?}");
                // Where not even the head of the answer came, nobody can tell.
                assert_ne!(error.admitted(), Some(Admitted::No), "cut at {at}");
            }
            panic!("it is never whole");
        };
        assert!(whole.0 > 200, "the whole stream has some 350 bytes: {}", whole.0);
        assert_eq!((whole.1.stdout_text().as_ref(), whole.1.outcome()), ("out\n", &ExecOutcome::Exited(0)));
    }
    world.control.end().await;
}

#[tokio::test]
async fn a_command_is_started_again_only_when_it_has_surely_not_arrived() {
    let world = World::new(json!({ "operations": { "command_retries": 3 } })).await;
    let handle = world.sandbox().await;
    let execd = world.execd(&handle);
    let started = || execd.started().iter().filter(|order| order["command"] == json!("echo once")).count();
    let request = || ExecRequest::shell("echo once");
    // The server says that it never reached the sandbox.
    world.control.faults().plan("POST", "/command", Fault::error(502, "BACKEND_CONNECTION_FAILED"), 2);
    assert_eq!(world.run(&handle, request()).await.unwrap().stdout_text(), "once\n");
    assert_eq!(started(), 1);
    // It says that something broke after that, or nothing at all, or a proxy says something.
    for fault in [
        Fault::error(502, "BACKEND_RESPONSE_FAILED"),
        Fault::error(504, "BACKEND_TIMEOUT"),
        Fault::html(502),
        Fault::Drop,
    ] {
        world.control.faults().plan("POST", "/command", fault.clone(), 1);
        let error = world.run(&handle, request()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "{fault:?}: {error:?}");
        assert_eq!(started(), 1, "{fault:?}");
    }
    // It did run, and its answer never came.
    execd.faults.plan("POST", "/command", Fault::DropAfter, 1);
    let error = world.run(&handle, request()).await.unwrap_err();
    assert_eq!((error.kind(), started()), (ErrorKind::Lost, 2), "{error:?}");
    world.control.end().await;
}

#[tokio::test]
async fn f04_a_stream_that_falls_silent_is_lost_a_while_after_its_limit_and_no_time_limit() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let whole = "{\"type\":\"init\"".len();
    world.control.faults().plan("POST", "/command", Fault::Stall(whole), 1);
    let started = std::time::Instant::now();
    let request = ExecRequest::shell("echo done; exit 3").with_timeout_s(0.2);
    let error = world.run(&handle, request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    let waited = started.elapsed();
    assert!((Duration::from_secs(10)..Duration::from_secs(40)).contains(&waited), "{waited:?}");
    world.control.end().await;
}

#[tokio::test]
async fn the_end_of_a_command_is_its_last_event_and_not_that_of_the_answer() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    // All of it comes, and the connection stays open behind it.
    world.control.faults().plan("POST", "/command", Fault::Stall(1 << 20), 5);
    let started = std::time::Instant::now();
    for code in 0..5 {
        let result = world.run(&handle, ExecRequest::shell(format!("exit {code}"))).await.unwrap();
        assert_eq!(*result.outcome(), ExecOutcome::Exited(code));
    }
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    world.control.end().await;
}

#[tokio::test]
async fn a_user_has_a_home_of_his_own_unless_the_spec_says_another() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let home = passwd.lines().find_map(|line| line.strip_prefix("nobody:")?.split(':').nth(4)).unwrap();
    let request = || ExecRequest::shell("echo $HOME").with_user("nobody");
    assert_eq!(world.run(&handle, request()).await.unwrap().stdout_text().trim(), home);
    let own = request().with_env("HOME", "/of/the/command");
    assert_eq!(world.run(&handle, own).await.unwrap().stdout_text().trim(), "/of/the/command");
    world.control.end().await;
}

#[tokio::test]
async fn somebody_elses_page_is_no_result() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    world.execd(&handle).faults.plan("POST", "/command", Fault::html(200), 1);
    let error = world.run(&handle, ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    let raw = Fault::Answer { status: 200, headers: Vec::new(), body: "{\"code\":\"RUNTIME_ERROR\"}\n\n".to_owned() };
    world.execd(&handle).faults.plan("POST", "/command", raw, 1);
    let error = world.run(&handle, ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    assert!(error.to_string().contains("RUNTIME_ERROR"), "{error}");
    world.control.end().await;
}

#[tokio::test]
async fn output_that_was_there_is_delivered_before_the_stream_is_lost() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let mut stream = soon(world.provider.exec(&handle, ExecRequest::shell("echo first; sleep 60"))).await.unwrap();
    let event = soon(stream.next()).await.unwrap();
    assert_eq!(event, Some(ExecEvent::Stdout("first\n".into())));
    soon(world.provider.close(&handle)).await.unwrap();
    let error = soon(stream.next()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    world.control.end().await;
}

#[tokio::test]
async fn a_dropped_stream_ends_its_command_with_every_daemon() {
    for (name, execd) in daemons() {
        let world = World::with(with_daemon(execd), json!({})).await;
        let handle = world.sandbox().await;
        let folder = tempfile::tempdir().unwrap();
        let script = format!("cd {}; while :; do echo x >>ticks; sleep 0.05; done", folder.path().display());
        let stream = soon(world.provider.exec(&handle, ExecRequest::shell(script))).await.unwrap();
        let size = || std::fs::metadata(folder.path().join("ticks")).map_or(0, |data| data.len());
        eventually(|| size() > 0).await;
        drop(stream);
        let is_still = async {
            loop {
                let before = size();
                tokio::time::sleep(Duration::from_millis(500)).await;
                if size() == before {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), is_still).await.unwrap_or_else(|_| panic!("{name}: it goes on"));
        world.control.end().await;
    }
}

#[tokio::test]
async fn a_sandbox_that_died_of_memory_says_so() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    world.control.set_state(&handle.sandbox_id, "Failed", "PodFailed", "container main: OOMKilled");
    let error = world.run(&handle, ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("killed for memory"), "{error}");
    assert_eq!(error.help(), Some("give it more with resources.memory_mib"));
    world.control.end().await;
}

#[tokio::test]
async fn silence_and_the_grace_of_a_limit_are_kept_by_every_daemon() {
    for (name, execd) in daemons() {
        let world = World::with(with_daemon(execd), json!({})).await;
        let handle = world.sandbox().await;
        let request = ExecRequest::shell("echo one; sleep 60").with_idle_timeout_s(0.4);
        let result = world.run(&handle, request).await.unwrap();
        assert_eq!(*result.outcome(), ExecOutcome::TimedOut { idle: true }, "{name}");
        assert!(result.stdout.starts_with(b"one"), "{name}");
        let trap = "trap 'echo term; exit 3' TERM; while :; do sleep 0.05; done";
        let request = ExecRequest::shell(trap).with_timeout_s(0.5).with_kill_grace_s(10.0);
        let result = world.run(&handle, request).await.unwrap();
        assert_eq!(*result.outcome(), ExecOutcome::TimedOut { idle: false }, "{name}");
        assert!(result.stdout.starts_with(b"term"), "{name}");
        world.control.end().await;
    }
}
