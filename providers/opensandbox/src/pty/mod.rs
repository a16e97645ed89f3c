//! Terminal sessions.

mod control;
mod pump;
mod script;
mod socket;

use std::sync::Arc;

use reqwest::Method;
use sandbox_core::{
    AttachOptions, Pty, PtyAttach, PtyEvent, PtyStream, Result, SandboxError, SandboxHandle, SandboxPtySpec,
    async_trait,
};
use serde_json::{Value, json};

use crate::{
    daemon::{Daemon, segment},
    error::NAME,
    exec::working_directory,
    native::Native,
    provider::OpenSandboxProvider,
    retry::Operation,
    state::State,
};
use control::{Control, Shared as SessionShared};
use pump::Pump;
use socket::Attach;

/// The size that a new terminal has.
const DEFAULT_SIZE: (u16, u16) = (24, 80);

pub(crate) use control::Detachable;

/// What the daemon says of a session.
struct Described {
    is_running: bool,
    offset: u64,
}

impl Daemon<'_> {
    async fn describe_pty(&self, session_id: &str) -> Result<Option<Described>> {
        let call = self.call(Method::GET, &format!("/pty/{}", segment(session_id)));
        match self.ask(&call, Operation::Idempotent).await {
            Ok(answer) => {
                let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                let is_running = value["running"].as_bool().unwrap_or(false);
                Ok(Some(Described { is_running, offset: value["output_offset"].as_u64().unwrap_or(0) }))
            }
            // A daemon without terminals answers 404, too, but with other words.
            Err(failure) if failure.refusal().is_some_and(|one| one.code == "CONTEXT_NOT_FOUND") => Ok(None),
            Err(failure) => Err(self.explain(failure, "looking at a terminal session").await),
        }
    }

    async fn delete_pty(&self, session_id: &str) {
        let call = self.call(Method::DELETE, &format!("/pty/{}", segment(session_id)));
        // One that cannot be deleted ends with its sandbox.
        let _ = self.ask(&call, Operation::Idempotent).await;
    }
}

#[async_trait]
impl Pty for OpenSandboxProvider {
    async fn create_pty(&self, handle: &SandboxHandle, spec: SandboxPtySpec) -> Result<PtyStream> {
        spec.validate()?;
        let state = self.shared.open(handle)?;
        let id = &handle.sandbox_id;
        if let Some(agent) = self.shared.native(id).await? {
            let spec = Native::terminal(&state, spec);
            return agent.ask(async |client| sandbox_agent_client::create_pty(&client, spec).await).await;
        }
        let daemon = self.shared.daemon(id).await?;
        let mut body = json!({});
        if let Some(command) = script::command(&daemon, &state, &spec).await? {
            body["command"] = json!(command);
        }
        if let Some(cwd) = working_directory(&state, spec.cwd.as_ref())? {
            body["cwd"] = json!(cwd);
        }
        let call = daemon.call(Method::POST, "/pty").json(&body);
        // Nothing runs before somebody connects: a second one does no harm.
        let answer = match daemon.ask(&call, Operation::Idempotent).await {
            Ok(answer) => answer,
            Err(failure) => return Err(daemon.explain(failure, "opening a terminal session").await),
        };
        let value: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let Some(session_id) = value["session_id"].as_str().map(str::to_owned) else {
            return Err(SandboxError::pty("the daemon gave the session no name").with_provider(NAME));
        };
        let attach = Attach { session_id: session_id.clone(), is_terminal: spec.pty, since: 0, takeover: false };
        let size = Some((spec.rows, spec.cols)).filter(|size| spec.pty && *size != DEFAULT_SIZE);
        match self.follow(id, attach, size, true).await {
            Ok(stream) => Ok(stream),
            Err(error) => {
                daemon.delete_pty(&session_id).await;
                Err(error)
            }
        }
    }
}

#[async_trait]
impl PtyAttach for OpenSandboxProvider {
    async fn attach_pty(
        &self,
        handle: &SandboxHandle,
        session_id: String,
        options: AttachOptions,
    ) -> Result<PtyStream> {
        let _state: State = self.shared.open(handle)?;
        let id = &handle.sandbox_id;
        if let Some(agent) = self.shared.native(id).await? {
            let attach = async |client| sandbox_agent_client::attach_pty(&client, session_id, options).await;
            return agent.ask(attach).await;
        }
        let daemon = self.shared.daemon(id).await?;
        let described = daemon.describe_pty(&session_id).await?;
        // To attach to one that has ended would start it again.
        let Some(described) = described.filter(|described| described.is_running) else {
            let text = format!("terminal session {session_id} does not exist or is over");
            return Err(SandboxError::not_found(text).with_provider(NAME));
        };
        let since = options.since.unwrap_or(described.offset);
        let attach = Attach { session_id, is_terminal: true, since, takeover: options.takeover };
        self.follow(id, attach, None, false).await
    }
}

impl OpenSandboxProvider {
    /// Connects to a session and follows it.
    async fn follow(&self, id: &str, attach: Attach, size: Option<(u16, u16)>, is_owned: bool) -> Result<PtyStream> {
        let daemon = self.shared.daemon(id).await?;
        let connected = socket::dial(&daemon, &attach).await?;
        let (shared, orders) = SessionShared::new(attach.is_terminal);
        let shared = Arc::new(shared);
        self.shared.add_pty(id, &shared);
        let (sink, stream) = PtyStream::channel(Control(shared.clone()));
        let opened = PtyEvent::Opened { session_id: attach.session_id.clone() };
        let pump = Pump {
            shared: self.shared.clone(),
            sandbox_id: id.to_owned(),
            received: attach.since,
            attach,
            session: shared,
            orders,
            size,
            is_owned,
            quiet_sockets: 0,
        };
        tokio::spawn(async move {
            sink.send(opened).await;
            pump.run(connected, sink).await;
        });
        Ok(stream)
    }
}
