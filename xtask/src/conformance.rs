//! The conformance suite on the providers of this repository, linked and loaded.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, ExitCode, Stdio},
};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use crate::{
    build::{self, Profile, Selection, WORKSPACE},
    command::{cargo, root, target},
    double::{AGENT, Backend, merged},
};

/// How often a case that failed runs again, with the variable for linked suites; it is reported as flaky, as by nextest.
pub(crate) const RETRIES: (&str, &str) = ("SANDBOX_CONFORMANCE_RETRIES", "1");

/// Totals of a run: what its last line says.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Totals {
    passed: u32,
    failed: u32,
    skipped: u32,
}

/// Runs the suite.
pub(crate) fn conformance(provider: &str, json: bool) -> Result<ExitCode> {
    let known = build::providers()?;
    if !known.iter().any(|name| name == provider) {
        bail!("no provider {provider:?} in this repository; there are: {}", known.join(", "));
    }
    let folder = build::plugins(Profile::Dev, &Selection::Workspace)?;
    let mut backend = Backend::start(provider)?;
    let plain = Variant { config: backend.config.clone(), spec: backend.spec.clone() };

    let library = folder.join(build::library(provider));

    let mut subjects = vec![("conformance".to_owned(), "the settings of no file".to_owned(), plain.clone(), true)];
    for (name, text) in other_settings(provider)? {
        let variant = plain.with(&backend.filled(text)?).with_context(|| format!("the settings {name} are no JSON"))?;
        // The same settings, linked, are a test of the provider's crate where there is one, or given to its only one.
        let own = format!("conformance_{name}");
        let has_own = root().join("providers").join(provider).join("tests").join(format!("{own}.rs")).is_file();
        let test = if backend.variant_variable.is_some() { "conformance".to_owned() } else { own };
        // Each image is proven both ways; how it is reached, by the loaded plugin.
        let has_test = has_own || backend.variant_variable.is_some() && variant.spec != plain.spec;
        subjects.push((test, format!("the settings {name}"), variant, has_test));
    }
    let (mut good, mut totals, mut reports) = (true, Vec::new(), Vec::new());
    for (test, what, variant, has_test) in subjects {
        eprintln!("==> conformance of {provider}, loaded, with {what}");
        let loaded = run(&mut suite(&library, &variant, json), !json)?;
        let of_loaded = match json {
            true => {
                let report = report_of(&loaded.output)?;
                let totals = Totals::of_report(&report)?;
                reports.push((format!("loaded, {what}"), report));
                totals
            }
            false => Totals::of_text(&loaded.output)?,
        };
        if of_loaded.passed == 0 {
            eprintln!("error: no case passed with {what}");
        }
        good = good && loaded.ok && of_loaded.passed > 0;
        totals.push(of_loaded);
        if !has_test {
            continue;
        }
        eprintln!("==> conformance of {provider}, linked, with {what}");
        let report = target().join(format!("{test}-{provider}.json"));
        let mut linked = cargo(["test", "--quiet"]);
        linked.args(WORKSPACE).args(["--test", &test, "--", "--nocapture"]);
        linked.env("SANDBOX_CONFORMANCE_JSON", &report).env(RETRIES.0, RETRIES.1);
        linked.env(AGENT, folder.join(build::agent_name()));
        if test == "conformance" {
            // Each provider has a file of this name.
            linked.arg(format!("{provider}_keeps_the_provider_contract"));
        }
        linked.envs(backend.environment.iter().cloned());
        if let Some(variable) = backend.variant_variable {
            linked.env(variable, json!({ "config": variant.config, "spec": variant.spec }).to_string());
        }
        let linked = run(&mut linked, !json)?;
        let of_linked = match json {
            true => {
                let text = fs::read_to_string(&report).context("the linked suite wrote no report")?;
                let report = report_of(&text)?;
                let totals = Totals::of_report(&report)?;
                reports.push((format!("linked, {what}"), report));
                totals
            }
            false => Totals::of_text(&linked.output)?,
        };
        if of_linked != of_loaded {
            eprintln!("error: linked and loaded differ with {what}: {of_linked:?}, {of_loaded:?}");
        }
        good = good && linked.ok && of_linked == of_loaded;
        totals.push(of_linked);
    }
    if let Err(error) = backend.end() {
        eprintln!("error: {error:#}");
        good = false;
    }
    if json {
        let reports: serde_json::Map<String, Value> = reports.into_iter().collect();
        println!("{}", json!({ "schema": "v1", "provider": provider, "reports": reports }));
    }
    let sum = |part: fn(&Totals) -> u32| totals.iter().map(part).sum::<u32>();
    let closing = format!(
        "{} passed, {} failed, {} skipped",
        sum(|totals| totals.passed),
        sum(|totals| totals.failed),
        sum(|totals| totals.skipped)
    );
    if json {
        eprintln!("{closing}")
    } else {
        println!("{closing}")
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What a run of the suite is given.
#[derive(Clone)]
struct Variant {
    config: Value,
    spec: Value,
}

impl Variant {
    /// With what a file says: settings, or `{"config": …, "spec": …}`.
    fn with(&self, text: &str) -> Result<Self> {
        let mut file: Map<String, Value> = serde_json::from_str(text)?;
        let (config, spec) = match file.keys().all(|key| key == "config" || key == "spec") {
            true => (file.remove("config"), file.remove("spec")),
            false => (Some(Value::Object(file)), None),
        };
        let over = |base: &Value, over: Option<Value>| match over {
            Some(over) => merged(base.clone(), over),
            None => base.clone(),
        };
        Ok(Self { config: over(&self.config, config), spec: over(&self.spec, spec) })
    }
}

/// The suite on a plugin file.
fn suite(library: &Path, variant: &Variant, json: bool) -> Command {
    let mut suite = Command::new(Profile::Dev.folder().join("sandbox-conformance"));
    suite.arg(library).args(["--retries", RETRIES.1]);
    for (option, value) in [("--config", &variant.config), ("--spec", &variant.spec)] {
        if !value.is_null() {
            suite.args([option, &value.to_string()]);
        }
    }
    if json {
        suite.arg("--json");
    }
    suite
}

fn report_of(text: &str) -> Result<Value> {
    serde_json::from_str(text).context("the suite printed no report")
}

/// Name and JSON of the settings in `providers/NAME/conformance/`, sorted.
fn other_settings(provider: &str) -> Result<Vec<(String, String)>> {
    let folder = root().join("providers").join(provider).join("conformance");
    let mut settings = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            settings
                .push((name, fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?));
        }
    }
    settings.sort();
    Ok(settings)
}

struct Ran {
    output: String,
    ok: bool,
}

/// Runs a command and keeps its standard output, which is also shown as it comes if `show`.
fn run(command: &mut Command, show: bool) -> Result<Ran> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot start the conformance suite")?;
    let mut output = String::new();
    let stdout = child.stdout.take().expect("it was piped just now");
    for line in BufReader::new(stdout).lines() {
        let line = line.context("the suite's output is not text")?;
        if show {
            writeln!(std::io::stdout(), "{line}").context("cannot write")?;
        }
        output.push_str(&line);
        output.push('\n');
    }
    Ok(Ran { output, ok: child.wait()?.success() })
}

impl Totals {
    fn of_text(output: &str) -> Result<Self> {
        output.lines().filter_map(parse).next_back().context("the suite did not say how many cases passed")
    }

    fn of_report(report: &Value) -> Result<Self> {
        let count = |name: &str| report[name].as_u64().and_then(|count| u32::try_from(count).ok());
        let counts = (count("passed"), count("failed"), count("skipped"));
        let (Some(passed), Some(failed), Some(skipped)) = counts else { bail!("the report has no totals") };
        Ok(Self { passed, failed, skipped })
    }
}

fn parse(line: &str) -> Option<Totals> {
    let mut numbers = line.trim().split(", ").zip(["passed", "failed", "skipped"]).map(|(part, word)| {
        let (number, said) = part.split_once(' ')?;
        (said == word).then_some(number)?.parse().ok()
    });
    let totals = Totals { passed: numbers.next()??, failed: numbers.next()??, skipped: numbers.next()?? };
    Some(totals)
}

#[cfg(test)]
mod tests {
    use super::{Totals, parse};

    #[test]
    fn the_closing_line_is_read_and_no_other() {
        assert_eq!(parse("97 passed, 0 failed, 3 skipped"), Some(Totals { passed: 97, failed: 0, skipped: 3 }));
        for other in ["97 passed", "test result: ok. 1 passed; 0 failed", "x passed, 0 failed, 0 skipped", ""] {
            assert_eq!(parse(other), None, "{other}");
        }
    }
}
