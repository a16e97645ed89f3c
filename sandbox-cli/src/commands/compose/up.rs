//! `sandboxctl compose up`.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use sandbox_api::compose::{AsyncSandboxCompose, ComposeEvent, ComposeProject, ServiceStatus};
use sandbox_core::{Capability, Field, FieldSupport, Owner, SandboxProvider};
use serde_json::json;
use tokio::sync::broadcast;

use super::{
    document::{DocumentArgs, failure, tell},
    state::{Folder, Running, own_start_time},
};
use crate::{
    app::App,
    commands::sandbox::create::DEFAULT_TTL_S,
    environment, exit,
    failure::Failure,
    output::{self, SCHEMA},
    providers,
    run::Interrupts,
    runtime, values,
};

#[derive(Args)]
pub(crate) struct UpArgs {
    /// Leave it running in the background
    #[arg(short = 'd', long)]
    detach: bool,
    /// Also wait until every service with a health check is healthy
    #[arg(long)]
    wait: bool,
    /// How long the start may take (90s, 5m)
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<f64>,
    /// How long it lives in the background, unless it is renewed (90s, 5m) [default: 1h]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, requires = "detach")]
    ttl: Option<f64>,
    /// Only show what would be done
    #[arg(long)]
    dry_run: bool,
    /// Only these services and what they need
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
}

/// Set for the process in the background.
const BACKGROUND: &str = "SANDBOX_COMPOSE_BACKGROUND";

/// How often files that other processes write are looked at.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn run(app: &App, document: &DocumentArgs, args: &UpArgs) -> Result<u8, Failure> {
    let project = document.load(app, &args.services)?;
    let folder = Folder::of(&project.name)?;
    if !args.dry_run
        && let Some(running) = folder.running()
    {
        let message = format!("project {:?} is running already, on provider {}", project.name, running.provider);
        return Err(Failure::failed("compose.running", message)
            .with_help("stop it with: sandboxctl compose down; or start another one with --project-name NAME"));
    }
    if args.detach && !args.dry_run && !environment::is_on(BACKGROUND) {
        return in_background(app, &project, &folder);
    }
    let config = app.config()?;
    let name = config.provider(document.provider.first().map(String::as_str), true).value;
    let host = providers::host(&config)?;
    runtime::block_on(async {
        let mut interrupts = Interrupts::listen()
            .map_err(|error| Failure::infrastructure(format!("cannot listen to signals: {error}")))?;
        let provider = providers::create(&host, &config, &name)?;
        let mut stack = AsyncSandboxCompose::new(provider.clone(), project.clone())
            .with_options(document.plan_options())
            .with_wait_for_health(args.wait || args.detach);
        if let Some(timeout_s) = args.timeout {
            stack = stack.with_timeout_s(timeout_s);
        }
        if args.detach {
            stack = leased(app, stack, &provider, args.ttl);
        }
        let (plan, report) = stack.plan();
        tell(app, &report);
        let Some(plan) = plan else { return Err(failure(&report)) };
        if args.dry_run {
            return super::explain::print(app, &plan).map(|()| 0);
        }
        let events = stack.events();
        let started = tokio::select! {
            started = stack.start() => started,
            (signal, _) = interrupts.next() => {
                sandbox_api::flush_cleanup(Duration::from_secs(60)).await;
                return Err(Failure::silent(exit::low_bits(exit::SIGNAL_BASE + signal.number())));
            }
        };
        if let Err(error) = started {
            last_words(&stack, &project);
            return Err(Failure::of_run(&error));
        }
        let result = attend(app, &stack, &folder, &name, &mut interrupts, events).await;
        let stopped = stack.stop().await.map_err(|error| Failure::of_broken_run(&error));
        let removed = folder.remove();
        let ended = provider.aclose().await.map_err(|error| Failure::of_broken_run(&error));
        result.and_then(|code| stopped.and(removed).and(ended).map(|()| code))
    })
}

/// A stack in the background belongs to nobody's process: it lives until its lease is over. Where the provider gives
/// sandboxes no end it stays with the process in the background, whose end a sweep notices.
fn leased(
    app: &App,
    stack: AsyncSandboxCompose,
    provider: &Arc<dyn SandboxProvider>,
    ttl_s: Option<f64>,
) -> AsyncSandboxCompose {
    if let FieldSupport::Refused(why) = provider.full_info().support(Field::TtlS) {
        if ttl_s.is_some() {
            app.warn(&format!("--ttl has no effect here: {why}"));
        }
        return stack;
    }
    stack.with_owner(Owner::Lease).with_ttl_s(ttl_s.unwrap_or(DEFAULT_TTL_S))
}

/// What services wrote last, where the start failed: the caller's own output, shown to the caller alone.
fn last_words(stack: &AsyncSandboxCompose, project: &ComposeProject) {
    for name in project.services.keys() {
        let Ok(logs) = stack.logs(name, 1) else { continue };
        let tail = logs.tail(2048);
        for line in tail.lines().rev().take(10).collect::<Vec<_>>().into_iter().rev() {
            output::note(&format!("{name} | {line}"));
        }
    }
}

/// Looks after a running stack until it is over or asked to stop.
async fn attend(
    app: &App,
    stack: &AsyncSandboxCompose,
    folder: &Folder,
    provider: &str,
    interrupts: &mut Interrupts,
    mut events: broadcast::Receiver<ComposeEvent>,
) -> Result<u8, Failure> {
    folder.make()?;
    let broken = |error: sandbox_core::SandboxError| Failure::of_broken_run(&error);
    let has_connect = stack.plan().0.is_some() && can_connect(stack);
    let descriptor = if has_connect { Some(stack.serialize(None).await.map_err(broken)?) } else { None };
    let status = stack.status().map_err(broken)?;
    let is_shown = !environment::is_on(BACKGROUND) && !app.is_quiet;
    let mut followers = tokio::task::JoinSet::new();
    for one in &status {
        let logs = stack.logs(&one.service, one.replica).map_err(broken)?;
        let path = folder.log(&one.service, one.replica);
        let mut file = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|error| Failure::infrastructure(format!("cannot write {}: {error}", path.display())))?;
        let prefix = format!("{}-{}", one.service, one.replica);
        followers.spawn(async move {
            let mut follower = logs.follow();
            while let Some(chunk) = follower.next().await {
                // A full disk stops nobody's service.
                let _ = file.write_all(&chunk.bytes);
                if is_shown {
                    let text = String::from_utf8_lossy(&chunk.bytes);
                    let shown: String = text.lines().map(|line| format!("{prefix} | {line}\n")).collect();
                    if output::data(&shown).is_err() {
                        return;
                    }
                }
            }
        });
    }
    write_status(folder, stack, &status).await?;
    folder.set_running(&Running {
        schema: SCHEMA.to_owned(),
        project: stack.id().map_err(broken)?.rsplit_once('-').map(|(name, _)| name.to_owned()).unwrap_or_default(),
        id: stack.id().map_err(broken)?,
        provider: provider.to_owned(),
        pid: std::process::id(),
        start_time: own_start_time(),
        descriptor,
    })?;
    let path = folder.path("events.jsonl");
    loop {
        let status = stack.status().map_err(broken)?;
        if status.iter().all(|one| one.state.is_over()) {
            while followers.join_next().await.is_some() {}
            let worst = status.iter().map(code_of).max().unwrap_or_default();
            return Ok(exit::low_bits(worst));
        }
        tokio::select! {
            event = events.recv() => {
                if let Ok(event) = event {
                    let line = serde_json::to_string(&event).unwrap_or_default();
                    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
                    // Who listens to events misses some where the disk is full.
                    let _ = file.and_then(|mut file| writeln!(file, "{line}"));
                }
                let status = stack.status().map_err(broken)?;
                write_status(folder, stack, &status).await?;
            }
            (_, count) = interrupts.next() => {
                if count == 1 && is_shown {
                    output::note("stopping");
                }
                return Ok(0);
            }
            () = tokio::time::sleep(LOOK) => {
                if folder.is_asked_to_stop() {
                    return Ok(0);
                }
            }
        }
    }
}

fn can_connect(stack: &AsyncSandboxCompose) -> bool {
    let first = stack.status().ok().and_then(|status| status.into_iter().next());
    let sandbox = first.and_then(|first| stack.replica(&first.service, first.replica).ok());
    sandbox.is_some_and(|sandbox| sandbox.info().capabilities.contains(Capability::Connect))
}

fn code_of(status: &ServiceStatus) -> i32 {
    match status.state.phase {
        sandbox_api::compose::ServicePhase::Exited(code) => code,
        _ => exit::INFRASTRUCTURE.into(),
    }
}

/// Writes what `ps` and `port` show.
async fn write_status(folder: &Folder, stack: &AsyncSandboxCompose, status: &[ServiceStatus]) -> Result<(), Failure> {
    let mut ports = Vec::new();
    for (service, target, by) in stack.published().unwrap_or_default() {
        let endpoint = stack.endpoint(&service, target).await.ok().map(|endpoint| endpoint.endpoint);
        ports.push(json!({ "service": service, "target": target, "by": by, "endpoint": endpoint }));
    }
    folder.write("status.json", &json!({ "schema": SCHEMA, "services": status, "ports": ports }))
}

/// Starts this program once more, in the background, and waits until the stack is up.
fn in_background(app: &App, project: &ComposeProject, folder: &Folder) -> Result<u8, Failure> {
    folder.make()?;
    let failed = |what: &str, error: &std::io::Error| Failure::infrastructure(format!("cannot {what}: {error}"));
    let program = std::env::current_exe().map_err(|error| failed("find this program", &error))?;
    let path = folder.path("background.log");
    let log = std::fs::File::create(&path).map_err(|error| failed("write the log", &error))?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(BACKGROUND, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(log))
        .process_group(0)
        .spawn()
        .map_err(|error| failed("start the background process", &error))?;
    loop {
        if let Some(running) = folder.running() {
            let shown =
                json!({ "schema": SCHEMA, "project": project.name, "id": running.id, "provider": running.provider });
            if app.format.is_json() {
                output::json_line(&shown)?;
            } else {
                output::data(&format!("{}\n", running.id))?;
            }
            return Ok(0);
        }
        if let Some(status) = child.try_wait().map_err(|error| failed("wait for the background process", &error))? {
            // What could not be read cannot be shown.
            output::note(std::fs::read_to_string(&path).unwrap_or_default().trim_end());
            folder.remove()?;
            // A stack that was over before anybody looked did what it should.
            return match status.code() {
                Some(0) => Ok(0),
                code => Err(Failure::silent(exit::low_bits(code.unwrap_or(exit::INFRASTRUCTURE.into())))),
            };
        }
        std::thread::sleep(LOOK);
    }
}
