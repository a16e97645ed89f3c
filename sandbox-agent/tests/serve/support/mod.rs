//! An agent for a test: the real program, and clients of it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses some of it")]

use std::{
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream as StdStream},
            process::CommandExt,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use sandbox_core::{CaptureLimits, ExecEvent, ExecExit, ExecOutcome, ExecRequest, SandboxExecResult, Secret};
use sandbox_protocol::{Client, ClientOptions};
use serde_json::{Value, json};
use tokio::net::UnixStream;

pub const TOKEN: &str = "the-token-of-a-test";
/// Where the agent finds its listener or socket.
const FD: i32 = 10;

/// A running agent. Dropping it ends the agent, and so everything in it.
pub struct Agent {
    pub child: Child,
    folder: tempfile::TempDir,
    socket: PathBuf,
}

/// How the agent runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum As {
    Process,
    /// As PID 1 of its own process numbers.
    Init,
    /// With mounts of its own, made by this script.
    Mounted(&'static str),
}

impl Agent {
    /// An agent with a listening socket, so that clients can come and go.
    pub fn start(config: Value) -> Agent {
        Self::start_as(As::Process, config)
    }

    pub fn start_as(how: As, config: Value) -> Agent {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let child = spawn(how, &config, listener.into());
        Agent { child, folder, socket }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A client that passes descriptors.
    pub async fn connect_unix(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let options = ClientOptions::default().with_token(Secret::new(TOKEN));
        Client::connect_unix(stream, options).await.expect("the agent takes the client")
    }

    pub async fn connect(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        client(stream).await
    }

    /// A client, and the switch that cuts its connection off.
    pub async fn connect_cuttable(&self) -> (Client, StdStream) {
        let stream = StdStream::connect(&self.socket).unwrap();
        let switch = stream.try_clone().unwrap();
        stream.set_nonblocking(true).unwrap();
        (client(UnixStream::from_std(stream).unwrap()).await, switch)
    }

    /// Waits for the agent's end.
    pub async fn ended(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the agent does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

pub async fn client(stream: UnixStream) -> Client {
    let options = ClientOptions::default().with_token(Secret::new(TOKEN));
    Client::connect(stream, options).await.expect("the agent takes the client")
}

/// The program under test, or the one that `SERVE_PROGRAM` names.
pub fn program() -> PathBuf {
    std::env::var_os("SERVE_PROGRAM").map_or_else(|| env!("CARGO_BIN_EXE_sandbox-agent").into(), PathBuf::from)
}

pub fn spawn(how: As, config: &Value, socket: OwnedFd) -> Child {
    let mut command = match how {
        As::Process => Command::new(program()),
        As::Init => {
            let mut command = Command::new("unshare");
            // The agent ends with unshare, which ends with the test's kill.
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(program());
            command
        }
        As::Mounted(script) => {
            let mut command = Command::new("unshare");
            let script = format!("set -e; {script}; exec \"$@\"");
            command.args(["--mount", "--propagation", "private", "sh", "-c", &script, "sh"]).arg(program());
            command
        }
    };
    command.args(["serve", "--fd", &FD.to_string(), "--config", &config.to_string(), "--token-env", "TEST_TOKEN"]);
    command.env("TEST_TOKEN", TOKEN).stdin(Stdio::null()).stdout(Stdio::null());
    let fd = socket.as_raw_fd();
    let place = move || {
        // dup2 onto itself would leave close-on-exec set.
        let placed = match fd {
            // SAFETY: fcntl takes plain numbers.
            FD => unsafe { libc::fcntl(fd, libc::F_SETFD, 0) },
            // SAFETY: dup2 takes plain numbers.
            _ => unsafe { libc::dup2(fd, FD) },
        };
        if placed < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: dup2, fcntl and the last error are all that is used between fork and exec.
    unsafe { command.pre_exec(place) };
    command.spawn().unwrap()
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub async fn run(client: &Client, request: ExecRequest) -> SandboxExecResult {
    let limits = CaptureLimits::default();
    client.exec(request).await.expect("is taken").collect(limits).await.expect("ends")
}

pub async fn sh(client: &Client, script: &str) -> String {
    let result = run(client, ExecRequest::shell(script)).await;
    let error = String::from_utf8_lossy(&result.stderr).into_owned();
    assert_eq!(result.exit.outcome, ExecOutcome::Exited(0), "{script}: {error}");
    String::from_utf8(result.stdout.to_vec()).unwrap()
}

/// Both streams and the end of a session.
pub async fn drain(mut stream: sandbox_core::ExecStream) -> (Vec<u8>, Vec<u8>, Option<ExecExit>) {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Ok(Some(event)) = stream.next().await {
        match event {
            ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            ExecEvent::Exit(exit) => return (stdout, stderr, Some(exit)),
            _ => {}
        }
    }
    (stdout, stderr, None)
}

/// Waits until the condition holds; fails after twenty seconds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("took longer than {limit:?}"))
}

pub const fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Lines `0000000` up to the count: eight bytes each, so that a lost or doubled byte shows.
pub fn numbered(lines: usize) -> Vec<u8> {
    (0..lines).flat_map(|line| format!("{line:07}\n").into_bytes()).collect()
}

pub fn default_config() -> Value {
    json!({ "workdir": "/tmp" })
}
