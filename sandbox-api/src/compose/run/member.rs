//! One sandbox of a stack: its program is started, watched, started again and stopped here.

use std::{sync::Arc, time::Duration};

use sandbox_core::{ExecEvent, ExecOutcome, ExecRequest, Result, StdinSource};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    events::Events,
    logs::ServiceLogs,
    program::{Health, Program},
    running::Running,
    state::{ServiceHealth, ServicePhase, ServiceState},
};
use crate::{AsyncSandbox, ExecOptions, compose::ComposeRestart};

/// The first and the longest pause before a service is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_RESTART_PAUSE: Duration = Duration::from_secs(60);

/// A service that ran for so long is started again without a longer pause.
const RAN_WELL: Duration = Duration::from_secs(10);

/// How long a killed program may take until its end is told.
const KILL_WAIT: Duration = Duration::from_secs(10);

/// What a member is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Run,
    /// Start the program again: a service that it needs was.
    Restart(u32),
    Stop,
}

/// One sandbox of a stack.
pub(super) struct Member {
    pub(super) service: String,
    pub(super) replica: u32,
    pub(super) sandbox: Arc<AsyncSandbox>,
    pub(super) logs: ServiceLogs,
    pub(super) state: watch::Sender<ServiceState>,
    pub(super) ask: watch::Sender<Ask>,
    pub(super) policy: Policy,
    pub(super) events: Events,
    /// Whether this process looks after its program, and can ask it to stop.
    pub(super) is_watched: bool,
}

/// How a program is looked after.
#[derive(Clone)]
pub(super) struct Policy {
    pub(super) restart: ComposeRestart,
    pub(super) stop_signal: i32,
    pub(super) stop_grace: Duration,
    pub(super) keeps_input: bool,
}

/// How one run ended.
enum RunEnd {
    Exited(i32),
    Failed(String),
    Restart,
    Stopped(i32),
}

impl Member {
    pub(super) fn phase(&self, phase: ServicePhase) {
        let (what, exit_code) = match &phase {
            ServicePhase::Waiting => ("created", None),
            ServicePhase::Running => ("started", None),
            ServicePhase::Exited(code) => ("exited", Some(*code)),
            ServicePhase::Failed(_) => ("failed", None),
        };
        self.state.send_modify(|state| state.phase = phase);
        self.events.tell(Some((&self.service, self.replica)), what, exit_code);
    }

    /// Runs the program until it is over for good.
    pub(super) async fn run(&self, program: &Program) {
        let request = self.request(program);
        let mut pause = RESTART_PAUSE;
        let mut failures = 0;
        let mut number = 0;
        loop {
            let started = Instant::now();
            number += 1;
            let end = match Running::start(&self.sandbox, request.clone(), number).await {
                Ok(running) => {
                    self.phase(ServicePhase::Running);
                    self.watched(running, Some(program)).await
                }
                Err(error) => RunEnd::Failed(error.to_string()),
            };
            let (is_failure, phase) = match end {
                RunEnd::Stopped(code) => {
                    self.phase(ServicePhase::Exited(code));
                    break;
                }
                RunEnd::Restart => {
                    self.again();
                    continue;
                }
                RunEnd::Exited(code) => (code != 0, ServicePhase::Exited(code)),
                RunEnd::Failed(why) => (true, ServicePhase::Failed(why)),
            };
            failures += u32::from(is_failure);
            let is_again = match self.policy.restart {
                // What could not be started at all will not start the next time either.
                _ if matches!(phase, ServicePhase::Failed(_)) => false,
                ComposeRestart::No => false,
                ComposeRestart::Always | ComposeRestart::UnlessStopped => true,
                ComposeRestart::OnFailure(most) => is_failure && most.is_none_or(|most| failures <= most),
            };
            if !is_again {
                self.phase(phase);
                break;
            }
            if started.elapsed() >= RAN_WELL {
                pause = RESTART_PAUSE;
            }
            if self.stops_within(pause).await {
                self.phase(phase);
                break;
            }
            pause = (pause * 2).min(LONGEST_RESTART_PAUSE);
            self.again();
        }
        self.logs.end();
    }

    /// Looks after the program that another process started, until it is over. Nobody starts it again or checks its
    /// health here.
    pub(super) async fn follow(&self, running: Running) {
        let phase = match self.watched(running, None).await {
            RunEnd::Exited(code) | RunEnd::Stopped(code) => ServicePhase::Exited(code),
            RunEnd::Failed(why) => ServicePhase::Failed(why),
            RunEnd::Restart => ServicePhase::Failed("its program is another process's to start again".to_owned()),
        };
        self.phase(phase);
        self.logs.end();
    }

    fn again(&self) {
        self.state.send_modify(|state| {
            state.restarts += 1;
            if state.health != ServiceHealth::Unchecked {
                state.health = ServiceHealth::Starting;
            }
        });
        self.events.tell(Some((&self.service, self.replica)), "restarted", None);
    }

    fn request(&self, program: &Program) -> ExecRequest {
        let request = program.request();
        if self.policy.keeps_input { request.with_stdin(StdinSource::Stream) } else { request }
    }

    async fn stops_within(&self, pause: Duration) -> bool {
        let mut ask = self.ask.subscribe();
        let stopped = timeout(pause, ask.wait_for(|ask| *ask == Ask::Stop)).await;
        stopped.is_ok()
    }

    /// Reads a running program, checks its health, and ends it when that is asked for.
    async fn watched(&self, mut running: Running, program: Option<&Program>) -> RunEnd {
        let mut ask = self.ask.subscribe();
        let begun = *ask.borrow_and_update();
        if begun == Ask::Stop {
            return RunEnd::Stopped(self.end(&mut running).await);
        }
        let health = async {
            if let Some((program, health)) = program.and_then(|program| Some((program, program.health.as_ref()?))) {
                self.check(program, health).await;
            }
            // Without a check there is nothing more to wait for than the program itself.
            std::future::pending::<()>().await;
        };
        tokio::pin!(health);
        loop {
            tokio::select! {
                event = running.next(&self.sandbox) => match self.event(event) {
                    Some(end) => return end,
                    None => continue,
                },
                now = changed(&mut ask, begun) => {
                    let is_restart = matches!(now, Ask::Restart(_));
                    let code = self.end(&mut running).await;
                    return if is_restart { RunEnd::Restart } else { RunEnd::Stopped(code) };
                }
                () = &mut health => {}
            }
        }
    }

    /// What an event means; none: the program goes on.
    fn event(&self, event: Result<Option<ExecEvent>>) -> Option<RunEnd> {
        match event {
            Ok(Some(ExecEvent::Stdout(bytes))) => self.logs.push(false, bytes),
            Ok(Some(ExecEvent::Stderr(bytes))) => self.logs.push(true, bytes),
            Ok(Some(ExecEvent::Exit(exit))) => {
                return Some(match exit.outcome {
                    ExecOutcome::StartFailed { message, .. } => RunEnd::Failed(message),
                    outcome => RunEnd::Exited(outcome.return_code()),
                });
            }
            Ok(Some(_)) => {}
            Ok(None) => return Some(RunEnd::Failed("the program's end was not told".to_owned())),
            Err(error) => return Some(RunEnd::Failed(error.to_string())),
        }
        None
    }

    /// Asks the program to stop, and kills it when it has not within its grace period. Gives its exit code.
    async fn end(&self, running: &mut Running) -> i32 {
        self.events.tell(Some((&self.service, self.replica)), "stopping", None);
        let asked = running.signal(&self.sandbox, self.policy.stop_signal).await.is_ok();
        let grace = if asked { self.policy.stop_grace } else { Duration::ZERO };
        for (wait, kill) in [(grace, true), (KILL_WAIT, false)] {
            let until = Instant::now() + wait;
            loop {
                tokio::select! {
                    event = running.next(&self.sandbox) => match self.event(event) {
                        Some(RunEnd::Exited(code)) => return code,
                        Some(_) => return KILLED,
                        None => {}
                    },
                    () = sleep_until(until) => break,
                }
            }
            if kill && running.kill(&self.sandbox).await.is_err() {
                return KILLED;
            }
        }
        KILLED
    }

    /// Checks health for as long as the program runs.
    async fn check(&self, program: &Program, health: &Health) {
        let Some(mut request) = program.health_request(health) else { return };
        // Its limit is kept here: another process may have renewed the sandbox, whose life looks shorter from here.
        let limit = Duration::try_from_secs_f64(request.timeout_s.take().unwrap_or_default()).unwrap_or(Duration::MAX);
        self.set_health(ServiceHealth::Starting);
        let begun = Instant::now();
        let period = Duration::from_secs_f64(health.start_period_s);
        let mut failures = 0;
        let mut has_passed = false;
        loop {
            let is_starting = !has_passed && begun.elapsed() < period;
            let interval_s =
                if is_starting { health.start_interval_s.min(health.interval_s) } else { health.interval_s };
            sleep(Duration::from_secs_f64(interval_s)).await;
            // Dropped, the command is killed.
            let run = self.sandbox.exec_with(request.clone(), ExecOptions::new().without_timeout());
            let passed = match timeout(limit, run).await {
                Ok(Ok(result)) => result.outcome().is_success(),
                Ok(Err(_)) | Err(_) => false,
            };
            if passed {
                has_passed = true;
                failures = 0;
                self.set_health(ServiceHealth::Healthy);
            } else if has_passed || begun.elapsed() >= period {
                failures += 1;
                if failures >= health.retries {
                    self.set_health(ServiceHealth::Unhealthy);
                }
            }
        }
    }

    fn set_health(&self, health: ServiceHealth) {
        let is_new = self.state.send_if_modified(|state| std::mem::replace(&mut state.health, health) != health);
        let what = match health {
            ServiceHealth::Healthy => "healthy",
            ServiceHealth::Unhealthy => "unhealthy",
            _ => return,
        };
        if is_new {
            self.events.tell(Some((&self.service, self.replica)), what, None);
        }
    }
}

/// What is asked for, as soon as it is something else than before.
async fn changed(ask: &mut watch::Receiver<Ask>, before: Ask) -> Ask {
    // The member holds the sender, so there always is one.
    ask.wait_for(|now| *now != before).await.map_or(Ask::Stop, |now| *now)
}

/// 128 + SIGKILL.
const KILLED: i32 = 137;
