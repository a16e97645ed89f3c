use std::{
    fs::File,
    io::{Read, Write},
    process::Stdio,
    sync::Arc,
};

use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use sandbox_core::{
    ControlReply, ControlRequest, ExecCommand, ExecEvent, ExecExit, ExecOutcome, ExecRequest, Pty, PtyEvent, PtyStream,
    Result, SandboxError, SandboxHandle, SandboxPtySpec, SessionControl, bytes::Bytes,
};
use tokio::sync::watch;

use super::{
    exec::{exec, outcome_of, spawn},
    launch::Launch,
    processes,
    provider::Fake,
    sessions::Session,
    world::World,
};
use crate::fault::Fault;

pub(super) struct Control {
    world: Arc<World>,
    session: Option<(Arc<Session>, u64)>,
    over: watch::Receiver<bool>,
}

impl Control {
    /// For a client of a session with a terminal.
    pub(super) fn of(world: &Arc<World>, session: &Arc<Session>, client: u64) -> Self {
        let never = watch::Sender::new(false).subscribe();
        Self { world: world.clone(), session: Some((session.clone(), client)), over: never }
    }

    fn is_over(&self) -> bool {
        *self.over.borrow() || self.session.as_ref().is_some_and(|(session, _)| session.state.borrow().exit.is_some())
    }
}

#[sandbox_core::async_trait]
impl SessionControl for Control {
    async fn write(&self, data: Bytes) -> Result<()> {
        let closed = || SandboxError::invalid_state("the input is closed");
        let (session, _) = self.session.as_ref().ok_or_else(closed)?;
        if self.world.has(Fault::PtyInterruptEndsAll) && data.contains(&3) {
            processes::with(processes::EXEC, &session.id).into_iter().for_each(|pid| processes::kill(pid, 2));
            return Ok(());
        }
        (&session.terminal).write_all(&data).map_err(|_| closed())
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        match (&self.session, request) {
            _ if self.world.has(Fault::PtyResizedAfterEnd) => Ok(ControlReply::default()),
            _ if self.is_over() => Err(SandboxError::invalid_state("the session is over")),
            (Some(_), ControlRequest::Resize { .. }) if self.world.has(Fault::PtyResizeIgnored) => {
                Ok(ControlReply::default())
            }
            (Some((session, _)), ControlRequest::Resize { rows, cols }) => {
                resize(&self.world, &session.terminal, rows, cols).map(|()| ControlReply::default())
            }
            (Some((session, client)), ControlRequest::Detach) => {
                session.leave(*client);
                if self.world.has(Fault::PtyDetachEndsSession) {
                    session.state.send_modify(|state| state.is_dropped = true);
                }
                Ok(ControlReply::default())
            }
            _ => Err(SandboxError::unsupported_control(super::world::NAME, None)),
        }
    }
}

fn resize(world: &World, terminal: &File, rows: u16, cols: u16) -> Result<()> {
    if world.has(Fault::PtySizeIgnored) {
        return Ok(());
    }
    let size = Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).map_err(|error| SandboxError::pty(error.to_string()))
}

/// Both ends of a new terminal.
fn open_terminal() -> std::io::Result<(File, File)> {
    let outer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&outer)?;
    unlockpt(&outer)?;
    let name = ptsname(&outer, Vec::new())?;
    let inner = File::options().read(true).write(true).open(name.to_string_lossy().as_ref())?;
    Ok((outer.into(), inner))
}

fn request(spec: &SandboxPtySpec) -> ExecRequest {
    let mut request = ExecRequest::shell(spec.command.clone().unwrap_or_else(|| "exec bash".into()));
    request.cwd = spec.cwd.clone();
    request.env = spec.env.clone();
    request.user = spec.user.clone();
    request
}

#[sandbox_core::async_trait]
impl Pty for Fake {
    async fn create_pty(&self, handle: &SandboxHandle, spec: SandboxPtySpec) -> Result<PtyStream> {
        if !spec.pty || self.has(Fault::PtyNotATerminal) {
            return self.pipes(handle, &spec).await;
        }
        let sandbox = self.world.find(handle)?;
        let mut request = request(&spec);
        if let ExecCommand::Shell { shell, .. } = &mut request.command {
            *shell = Some("bash".to_owned());
        }
        let launch = Launch::new(&self.world, &sandbox, &request).map_err(|(_, message)| SandboxError::pty(message))?;
        let (outer, inner) = open_terminal().map_err(|error| SandboxError::io("the terminal", error))?;
        resize(&self.world, &outer, spec.rows, spec.cols)?;
        let clone = |file: &File| file.try_clone().map_err(|error| SandboxError::io("the terminal", error));
        // The program `setsid` makes the terminal the controlling one, which only the child itself can do.
        let mut command = launch.command(&self.world, &["/usr/bin/setsid", "--ctty"]);
        command.stdin(Stdio::from(clone(&inner)?)).stdout(Stdio::from(clone(&inner)?)).stderr(Stdio::from(inner));
        let mut child = spawn(&mut command).map_err(|error| SandboxError::pty(error.to_string()))?;
        // The command holds the inner end until it is dropped.
        drop(command);
        let session = Arc::new(Session { id: launch.mark, terminal: clone(&outer)?, state: watch::Sender::default() });
        sandbox.sessions.lock().unwrap().push(session.clone());
        let stream = session.follow(&self.world, None, true);
        let (world, reader) = (self.world.clone(), session.clone());
        let reading = tokio::task::spawn_blocking(move || read_to_end(outer, &reader));
        tokio::spawn(async move {
            let mut state = session.state.subscribe();
            let outcome = tokio::select! {
                end = child.wait() => outcome_of(end),
                _ = async { drop(state.wait_for(|state| state.is_dropped).await) } => ExecOutcome::Signalled(9),
            };
            processes::kill_all(processes::EXEC, &session.id).await;
            let _ = child.wait().await;
            let _ = reading.await;
            let outcome = if world.has(Fault::PtyExitCodeLost) { ExecOutcome::Exited(0) } else { outcome };
            session.state.send_modify(|state| state.exit = Some(ExecExit::new(outcome)));
        });
        Ok(stream)
    }
}

fn read_to_end(mut terminal: File, session: &Session) {
    let mut buffer = vec![0; 16 * 1024];
    let runtime = tokio::runtime::Handle::current();
    while let Ok(size @ 1..) = terminal.read(&mut buffer) {
        runtime.block_on(session.keep(&buffer[..size]));
    }
}

impl Fake {
    /// A session over pipes: a command whose events get other names.
    async fn pipes(&self, handle: &SandboxHandle, spec: &SandboxPtySpec) -> Result<PtyStream> {
        let mut inner = exec(&self.world, self.world.find(handle)?, request(spec)).await?;
        let merges = self.has(Fault::PtyPipesMerged);
        let (over, is_over) = watch::channel(false);
        let control = Control { world: self.world.clone(), session: None, over: is_over };
        Ok(PtyStream::spawn(control, |sink| async move {
            sink.send(PtyEvent::Opened { session_id: "pipes".to_owned() }).await;
            while let Some(event) = inner.next().await? {
                let event = match event {
                    ExecEvent::Stderr(bytes) if !merges => PtyEvent::Stderr(bytes),
                    ExecEvent::Stdout(bytes) | ExecEvent::Stderr(bytes) => PtyEvent::Output(bytes),
                    ExecEvent::Exit(exit) => {
                        over.send_replace(true);
                        PtyEvent::Exit(exit)
                    }
                    _ => continue,
                };
                sink.send(event).await;
            }
            Ok(())
        }))
    }
}
