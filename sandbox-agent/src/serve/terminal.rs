//! The methods about terminals.

use std::{sync::Arc, time::Duration};

use sandbox_core::{ErrorKind, ExecExit, PtyEvent, Result, SandboxError, SandboxPtySpec};
use sandbox_process::{Command, Limits, Stdin, TerminalSize};
use sandbox_protocol::{
    StreamResponder,
    methods::{PtyAttachRequest, PtyCreate, PtyInfo, PtyList},
};

use super::{
    agent::Agent,
    attachment::{Attach, InputFrom, OnDrop, attach},
    exec::{Prepared, no_shell},
    job::{Draft, End, Job, JobKind, TERMINAL_KEEP, WithoutClient},
    log::Cursor,
    surroundings::Wish,
};

/// Between the hang-up and SIGKILL of a terminal that is closed: time for a shell to write its history.
const HANG_UP_GRACE: Duration = Duration::from_millis(500);

impl Agent {
    pub(super) fn pty_create(self: &Arc<Self>, request: PtyCreate) -> Result<StreamResponder> {
        let PtyCreate { session_id, spec } = request;
        spec.validate()?;
        self.check_open()?;
        if session_id.len() > 128 || session_id.contains(|c: char| !c.is_ascii_graphic() || c == '/') {
            let why = "must be at most 128 printable ASCII characters without '/'";
            return Err(SandboxError::invalid_input("session_id", why));
        }
        let kind = if spec.pty { JobKind::Terminal } else { JobKind::Pipes };
        let draft = Draft {
            kind,
            without_client: WithoutClient::RunsOn,
            keep: TERMINAL_KEEP,
            fingerprint: 0,
            is_permanent: false,
        };
        let make = |id| Job::new(id, &draft);
        let (job, was_known) = self.terminals.get_or_add(&session_id, "pty-", make);
        if !was_known {
            self.start(job.clone(), move |agent| agent.prepare_terminal(&spec));
        }
        Ok(StreamResponder::session(attach_terminal(&job, Cursor::default(), OnDrop::Kills)?))
    }

    fn prepare_terminal(&self, spec: &SandboxPtySpec) -> Result<Result<Prepared, ExecExit>> {
        let wish = Wish {
            cwd: spec.cwd.as_ref(),
            env: &spec.env,
            user: spec.user.as_deref(),
            is_script: spec.command.is_some(),
            has_terminal: spec.pty,
        };
        let limits = Limits::new().kill_grace(HANG_UP_GRACE);
        let prepared = match &spec.command {
            Some(script) => self.script(script, None, &wish, limits)?,
            None => self.open_shell(&wish, limits)?,
        };
        Ok(prepared.map(|prepared| {
            let command = prepared.command.stdin(Stdin::Stream);
            let size = TerminalSize { rows: spec.rows, cols: spec.cols };
            Prepared { command: if spec.pty { command.terminal(size) } else { command }, ..prepared }
        }))
    }

    /// The shell itself: interactive because of its terminal, and not a login shell.
    fn open_shell(&self, wish: &Wish<'_>, limits: Limits) -> Result<Result<Prepared, ExecExit>> {
        match self.surroundings.shell(None, wish.env) {
            Ok(shell) => {
                let program = String::from_utf8_lossy(&shell).into_owned();
                self.surrounded(Command::new([shell]), program, wish, limits)
            }
            Err(wanted) => Ok(Err(no_shell(&wanted))),
        }
    }

    pub(super) fn pty_attach(&self, request: &PtyAttachRequest) -> Result<StreamResponder> {
        let job = self.terminals.get(&request.session_id).ok_or_else(|| {
            SandboxError::not_found("no terminal session has this id, or it ended long ago").with_field("session_id")
        })?;
        let at = {
            let state = job.state();
            if state.client.is_some() && !request.options.takeover && state.end.is_none() {
                let message = "held: another client has the terminal session, and no takeover was asked for";
                return Err(SandboxError::new(ErrorKind::InvalidState, message));
            }
            request.options.since.unwrap_or(u64::MAX).min(state.log.end())
        };
        let cursor = Cursor { at, ..Cursor::default() };
        Ok(StreamResponder::session(attach_terminal(&job, cursor, OnDrop::Leaves)?))
    }

    pub(super) fn pty_list(&self) -> Result<StreamResponder> {
        let info = |job: &Arc<Job>| {
            let pid = job.controller().and_then(|controller| u32::try_from(controller.pid()).ok());
            let state = job.state();
            PtyInfo {
                session_id: job.id.clone(),
                pid,
                attached: state.client.is_some(),
                output_bytes: state.log.end(),
                exit: state.end.as_ref().and_then(End::exit).cloned(),
            }
        };
        StreamResponder::reply(&PtyList { sessions: self.terminals.all().iter().map(info).collect() })
    }
}

fn attach_terminal(job: &Arc<Job>, cursor: Cursor, on_drop: OnDrop) -> Result<sandbox_core::PtyStream> {
    let first = Some(PtyEvent::Opened { session_id: job.id.clone() });
    attach(job, Attach { cursor, first, on_drop, input: InputFrom::Here })
}
