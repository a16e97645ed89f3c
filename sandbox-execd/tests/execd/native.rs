//! The agent's own protocol, beside the API: one sandbox.

use sandbox_core::{ExecRequest, PtyEvent, SandboxPtySpec};
use sandbox_protocol::{
    Client, ClientOptions, WebSocketIo,
    methods::{self, ExecList, Nothing, PtyCreate},
};
use serde_json::json;

use crate::support::{Daemon, eventually, soon};

async fn client(daemon: &Daemon) -> Client {
    let ping = daemon.get("/ping").await;
    assert_eq!(ping.headers["x-sandbox-agent"], "1");
    let socket = daemon.socket("/sandbox-agent").await.unwrap();
    soon(Client::connect(WebSocketIo::new(socket), ClientOptions::default())).await.unwrap()
}

#[tokio::test]
async fn commands_of_one_protocol_are_seen_and_ended_by_the_other() {
    let daemon = Daemon::start();
    let client = client(&daemon).await;
    let native = soon(client.exec(ExecRequest::shell("echo $$; exec sleep 1000"))).await.unwrap();
    let list: ExecList = soon(client.call(methods::EXEC_LIST, &Nothing {})).await.unwrap();
    let id = list.execs[0].exec_id.clone();
    assert_eq!(daemon.get(&format!("/command/status/{id}")).await.json()["running"], true);
    assert_eq!(daemon.call("DELETE", &format!("/command?id={id}&now=1"), "").await.status, 200);
    let ended = soon(native.collect(Default::default())).await.unwrap();
    assert_eq!(ended.outcome().return_code(), 137);
    let events = daemon.post("/command", json!({ "command": "exec sleep 1000", "background": true })).await.events();
    let id = events[0]["text"].as_str().unwrap();
    let list: ExecList = soon(client.call(methods::EXEC_LIST, &Nothing {})).await.unwrap();
    assert!(list.execs.iter().any(|exec| exec.exec_id == id && exec.detached), "{list:?}");
}

#[tokio::test]
async fn a_lost_connection_leaves_a_terminal_that_the_api_finds() {
    let daemon = Daemon::start();
    let client = client(&daemon).await;
    let spec = SandboxPtySpec { command: Some("exec cat".into()), ..SandboxPtySpec::default() };
    let request = PtyCreate { session_id: "mine".to_owned(), spec };
    let mut stream = soon(client.open::<PtyEvent>(methods::PTY_CREATE, &request)).await.unwrap();
    assert!(matches!(soon(stream.next()).await, Ok(Some(PtyEvent::Opened { .. }))));
    assert_eq!(daemon.get("/pty/mine").await.json()["running"], true);
    assert_eq!(daemon.socket("/pty/mine/ws").await.err(), Some(409));
    soon(client.close()).await;
    let socket = eventually(async || daemon.socket("/pty/mine/ws").await.ok()).await;
    drop(socket);
    assert_eq!(daemon.call("DELETE", "/pty/mine", "").await.status, 200);
    assert_eq!(daemon.get("/pty/mine").await.status, 404);
}

#[tokio::test]
async fn large_outputs_arrive_whole_in_both_directions() {
    let daemon = Daemon::start();
    let client = client(&daemon).await;
    let input: Vec<u8> = (0..5_000_000u32).map(|at| (at / 3) as u8).collect();
    let exec = soon(client.exec(ExecRequest::shell("cat").with_stdin_bytes(input.clone()))).await.unwrap();
    let limits = sandbox_core::CaptureLimits { stdout_bytes: input.len(), ..Default::default() };
    let result = soon(exec.collect(limits)).await.unwrap();
    assert!(result.stdout == input, "{} of {} bytes", result.stdout.len(), input.len());
}
