//! The toolbox: terminals.

use std::{
    collections::{BTreeMap, HashMap},
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, PoisonError},
};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{
        Path, Query, State, WebSocketUpgrade,
        ws::{CloseFrame, Message, WebSocket},
    },
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use rustix::{
    fs::{Mode, OFlags},
    process::{Pid, Signal, kill_process_group},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};

use crate::{
    process::running,
    sandboxes::{Sandbox, now},
    server::{Shared, header, tool_error},
};

type Service = State<Arc<Shared>>;

/// How many chunks of output wait for a slow reader.
const CHUNKS: usize = 4096;

struct Terminal {
    master: OwnedFd,
    group: Option<Pid>,
    output: broadcast::Sender<Bytes>,
    exit: watch::Receiver<Option<i32>>,
    info: std::sync::Mutex<Value>,
}

#[derive(Default)]
pub(crate) struct Terminals(std::sync::Mutex<HashMap<String, Arc<Terminal>>>);

impl Terminals {
    fn get(&self, id: &str) -> Option<Arc<Terminal>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(id).filter(|terminal| terminal.exit.borrow().is_none()).cloned()
    }
}

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/process/pty", post(create).get(list))
        .route("/process/pty/create-connect", get(create_connect))
        .route("/process/pty/{pty}", get(info).delete(kill))
        .route("/process/pty/{pty}/connect", get(connect))
        .route("/process/pty/{pty}/resize", post(resize))
}

#[derive(Deserialize)]
struct Create {
    id: String,
    cwd: Option<String>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    #[serde(default)]
    cols: u16,
    #[serde(default)]
    rows: u16,
}

fn size(rows: u16, cols: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }
}

async fn open(sandbox: &Sandbox, request: &Create) -> anyhow::Result<Arc<Terminal>> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    let (rows, cols) =
        (if request.rows == 0 { 24 } else { request.rows }, if request.cols == 0 { 80 } else { request.cols });
    tcsetwinsize(&master, size(rows, cols))?;
    let mut env = sandbox.env.lock().await.clone();
    env.insert("TERM".to_owned(), "xterm-256color".to_owned());
    env.extend(request.envs.clone());
    let cwd = request.cwd.as_deref().unwrap_or("/home/daytona");
    let mut child = {
        let world = sandbox.world.read().await;
        let world = world.as_ref().ok_or_else(|| anyhow::anyhow!("the sandbox is gone"))?;
        let enter = "cd -- \"$1\" 2>/dev/null || cd /; exec bash -i -l";
        let mut command = world.on_terminal(&env, &["sh", "-c", enter, "sh", cwd]);
        command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
        command.spawn()?
    };
    let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let (output, _) = broadcast::channel(CHUNKS);
    let (ended, exit) = watch::channel(None);
    let mut reader = std::fs::File::from(master.try_clone()?);
    let sink = output.clone();
    // Reading a terminal blocks; at its end the thread ends.
    let pump = tokio::task::spawn_blocking(move || {
        let mut chunk = [0; 8192];
        while let Ok(count @ 1..) = reader.read(&mut chunk) {
            let _ = sink.send(Bytes::copy_from_slice(&chunk[..count]));
        }
    });
    tokio::spawn(async move {
        let status = child.wait().await;
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), pump).await;
        let code = status.map_or(-1, |status| {
            status.code().unwrap_or_else(|| 128 + std::os::unix::process::ExitStatusExt::signal(&status).unwrap_or(9))
        });
        ended.send_replace(Some(code));
    });
    let info = json!({
        "id": request.id, "cwd": cwd, "envs": request.envs, "cols": cols, "rows": rows, "createdAt": now(),
        "active": true, "lazyStart": false,
    });
    Ok(Arc::new(Terminal { master, group, output, exit, info: std::sync::Mutex::new(info) }))
}

async fn add(sandbox: &Sandbox, request: &Create) -> Result<Arc<Terminal>, Box<Response>> {
    if sandbox.terminals.get(&request.id).is_some() {
        return Err(Box::new(tool_error(409, "CONFLICT", "PTY session already exists")));
    }
    let terminal = open(sandbox, request)
        .await
        .map_err(|error| Box::new(tool_error(500, "INTERNAL_SERVER_ERROR", &error.to_string())))?;
    let mut all = sandbox.terminals.0.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(request.id.clone(), terminal.clone());
    Ok(terminal)
}

async fn create(State(shared): Service, Path(id): Path<String>, Json(request): Json<Create>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    match add(&sandbox, &request).await {
        Ok(_) => (StatusCode::CREATED, Json(json!({"sessionId": request.id}))).into_response(),
        Err(response) => *response,
    }
}

async fn create_connect(
    State(shared): Service,
    Path(id): Path<String>,
    Query(options): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let number = |name: &str| options.get(name).and_then(|value| value.parse().ok()).unwrap_or(0);
    let request = Create {
        id: options.get("id").cloned().unwrap_or_default(),
        cwd: options.get("cwd").cloned(),
        envs: envs(header(&headers, "sec-websocket-protocol")),
        cols: number("cols"),
        rows: number("rows"),
    };
    match add(&sandbox, &request).await {
        Ok(terminal) => attach(upgrade, &headers, Some(terminal)),
        Err(response) => *response,
    }
}

/// Variables that travel in the name of a subprotocol.
fn envs(protocols: &str) -> BTreeMap<String, String> {
    let mark = "X-Daytona-Pty-Envs~";
    let coded = protocols.split(',').find_map(|part| part.trim().strip_prefix(mark)).unwrap_or_default();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(coded).unwrap_or_default()).unwrap_or_default()
}

async fn connect(
    State(shared): Service,
    Path((id, pty)): Path<(String, String)>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    match running(&shared, &id).await {
        Ok(sandbox) => attach(upgrade, &headers, sandbox.terminals.get(&pty)),
        Err(response) => *response,
    }
}

fn attach(upgrade: WebSocketUpgrade, headers: &HeaderMap, terminal: Option<Arc<Terminal>>) -> Response {
    let tells_exit = header(headers, "sec-websocket-protocol").contains("X-Daytona-Pty-Exit-Control");
    upgrade.protocols(["X-Daytona-Pty-Exit-Control"]).on_upgrade(move |socket| talk(socket, terminal, tells_exit))
}

async fn exit_code(exit: &mut watch::Receiver<Option<i32>>) -> i32 {
    exit.wait_for(Option::is_some).await.ok().and_then(|code| *code).unwrap_or(-1)
}

async fn talk(mut socket: WebSocket, terminal: Option<Arc<Terminal>>, tells_exit: bool) {
    let Some(terminal) = terminal else {
        let error = json!({"type": "control", "status": "error", "error": "PTY session not found"});
        let _ = socket.send(Message::Text(error.to_string().into())).await;
        let _ = socket.send(Message::Close(None)).await;
        return;
    };
    let (mut output, mut exit) = (terminal.output.subscribe(), terminal.exit.clone());
    let hello = json!({"type": "control", "status": "connected"}).to_string();
    if socket.send(Message::Text(hello.into())).await.is_err() {
        return;
    }
    let code = loop {
        tokio::select! {
            biased;
            chunk = output.recv() => match chunk {
                Ok(chunk) => if socket.send(Message::Binary(chunk)).await.is_err() { return },
                Err(_) => return,
            },
            message = socket.recv() => match message {
                Some(Ok(Message::Binary(data))) => {
                    let Ok(master) = terminal.master.try_clone() else { return };
                    let written = tokio::task::spawn_blocking(move || std::fs::File::from(master).write_all(&data));
                    if !matches!(written.await, Ok(Ok(()))) { return }
                }
                Some(Ok(Message::Close(_))) | Some(Err(_)) | None => return,
                Some(Ok(_)) => {}
            },
            code = exit_code(&mut exit) => break code,
        }
    };
    let mut end = json!({"exitCode": code});
    if code != 0 {
        end["exitReason"] = if code == 137 { "SIGKILL".into() } else { "non-zero exit".into() };
    }
    if tells_exit {
        let mut message = end.clone();
        message["type"] = "control".into();
        message["status"] = "exited".into();
        let _ = socket.send(Message::Text(message.to_string().into())).await;
    }
    let code = if code == 0 { 1000 } else { 1011 };
    let _ = socket.send(Message::Close(Some(CloseFrame { code, reason: end.to_string().into() }))).await;
    // The client closes its side; then the connection may go.
    let _ =
        tokio::time::timeout(std::time::Duration::from_secs(2), async { while socket.recv().await.is_some() {} }).await;
}

async fn list(State(shared): Service, Path(id): Path<String>) -> Response {
    match running(&shared, &id).await {
        Ok(sandbox) => {
            let all = sandbox.terminals.0.lock().unwrap_or_else(PoisonError::into_inner);
            let infos: Vec<Value> =
                all.values().filter(|one| one.exit.borrow().is_none()).map(|one| one.shown()).collect();
            Json(json!({"sessions": infos})).into_response()
        }
        Err(response) => *response,
    }
}

impl Terminal {
    fn shown(&self) -> Value {
        self.info.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn one(shared: &Shared, id: &str, pty: &str, status: u16) -> Result<Arc<Terminal>, Box<Response>> {
    let sandbox = running(shared, id).await?;
    sandbox.terminals.get(pty).ok_or_else(|| Box::new(tool_error(status, "NOT_FOUND", "PTY session not found")))
}

async fn info(State(shared): Service, Path((id, pty)): Path<(String, String)>) -> Response {
    match one(&shared, &id, &pty, 404).await {
        Ok(terminal) => Json(terminal.shown()).into_response(),
        Err(response) => *response,
    }
}

async fn kill(State(shared): Service, Path((id, pty)): Path<(String, String)>) -> Response {
    match one(&shared, &id, &pty, 404).await {
        Ok(terminal) => {
            if let Some(group) = terminal.group {
                let _ = kill_process_group(group, Signal::KILL);
            }
            Json(json!({"message": "PTY session deleted"})).into_response()
        }
        Err(response) => *response,
    }
}

async fn resize(State(shared): Service, Path((id, pty)): Path<(String, String)>, Json(body): Json<Value>) -> Response {
    let terminal = match one(&shared, &id, &pty, 410).await {
        Ok(terminal) => terminal,
        Err(response) => return *response,
    };
    let number = |name: &str| body.get(name).and_then(Value::as_u64).and_then(|value| u16::try_from(value).ok());
    let (Some(rows @ 1..=1000), Some(cols @ 1..=1000)) = (number("rows"), number("cols")) else {
        return tool_error(400, "BAD_REQUEST", "rows and cols must be 1 to 1000");
    };
    let _ = tcsetwinsize(terminal.master.as_fd(), size(rows, cols));
    let mut info = terminal.info.lock().unwrap_or_else(PoisonError::into_inner);
    info["rows"] = rows.into();
    info["cols"] = cols.into();
    Json(info.clone()).into_response()
}
