//! The provider contract against the service itself: `DAYTONA_API_KEY=… cargo run -p sandbox-provider-daytona --example
//! daytona-live [FILTER]`. It costs what its sandboxes cost. However it ends, by failures and by an interrupt too, it then
//! deletes what it has made, and looks until nothing is left. What is left when it is killed, or stopped by a second
//! interrupt, the service deletes when it is ten minutes old.

use std::{
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sandbox_conformance::{Suite, factory, run_cli};
use sandbox_core::{ListFilter, Result, SandboxError, SandboxProvider, SandboxSpec};
use sandbox_provider_daytona::{DaytonaConfig, DaytonaProvider};
use tokio::signal::unix::{SignalKind, signal};

/// Marks what one run has made.
const LABEL: &str = "live-run";

/// How long one case may take: the first sandbox of an image is built first.
const CASE_WITHIN: Duration = Duration::from_secs(300);

/// How long nothing must be found until nothing counts as left: what was being made may still come.
const QUIET: Duration = Duration::from_secs(4);

/// How long it is tried to delete.
const CLEAN_WITHIN: Duration = Duration::from_secs(180);

fn provider() -> Result<Arc<dyn SandboxProvider>> {
    Ok(Arc::new(DaytonaProvider::new(DaytonaConfig::default())?))
}

/// Deletes everything of a run.
async fn clean(provider: &dyn SandboxProvider, run: &str) -> Result<()> {
    let list = provider.as_list_sweep().ok_or_else(|| SandboxError::internal("the provider lists nothing"))?;
    let deadline = Instant::now() + CLEAN_WITHIN;
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < QUIET {
        let mut filter = ListFilter::default();
        filter.metadata.insert(LABEL.to_owned(), run.to_owned());
        let mut failed = None;
        match list.list(filter).await {
            Ok(left) => {
                for record in left {
                    quiet_since = Instant::now();
                    match provider.close(&record.handle).await {
                        Ok(()) => println!("deleted {}, which was left", record.handle.sandbox_id),
                        Err(error) => failed = Some(error),
                    }
                }
            }
            Err(error) => failed = Some(error),
        }
        if let Some(error) = failed {
            if Instant::now() >= deadline {
                return Err(error.with_help(format!("delete by hand what is labelled {LABEL}={run}")));
            }
            quiet_since = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}

async fn live(filter: Option<String>) -> Result<ExitCode> {
    let [mut interrupt, mut end] = [SignalKind::interrupt(), SignalKind::terminate()]
        .map(|kind| signal(kind).expect("signals can be waited for at the start of a program"));
    let mut stopped = async || {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = end.recv() => {}
        }
    };
    let cleaner = provider()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let run = format!("{}-{}", now.as_millis(), std::process::id());
    let spec = SandboxSpec::image("debian:12").with_ttl_s(600.0).with_metadata(LABEL, &run);
    let suite = Suite::new(factory(|| async { provider() }).with_spec(spec));
    let mut suite = suite.with_parallelism(2).with_deadline(CASE_WITHIN);
    if let Some(filter) = filter {
        suite = suite.with_filter(filter);
    }
    println!("sandboxes of this run are labelled {LABEL}={run}");
    let ran = tokio::select! {
        ran = run_cli(suite, false, std::io::stdout()) => ran.map(Some),
        () = stopped() => Ok(None),
    };
    println!("deleting what is left");
    tokio::select! {
        cleaned = clean(&*cleaner, &run) => cleaned?,
        () = stopped() => return Ok(ExitCode::from(130)),
    }
    println!("nothing is left");
    Ok(match ran? {
        Some(true) => ExitCode::SUCCESS,
        Some(false) => ExitCode::FAILURE,
        None => ExitCode::from(130),
    })
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    match live(std::env::args().nth(1)).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(help) = error.help() {
                eprintln!("help: {help}");
            }
            ExitCode::FAILURE
        }
    }
}
