//! Running the cases.

use std::{
    collections::BTreeMap,
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_core::{ProviderInfo, Result, SandboxError, SandboxProvider};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{
    CaseInfo, CaseReport, CaseStatus, ProviderFactory, Report, SCHEMA,
    case::Case,
    cases,
    check::{Check, Stop},
    context::Context,
};

/// How long a case may take, if nothing else is said.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// How many cases run at once, if nothing else is said.
pub const DEFAULT_PARALLELISM: usize = 4;

/// How long the clean-up after a case may take.
const CLEAN_UP_DEADLINE: Duration = Duration::from_secs(60);

/// The suite, ready to run against one provider.
pub struct Suite {
    factory: Arc<dyn ProviderFactory>,
    filters: Vec<String>,
    deadline: Duration,
    parallelism: usize,
    retries: u32,
    minimum_run: usize,
}

impl Suite {
    /// The whole suite.
    pub fn new(factory: impl ProviderFactory) -> Self {
        Self {
            factory: Arc::new(factory),
            filters: Vec::new(),
            deadline: DEFAULT_DEADLINE,
            parallelism: DEFAULT_PARALLELISM,
            retries: 0,
            minimum_run: 1,
        }
    }

    /// Runs only the case of this name or, when there is none, those whose name holds the text. May be given more than
    /// once.
    #[must_use]
    pub fn with_filter(mut self, filter: impl Into<String>) -> Self {
        self.filters.push(filter.into());
        self
    }

    /// Sets how long a case may take. Default: [`DEFAULT_DEADLINE`].
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets how many cases run at once, at least 1. Default: [`DEFAULT_PARALLELISM`].
    #[must_use]
    pub fn with_parallelism(mut self, parallelism: usize) -> Self {
        self.parallelism = parallelism.max(1);
        self
    }

    /// Sets how often a case that failed runs again, alone, when all others have ended. What passes then is reported as
    /// flaky, with why it failed first: on a busy machine that tells a late answer from a wrong one. Default: never.
    #[must_use]
    pub fn with_retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    /// Sets how many cases must run (pass or fail) for the run to count. Default: 1.
    #[must_use]
    pub fn with_minimum_run(mut self, minimum_run: usize) -> Self {
        self.minimum_run = minimum_run;
        self
    }

    /// The cases that the filters leave, in order.
    pub fn cases(&self) -> Vec<CaseInfo> {
        self.selected().iter().map(Case::info).collect()
    }

    fn selected(&self) -> Vec<Case> {
        let mut all = cases::all();
        if self.filters.is_empty() {
            return all;
        }
        let is_exact = |filter: &String| all.iter().any(|case| case.name == *filter);
        let (exact, parts): (Vec<_>, Vec<_>) = self.filters.iter().partition(|filter| is_exact(filter));
        all.retain(|case| {
            exact.iter().any(|name| case.name == **name) || parts.iter().any(|part| case.name.contains(part.as_str()))
        });
        all
    }

    /// Runs the cases. Dropping the future stops the run and leaves clean-up to the provider.
    ///
    /// # Errors
    /// Whatever keeps the first provider from being made. Everything after that is in the report.
    pub async fn run(self) -> Result<Report> {
        let provider = self.factory.create().await?;
        let info = provider.full_info();
        let cases = self.selected();
        let permits = Arc::new(Semaphore::new(self.parallelism));
        let mut running = JoinSet::new();
        for (index, case) in cases.iter().cloned().enumerate() {
            let runner = Runner {
                case,
                info: info.clone(),
                provider: provider.clone(),
                factory: self.factory.clone(),
                deadline: self.deadline,
            };
            let permits = permits.clone();
            running.spawn(async move {
                let _permit = permits.acquire_owned().await;
                let report = runner.run().await;
                (index, (runner, report))
            });
        }
        let mut ended = BTreeMap::new();
        while let Some(end) = running.join_next().await {
            let (index, run) = end.map_err(|_| SandboxError::internal("the runner of a case panicked"))?;
            ended.insert(index, run);
        }
        let mut done = Vec::with_capacity(ended.len());
        for (runner, mut report) in ended.into_values() {
            for _ in 0..self.retries {
                if report.status == CaseStatus::Failed {
                    report = report.and_then(runner.run().await);
                }
            }
            done.push(report);
        }
        provider.aclose().await?;
        Ok(Report {
            schema: SCHEMA,
            provider: info.name,
            isolation: info.isolation,
            minimum_run: self.minimum_run,
            cases: done,
        })
    }
}

struct Runner {
    case: Case,
    info: ProviderInfo,
    provider: Arc<dyn SandboxProvider>,
    factory: Arc<dyn ProviderFactory>,
    deadline: Duration,
}

impl Runner {
    async fn run(&self) -> CaseReport {
        let started = Instant::now();
        let (name, proves) = (self.case.name.to_string(), self.case.proves.to_owned());
        let (status, reason) = match self.outcome().await {
            Ok(()) => (CaseStatus::Passed, None),
            Err(Stop::Failed(reason)) => (CaseStatus::Failed, Some(reason)),
            Err(Stop::Skipped(reason)) => (CaseStatus::Skipped, Some(reason)),
        };
        CaseReport { name, status, reason, flaky: None, duration_s: started.elapsed().as_secs_f64(), proves }
    }

    async fn outcome(&self) -> Check {
        if let Some(reason) = self.case.unmet(&self.info) {
            return Err(Stop::skipped(reason));
        }
        let context = Context::new(self.provider.clone(), self.factory.clone(), self.info.clone())?;
        let body = guarded("the case", self.deadline, self.case.run(context.clone())).await;
        let clean_up = {
            let context = context.clone();
            guarded("the clean-up", CLEAN_UP_DEADLINE, async move { context.finish().await }).await
        };
        match (body, clean_up) {
            (Err(Stop::Failed(reason)), Err(Stop::Failed(after))) => {
                Err(Stop::failed(format!("{reason}; after the case: {after}")))
            }
            (Err(Stop::Failed(reason)), _) => Err(Stop::failed(reason)),
            (_, Err(Stop::Failed(after))) => Err(Stop::failed(format!("after the case: {after}"))),
            (body, clean_up) => body.and(clean_up),
        }
    }
}

/// Runs a future on a task of its own, so that a panic is a failure of the case and a hang ends with the deadline.
async fn guarded(what: &str, deadline: Duration, future: impl Future<Output = Check> + Send + 'static) -> Check {
    let mut task = JoinSet::new();
    task.spawn(future);
    match tokio::time::timeout(deadline, task.join_next()).await {
        Ok(Some(Ok(end))) => end,
        Ok(Some(Err(error))) => Err(Stop::failed(format!("{what} panicked: {error}"))),
        Ok(None) => Err(Stop::failed(format!("{what} did not start"))),
        Err(_) => Err(Stop::failed(format!("{what} did not end within {:.0} s", deadline.as_secs_f64()))),
    }
}

/// Runs the whole suite and prints its report. For the test of a provider's crate.
///
/// # Panics
/// When the provider cannot be made or does not conform.
pub async fn assert_conformant(factory: impl ProviderFactory) {
    assert_suite(Suite::new(factory)).await;
}

/// The same for a suite with options. The report as JSON goes to the file that the variable `SANDBOX_CONFORMANCE_JSON`
/// names, if it is set; `SANDBOX_CONFORMANCE_RETRIES` is the number for [`Suite::with_retries`].
///
/// # Panics
/// When the provider cannot be made or does not conform.
pub async fn assert_suite(suite: Suite) {
    let suite = match std::env::var("SANDBOX_CONFORMANCE_RETRIES") {
        Ok(retries) => suite.with_retries(retries.parse().expect("SANDBOX_CONFORMANCE_RETRIES is a number")),
        Err(_) => suite,
    };
    let report = match suite.run().await {
        Ok(report) => report,
        Err(error) => panic!("the provider cannot be made: {error:?}"),
    };
    println!("{report}");
    if let Some(file) = std::env::var_os("SANDBOX_CONFORMANCE_JSON") {
        std::fs::write(file, report.to_json().to_string())
            .expect("the file of SANDBOX_CONFORMANCE_JSON can be written");
    }
    assert!(report.is_conformant(), "the provider does not conform:\n{report}");
}

/// Runs a suite for a command line: writes the report as text, or as JSON on one line, and says whether the provider
/// conforms.
///
/// # Errors
/// As [`Suite::run`], and `Internal` when the report cannot be written.
pub async fn run_cli(suite: Suite, json: bool, mut output: impl Write) -> Result<bool> {
    let report = suite.run().await?;
    let text = if json { format!("{}\n", report.to_json()) } else { report.to_string() };
    output.write_all(text.as_bytes()).map_err(|error| SandboxError::io("the report", error))?;
    Ok(report.is_conformant())
}
