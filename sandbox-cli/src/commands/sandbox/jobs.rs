//! `sandboxctl logs`, `wait` and `kill`: the jobs of a sandbox.

use std::time::Duration;

use clap::Args;
use sandbox_api::AsyncSandbox;
use sandbox_core::{ExecEvent, ExecExit, ExecOutcome, JobInfo, JobOffsets, SandboxStatus};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use super::{Finder, SandboxArg};
use crate::{
    app::App,
    exit,
    failure::Failure,
    output::{self, List, SCHEMA, Table},
    runtime,
    state::now_ms,
    values::{self, show_seconds, signal},
};

/// How often a sandbox is asked whether it has ended.
const POLL: Duration = Duration::from_millis(500);

/// Without --job, the output of the newest job.
#[derive(Args)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    sandbox: SandboxArg,
    /// Which job; "all" lists them
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Go on until it ends
    #[arg(short = 'f', long)]
    follow: bool,
    /// From this byte of both streams on
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    since: u64,
    /// Only the last bytes of each stream
    #[arg(long, value_name = "BYTES", conflicts_with = "since")]
    tail: Option<u64>,
}

/// Waits for a job and exits with its code; without --job, until the sandbox has ended.
#[derive(Args)]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    sandbox: SandboxArg,
    /// Which job
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Give up after this long, exit 124
    #[arg(long, value_name = "DURATION", value_parser = values::duration)]
    timeout: Option<f64>,
}

#[derive(Args)]
pub(crate) struct KillArgs {
    #[command(flatten)]
    sandbox: SandboxArg,
    /// Which job
    #[arg(long, value_name = "JOB")]
    job: String,
    /// The signal, by name or number; KILL ends everything below the job
    #[arg(short = 's', long, value_name = "SIGNAL", default_value = "KILL", value_parser = signal)]
    signal: i32,
}

pub(crate) fn logs(app: &App, args: &LogsArgs) -> Result<u8, Failure> {
    let finder = Finder::new(app)?;
    runtime::block_on_until_signal(async {
        let (_, sandbox) = finder.find(&args.sandbox.sandbox).await?;
        let jobs = sandbox.jobs().await.map_err(|error| Failure::of_command(&error))?;
        if args.job.as_deref() == Some("all") {
            return list(app, &jobs);
        }
        let job = pick(&jobs, args.job.as_deref())?;
        let from = |bytes: u64| args.tail.map_or(args.since, |tail| bytes.saturating_sub(tail));
        let since = JobOffsets { stdout: from(job.stdout_bytes), stderr: from(job.stderr_bytes) };
        let until = match args.follow {
            true => None,
            // What there is now, and no more.
            false => Some((
                job.stdout_bytes - since.stdout.min(job.stdout_bytes),
                job.stderr_bytes - since.stderr.min(job.stderr_bytes),
            )),
        };
        copy(&sandbox, job, since, until).await
    })?;
    Ok(0)
}

/// Copies a job's output to ours: to its end, or so many bytes of each stream.
async fn copy(
    sandbox: &AsyncSandbox,
    job: &JobInfo,
    since: JobOffsets,
    mut until: Option<(u64, u64)>,
) -> Result<(), Failure> {
    if until == Some((0, 0)) {
        return Ok(());
    }
    let mut stream = sandbox.attach_job(&job.job_id, since).await.map_err(|error| Failure::of_command(&error))?;
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    while let Some(event) = stream.next().await.map_err(|error| Failure::of_command(&error))? {
        let (bytes, left) = match &event {
            ExecEvent::Stdout(bytes) => (bytes, until.as_mut().map(|left| &mut left.0)),
            ExecEvent::Stderr(bytes) => (bytes, until.as_mut().map(|left| &mut left.1)),
            ExecEvent::Gap { stdout_bytes, stderr_bytes } => {
                output::note(&gap(*stdout_bytes, *stderr_bytes));
                if let Some(left) = &mut until {
                    *left = (left.0.saturating_sub(*stdout_bytes), left.1.saturating_sub(*stderr_bytes));
                }
                continue;
            }
            _ => continue,
        };
        let count = left.map_or(bytes.len(), |left| {
            let count = (*left).min(bytes.len() as u64);
            *left -= count;
            count as usize
        });
        let part = &bytes[..count];
        let written = match event {
            ExecEvent::Stdout(_) => stdout.write_all(part).await,
            _ => stderr.write_all(part).await,
        };
        let flushed = match written {
            Ok(()) => stdout.flush().await.and(stderr.flush().await),
            failed => failed,
        };
        flushed.map_err(|error| output::write_failure(&error))?;
        if until == Some((0, 0)) {
            break;
        }
    }
    Ok(())
}

/// What stands where output is no longer kept.
fn gap(stdout_bytes: u64, stderr_bytes: u64) -> String {
    match (stdout_bytes, stderr_bytes) {
        (bytes, 0) => format!("[{bytes} bytes of output are no longer kept]"),
        (0, bytes) => format!("[{bytes} bytes of standard error are no longer kept]"),
        (stdout, stderr) => {
            format!("[{stdout} bytes of output and {stderr} of standard error are no longer kept]")
        }
    }
}

pub(crate) fn wait(app: &App, args: &WaitArgs) -> Result<u8, Failure> {
    let finder = Finder::new(app)?;
    let limit = args.timeout.map(Duration::from_secs_f64);
    let waited = runtime::block_on_until_signal(async {
        let (_, sandbox) = finder.find(&args.sandbox.sandbox).await?;
        match &args.job {
            Some(job) => sandbox.wait_job(job, limit).await.map_err(|error| Failure::of_command(&error)),
            None => {
                let ended = ended(&sandbox);
                let end = match limit {
                    Some(limit) => tokio::time::timeout(limit, ended).await.ok(),
                    None => Some(ended.await),
                };
                end.transpose().map(|end| end.map(|()| ExecExit::new(ExecOutcome::Exited(0))))
            }
        }
    })?;
    let Some(exit) = waited else {
        return Err(Failure::new(exit::TIMED_OUT, "wait.timeout", "it has not ended in that time"));
    };
    if app.format.is_json() {
        output::json_line(&json!({ "schema": SCHEMA, "exit": exit }))?;
    }
    Ok(match exit.outcome {
        ExecOutcome::TimedOut { .. } => exit::TIMED_OUT,
        outcome => exit::low_bits(outcome.return_code()),
    })
}

async fn ended(sandbox: &AsyncSandbox) -> Result<(), Failure> {
    loop {
        let status = sandbox.status().await.map_err(|error| Failure::of_command(&error))?;
        if matches!(status, SandboxStatus::Stopped | SandboxStatus::Error) {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

pub(crate) fn kill(app: &App, args: &KillArgs) -> Result<u8, Failure> {
    const SIGKILL: i32 = 9;
    let finder = Finder::new(app)?;
    runtime::block_on_until_signal(async {
        let (_, sandbox) = finder.find(&args.sandbox.sandbox).await?;
        let sent = sandbox.signal_job(&args.job, args.signal, args.signal == SIGKILL).await;
        sent.map_err(|error| Failure::of_command(&error))
    })?;
    Ok(0)
}

fn pick<'a>(jobs: &'a [JobInfo], id: Option<&str>) -> Result<&'a JobInfo, Failure> {
    let found = match id {
        Some(id) => jobs.iter().find(|job| job.job_id == id),
        None => jobs.last(),
    };
    found.ok_or_else(|| {
        let ids: Vec<&str> = jobs.iter().map(|job| job.job_id.as_str()).collect();
        let failure = Failure::usage(match id {
            Some(id) => format!("no job {id:?} in this sandbox"),
            None => "this sandbox has had no job".to_owned(),
        });
        match ids.is_empty() {
            true => failure.with_help("start one with: sandboxctl exec -d SANDBOX -- CMD"),
            false => failure.with_help(format!("there are: {}", ids.join(", "))),
        }
    })
}

fn list(app: &App, jobs: &[JobInfo]) -> Result<(), Failure> {
    let mut table = Table::new(["JOB", "STATE", "AGE", "STDOUT", "STDERR"]);
    for job in jobs {
        let state = match &job.exit {
            None => "running".to_owned(),
            Some(exit) => format!("exit {}", exit.outcome.return_code()),
        };
        let age = show_seconds((now_ms().saturating_sub(job.started_at_ms) / 1000) as f64);
        table.row([job.job_id.clone(), state, age, job.stdout_bytes.to_string(), job.stderr_bytes.to_string()]);
    }
    let list = List {
        key: "jobs",
        entries: jobs.iter().map(|job| json!(job)).collect(),
        names: jobs.iter().map(|job| job.job_id.clone()).collect(),
        table,
    };
    list.print(app.list_format())
}
