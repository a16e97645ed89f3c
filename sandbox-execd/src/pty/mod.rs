//! Terminal sessions. Each is one of the agent's, under the same id, from its first client on.

mod converse;

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use hyper::StatusCode;
use sandbox_core::{
    AttachOptions, ByteString, ControlRequest, ErrorKind, PtyEvent, PtyStream, SandboxError, SandboxPtySpec,
};
use sandbox_protocol::methods::{self, Nothing, PtyAttachRequest, PtyCreate, PtyInfo, PtyList};
use serde::Deserialize;
use serde_json::json;

use crate::{
    execd::{Execd, expand, lock, new_id},
    http::{self, Answer, Query, Refusal, Request},
    websocket::Handshake,
};
use converse::{Conversation, Mode};

/// Sessions that were made and not deleted.
const SESSIONS_MAX: usize = 4096;

/// How long the end of a session that is deleted is waited for.
const ENDS_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);

/// What opens where no command was asked for: a shell that reads no files of its own.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash --norc --noprofile; else exec sh; fi";

/// A session; nothing runs before the first client comes.
pub(crate) struct PtySession {
    cwd: Option<ByteString>,
    command: Option<String>,
    /// How often it was started: one that has ended starts again when a client comes.
    starts: AtomicU32,
    /// One at a time starts it; what kind it was started as.
    started_as: tokio::sync::Mutex<Mode>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wish {
    cwd: String,
    command: String,
}

impl PtySession {
    /// The agent's id of the process that runs now, or ran last.
    fn agent_id(&self, id: &str) -> String {
        match self.starts.load(Ordering::Relaxed) {
            0 | 1 => id.to_owned(),
            count => format!("{id}.{count}"),
        }
    }

    fn spec(&self, mode: Mode) -> SandboxPtySpec {
        SandboxPtySpec {
            command: Some(self.command.as_deref().unwrap_or(SHELL).into()),
            cwd: self.cwd.clone(),
            pty: mode == Mode::Pty,
            ..SandboxPtySpec::default()
        }
    }
}

impl Execd {
    pub(crate) async fn create_pty(&self, request: Request) -> Answer {
        let wish: Wish = http::read_json(request.into_body()).await?;
        let cwd = if wish.cwd.is_empty() { None } else { Some(expand(&wish.cwd)?) };
        if let Some(cwd) = cwd.clone() {
            let made = tokio::task::spawn_blocking(move || std::fs::create_dir_all(cwd.as_path())).await;
            let made = made.unwrap_or_else(|_| Err(std::io::Error::other("it broke")));
            made.map_err(|error| Refusal::failed(format!("the folder cannot be made: {error}")))?;
        }
        let id = new_id();
        let session = PtySession {
            cwd,
            command: Some(wish.command).filter(|command| !command.is_empty()),
            starts: AtomicU32::new(0),
            started_as: tokio::sync::Mutex::new(Mode::Pty),
        };
        let mut sessions = lock(&self.ptys);
        if sessions.len() >= SESSIONS_MAX {
            return Err(Refusal::failed(format!("there are {SESSIONS_MAX} terminal sessions already: delete some")));
        }
        sessions.insert(id.clone(), Arc::new(session));
        Ok(http::json(StatusCode::CREATED, &json!({ "session_id": id })))
    }

    /// A session of this API, or one that still runs of another client of the agent.
    async fn find_pty(&self, id: &str) -> Result<(Option<Arc<PtySession>>, Option<PtyInfo>), Refusal> {
        let own = lock(&self.ptys).get(id).cloned();
        let agent_id = own.as_ref().map_or_else(|| id.to_owned(), |own| own.agent_id(id));
        let known = self.pty_info(&agent_id).await?;
        match (&own, &known) {
            (None, None) => Err(Refusal::no_context()),
            (None, Some(known)) if known.exit.is_some() => Err(Refusal::no_context()),
            _ => Ok((own, known)),
        }
    }

    async fn pty_info(&self, agent_id: &str) -> Result<Option<PtyInfo>, Refusal> {
        let list: PtyList = self.client.call(methods::PTY_LIST, &Nothing {}).await?;
        Ok(list.sessions.into_iter().find(|session| session.session_id == agent_id))
    }

    pub(crate) async fn pty_status(&self, id: &str) -> Answer {
        let (_, known) = self.find_pty(id).await?;
        let is_running = known.as_ref().is_some_and(|known| known.exit.is_none());
        let offset = known.map_or(0, |known| known.output_bytes);
        let status = json!({ "session_id": id, "running": is_running, "output_offset": offset });
        Ok(http::json(StatusCode::OK, &status))
    }

    pub(crate) async fn delete_pty(&self, id: &str) -> Answer {
        let (own, known) = self.find_pty(id).await?;
        lock(&self.ptys).remove(id);
        if let Some(known) = known.filter(|known| known.exit.is_none()) {
            let agent_id = own.map_or_else(|| id.to_owned(), |own| own.agent_id(id));
            // From its end on, and whoever holds it.
            let options = AttachOptions { takeover: true, since: Some(known.output_bytes) };
            let request = PtyAttachRequest { session_id: agent_id, options };
            let mut stream: PtyStream = self.client.open(methods::PTY_ATTACH, &request).await?;
            // One that has ended meanwhile needs none.
            let _ = stream.control().control(ControlRequest::Kill).await;
            let ended = async { while let Ok(Some(_)) = stream.next().await {} };
            let _ = tokio::time::timeout(ENDS_WITHIN, ended).await;
        }
        Ok(http::ok())
    }

    pub(crate) async fn attach_pty(self: &Arc<Self>, id: &str, request: Request) -> Answer {
        let query = Query::of(&request);
        let since = query.number("since")?.unwrap_or(0);
        let mode = if query.get("pty") == Some("0") { Mode::Pipe } else { Mode::Pty };
        let takeover = query.get("takeover") == Some("1");
        let handshake = Handshake::of(request)?;
        // Before the answer, so that a refusal is one.
        let (stream, replay_to, mode) = self.hold(id, since, mode, takeover).await?;
        let (response, socket) = handshake.accept();
        let id = id.to_owned();
        tokio::spawn(async move {
            let Some(socket) = socket.await else { return };
            let conversation = Conversation { session_id: id, mode, stream, at: since, replay_to };
            conversation.run(socket).await;
        });
        Ok(response)
    }

    /// Gets a session for a client: its events from a byte on, up to where they are a replay, and what kind it is.
    async fn hold(&self, id: &str, since: u64, mode: Mode, takeover: bool) -> Result<(PtyStream, u64, Mode), Refusal> {
        let (own, known) = self.find_pty(id).await?;
        let Some(own) = own else {
            let stream = self.attach_to(id.to_owned(), since, takeover).await?;
            return Ok((stream, known.map_or(0, |known| known.output_bytes), mode));
        };
        let mut started_as = own.started_as.lock().await;
        let agent_id = own.agent_id(id);
        let known = self.pty_info(&agent_id).await?;
        if known.is_some_and(|known| known.exit.is_none()) {
            let stream = self.attach_to(agent_id.clone(), since, takeover).await?;
            // Asked after it was got: all of it is there already.
            let now = self.pty_info(&agent_id).await?.map_or(0, |known| known.output_bytes);
            return Ok((stream, now, *started_as));
        }
        *started_as = mode;
        own.starts.fetch_add(1, Ordering::Relaxed);
        let request = PtyCreate { session_id: own.agent_id(id), spec: own.spec(mode) };
        let stream: PtyStream = self.client.open::<PtyEvent>(methods::PTY_CREATE, &request).await?;
        // Dropping an attachment leaves the process alone, unlike the stream that it began with.
        let attached = self.attach_to(own.agent_id(id), 0, true).await;
        drop(stream);
        attached.map(|stream| (stream, 0, mode))
    }

    async fn attach_to(&self, session_id: String, since: u64, takeover: bool) -> Result<PtyStream, Refusal> {
        let options = AttachOptions { takeover, since: Some(since) };
        let request = PtyAttachRequest { session_id, options };
        self.client.open::<PtyEvent>(methods::PTY_ATTACH, &request).await.map_err(|error| refused(&error))
    }
}

fn refused(error: &SandboxError) -> Refusal {
    match error.kind() {
        ErrorKind::InvalidState if error.message().starts_with("held:") => {
            Refusal::new(StatusCode::CONFLICT, "ALREADY_CONNECTED", "another client is attached to the session")
        }
        ErrorKind::NotFound => Refusal::no_context(),
        _ => Refusal::failed(error.message()),
    }
}
