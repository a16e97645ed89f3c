//! Shell sessions: folder and environment are kept from run to run.

use std::{path::PathBuf, sync::Arc, time::Duration};

use sandbox_process::{Command, Controller, Ending, Event, Limits};
use serde_json::{Value, json};

use super::{
    Execd, lock, new_id,
    output::{Events, Stream},
};
use crate::http::{self, Answer, Request, Response, empty, failure, streamed};

/// A session. Its state is a file of assignments that each run reads first and writes last.
#[derive(Clone)]
pub(super) struct Session {
    state: PathBuf,
    controller: Option<Controller>,
}

/// One word of a script.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

impl Execd {
    pub(super) async fn create_session(&self, request: Request) -> Response {
        let body = http::read_all(request.into_body()).await.unwrap_or_default();
        let cwd = serde_json::from_slice::<Value>(&body).ok().and_then(|body| body["cwd"].as_str().map(str::to_owned));
        let (id, cwd) = (new_id(), cwd.unwrap_or_else(|| "/".to_owned()));
        let state = std::env::temp_dir().join(format!(".session-{id}"));
        let line = format!("cd -- {}\n", quote(&cwd));
        if std::fs::create_dir_all(&cwd).and_then(|()| std::fs::write(&state, line)).is_err() {
            return failure(500, "RUNTIME_ERROR", "the session cannot be made");
        }
        lock(&self.sessions).insert(id.clone(), Session { state, controller: None });
        http::json(200, &json!({ "session_id": id }))
    }

    pub(super) async fn run_in_session(self: &Arc<Self>, id: &str, request: Request) -> Answer {
        let body = http::read_all(request.into_body()).await.unwrap_or_default();
        let order: Value = serde_json::from_slice(&body).unwrap_or_default();
        let Some(text) = order["command"].as_str() else {
            return Ok(failure(400, "INVALID_REQUEST_BODY", "no command"));
        };
        let Some(session) = lock(&self.sessions).get(id).cloned() else {
            return Ok(failure(500, "RUNTIME_ERROR", "context not found"));
        };
        self.note_start(&order);
        let state = session.state.to_string_lossy().into_owned();
        let cwd = order["cwd"].as_str().map(|cwd| format!("cd -- {} || exit\n", quote(cwd))).unwrap_or_default();
        let script = format!(
            "exec 2>&1\n. {state}\ntrap 'code=$?; {{ export PWD; export -p; echo \"cd -- \\\"\\$PWD\\\"\"; }} >{state}; exit $code' EXIT\n\
             {cwd}{text}\n"
        );
        let mut command = Command::new(["sh", "-c", &script]);
        for (name, value) in self.environment(&Default::default()) {
            command = command.env(name, value);
        }
        let mut limits = Limits::new();
        if let Some(timeout) = order["timeout"].as_u64().filter(|timeout| *timeout > 0) {
            limits = limits.timeout(Duration::from_millis(timeout));
        }
        let Ok(mut process) = self.set.spawn(command, limits).await else {
            return Ok(failure(500, "RUNTIME_ERROR", "no shell"));
        };
        if let Some(session) = lock(&self.sessions).get_mut(id) {
            session.controller = Some(process.controller());
        }
        let (sender, response) = streamed("text/event-stream");
        let mut events = Events::new(sender, &self.options, false);
        tokio::spawn(async move {
            events.event(json!({ "type": "init", "text": new_id() })).await;
            while let Some(event) = process.next_event().await {
                match event {
                    // Both streams are one in a session.
                    Event::Stdout(data) | Event::Stderr(data) => events.output(Stream::Stdout, &data).await,
                    Event::Exit(exit) => {
                        events.flush().await;
                        let code = if let Ending::Exited(code) = exit.ending { code } else { -1 };
                        let event = match code {
                            0 => json!({ "type": "execution_complete", "execution_time": 1 }),
                            code => json!({ "type": "error", "error": { "ename": "CommandExecError",
                                "evalue": code.to_string(), "traceback": [] } }),
                        };
                        events.event(event).await;
                    }
                    _ => {}
                }
            }
        });
        Ok(response)
    }

    pub(super) fn delete_session(&self, id: &str) -> Response {
        let Some(session) = lock(&self.sessions).remove(id) else {
            return failure(404, "CONTEXT_NOT_FOUND", "context not found");
        };
        if let Some(controller) = session.controller {
            controller.kill_tree_now();
        }
        let _ = std::fs::remove_file(session.state);
        empty(200)
    }
}
