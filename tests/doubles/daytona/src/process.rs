//! The toolbox: commands in one request, and what the sandbox uses.

use std::{collections::BTreeMap, process::Stdio, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
};

use crate::{
    sandboxes::Sandbox,
    server::{Shared, tool_error},
};

/// How long the answer still waits for output that a child in the background holds.
const HELD: Duration = Duration::from_secs(30);

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/process/execute", post(execute))
        .route("/system/metrics", get(metrics))
        .route("/work-dir", get(folder))
        .route("/user-home-dir", get(folder))
        .route("/version", get(async || Json(json!({"version": "0.226.1"}))))
}

/// The sandbox of a request to its toolbox, if it runs.
pub(crate) async fn running(shared: &Shared, id: &str) -> Result<Arc<Sandbox>, Box<Response>> {
    let Some(sandbox) = shared.sandboxes.find(id).await else {
        return Err(Box::new(tool_error(404, "NOT_FOUND", "not found: sandbox")));
    };
    let state = sandbox.facts.lock().await.state().to_owned();
    if state == "started" {
        return Ok(sandbox);
    }
    let message = format!("bad request: failed to get runner info: sandbox is {state}");
    Err(Box::new(tool_error(400, "BAD_REQUEST", &message)))
}

async fn folder(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    match running(&shared, &id).await {
        Ok(_) => Json(json!({"dir": "/home/daytona"})).into_response(),
        Err(response) => *response,
    }
}

#[derive(Deserialize)]
struct Execute {
    command: String,
    cwd: Option<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    timeout: Option<u64>,
}

async fn execute(State(shared): State<Arc<Shared>>, Path(id): Path<String>, body: axum::body::Bytes) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let body: Execute = match serde_json::from_slice(&body) {
        Ok(body) => body,
        Err(error) => return tool_error(400, "INVALID_REQUEST_BODY", &error.to_string()),
    };
    if body.command.trim().is_empty() {
        return tool_error(400, "BAD_REQUEST", "command cannot be empty or whitespace-only");
    }
    let work = run(&sandbox, &body);
    let done = match body.timeout.filter(|seconds| *seconds > 0) {
        None => work.await,
        Some(seconds) => match tokio::time::timeout(Duration::from_secs(seconds), work).await {
            Ok(done) => done,
            Err(_) => return tool_error(408, "PROCESS_EXECUTION_TIMEOUT", "command execution timeout"),
        },
    };
    match done {
        Ok((code, output)) => {
            Json(json!({"exitCode": code, "result": String::from_utf8_lossy(&output)})).into_response()
        }
        Err(error) => Json(json!({"exitCode": -1, "result": error.to_string()})).into_response(),
    }
}

/// Kills a process group when it is dropped before it is over.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

async fn run(sandbox: &Sandbox, body: &Execute) -> anyhow::Result<(i32, Vec<u8>)> {
    let (reader, writer) = std::io::pipe()?;
    let mut envs = sandbox.env.lock().await.clone();
    envs.extend(body.envs.clone());
    let cwd = body.cwd.as_deref().unwrap_or("/home/daytona");
    // A shell that a signal has ended is told as -1, and so is a folder that is missing.
    let enter = "cd -- \"$1\" || kill -KILL $$; exec bash";
    let mut child = {
        let world = sandbox.world.read().await;
        let world = world.as_ref().ok_or_else(|| anyhow::anyhow!("the sandbox is gone"))?;
        let mut command = world.command(&envs, &["sh", "-c", enter, "sh", cwd]);
        command.stdin(Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
        command.spawn()?
    };
    let mut group = Group(child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())));
    let mut stdin = child.stdin.take();
    let mut reader = pipe::Receiver::from_owned_fd(reader.into())?;
    let text = body.command.clone();
    let feed = async move {
        if let Some(stdin) = &mut stdin {
            let _ = stdin.write_all(text.as_bytes()).await;
        }
    };
    let mut output = Vec::new();
    let read = reader.read_to_end(&mut output);
    let ended = async {
        let ended = child.wait().await;
        (ended, tokio::time::Instant::now())
    };
    tokio::pin!(read);
    let (status, ()) = {
        let both = async { tokio::join!(ended, feed) };
        tokio::pin!(both);
        tokio::select! {
            ((status, _), ()) = &mut both => {
                let _ = tokio::time::timeout(HELD, &mut read).await;
                (status?, ())
            }
            _ = &mut read => {
                let ((status, _), ()) = both.await;
                (status?, ())
            }
        }
    };
    // What it left in the background lives on.
    group.0 = None;
    Ok((status.code().unwrap_or(-1), output))
}

async fn metrics(State(shared): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    match running(&shared, &id).await {
        Ok(_) => Json(json!({"cpuCount": 1, "cpuUsedPct": 1.5, "memUsed": 12_000_000, "memTotal": 1 << 30, "diskUsed": 1_000, "diskTotal": 3 << 30}))
            .into_response(),
        Err(response) => *response,
    }
}
