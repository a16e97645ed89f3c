//! Commands over the wire, as the provider of a sandbox sees them.

use std::{sync::Arc, time::Duration};

use sandbox_core::{
    ByteString, CaptureLimits, ControlReply, ControlRequest, ErrorKind, ExecCommand, ExecEvent, ExecExit, ExecOutcome,
    ExecRequest, ExecStream, Result, SandboxError, Session, SessionControl, StdinSource, async_trait, bytes::Bytes,
};
use sandbox_protocol::{
    Body, Client, ClientOptions, KeepAlive, ServerOptions, Service, StreamResponder,
    methods::{self, ExecStart, ExecStarted},
    parse_request, serve, unknown_method,
};
use serde_json::Value;
use tokio::sync::mpsc;

/// Runs `cat` and `sleep SECONDS`.
struct Agent;

struct Input(mpsc::Sender<Option<Bytes>>);

#[async_trait]
impl SessionControl for Input {
    async fn write(&self, data: Bytes) -> Result<()> {
        self.0.send(Some(data)).await.map_err(|_| SandboxError::invalid_state("the input is closed"))
    }

    async fn control(&self, _: ControlRequest) -> Result<ControlReply> {
        let _ = self.0.send(None).await;
        Ok(ControlReply::default())
    }
}

fn run(argv: Vec<ByteString>) -> ExecStream {
    let (input, mut given) = mpsc::channel(1);
    Session::spawn(Input(input), |sink| async move {
        if argv[0] == "cat" {
            while let Some(Some(bytes)) = given.recv().await {
                sink.send(ExecEvent::Stdout(bytes.clone())).await;
                sink.send(ExecEvent::Stderr(bytes)).await;
            }
        } else {
            let seconds = argv[1].as_str().and_then(|text| text.parse().ok()).unwrap_or(1);
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
        sink.send(ExecEvent::Exit(ExecExit::new(ExecOutcome::Exited(3)))).await;
        Ok(())
    })
}

#[async_trait]
impl Service for Agent {
    async fn open(&self, method: &str, request: Value, _: &mut Body) -> Result<StreamResponder> {
        match method {
            methods::EXEC => {
                let start: ExecStart = parse_request(request)?;
                let ExecCommand::Argv(argv) = start.request.command else {
                    return Err(SandboxError::invalid_input("command", "must be argv"));
                };
                let started = ExecStarted { exec_id: start.request.exec_id, ..ExecStarted::default() };
                StreamResponder::session_with_reply(&started, run(argv))
            }
            _ => Err(unknown_method(method)),
        }
    }
}

async fn client(options: ServerOptions) -> Client {
    let (here, there) = tokio::io::duplex(1000);
    tokio::spawn(serve(there, options, Arc::new(Agent)));
    Client::connect(here, ClientOptions::default()).await.unwrap()
}

#[tokio::test]
async fn input_given_as_bytes_arrives_whole_and_is_closed() {
    let client = client(ServerOptions::default()).await;
    let input: Vec<u8> = (0..=255).cycle().take(700_000).collect();
    let exec = client.exec(ExecRequest::argv(["cat"]).with_stdin_bytes(input.clone())).await.unwrap();
    let result = exec.collect(CaptureLimits::default()).await.unwrap();
    assert!(result.stdout == input && result.stderr == input);
    assert_eq!(result.exit.outcome, ExecOutcome::Exited(3));
}

#[tokio::test]
async fn input_that_is_streamed_arrives_as_it_is_written() {
    let client = client(ServerOptions::default()).await;
    let mut request = ExecRequest::argv(["cat"]).with_stdin(StdinSource::Stream);
    request.exec_id = "e1".to_owned();
    let (started, mut exec) = client.exec_start(ExecStart::new(request)).await.unwrap();
    assert_eq!(started, ExecStarted { exec_id: "e1".to_owned(), ..ExecStarted::default() });
    exec.write("one").await.unwrap();
    assert_eq!(exec.next().await.unwrap(), Some(ExecEvent::Stdout("one".into())));
    exec.close_input().await.unwrap();
    assert_eq!(exec.collect(CaptureLimits::default()).await.unwrap().stderr, b"one");
}

#[tokio::test]
async fn a_script_beyond_the_limit_of_a_frame_runs() {
    let client = client(ServerOptions::default()).await;
    // Taken by the agent and refused by name, not by the wire.
    let error = client.exec(ExecRequest::shell("#".repeat(5_000_000))).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("command")));
}

#[tokio::test(start_paused = true)]
async fn a31_a_long_silent_command_is_not_cut() {
    let keep_alive = KeepAlive::new(Some(Duration::from_secs(2)), Duration::from_secs(5));
    let client = client(ServerOptions::default().with_keep_alive(keep_alive)).await;
    let exec = client.exec(ExecRequest::argv(["sleep", "40000"])).await.unwrap();
    let result = exec.collect(CaptureLimits::default()).await.unwrap();
    assert_eq!(result.exit.outcome, ExecOutcome::Exited(3));
}

#[tokio::test]
async fn a30_a_start_that_was_never_sent_is_unavailable_and_one_that_was_is_lost() {
    let (here, there) = tokio::io::duplex(1 << 16);
    let server = tokio::spawn(serve(there, ServerOptions::default(), Arc::new(Agent)));
    let client = Client::connect(here, ClientOptions::default()).await.unwrap();
    let running = client.exec(ExecRequest::argv(["sleep", "1000"])).await.unwrap();
    server.abort();
    let error = running.collect(CaptureLimits::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    let error = client.exec(ExecRequest::argv(["cat"])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable());
}
