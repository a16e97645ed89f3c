//! The toolbox: shells that keep their state between commands. Our provider does not use them; the official client does.

use std::{collections::HashMap, process::Stdio, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{
        Path, State, WebSocketUpgrade,
        ws::{CloseFrame, Message, WebSocket, rejection::WebSocketUpgradeRejection},
    },
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process::Child, sync::Mutex};

use crate::{
    process::running,
    sandboxes::Sandbox,
    server::{Shared, tool_error},
};

type Service = State<Arc<Shared>>;

/// How often is looked for an end and for output.
const LOOK: Duration = Duration::from_millis(20);

/// How long input waits for a command that does not read it.
const INPUT: Duration = Duration::from_secs(5);

/// Bytes of a message of a followed log, without its mark.
const FRAME: usize = 1021;

#[derive(Clone)]
struct Command {
    id: String,
    text: String,
    /// Input shows in its output, as it does on a terminal.
    is_echoed: bool,
}

struct Session {
    shell: Child,
    commands: Vec<Command>,
}

impl Session {
    fn has_ended(&mut self) -> bool {
        !matches!(self.shell.try_wait(), Ok(None))
    }
}

#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<String, Session>>);

impl Sessions {
    async fn command(&self, session: &str, command: &str) -> Option<Command> {
        let all = self.0.lock().await;
        all.get(session)?.commands.iter().find(|one| one.id == command).cloned()
    }
}

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/process/session", post(create).get(list))
        .route("/process/session/{session}", get(info).delete(remove))
        .route("/process/session/{session}/exec", post(exec))
        .route("/process/session/{session}/command/{command}", get(command))
        .route("/process/session/{session}/command/{command}/logs", get(logs))
        .route("/process/session/{session}/command/{command}/input", post(input))
}

async fn create(State(shared): Service, Path(id): Path<String>, Json(body): Json<Value>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let name = body.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
    if name.is_empty() || name == "entrypoint" {
        return tool_error(400, "BAD_REQUEST", "sessionId is empty or reserved");
    }
    let mut all = sandbox.sessions.0.lock().await;
    if all.contains_key(&name) {
        return tool_error(409, "CONFLICT", "conflict: session already exists");
    }
    let world = sandbox.world.read().await;
    let Some(inside) = world.as_ref() else { return tool_error(404, "NOT_FOUND", "gone") };
    let env = sandbox.env.lock().await.clone();
    match inside.command(&env, &["bash"]).stdin(Stdio::piped()).spawn() {
        Ok(shell) => {
            all.insert(name, Session { shell, commands: Vec::new() });
            StatusCode::CREATED.into_response()
        }
        Err(error) => tool_error(500, "INTERNAL_SERVER_ERROR", &error.to_string()),
    }
}

fn missing() -> Response {
    tool_error(404, "NOT_FOUND", "not found: session not found")
}

fn ended() -> Response {
    tool_error(410, "SESSION_ENDED", "gone: session process has exited")
}

/// Where a command of a session leaves its output.
fn folder(command: &str) -> String {
    format!("/run/session-{command}")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exec {
    command: String,
    #[serde(default, alias = "async")]
    run_async: bool,
    #[serde(default)]
    suppress_input_echo: bool,
}

async fn exec(State(shared): Service, Path((id, session)): Path<(String, String)>, Json(body): Json<Exec>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let command = format!("c{}", shared.unique());
    let at = folder(&command);
    if inside(&sandbox, "mkdir \"$1\" && mkfifo \"$1/in\"", &[&at]).await.is_none() {
        return tool_error(500, "INTERNAL_SERVER_ERROR", "the command has no folder");
    }
    {
        let mut all = sandbox.sessions.0.lock().await;
        let Some(session) = all.get_mut(&session) else { return missing() };
        let is_echoed = !body.suppress_input_echo;
        session.commands.push(Command { id: command.clone(), text: body.command.clone(), is_echoed });
        // The text runs in the shell itself, so that what it changes stays. Input may come as long as it runs.
        let quoted = body.command.replace('\'', "'\\''");
        let stdin = if body.run_async { format!("0<>{at}/in") } else { "</dev/null".to_owned() };
        let line =
            format!("eval '{quoted}' {stdin} >>{at}/out 2>>{at}/err; echo $? >{at}/new; mv {at}/new {at}/code\n");
        let Some(stdin) = session.shell.stdin.as_mut() else { return missing() };
        if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return ended();
        }
    }
    if body.run_async {
        return (StatusCode::ACCEPTED, Json(json!({"cmdId": command}))).into_response();
    }
    let code = loop {
        // In this order: a shell that ends by itself may have written the code of the command before.
        let has_ended = sandbox.sessions.0.lock().await.get_mut(&session).is_none_or(Session::has_ended);
        match code(&sandbox, &command).await {
            Some(code) => break code,
            None if has_ended => return ended(),
            None => tokio::time::sleep(LOOK).await,
        }
    };
    let (stdout, stderr) = (text_of(&sandbox, &command, "out").await, text_of(&sandbox, &command, "err").await);
    Json(json!({"cmdId": command, "output": format!("{stdout}{stderr}"), "stdout": stdout, "stderr": stderr, "exitCode": code}))
        .into_response()
}

/// The output of a script inside, if it does what it should.
async fn inside(sandbox: &Sandbox, script: &str, arguments: &[&str]) -> Option<Vec<u8>> {
    let world = sandbox.world.read().await;
    let (code, output) = world.as_ref()?.script(script, arguments).await.ok()?;
    (code == 0).then_some(output)
}

/// What a command has left, from a byte on.
async fn bytes_of(sandbox: &Sandbox, command: &str, what: &str, from: usize) -> Vec<u8> {
    let path = format!("{}/{what}", folder(command));
    let read = inside(sandbox, "tail -c \"+$2\" -- \"$1\" 2>/dev/null", &[&path, &(from + 1).to_string()]).await;
    read.unwrap_or_default()
}

async fn text_of(sandbox: &Sandbox, command: &str, what: &str) -> String {
    String::from_utf8_lossy(&bytes_of(sandbox, command, what, 0).await).into_owned()
}

async fn code(sandbox: &Sandbox, command: &str) -> Option<i32> {
    text_of(sandbox, command, "code").await.trim().parse().ok()
}

async fn described(sandbox: &Sandbox, command: &Command) -> Value {
    let mut shown = json!({"id": command.id, "command": command.text});
    if let Some(code) = code(sandbox, &command.id).await {
        shown["exitCode"] = code.into();
    }
    shown
}

async fn shown(sandbox: &Sandbox, name: &str, session: &Session) -> Value {
    let mut commands = Vec::new();
    for one in &session.commands {
        commands.push(described(sandbox, one).await);
    }
    json!({"sessionId": name, "commands": commands})
}

async fn info(State(shared): Service, Path((id, name)): Path<(String, String)>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    match sandbox.sessions.0.lock().await.get(&name) {
        Some(session) => Json(shown(&sandbox, &name, session).await).into_response(),
        None => missing(),
    }
}

async fn list(State(shared): Service, Path(id): Path<String>) -> Response {
    match running(&shared, &id).await {
        Ok(sandbox) => {
            let mut all = Vec::new();
            for (name, session) in sandbox.sessions.0.lock().await.iter() {
                all.push(shown(&sandbox, name, session).await);
            }
            Json(all).into_response()
        }
        Err(response) => *response,
    }
}

/// Ends what the shell has started, too: it is all of one group.
async fn remove(State(shared): Service, Path((id, name)): Path<(String, String)>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let removed = sandbox.sessions.0.lock().await.remove(&name);
    match removed {
        Some(mut session) => {
            if let Some(group) = session.shell.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
                let _ = kill_process_group(group, Signal::KILL);
            }
            let _ = session.shell.wait().await;
            StatusCode::NO_CONTENT.into_response()
        }
        None => missing(),
    }
}

async fn command(State(shared): Service, Path((id, name, command)): Path<(String, String, String)>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    match sandbox.sessions.command(&name, &command).await {
        Some(one) => Json(described(&sandbox, &one).await).into_response(),
        None => missing(),
    }
}

/// All of it at once; or, over a websocket, what there is and what comes, until the command is over.
async fn logs(
    State(shared): Service,
    Path((id, name, command)): Path<(String, String, String)>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    if sandbox.sessions.command(&name, &command).await.is_none() {
        return missing();
    }
    if let Ok(upgrade) = upgrade {
        return upgrade.on_upgrade(move |socket| async move { follow(socket, &sandbox, &command).await });
    }
    let (out, err) = (text_of(&sandbox, &command, "out").await, text_of(&sandbox, &command, "err").await);
    Json(json!({"output": format!("{out}{err}"), "stdout": out, "stderr": err})).into_response()
}

/// Three bytes say which stream the bytes after them are of.
async fn follow(mut socket: WebSocket, sandbox: &Sandbox, command: &str) {
    let mut told = [0, 0];
    loop {
        // In this order: what was written before the end is read after it.
        let has_ended = code(sandbox, command).await.is_some();
        for (index, (what, mark)) in [("out", 1), ("err", 2)].into_iter().enumerate() {
            let new = bytes_of(sandbox, command, what, told[index]).await;
            told[index] += new.len();
            for part in new.chunks(FRAME) {
                let frame = [&[mark; 3], part].concat();
                if socket.send(Message::Binary(frame.into())).await.is_err() {
                    return;
                }
            }
        }
        let is_gone = sandbox.world.read().await.is_none();
        if has_ended || is_gone {
            let code = if has_ended { 1000 } else { 1011 };
            let _ = socket.send(Message::Close(Some(CloseFrame { code, reason: "".into() }))).await;
            // The client closes its side; then the connection may go.
            let _ = tokio::time::timeout(INPUT, async { while socket.recv().await.is_some() {} }).await;
            return;
        }
        if let Ok(None | Some(Err(_) | Ok(Message::Close(_)))) = tokio::time::timeout(LOOK, socket.recv()).await {
            return;
        }
    }
}

#[derive(Deserialize)]
struct Input {
    data: String,
}

/// A line for a command that runs.
async fn input(
    State(shared): Service,
    Path((id, name, command)): Path<(String, String, String)>,
    Json(Input { mut data }): Json<Input>,
) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let Some(known) = sandbox.sessions.command(&name, &command).await else { return missing() };
    let over = || tool_error(410, "COMMAND_ALREADY_COMPLETED", "gone: the command has completed");
    if code(&sandbox, &command).await.is_some() {
        return over();
    }
    if !data.ends_with('\n') {
        data.push('\n');
    }
    let script = "[ -z \"$3\" ] || printf %s \"$2\" >>\"$1/out\"; printf %s \"$2\" >\"$1/in\"";
    let (at, echo) = (folder(&command), if known.is_echoed { "echo" } else { "" });
    // Nothing reads any more where it has ended in the meantime.
    match tokio::time::timeout(INPUT, inside(&sandbox, script, &[&at, &data, echo])).await {
        Ok(Some(_)) => StatusCode::NO_CONTENT.into_response(),
        Ok(None) => tool_error(500, "INTERNAL_SERVER_ERROR", "the input could not be written"),
        Err(_) => over(),
    }
}
