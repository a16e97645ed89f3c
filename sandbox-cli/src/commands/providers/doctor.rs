//! Real checks of a provider: the first one that fails ends the way, since the others stand on it.

use std::time::{Duration, Instant};

use clap::Args;
use plugin_host::{PluginHost, ProviderState};
use sandbox_api::{AsyncSandbox, flush_cleanup};
use sandbox_core::{ExecRequest, SandboxSpec};
use serde_json::{Value, json};

use crate::{
    app::{App, success_if},
    config::Config,
    failure::Failure,
    output::{self, SCHEMA, Table},
    providers, runtime,
};

/// How long the command of the check may take.
const EXEC_LIMIT_S: f64 = 60.0;
/// How long the removal of what a failed check leaves may take.
const FLUSH_LIMIT: Duration = Duration::from_secs(40);

#[derive(Args)]
pub(crate) struct DoctorArgs {
    /// The provider; without one, every provider that is installed
    name: Option<String>,
    /// The image of the check's sandbox, for a provider that needs one
    #[arg(long)]
    image: Option<String>,
}

/// What came of one check.
struct Check {
    provider: String,
    name: &'static str,
    outcome: Result<String, Failed>,
}

struct Failed {
    message: String,
    help: Option<String>,
}

impl From<&Failure> for Failed {
    fn from(failure: &Failure) -> Self {
        Self { message: failure.message().to_owned(), help: failure.help().map(str::to_owned) }
    }
}

impl From<sandbox_core::SandboxError> for Failed {
    fn from(error: sandbox_core::SandboxError) -> Self {
        Self::from(&Failure::of_command(&error))
    }
}

/// Checks one provider or all; exit code 1 if any check fails.
pub(super) fn run(app: &App, args: &DoctorArgs) -> Result<u8, Failure> {
    let config = app.config()?;
    let host = providers::host(&config)?;
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => installed(&host),
    };
    if names.is_empty() {
        return Err(Failure::failed("provider.not_found", "no provider is installed")
            .with_help("see where they are looked for with: sandboxctl providers ls -o wide"));
    }
    let checks = runtime::block_on_until_signal(async {
        let mut checks = Vec::new();
        for name in &names {
            checks.extend(examine(&host, &config, name, args.image.as_deref()).await);
        }
        flush_cleanup(FLUSH_LIMIT).await;
        Ok(checks)
    })?;
    print(app, &checks)?;
    Ok(success_if(checks.iter().all(|check| check.outcome.is_ok())))
}

fn installed(host: &PluginHost) -> Vec<String> {
    let is_there = |state: &ProviderState| matches!(state, ProviderState::Ready | ProviderState::Refused(_));
    let mut names: Vec<String> = host
        .list_providers()
        .into_iter()
        .filter(|listing| is_there(&listing.state))
        .map(|listing| listing.name)
        .collect();
    names.dedup();
    names
}

async fn examine(host: &PluginHost, config: &Config, name: &str, image: Option<&str>) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut note = |check, outcome: Result<String, Failed>| {
        let is_ok = outcome.is_ok();
        checks.push(Check { provider: name.to_owned(), name: check, outcome });
        is_ok
    };
    let plugin = host.describe(name).map_err(|error| Failed::from(&Failure::of_provider(&error)));
    let plugin = plugin.map(|found| {
        let version = found.manifest.map(|manifest| format!("{} contract {}", manifest.version, manifest.contract));
        let path = found.path.map_or_else(|| "linked".to_owned(), |path| path.display().to_string());
        format!("{path} {}", version.unwrap_or_default())
    });
    if !note("plugin", plugin) {
        return checks;
    }
    let started = Instant::now();
    let provider = match providers::create(host, config, name) {
        Ok(provider) => provider,
        Err(failure) => {
            note("provider", Err(Failed::from(&failure)));
            return checks;
        }
    };
    let sandbox = AsyncSandbox::new(provider);
    note("provider", Ok(format!("{}, isolation {}", ms(started), sandbox.info().isolation)));
    let mut spec = SandboxSpec::default();
    spec.image = image.map(str::to_owned);
    let started = Instant::now();
    let created = sandbox.start(Some(spec)).await.map(|()| ms(started)).map_err(Failed::from);
    if note("create", created) {
        let started = Instant::now();
        let request = ExecRequest::argv(["true"]).with_timeout_s(EXEC_LIMIT_S);
        let ran = sandbox.exec(request).await.map_err(Failed::from).and_then(|result| match result.return_code() {
            0 => Ok(ms(started)),
            code => Err(Failed { message: format!("\"true\" ended with {code}"), help: None }),
        });
        note("exec", ran);
    }
    let started = Instant::now();
    note("close", sandbox.stop().await.map(|()| ms(started)).map_err(Failed::from));
    checks
}

fn ms(since: Instant) -> String {
    format!("{:.1} ms", since.elapsed().as_secs_f64() * 1000.0)
}

fn print(app: &App, checks: &[Check]) -> Result<(), Failure> {
    if app.format.is_json() {
        let entries: Vec<Value> = checks.iter().map(to_json).collect();
        let is_ok = checks.iter().all(|check| check.outcome.is_ok());
        return output::json_line(&json!({ "schema": SCHEMA, "ok": is_ok, "checks": entries }));
    }
    let mut table = Table::headless();
    for check in checks {
        let (word, text) = match &check.outcome {
            Ok(detail) => ("ok", detail.as_str()),
            Err(failed) => ("FAIL", failed.message.as_str()),
        };
        table.row([word, &check.provider, check.name, text]);
        if let Err(Failed { help: Some(help), .. }) = &check.outcome {
            table.row(["", "", "", &format!("fix: {help}")]);
        }
    }
    let failed = checks.iter().filter(|check| check.outcome.is_err()).count();
    output::data(&format!("{table}{} passed, {failed} failed\n", checks.len() - failed))
}

fn to_json(check: &Check) -> Value {
    match &check.outcome {
        Ok(detail) => json!({ "provider": check.provider, "check": check.name, "ok": true, "detail": detail }),
        Err(failed) => json!({
            "provider": check.provider, "check": check.name, "ok": false, "detail": failed.message, "help": failed.help,
        }),
    }
}
