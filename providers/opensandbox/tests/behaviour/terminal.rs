//! Terminal sessions that outlive their client.

use std::time::Duration;

use opensandbox_double::Fault;
use sandbox_core::{
    AttachOptions, ControlRequest, ErrorKind, ExecOutcome, PtyEvent, PtyStream, SandboxHandle, SandboxProvider,
    SandboxPtySpec,
};
use serde_json::json;

use crate::support::{World, eventually, soon};

async fn open(world: &World, handle: &SandboxHandle, script: &str) -> (String, PtyStream) {
    let spec = SandboxPtySpec { command: Some(script.into()), ..Default::default() };
    let mut stream = soon(world.provider.as_pty().unwrap().create_pty(handle, spec)).await.unwrap();
    match soon(stream.next()).await.unwrap() {
        Some(PtyEvent::Opened { session_id }) => (session_id, stream),
        other => panic!("{other:?}"),
    }
}

async fn read_until(stream: &mut PtyStream, text: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(text) {
        match soon(stream.next()).await.unwrap() {
            Some(PtyEvent::Output(bytes)) => seen += &String::from_utf8_lossy(&bytes),
            Some(PtyEvent::Opened { .. }) => {}
            other => panic!("{other:?} after {seen:?}"),
        }
    }
    seen
}

#[tokio::test]
async fn a_session_goes_on_without_its_client_and_its_output_is_replayed() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let (id, mut stream) = open(&world, &handle, "echo one; read x; echo \"got $x\"; read y").await;
    read_until(&mut stream, "one").await;
    soon(stream.detach()).await.unwrap();
    let attach = world.provider.as_pty_attach().unwrap();
    let from_start = AttachOptions { takeover: true, since: Some(0) };
    let mut again = soon(attach.attach_pty(&handle, id.clone(), from_start)).await.unwrap();
    read_until(&mut again, "one").await;
    soon(again.write("two\n")).await.unwrap();
    read_until(&mut again, "got two").await;
    // Somebody else takes it over; the one before is told.
    let mut other = soon(attach.attach_pty(&handle, id.clone(), AttachOptions::default())).await.unwrap();
    let error = loop {
        match soon(again.next()).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Pty, "{error:?}");
    // Without a takeover it is refused while it is held.
    let polite = AttachOptions { takeover: false, since: None };
    let refused = soon(attach.attach_pty(&handle, id.clone(), polite)).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidState);
    soon(other.control().control(ControlRequest::Kill)).await.unwrap();
    while soon(other.next()).await.unwrap().is_some() {}
    let gone = soon(attach.attach_pty(&handle, id, AttachOptions::default())).await;
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::NotFound);
    world.control.end().await;
}

#[tokio::test]
async fn what_was_written_before_a_session_was_let_go_of_reaches_it() {
    for native in ["off", "required"] {
        written_and_let_go_of(World::new(json!({ "operations": { "native": native } })).await).await;
    }
}

async fn written_and_let_go_of(world: World) {
    let handle = world.sandbox().await;
    let attach = world.provider.as_pty_attach().unwrap();
    let from_start = AttachOptions { takeover: true, since: Some(0) };
    // Which of the two the session's task sees first is a matter of luck.
    for _ in 0..8 {
        let (id, mut stream) = open(&world, &handle, "echo up; read x; echo \"got $x\"; read y").await;
        read_until(&mut stream, "up").await;
        soon(stream.write("one\n")).await.unwrap();
        soon(stream.detach()).await.unwrap();
        let mut again = soon(attach.attach_pty(&handle, id, from_start)).await.unwrap();
        read_until(&mut again, "got one").await;
        soon(again.control().control(ControlRequest::Kill)).await.unwrap();
    }
    world.control.end().await;
}

#[tokio::test]
async fn environment_and_folder_reach_a_session_and_it_goes_with_its_stream() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let spec = SandboxPtySpec {
        command: Some("echo \"$A|$(pwd)\"; sleep 60".into()),
        env: [("A", "it's")].into_iter().collect(),
        cwd: Some("/tmp".into()),
        ..Default::default()
    };
    let mut stream = soon(world.provider.as_pty().unwrap().create_pty(&handle, spec)).await.unwrap();
    read_until(&mut stream, "it's|/tmp").await;
    let execd = world.execd(&handle);
    assert_eq!(execd.pty_count(), 1);
    drop(stream);
    eventually(|| execd.pty_count() == 0).await;
    world.control.end().await;
}

#[tokio::test]
async fn a_pause_lets_go_of_sessions_and_ends_none() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let (_, mut stream) = open(&world, &handle, "echo up; sleep 60").await;
    read_until(&mut stream, "up").await;
    soon(world.provider.as_pause_resume().unwrap().pause(&handle)).await.unwrap();
    let error = loop {
        match soon(stream.next()).await {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Pty);
    assert_eq!(world.execd(&handle).pty_count(), 1);
    world.control.end().await;
}

/// Everything up to the end, and how it ended.
async fn rest(stream: &mut PtyStream) -> (String, sandbox_core::Result<Option<ExecOutcome>>) {
    let (mut seen, mut outcome) = (String::new(), None);
    loop {
        match soon(stream.next()).await {
            Ok(Some(PtyEvent::Output(bytes) | PtyEvent::Stderr(bytes))) => seen += &String::from_utf8_lossy(&bytes),
            Ok(Some(PtyEvent::Exit(exit))) => outcome = Some(exit.outcome),
            Ok(Some(_)) => {}
            Ok(None) => return (seen, Ok(outcome)),
            Err(error) => return (seen, Err(error)),
        }
    }
}

#[tokio::test]
async fn a_session_whose_connection_breaks_goes_on_where_it_was() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let script = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo n$i.; sleep 0.005; done; exit 6";
    let (_, mut stream) = open(&world, &handle, script).await;
    let mut seen = read_until(&mut stream, "n5.").await;
    for part in ["n50.", "n120.", "n200."] {
        world.control.break_streams();
        seen += &read_until(&mut stream, part).await;
    }
    let (more, outcome) = rest(&mut stream).await;
    seen += &more;
    let numbers: Vec<String> = seen.split_whitespace().map(str::to_owned).collect();
    assert_eq!(numbers, (1..=400).map(|number| format!("n{number}.")).collect::<Vec<_>>(), "nothing twice or lost");
    assert_eq!(outcome.unwrap(), Some(ExecOutcome::Exited(6)));
    world.control.end().await;
}

#[tokio::test]
async fn a_session_that_ended_while_its_connection_was_broken_is_not_started_again() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let folder = tempfile::tempdir().unwrap();
    let script =
        format!("echo x >>{0}/n; echo up; while [ ! -e {0}/go ]; do sleep 0.02; done", folder.path().display());
    let (_, mut stream) = open(&world, &handle, &script).await;
    read_until(&mut stream, "up").await;
    // It ends, and a first look at it comes only then.
    world.control.faults().plan("GET", "/proxy/44772/pty/", Fault::Delay(Duration::from_millis(800)), 1);
    world.control.break_streams();
    std::fs::write(folder.path().join("go"), "").unwrap();
    let (_, outcome) = rest(&mut stream).await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Pty);
    assert_eq!(std::fs::read_to_string(folder.path().join("n")).unwrap(), "x\n", "it ran once");
    world.control.end().await;
}

#[tokio::test]
async fn a_connection_that_breaks_again_and_again_without_a_byte_is_given_up() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let (_, mut stream) = open(&world, &handle, "echo up; sleep 60").await;
    read_until(&mut stream, "up").await;
    let breaking = async {
        loop {
            world.control.break_streams();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let (_, outcome) = tokio::select! {
        ended = rest(&mut stream) => ended,
        () = breaking => unreachable!("it breaks for ever"),
    };
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pty, "{error:?}");
    world.control.end().await;
}

#[tokio::test]
async fn a_session_is_connected_to_again_while_that_may_help_and_deleted_where_it_cannot() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let execd = world.execd(&handle);
    // The name that it gets is not lost by a server that is busy.
    for fault in [Fault::error(502, "BACKEND_CONNECTION_FAILED"), Fault::html(503), Fault::Drop] {
        world.control.faults().plan("POST", "/proxy/44772/pty", fault, 1);
    }
    for fault in [Fault::error(502, "BACKEND_CONNECTION_FAILED"), Fault::html(503), Fault::Drop] {
        world.control.faults().plan("GET", "/ws", fault, 1);
    }
    let (_, mut stream) = open(&world, &handle, "echo up; exit 3").await;
    let (seen, outcome) = rest(&mut stream).await;
    assert_eq!((seen.trim(), outcome.unwrap()), ("up", Some(ExecOutcome::Exited(3))));
    assert_eq!(execd.pty_count(), 0, "what is over is removed");
    world.control.faults().plan("GET", "/ws", Fault::error(400, "INVALID_REQUEST_BODY"), 1);
    let spec = SandboxPtySpec { command: Some("sleep 60".into()), ..Default::default() };
    let error = soon(world.provider.as_pty().unwrap().create_pty(&handle, spec)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error:?}");
    assert_eq!(execd.pty_count(), 0);
    world.control.end().await;
}

#[tokio::test]
async fn a_terminal_whose_sandbox_has_died_says_why() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let (_, mut stream) = open(&world, &handle, "echo up; sleep 60").await;
    read_until(&mut stream, "up").await;
    world.control.set_state(&handle.sandbox_id, "Failed", "PodFailed", "container main: OOMKilled");
    world.control.break_streams();
    let (_, outcome) = rest(&mut stream).await;
    let error = outcome.unwrap_err();
    assert!(error.to_string().contains("killed for memory"), "{error}");
    // So does a new one.
    let spec = SandboxPtySpec::default();
    let error = soon(world.provider.as_pty().unwrap().create_pty(&handle, spec)).await.unwrap_err();
    assert!(error.to_string().contains("killed for memory"), "{error}");
    world.control.end().await;
}

#[tokio::test]
async fn standard_error_of_a_short_command_without_a_terminal_is_whole() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    for round in 0..20 {
        let script = format!("echo out-{round}; echo err-{round} >&2");
        let spec = SandboxPtySpec { command: Some(script.as_str().into()), pty: false, ..Default::default() };
        let mut stream = soon(world.provider.as_pty().unwrap().create_pty(&handle, spec)).await.unwrap();
        let (mut seen, mut errors, mut missing) = (Vec::new(), Vec::new(), 0);
        while let Some(event) = soon(stream.next()).await.unwrap() {
            match event {
                PtyEvent::Output(bytes) => seen.extend_from_slice(&bytes),
                PtyEvent::Stderr(bytes) => errors.extend_from_slice(&bytes),
                PtyEvent::Gap(bytes) => missing += bytes,
                _ => {}
            }
        }
        let expected = (format!("out-{round}\n"), format!("err-{round}\n"), 0);
        assert_eq!((String::from_utf8(seen).unwrap(), String::from_utf8(errors).unwrap(), missing), expected);
    }
    world.control.end().await;
}

#[tokio::test]
async fn a_user_without_a_name_is_refused_for_a_session() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let spec = SandboxPtySpec { user: Some("54321:54321".to_owned()), ..Default::default() };
    let error = soon(world.provider.as_pty().unwrap().create_pty(&handle, spec)).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("user")), "{error:?}");
    assert_eq!(world.execd(&handle).pty_count(), 0);
    world.control.end().await;
}
