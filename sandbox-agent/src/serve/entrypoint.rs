//! The sandbox's own main process: started once, given the signals that come to the agent, and reported.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use sandbox_protocol::methods::EntrypointInfo;

use super::{
    agent::Agent,
    config::ServeConfig,
    job::{End, Job},
    signals::Signals,
    sys,
};

/// What ends the sandbox: at once without an entrypoint, else after it.
const ENDING: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT];
/// What an entrypoint gets beside.
const FORWARDED: [i32; 5] = [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM, libc::SIGWINCH];
/// The exit code of an entrypoint that nobody knows the end of.
const CODE_UNKNOWN: u8 = 125;

/// What is known of the entrypoint.
#[derive(Debug, Default)]
pub(super) struct EntrypointState {
    job: OnceLock<Arc<Job>>,
    /// Somebody wants the sandbox to end with it.
    is_ending: AtomicBool,
    code: OnceLock<u8>,
}

impl EntrypointState {
    pub(super) fn info(&self) -> Option<EntrypointInfo> {
        let job = self.job.get()?;
        let pid = job.controller().and_then(|controller| u32::try_from(controller.pid()).ok());
        let end = job.state().end.clone();
        let mut info = EntrypointInfo { exec_id: job.id.clone(), running: end.is_none(), pid, ..Default::default() };
        match end {
            Some(End::Exit(exit)) => info.exit = Some(exit),
            Some(End::Error(_, message)) => info.error = Some(message),
            None => {}
        }
        Some(info)
    }

    /// What the agent ends with: the entrypoint's code if the sandbox has ended with it.
    pub(super) fn exit_code(&self) -> u8 {
        self.code.get().copied().unwrap_or(0)
    }
}

/// Starts the entrypoint, if there is one. That it could not be started is a way to end.
///
/// # Errors
/// A configuration that names none.
pub(super) fn start(agent: &Arc<Agent>) -> Result<(), String> {
    let Some(entrypoint) = &agent.surroundings.config.entrypoint else { return Ok(()) };
    let (job, _) = agent.exec_job(entrypoint.request(), true, true).map_err(|error| error.message().to_owned())?;
    // Set once, here.
    let _ = agent.entrypoint.job.set(job.clone());
    let agent = agent.clone();
    tokio::spawn(async move {
        job.ended().await;
        let state = &agent.entrypoint;
        // An end that the closing sandbox has made is not the entrypoint's own.
        let is_last = agent.surroundings.config.exit_with_entrypoint || state.is_ending.load(Ordering::SeqCst);
        if is_last && !agent.lifetime.is_closing() {
            let code = match &job.state().end {
                Some(End::Exit(exit)) => u8::try_from(exit.outcome.return_code()).unwrap_or(CODE_UNKNOWN),
                _ => CODE_UNKNOWN,
            };
            // Set once, here.
            let _ = state.code.set(code);
            tracing::info!(code, "the sandbox ends with its entrypoint");
            agent.lifetime.close();
        }
    });
    Ok(())
}

/// Takes the signals that mean something here. Without an entrypoint the others keep what they do.
pub(super) fn take_signals(config: &ServeConfig) -> io::Result<Signals> {
    let has_entrypoint = config.entrypoint.is_some();
    let ending = ENDING.into_iter().filter(|number| has_entrypoint || *number != libc::SIGQUIT);
    let forwarded = FORWARDED.into_iter().filter(|_| has_entrypoint);
    Signals::take(&ending.chain(forwarded).chain([libc::SIGCHLD]).collect::<Vec<_>>())
}

/// Does for as long as the agent lives what signals ask for, and reaps what has lost its parent: PID 1 is the parent of
/// all that have none.
pub(super) async fn obey_signals(agent: Arc<Agent>, signals: Signals) {
    loop {
        sys::reap_orphans();
        match signals.next().await {
            Ok(libc::SIGCHLD) => {}
            Ok(number) => drop(tokio::spawn({
                let agent = agent.clone();
                async move { obey(&agent, number).await }
            })),
            Err(error) => return tracing::error!(%error, "signals are not heard"),
        }
    }
}

async fn obey(agent: &Agent, number: i32) {
    let is_ending = ENDING.contains(&number);
    let running = match agent.entrypoint.job.get() {
        Some(job) if !job.is_over() => {
            if is_ending {
                agent.entrypoint.is_ending.store(true, Ordering::SeqCst);
            }
            // One that is being started gets it when it runs.
            job.started().await
        }
        _ => None,
    };
    match running {
        // Over meanwhile: whoever waits for its end sees to the rest.
        Some(controller) => drop(controller.signal(number)),
        None if is_ending => agent.lifetime.close(),
        None => {}
    }
}
