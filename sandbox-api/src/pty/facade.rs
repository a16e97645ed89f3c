use std::time::Duration;

use sandbox_core::{AttachOptions, ByteString, Capability, Field, Result, SandboxPtySpec};

use super::session::{Opened, Place, PtyMode, SandboxPtySession};
use crate::{AsyncSandbox, admission::Permit, async_sandbox::Live, checks, timeouts::within};

/// The terminal sessions of a sandbox. Had from [`AsyncSandbox::pty`].
#[derive(Debug)]
pub struct SandboxPty<'a> {
    pub(super) sandbox: &'a AsyncSandbox,
}

impl AsyncSandbox {
    /// Terminal sessions: open them, attach to them, run commands in them.
    pub fn pty(&self) -> SandboxPty<'_> {
        SandboxPty { sandbox: self }
    }
}

impl SandboxPty<'_> {
    /// Opens a session. Without a command it is a shell, and the first shell that lives is the one that
    /// [`exec`](Self::exec) uses by default.
    ///
    /// Directory and user default to those of the sandbox, as for [`AsyncSandbox::exec`].
    ///
    /// # Errors
    /// `Unsupported`, then `InvalidState` when the sandbox is not started; `InvalidInput` for a wrong value or one that
    /// the backend cannot honour; `TimedOut`; `Pty`.
    pub async fn create(&self, spec: SandboxPtySpec) -> Result<SandboxPtySession> {
        let is_shell = spec.command.is_none();
        let session = self.open(spec).await?;
        if is_shell {
            self.sandbox.keep_shell(&session);
        }
        Ok(session)
    }

    /// Attaches to a session by its id, whoever opened it, from any process.
    ///
    /// * `options.takeover` (the default) evicts the client that holds it, whose session then fails with `Pty`; without
    ///   it a held session refuses.
    /// * `options.since` replays what is kept from that byte offset on, 0 all of it; what is no longer kept is told as
    ///   a gap. Without it only what comes from now on is read.
    ///
    /// # Errors
    /// `Unsupported`, then `InvalidState` when the sandbox is not started; `NotFound` for an unknown id; `InvalidState`
    /// for a session that is held; `TimedOut`.
    pub async fn attach(&self, session_id: &str, options: AttachOptions) -> Result<SandboxPtySession> {
        let provider = &self.sandbox.provider;
        let pty = checks::require(provider.name(), provider.as_pty_attach(), Capability::PtyAttach)?;
        let place = self.place(&*self.sandbox.live()?);
        let open = async {
            let stream = pty.attach_pty(&place.handle, session_id.to_owned(), options).await?;
            SandboxPtySession::opened(place.clone(), stream, Opened::Attached { since: options.since }).await
        };
        within("attach", place.limit, open).await.map_err(|error| error.with_provider(provider.name()))
    }

    /// Opens a session that is nobody's default.
    pub(super) async fn open(&self, mut spec: SandboxPtySpec) -> Result<SandboxPtySession> {
        let provider = &self.sandbox.provider;
        let pty = checks::require(provider.name(), provider.as_pty(), Capability::Pty)
            .map_err(|error| error.with_help("run the command with exec()"))?;
        let live = self.sandbox.live()?;
        spec.validate()?;
        if checks::takes_default(self.sandbox.info(), Field::ExecCwd) {
            spec.cwd = match spec.cwd.take() {
                Some(cwd) => Some(live.resolve(cwd)),
                None => live.default_workdir.as_ref().or(live.spec.workdir.as_ref()).map(ByteString::from),
            };
        }
        if spec.user.is_none() {
            spec.user.clone_from(&live.default_user);
        }
        let mode = if spec.pty { PtyMode::Pty } else { PtyMode::Pipe };
        let place = self.place(&live);
        let permit = match &self.sandbox.admission {
            Some(admission) => admission.stream().await?,
            None => Permit::default(),
        };
        let open = async {
            let stream = pty.create_pty(&place.handle, spec).await?.with_guard(permit);
            SandboxPtySession::opened(place.clone(), stream, Opened::Created(mode)).await
        };
        within("opening a session", place.limit, open).await.map_err(|error| error.with_provider(provider.name()))
    }

    fn place(&self, live: &Live) -> Place {
        let limit: Duration = self.sandbox.timeouts.pty;
        Place { provider: self.sandbox.provider.clone(), handle: live.handle.clone(), limit }
    }
}
