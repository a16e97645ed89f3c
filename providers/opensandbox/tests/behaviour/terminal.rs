//! Terminal sessions that outlive their client.

use sandbox_core::{
    AttachOptions, ControlRequest, ErrorKind, PtyEvent, PtyStream, SandboxHandle, SandboxProvider, SandboxPtySpec,
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
