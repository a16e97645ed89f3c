use std::{
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use sandbox_core::{
    Admitted, ControlReply, ControlRequest, ExecCommand, ExecEvent, ExecExit, ExecOutcome, ExecRequest, ExecStream,
    Result, SandboxError, SessionControl, SessionSink, StartFailure, StdinSource, bytes::Bytes,
};
use tokio::{
    io::AsyncWriteExt,
    process::{Child, ChildStdin},
    sync::{OwnedMutexGuard, mpsc, watch},
};

use super::{
    launch::{Launch, input},
    processes,
    pump::Pump,
    world::{FakeBox, NAME, World},
};
use crate::fault::Fault;

/// Starts a command.
pub(super) async fn exec(world: &Arc<World>, sandbox: Arc<FakeBox>, request: ExecRequest) -> Result<ExecStream> {
    let turn = match world.has(Fault::ExecsOneByOne) {
        true => Some(world.one_at_a_time.clone().lock_owned().await),
        false => None,
    };
    let sandbox_id = sandbox.id.clone();
    let refused = |(reason, message): (StartFailure, String)| {
        if world.has(Fault::FailedStartEndsSandbox) {
            world.boxes.lock().unwrap().remove(&sandbox_id);
        }
        if world.has(Fault::StartFailureAsExit127) {
            return ExecStream::finished("", message, ExecExit::new(ExecOutcome::Exited(127)));
        }
        ExecStream::finished("", "", ExecExit::start_failed(reason, message))
    };
    let launch = match Launch::new(world, &sandbox, &request) {
        Ok(launch) => launch,
        Err(refusal) => return Ok(refused(refusal)),
    };
    let (bytes, stays_open) = input(world, &request.stdin);
    let mut command = launch.command(world, &[]);
    command.stdin(if bytes.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = match spawn(&mut command) {
        Ok(child) => child,
        Err(error) => return Ok(refused((StartFailure::Other, error.to_string()))),
    };
    let stdin = Arc::new(tokio::sync::Mutex::new(child.stdin.take()));
    if let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty() || !stays_open) {
        let stdin = stdin.clone();
        tokio::spawn(async move {
            let mut stdin = stdin.lock().await;
            if let Some(pipe) = stdin.as_mut() {
                let _ = pipe.write_all(&bytes).await;
            }
            if !stays_open {
                stdin.take();
            }
        });
    }
    let (orders, order) = mpsc::channel(8);
    let stdin_stays = world.has(Fault::StdinLeftOpen) || stays_open && request.stdin != StdinSource::Stream;
    let kept = stdin_stays.then(|| stdin.clone());
    let is_stream = request.stdin == StdinSource::Stream;
    let control = Control { world: world.clone(), stdin: is_stream.then_some(stdin), orders, held: Mutex::default() };
    let (sink, stream) = ExecStream::channel(control);
    let run = Run { world: world.clone(), sandbox, request, mark: launch.mark, sink, order, _turn: turn };
    tokio::spawn(async move {
        run.run(child).await;
        drop(kept);
    });
    Ok(stream)
}

pub(super) fn spawn(command: &mut tokio::process::Command) -> std::io::Result<Child> {
    let mut direct = processes::DIRECT.lock().unwrap();
    let child = command.spawn()?;
    direct.get_or_insert_default().extend(child.id());
    Ok(child)
}

type Input = Arc<tokio::sync::Mutex<Option<ChildStdin>>>;

struct Control {
    world: Arc<World>,
    stdin: Option<Input>,
    orders: mpsc::Sender<ControlRequest>,
    held: Mutex<Vec<u8>>,
}

#[sandbox_core::async_trait]
impl SessionControl for Control {
    async fn write(&self, data: Bytes) -> Result<()> {
        let closed = || SandboxError::invalid_state("the input is closed");
        if self.world.has(Fault::StdinHeldBack) {
            self.held.lock().unwrap().extend_from_slice(&data);
            return Ok(());
        }
        let mut stdin = self.stdin.as_ref().ok_or_else(closed)?.lock().await;
        match stdin.as_mut() {
            Some(pipe) => pipe.write_all(&data).await.map_err(|_| closed()),
            None if self.world.has(Fault::LateWriteAccepted) => Ok(()),
            None => Err(closed()),
        }
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        let over = |_| SandboxError::invalid_state("the command is over");
        match request {
            ControlRequest::CloseInput => {
                if let Some(stdin) = &self.stdin {
                    let held = std::mem::take(&mut *self.held.lock().unwrap());
                    let mut stdin = stdin.lock().await;
                    if let Some(pipe) = stdin.as_mut() {
                        let _ = pipe.write_all(&held).await;
                    }
                    stdin.take();
                }
            }
            ControlRequest::Signal(_) if self.world.has(Fault::ControlAfterEndAccepted) => {}
            ControlRequest::Kill | ControlRequest::Signal(_) => self.orders.send(request).await.map_err(over)?,
            _ => return Err(SandboxError::unsupported_control(NAME, None)),
        }
        Ok(ControlReply::default())
    }
}

type Wrap = fn(Bytes) -> ExecEvent;

struct Run {
    world: Arc<World>,
    sandbox: Arc<FakeBox>,
    request: ExecRequest,
    mark: String,
    sink: SessionSink<ExecEvent>,
    order: mpsc::Receiver<ControlRequest>,
    _turn: Option<OwnedMutexGuard<()>>,
}

impl Run {
    async fn run(mut self, mut child: Child) {
        let world = self.world.clone();
        let pid = child.id().unwrap_or_default();
        let last_output = Arc::new(Mutex::new(Instant::now()));
        let (exited, is_exited) = watch::channel(false);
        let pump = |wrap| Pump {
            world: world.clone(),
            wrap,
            sink: self.sink.clone(),
            last_output: last_output.clone(),
            exited: is_exited.clone(),
        };
        let (to_stdout, to_stderr): (Wrap, Wrap) = match world.fault {
            Some(Fault::StreamsSwapped) => (ExecEvent::Stderr, ExecEvent::Stdout),
            Some(Fault::StderrMerged) => (ExecEvent::Stdout, ExecEvent::Stdout),
            _ => (ExecEvent::Stdout, ExecEvent::Stderr),
        };
        let stdout = child.stdout.take().map(|pipe| tokio::spawn(pump(to_stdout).run(pipe)));
        let stderr = child.stderr.take().map(|pipe| tokio::spawn(pump(to_stderr).run(pipe)));
        let outcome = self.outcome(&mut child, pid, &last_output).await;
        if let Some(direct) = processes::DIRECT.lock().unwrap().as_mut() {
            direct.remove(&pid);
        }
        if world.has(Fault::BackgroundEndsWithExec) {
            processes::kill_all(processes::EXEC, &self.mark).await;
        }
        let is_timeout = matches!(outcome, Some(ExecOutcome::TimedOut { .. }));
        if world.has(Fault::ExitBeforeOutput) || is_timeout && world.has(Fault::TimeoutLosesOutput) {
            stdout.iter().chain(&stderr).for_each(tokio::task::JoinHandle::abort);
        }
        let _ = exited.send(true);
        let mut is_open = false;
        for pump in [stdout, stderr].into_iter().flatten() {
            is_open |= pump.await.unwrap_or_default();
        }
        let is_unread = matches!(&self.request.stdin, StdinSource::Bytes(bytes) if bytes.len() > 100_000);
        match outcome {
            _ if world.has(Fault::StreamWithoutExit) => {}
            _ if world.has(Fault::UnreadInputIsLost) && is_unread => {}
            Some(outcome) => {
                let is_told = is_open && !world.has(Fault::OpenOutputNotTold);
                let outcome = self.report(outcome);
                self.sink.send(ExecEvent::Exit(ExecExit::new(outcome).with_output_open(is_told))).await;
            }
            None => self.sink.fail(SandboxError::lost("the sandbox was closed", Admitted::Yes)).await,
        }
    }

    fn report(&self, outcome: ExecOutcome) -> ExecOutcome {
        match (self.world.fault, outcome) {
            (Some(Fault::ExitCodeAlwaysZero), ExecOutcome::Exited(_)) => ExecOutcome::Exited(0),
            (Some(Fault::SignalAsExitCode), ExecOutcome::Signalled(signal)) => ExecOutcome::Exited(128 + signal),
            (Some(Fault::TimeoutAsExit124), ExecOutcome::TimedOut { .. }) => ExecOutcome::Exited(124),
            (Some(Fault::ShellMissing127IsStartFailure), ExecOutcome::Exited(127))
                if matches!(self.request.command, ExecCommand::Shell { .. }) =>
            {
                ExecOutcome::StartFailed { reason: StartFailure::NotFound, message: "not found".to_owned() }
            }
            (_, outcome) => outcome,
        }
    }

    /// Waits for the end; none when the sandbox was closed.
    async fn outcome(&mut self, child: &mut Child, pid: u32, last_output: &Mutex<Instant>) -> Option<ExecOutcome> {
        let started = Instant::now();
        let mut total = self.request.timeout().filter(|_| !self.world.has(Fault::TimeoutIgnored));
        if self.world.has(Fault::TimeoutTooShort) {
            total = total.map(|total| total.min(Duration::from_millis(200)));
        }
        let is_deaf = self.world.has(Fault::IdleTimeoutIgnored) || self.world.has(Fault::IdleFieldIgnored);
        let idle = self.request.idle_timeout().filter(|_| !is_deaf);
        let mut closed = self.sandbox.closed.subscribe();
        loop {
            let is_silent_since = match self.world.has(Fault::IdleTimeoutIsTotal) {
                true => started,
                false => *last_output.lock().unwrap(),
            };
            let far = started + Duration::from_secs(86_400);
            let total_end = total.map_or(far, |total| started + total);
            let idle_end = idle.map_or(far, |idle| is_silent_since + idle);
            tokio::select! {
                end = child.wait() => return Some(outcome_of(end)),
                _ = tokio::time::sleep_until(total_end.into()) => return Some(self.limit(child, pid, false).await),
                _ = tokio::time::sleep_until(idle_end.into()), if idle.is_some() => {
                    let silent = last_output.lock().unwrap().elapsed();
                    if self.world.has(Fault::IdleTimeoutIsTotal) || idle.is_some_and(|idle| silent >= idle) {
                        return Some(self.limit(child, pid, true).await);
                    }
                }
                Some(order) = self.order.recv() => self.obey(order, pid).await,
                _ = self.sink.closed(), if !self.world.has(Fault::DropDoesNotKill) => {
                    processes::kill_all(processes::EXEC, &self.mark).await;
                    let _ = child.wait().await;
                    return None;
                }
                _ = async { let _ = closed.wait_for(|is_closed| *is_closed).await; } => {
                    processes::kill_all(processes::EXEC, &self.mark).await;
                    let _ = child.wait().await;
                    return None;
                }
            }
        }
    }

    async fn obey(&self, order: ControlRequest, pid: u32) {
        match order {
            ControlRequest::Signal(_) if self.world.has(Fault::SignalIgnored) => {}
            ControlRequest::Signal(signal) => processes::kill_group(pid, signal),
            _ if self.world.has(Fault::KillEndsDirectChildOnly) => processes::kill(pid, 9),
            _ => processes::kill_all(processes::EXEC, &self.mark).await,
        }
    }

    /// Ends a command that hit a limit.
    async fn limit(&self, child: &mut Child, pid: u32, idle: bool) -> ExecOutcome {
        let mut grace = self.request.kill_grace();
        if self.world.has(Fault::GraceIgnored) {
            grace = Duration::ZERO;
        }
        if self.world.has(Fault::SigtermWithoutGrace) || self.world.has(Fault::TimeoutSendsSigtermOnly) {
            grace = grace.max(Duration::from_millis(500));
        }
        if !grace.is_zero() {
            processes::with(processes::EXEC, &self.mark).into_iter().for_each(|pid| processes::kill(pid, 15));
            let _ = tokio::time::timeout(grace, child.wait()).await;
        }
        match self.world.fault {
            Some(Fault::TimeoutSendsSigtermOnly) => return ExecOutcome::TimedOut { idle },
            Some(Fault::TimeoutKillsDirectChildOnly) => processes::kill(pid, 9),
            Some(Fault::TimeoutKillsGroupOnly) => processes::kill_group(pid, 9),
            Some(Fault::TimeoutKillsSession) => processes::kill_all(processes::SANDBOX, &self.sandbox.id).await,
            _ => processes::kill_all(processes::EXEC, &self.mark).await,
        }
        let _ = child.wait().await;
        ExecOutcome::TimedOut { idle }
    }
}

pub(super) fn outcome_of(end: std::io::Result<std::process::ExitStatus>) -> ExecOutcome {
    use std::os::unix::process::ExitStatusExt;
    match end {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => ExecOutcome::Exited(code),
            (None, signal) => ExecOutcome::Signalled(signal.unwrap_or(9)),
        },
        Err(_) => ExecOutcome::Exited(255),
    }
}
