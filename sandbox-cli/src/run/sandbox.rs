//! The run itself.

use std::{ffi::OsString, future::Future, pin::pin, sync::Arc, time::Duration};

use sandbox_api::{AsyncSandbox, ExecOptions, flush_cleanup};
use sandbox_core::{
    ControlRequest, ExecRequest, ExecStream, Field, FieldSupport, ProviderInfo, SandboxError, SandboxProvider,
    SandboxSpec, SessionControl, StdinSource,
};
use tokio::time::Instant;

use super::{
    Input, ResultFile,
    ending::{Ending, Names},
    interrupt::{EndSignal, Interrupts},
    output::{PumpError, pump},
};
use crate::{app::App, exit, failure::Failure, usage::quote};

/// How long a command may take to end by itself after we were interrupted once.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long a provider may take beyond a command's own limit to end it.
const END_GRACE: Duration = Duration::from_secs(30);
/// How long the removal of everything may take. The clean-up lane gives each removal 30 s.
const FLUSH_LIMIT: Duration = Duration::from_secs(40);

/// Where a command runs.
pub(crate) enum Place {
    /// In a sandbox that is made for it and removed after it.
    New(Arc<dyn SandboxProvider>, Box<SandboxSpec>),
    /// In one that was there before and is there afterwards; by the name that it was called.
    Existing(Box<AsyncSandbox>, String),
}

/// Everything that a run needs.
pub(crate) struct Plan<'a> {
    pub(crate) app: &'a App,
    pub(crate) place: Place,
    pub(crate) info: ProviderInfo,
    pub(crate) request: ExecRequest,
    pub(crate) program: OsString,
    pub(crate) input: Input,
    pub(crate) image: Option<String>,
}

/// Runs it and gives the exit code.
///
/// # Errors
/// What there is to say beyond the exit code.
pub(crate) async fn run(mut plan: Plan<'_>, result: Option<ResultFile>) -> Result<u8, Failure> {
    plan.input = plan.settle_input();
    // Before anything is made: what the provider refuses is refused here.
    let spec = match &plan.place {
        Place::New(_, spec) => plan.info.check_spec(spec),
        Place::Existing(..) => Ok(()),
    };
    spec.and_then(|()| plan.info.check_exec(&plan.request)).map_err(|e| Failure::of_run(&e))?;
    let interrupts =
        Interrupts::listen().map_err(|error| Failure::infrastructure(format!("cannot listen to signals: {error}")))?;
    let again = plan.again();
    let request = plan.request.clone();
    let names = Names {
        program: &plan.program.clone(),
        cwd: request.cwd.as_ref().map(ToString::to_string),
        user: request.user.as_deref(),
        timeout_s: request.timeout_s,
        idle_timeout_s: request.idle_timeout_s,
        again,
    };
    let ending =
        Run { app: plan.app, interrupts, provider_name: plan.info.name.clone(), sandbox_id: None }.run(plan).await;
    if let Some(result) = result {
        result.write(&ending.to_json())?;
    }
    ending.into_result(&names)
}

impl Plan<'_> {
    /// A provider that takes no input gets none, unless input was asked for.
    fn settle_input(&mut self) -> Input {
        let input = std::mem::replace(&mut self.input, Input::Null);
        if input.is_optional() && matches!(self.info.support(Field::ExecStdinStream), FieldSupport::Refused(_)) {
            self.app.warn(&format!("provider {} takes no input: the command reads end-of-file", self.info.name));
            self.request.stdin = StdinSource::Null;
            return Input::Null;
        }
        input
    }

    /// The beginning of a command line for another try.
    fn again(&self) -> String {
        if let Place::Existing(_, name) = &self.place {
            return format!("sandboxctl exec {}", quote(name.as_ref()));
        }
        let image = self.image.as_deref().map(|image| format!(" {}", quote(image.as_ref()))).unwrap_or_default();
        format!("sandboxctl run --provider {}{image}", self.info.name)
    }
}

struct Run<'a> {
    app: &'a App,
    interrupts: Interrupts,
    provider_name: String,
    /// Known once it is there.
    sandbox_id: Option<String>,
}

impl Run<'_> {
    async fn run(mut self, plan: Plan<'_>) -> Ending {
        let Plan { place, request, input, .. } = plan;
        let (ending, left) = match place {
            Place::New(provider, spec) => {
                let sandbox = AsyncSandbox::new(provider);
                let ending = self.create_and_execute(&sandbox, *spec, request, input).await;
                (ending, self.remove(sandbox).await)
            }
            Place::Existing(sandbox, _) => {
                let ending = self.execute(&sandbox, request, input).await;
                // Nothing depends on it: the sandbox stays either way.
                if let Err(error) = sandbox.disconnect().await {
                    tracing::debug!(kind = %error.kind(), "not disconnected");
                }
                (ending, Ok(()))
            }
        };
        // An interrupted run is an interrupted run, whatever the command made of its signal.
        let ending = match self.interrupts.first() {
            Some(first) => Ending::Interrupted(first),
            None => ending,
        };
        match (left, ending) {
            (Ok(()), ending) => ending,
            (Err(failure), Ending::Over(_)) => Ending::Failed(failure),
            (Err(failure), ending) => {
                failure.report(self.app.format, self.app.colour);
                ending
            }
        }
    }

    async fn create_and_execute(
        &mut self,
        sandbox: &AsyncSandbox,
        spec: SandboxSpec,
        request: ExecRequest,
        input: Input,
    ) -> Ending {
        // Dropped by an interrupt, the start goes on in the clean-up lane, which removes what it makes.
        if let Err(ending) = self.unless_interrupted(sandbox.start(Some(spec))).await {
            return ending;
        }
        self.sandbox_id = sandbox.handle().ok().map(|handle| handle.sandbox_id);
        self.execute(sandbox, request, input).await
    }

    async fn execute(&mut self, sandbox: &AsyncSandbox, request: ExecRequest, input: Input) -> Ending {
        let options = ExecOptions::new().without_timeout();
        let limit = request.timeout();
        match self.unless_interrupted(sandbox.exec_stream_with(request, options)).await {
            Ok(stream) => self.follow(stream, input, limit).await,
            Err(ending) => ending,
        }
    }

    async fn unless_interrupted<T>(
        &mut self,
        call: impl Future<Output = Result<T, SandboxError>>,
    ) -> Result<T, Ending> {
        tokio::select! {
            result = call => result.map_err(|error| Ending::Failed(Failure::of_run(&error))),
            (signal, _) = self.interrupts.next() => Err(Ending::Interrupted(signal)),
        }
    }

    /// Follows the command to its end. Dropping its stream kills what is left of it.
    async fn follow(&mut self, mut stream: ExecStream, input: Input, limit: Option<Duration>) -> Ending {
        let control = stream.control();
        let feeder = tokio::spawn(input.feed(control.clone()));
        let mut pump = pin!(pump(&mut stream));
        // The provider ends the command at its limit; one that has not done so by then is not going to.
        let mut due = limit.map(|limit| Instant::now() + limit + END_GRACE);
        let ending = loop {
            let (signal, count) = tokio::select! {
                end = &mut pump => break end_of(end),
                interrupt = self.interrupts.next() => interrupt,
                () = until(due) => break self.overdue(),
            };
            if count > 1 {
                // What the command still writes is not waited for: our own output may be what is stuck.
                break Ending::Interrupted(signal);
            }
            let forward = ControlRequest::Signal(signal.number());
            // A provider that cannot signal can still kill.
            let patience = if ask(&control, forward).await { STOP_GRACE } else { Duration::ZERO };
            due = Some(Instant::now() + patience);
        };
        if !matches!(ending, Ending::Over(_)) {
            ask(&control, ControlRequest::Kill).await;
        }
        feeder.abort();
        ending
    }

    /// What a run is that did not end in its time.
    fn overdue(&self) -> Ending {
        match self.interrupts.first() {
            Some(first) => Ending::Interrupted(first),
            None => Ending::Failed(Failure::new(
                exit::INFRASTRUCTURE,
                "exec.overdue",
                format!("provider {} did not end the command at its limit", self.provider_name),
            )),
        }
    }

    /// Removes the sandbox and waits until everything is gone. Interrupts only shorten the patience.
    async fn remove(&mut self, sandbox: AsyncSandbox) -> Result<(), Failure> {
        let removal = async {
            if let Err(error) = sandbox.stop().await {
                tracing::debug!(kind = %error.kind(), "the sandbox was not removed at once");
            }
            // What `stop` could not do is queued by the drop, and tried again.
            drop(sandbox);
            flush_cleanup(FLUSH_LIMIT).await
        };
        let mut removal = pin!(removal);
        let report = loop {
            tokio::select! {
                report = &mut removal => break report,
                (_, count) = self.interrupts.next() => if count > 2 {
                    self.leave();
                },
            }
        };
        if report.is_clean() {
            return Ok(());
        }
        let failed = report.failed.iter().map(|failure| (&failure.item, failure.message.as_str()));
        let unfinished = report.unfinished.iter().map(|item| (item, "it takes too long"));
        let items: Vec<String> = failed
            .chain(unfinished)
            .map(|(item, why)| {
                let what = item.sandbox_id.as_deref().unwrap_or("a sandbox that was being made");
                format!("{what} of provider {}: {why}", item.provider)
            })
            .collect();
        Err(Failure::new(exit::INFRASTRUCTURE, "cleanup.failed", format!("not removed: {}", items.join("; ")))
            .with_help("it is removed when its time to live is over, or by its provider's own tools"))
    }

    /// The third interrupt: says what may be left and goes.
    fn leave(&self) -> ! {
        let signal = self.interrupts.first().unwrap_or(EndSignal::Terminate);
        let sandbox = self.sandbox_id.as_deref().unwrap_or("that was being made");
        let message = format!(
            "left at once after {}; what may still be there: sandbox {sandbox} of provider {}",
            signal.name(),
            self.provider_name
        );
        let code = exit::SIGNAL_BASE + signal.number();
        Failure::new(exit::low_bits(code), "interrupted", message).report(self.app.format, self.app.colour);
        std::process::exit(code);
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Asks the command's side for something, within a moment. Says whether it was done.
async fn ask(control: &Arc<dyn SessionControl>, request: ControlRequest) -> bool {
    const MOMENT: Duration = Duration::from_secs(2);
    matches!(tokio::time::timeout(MOMENT, control.control(request)).await, Ok(Ok(_)))
}

fn end_of(end: Result<sandbox_core::ExecExit, PumpError>) -> Ending {
    match end {
        Ok(exit) => Ending::Over(exit),
        Err(PumpError::BrokenPipe) => Ending::BrokenPipe,
        Err(PumpError::Output(error)) => {
            Ending::Failed(Failure::infrastructure("cannot write the command's output").because(error))
        }
        // The command may have run: not the same as one that never started.
        Err(PumpError::Sandbox(error)) => Ending::Failed(Failure::of_broken_run(&error)),
    }
}
