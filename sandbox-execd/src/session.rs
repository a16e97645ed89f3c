//! Shell sessions: folder and environment are kept from run to run.

use std::{
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use hyper::StatusCode;
use sandbox_core::{ExecEvent, ExecExit, ExecRequest, ExecStream};
use sandbox_protocol::methods::ExecStart;
use serde::Deserialize;
use serde_json::json;

use crate::{
    command::{Events, Form, Stream, folder, told},
    environment,
    execd::{Execd, expand, lock, new_id},
    http::{self, Answer, Refusal, Request},
};

/// Sessions at once: each has a file.
const SESSIONS_MAX: usize = 1024;

/// Carries the folder from one run to the next.
const CWD_VARIABLE: &str = "EXECD_SESSION_CWD";

/// A session. Its state is a file of assignments that each run reads first and writes last.
pub(crate) struct Session {
    state: PathBuf,
    /// One run at a time.
    turn: tokio::sync::Mutex<()>,
    /// The command that runs now.
    running: Mutex<Option<String>>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // What cannot be removed goes with the sandbox.
        let _ = std::fs::remove_file(&self.state);
        if let Some(folder) = self.state.parent() {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wish {
    cwd: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Run {
    command: String,
    cwd: String,
    /// Milliseconds; 0: none.
    timeout: u64,
}

/// Text for a shell that means exactly itself.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// What a run gives to the shell: the state first, what was asked for, and the new state whatever that ends with. The shell
/// itself writes its variables in a form that it reads.
fn script(state: &str, cwd: Option<&str>, command: &str) -> String {
    let state = quote(state);
    let enter = cwd.map(|cwd| format!("cd -- {} || exit\n", quote(cwd))).unwrap_or_default();
    format!(
        "exec 2>&1\n. {state}\ncd -- \"${CWD_VARIABLE}\" || exit\nunset {CWD_VARIABLE}\n\
         execd_keep() {{ execd_code=$?; trap - EXIT; export {CWD_VARIABLE}=\"$PWD\"; export -p >{state}; \
         exit $execd_code; }}\ntrap execd_keep EXIT\n{enter}{command}\n"
    )
}

/// A new file in a folder that is this process's alone.
fn begin(id: &str, cwd: &str) -> std::io::Result<PathBuf> {
    use std::io::Write;
    let folder = std::env::temp_dir().join(format!(".execd-session-{id}"));
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let path = folder.join("state");
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    writeln!(file, "{CWD_VARIABLE}={}", quote(cwd))?;
    Ok(path)
}

impl Execd {
    pub(crate) async fn create_session(self: &Arc<Self>, request: Request) -> Answer {
        let wish: Wish = http::read_json(request.into_body()).await?;
        if lock(&self.sessions).len() >= SESSIONS_MAX {
            return Err(Refusal::failed(format!("there are {SESSIONS_MAX} sessions already: delete some")));
        }
        let cwd = if wish.cwd.is_empty() { ".".into() } else { expand(&wish.cwd)? };
        let id = new_id();
        let made = {
            let (id, cwd) = (id.clone(), cwd.to_string());
            tokio::task::spawn_blocking(move || {
                std::fs::create_dir_all(&cwd)?;
                begin(&id, &cwd)
            })
        };
        let made = made.await.unwrap_or_else(|_| Err(std::io::Error::other("it broke")));
        let state = made.map_err(|error| Refusal::failed(format!("the session cannot be made: {error}")))?;
        let session = Session { state, turn: tokio::sync::Mutex::default(), running: Mutex::default() };
        lock(&self.sessions).insert(id.clone(), Arc::new(session));
        Ok(http::json(StatusCode::OK, &json!({ "session_id": id })))
    }

    pub(crate) async fn run_in_session(self: &Arc<Self>, id: &str, request: Request) -> Answer {
        let run: Run = http::read_json(request.into_body()).await?;
        if run.command.is_empty() {
            return Err(Refusal::bad("Key: 'RunInSessionRequest.Command' Error:Field validation for 'Command' failed"));
        }
        let session = lock(&self.sessions).get(id).cloned();
        let session = session.ok_or_else(|| Refusal::failed("context not found"))?;
        let cwd = folder(&run.cwd)?;
        let script =
            script(&session.state.to_string_lossy(), cwd.as_ref().map(ToString::to_string).as_deref(), &run.command);
        let mut request = ExecRequest::shell(script);
        request.exec_id = new_id();
        request.env = environment::read_envs(&self.settings.envs_file);
        request.timeout_s = (run.timeout > 0).then_some(run.timeout as f64 / 1000.0);
        let (pieces, response) = http::streamed("text/event-stream");
        let events = Events::new(pieces, Form::Text);
        let execd = self.clone();
        tokio::spawn(async move { execd.follow(&session, request, events).await });
        Ok(response)
    }

    /// Runs a script of a session. When whoever asked for it goes, it ends.
    async fn follow(&self, session: &Session, request: ExecRequest, mut events: Events) {
        let _turn = session.turn.lock().await;
        let id = request.exec_id.clone();
        *lock(&session.running) = Some(id.clone());
        let stream = match self.client.exec_start(ExecStart::new(request)).await {
            Ok((_, stream)) => stream,
            Err(_) => return events.cut().await,
        };
        events.begin(&id).await;
        let client = events.client();
        let ended = tokio::select! {
            ended = pass_on(stream, &mut events) => ended,
            () = client.closed() => None,
        };
        drop(client);
        *lock(&session.running) = None;
        match ended {
            Some(exit) => events.end(&told(&exit, "sh"), &exit).await,
            None => events.cut().await,
        }
    }

    pub(crate) fn delete_session(self: &Arc<Self>, id: &str) -> Answer {
        let session = lock(&self.sessions).remove(id).ok_or_else(Refusal::no_context)?;
        if let Some(command) = lock(&session.running).take() {
            self.kill_in_background(command);
        }
        Ok(http::ok())
    }

    /// The command that a session runs now.
    pub(crate) fn command_of_session(&self, id: &str) -> Option<String> {
        let session = lock(&self.sessions).get(id).cloned()?;
        lock(&session.running).clone()
    }
}

/// Both streams are one in a session. None: it was lost.
async fn pass_on(mut stream: ExecStream, events: &mut Events) -> Option<ExecExit> {
    loop {
        match stream.next().await {
            Ok(Some(ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes))) => events.output(Stream::Stdout, bytes).await,
            Ok(Some(ExecEvent::Exit(exit))) => return Some(exit),
            Ok(Some(_)) => {}
            _ => return None,
        }
    }
}
