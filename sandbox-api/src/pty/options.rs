use std::{fmt, time::Duration};

use sandbox_core::{ByteString, CaptureLimits, Env, Result, SandboxError, SandboxPtySpec};

use super::SandboxPtySession;
use crate::DEFAULT_EXEC_TIMEOUT_S;

/// How often a detached command is looked at by default.
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// A command for [`SandboxPty::exec`](super::SandboxPty::exec). By default it has 180 s.
#[derive(Clone)]
#[must_use]
pub struct PtyExec {
    pub(super) command: ByteString,
    pub(super) session: Option<SandboxPtySession>,
    pub(super) cwd: Option<ByteString>,
    pub(super) env: Env,
    pub(super) user: Option<String>,
    pub(super) size: Option<(u16, u16)>,
    pub(super) pipe: bool,
    pub(super) timeout_s: Option<f64>,
    pub(super) detach: bool,
    pub(super) poll_interval: Duration,
    pub(super) capture: CaptureLimits,
}

impl PtyExec {
    /// A script for the shell of a session.
    pub fn new(command: impl Into<ByteString>) -> Self {
        Self {
            command: command.into(),
            session: None,
            cwd: None,
            env: Env::default(),
            user: None,
            size: None,
            pipe: false,
            timeout_s: Some(DEFAULT_EXEC_TIMEOUT_S),
            detach: false,
            poll_interval: DEFAULT_POLL_INTERVAL,
            capture: CaptureLimits::default(),
        }
    }

    /// Runs it in the shell of this session, which stays open and keeps what the command changes.
    pub fn with_session(mut self, session: &SandboxPtySession) -> Self {
        self.session = Some(session.clone());
        self
    }

    /// Sets the working directory. The command then has a session of its own.
    pub fn with_cwd(mut self, cwd: impl Into<ByteString>) -> Self {
        self.cwd = Some(cwd.into());
        self
    }

    /// Sets one environment variable. The command then has a session of its own.
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<ByteString>) -> Self {
        self.env.insert(name, value);
        self
    }

    /// Sets the user. The command then has a session of its own.
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets the size of the terminal; 24 x 80 is the default. The command then has a session of its own.
    pub fn with_size(mut self, rows: u16, cols: u16) -> Self {
        self.size = Some((rows, cols));
        self
    }

    /// Pipes instead of a terminal, so that standard error comes apart. The command then has a session of its own.
    pub fn with_pipes(mut self) -> Self {
        self.pipe = true;
        self
    }

    /// Sets the limit in seconds, waiting for the session included.
    pub fn with_timeout_s(mut self, timeout_s: f64) -> Self {
        self.timeout_s = Some(timeout_s);
        self
    }

    /// No limit.
    pub fn without_timeout(mut self) -> Self {
        self.timeout_s = None;
        self
    }

    /// Runs it without holding a connection: it is looked at once in a while. Both streams come as one.
    pub fn detached(mut self) -> Self {
        self.detach = true;
        self
    }

    /// Sets how often a detached command is looked at. Between two looks it may write 1 MiB; more fails the command,
    /// since output would be missing.
    pub fn with_poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// Sets how much output is kept.
    pub fn with_capture(mut self, capture: CaptureLimits) -> Self {
        self.capture = capture;
        self
    }

    /// The first argument that gives the command surroundings of its own.
    pub(super) fn shaped_by(&self) -> Option<&'static str> {
        let shapes = [
            ("cwd", self.cwd.is_some()),
            ("env", !self.env.is_empty()),
            ("user", self.user.is_some()),
            ("size", self.size.is_some_and(|size| size != (24, 80))),
            ("pipes", self.pipe),
        ];
        shapes.into_iter().find_map(|(name, is_set)| is_set.then_some(name))
    }

    pub(super) fn limit(&self) -> Option<Duration> {
        self.timeout_s.map(Duration::from_secs_f64)
    }

    /// The session that it would have of its own.
    pub(super) fn spec(&self, command: Option<ByteString>) -> SandboxPtySpec {
        let (rows, cols) = self.size.unwrap_or((24, 80));
        SandboxPtySpec {
            command,
            cwd: self.cwd.clone(),
            env: self.env.clone(),
            user: self.user.clone(),
            rows,
            cols,
            pty: !self.pipe,
        }
    }

    pub(super) fn validate(&self) -> Result<()> {
        if let (Some(_), Some(argument)) = (&self.session, self.shaped_by()) {
            return Err(SandboxError::invalid_input(argument, "cannot be given together with a session")
                .with_help("the session has its surroundings already; leave one of the two out"));
        }
        let one = sandbox_core::ExecRequest::shell(self.command.clone());
        let one = match self.timeout_s {
            Some(timeout_s) => one.with_timeout_s(timeout_s),
            None => one,
        };
        one.validate()?;
        if self.poll_interval.is_zero() {
            return Err(SandboxError::invalid_input("poll_interval", "must be above 0"));
        }
        self.spec(None).validate()
    }
}

impl fmt::Debug for PtyExec {
    // Commands and environments are never shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PtyExec")
            .field("session", &self.session)
            .field("timeout_s", &self.timeout_s)
            .field("detach", &self.detach)
            .finish_non_exhaustive()
    }
}
