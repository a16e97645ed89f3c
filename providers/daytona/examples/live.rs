//! The provider contract against the service itself: `DAYTONA_API_KEY=… cargo run -p sandbox-provider-daytona --example
//! live [FILTER]`. It costs what its sandboxes cost; each lives for ten minutes at most, and what a run leaves is swept.

use std::{process::ExitCode, sync::Arc};

use sandbox_conformance::{Suite, factory, run_cli};
use sandbox_core::{ListFilter, SandboxProvider, SandboxSpec};
use sandbox_provider_daytona::{DaytonaConfig, DaytonaProvider};

fn provider() -> sandbox_core::Result<Arc<dyn SandboxProvider>> {
    Ok(Arc::new(DaytonaProvider::new(DaytonaConfig::default())?))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let spec = SandboxSpec::image("debian:12").with_ttl_s(600.0);
    let minute = std::time::Duration::from_secs(300);
    let mut suite =
        Suite::new(factory(|| async { provider() }).with_spec(spec)).with_parallelism(2).with_deadline(minute);
    if let Some(filter) = std::env::args().nth(1) {
        suite = suite.with_filter(filter);
    }
    let ran = run_cli(suite, false, std::io::stdout()).await;
    let swept = match provider() {
        Ok(provider) => match provider.as_list_sweep() {
            Some(sweep) => sweep.sweep(ListFilter::default(), false).await.map(drop),
            None => Ok(()),
        },
        Err(error) => Err(error),
    };
    match (ran, swept) {
        (Ok(true), Ok(())) => ExitCode::SUCCESS,
        (Ok(_), Ok(())) => ExitCode::FAILURE,
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
