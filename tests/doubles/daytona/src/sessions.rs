//! The toolbox: shells that keep their state between commands. Our provider does not use them; the official client does.

use std::{collections::HashMap, process::Stdio, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, process::Child, sync::Mutex};

use crate::{
    process::running,
    sandboxes::Sandbox,
    server::{Shared, tool_error},
};

type Service = State<Arc<Shared>>;

struct Session {
    shell: Child,
    commands: Vec<(String, String)>,
}

#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<String, Session>>);

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/process/session", post(create).get(list))
        .route("/process/session/{session}", get(info).delete(remove))
        .route("/process/session/{session}/exec", post(exec))
        .route("/process/session/{session}/command/{command}", get(command))
        .route("/process/session/{session}/command/{command}/logs", get(logs))
}

async fn create(State(shared): Service, Path(id): Path<String>, Json(body): Json<Value>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let name = body.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
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

/// Where a command of a session leaves its output.
fn folder(command: &str) -> String {
    format!("/run/session-{command}")
}

async fn exec(
    State(shared): Service,
    Path((id, session)): Path<(String, String)>,
    Json(body): Json<Value>,
) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let command = format!("c{}", shared.unique());
    let text = body.get("command").and_then(Value::as_str).unwrap_or_default().to_owned();
    let is_async = ["runAsync", "async"].iter().any(|key| body.get(*key) == Some(&Value::Bool(true)));
    {
        let mut all = sandbox.sessions.0.lock().await;
        let Some(session) = all.get_mut(&session) else { return missing() };
        session.commands.push((command.clone(), text.clone()));
        let at = folder(&command);
        // The text runs in the shell itself, so that what it changes stays.
        let quoted = text.replace('\'', "'\\''");
        let line = format!(
            "mkdir {at}; eval '{quoted}' </dev/null >{at}/out 2>{at}/err; echo $? >{at}/new; mv {at}/new {at}/code\n"
        );
        let Some(stdin) = session.shell.stdin.as_mut() else { return missing() };
        if stdin.write_all(line.as_bytes()).await.is_err() || stdin.flush().await.is_err() {
            return tool_error(410, "SESSION_ENDED", "gone: session process has exited");
        }
    }
    if is_async {
        return (StatusCode::ACCEPTED, Json(json!({"cmdId": command}))).into_response();
    }
    while code(&sandbox, &command).await.is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let (stdout, stderr) = (text_of(&sandbox, &command, "out").await, text_of(&sandbox, &command, "err").await);
    let code = code(&sandbox, &command).await;
    Json(json!({"cmdId": command, "output": format!("{stdout}{stderr}"), "stdout": stdout, "stderr": stderr, "exitCode": code}))
        .into_response()
}

async fn text_of(sandbox: &Sandbox, command: &str, what: &str) -> String {
    let world = sandbox.world.read().await;
    let Some(world) = world.as_ref() else { return String::new() };
    let path = format!("{}/{what}", folder(command));
    let read = world.script("cat -- \"$1\"", &[&path]).await;
    read.map(|(_, bytes)| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

async fn code(sandbox: &Sandbox, command: &str) -> Option<i32> {
    text_of(sandbox, command, "code").await.trim().parse().ok()
}

async fn described(sandbox: &Sandbox, (id, text): &(String, String)) -> Value {
    let mut shown = json!({"id": id, "command": text});
    if let Some(code) = code(sandbox, id).await {
        shown["exitCode"] = code.into();
    }
    shown
}

async fn info(State(shared): Service, Path((id, name)): Path<(String, String)>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let all = sandbox.sessions.0.lock().await;
    let Some(session) = all.get(&name) else { return missing() };
    let mut commands = Vec::new();
    for one in &session.commands {
        commands.push(described(&sandbox, one).await);
    }
    Json(json!({"sessionId": name, "commands": commands})).into_response()
}

async fn list(State(shared): Service, Path(id): Path<String>) -> Response {
    match running(&shared, &id).await {
        Ok(sandbox) => {
            let all = sandbox.sessions.0.lock().await;
            let shown: Vec<Value> = all.keys().map(|name| json!({"sessionId": name, "commands": []})).collect();
            Json(shown).into_response()
        }
        Err(response) => *response,
    }
}

async fn remove(State(shared): Service, Path((id, name)): Path<(String, String)>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    match sandbox.sessions.0.lock().await.remove(&name) {
        Some(mut session) => {
            let _ = session.shell.start_kill();
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
    let known = {
        let all = sandbox.sessions.0.lock().await;
        all.get(&name).and_then(|session| session.commands.iter().find(|one| one.0 == command).cloned())
    };
    match known {
        Some(one) => Json(described(&sandbox, &one).await).into_response(),
        None => missing(),
    }
}

async fn logs(State(shared): Service, Path((id, _, command)): Path<(String, String, String)>) -> Response {
    match running(&shared, &id).await {
        Ok(sandbox) => {
            let (out, err) = (text_of(&sandbox, &command, "out").await, text_of(&sandbox, &command, "err").await);
            Json(json!({"output": format!("{out}{err}"), "stdout": out, "stderr": err})).into_response()
        }
        Err(response) => *response,
    }
}
