//! Running sandboxctl, and what is done through it.

use std::{
    ffi::OsString,
    fs,
    path::PathBuf,
    process::{Command, ExitCode},
};

use anyhow::{Context, Result, bail};

use crate::{
    build::{self, Profile, Selection},
    command::{cargo, exit_code, output, root, status},
    engine::{self, Engine},
    needs, python,
};

/// The provider of a spec that names none.
const DEFAULT: &str = "local";

pub(crate) fn run(release: bool, arguments: &[OsString]) -> Result<ExitCode> {
    let sandboxctl = build::sandboxctl(Profile::of(release), &Selection::needed(named(arguments)?))?;
    let mut command = Command::new(sandboxctl);
    command.args(arguments);
    Ok(exit_code(status(&mut command)?))
}

/// The provider that is used when none is named, and those that are named somewhere among the words.
fn named(words: &[OsString]) -> Result<Vec<String>> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let is_named = |name: &str| words.iter().any(|word| word.split([' ', '=', ',', '"']).any(|part| part == name));
    let mut providers = build::providers()?;
    providers.retain(|name| name == DEFAULT || is_named(name));
    Ok(providers)
}

pub(crate) fn new_plugin(name: &str, path: Option<PathBuf>) -> Result<ExitCode> {
    let sandboxctl = build::sandboxctl(Profile::Dev, &Selection::needed(vec![DEFAULT.to_owned()]))?;
    let mut command = Command::new(sandboxctl);
    command.args(["plugin", "new", name]).arg("--sandbox-path").arg(root());
    if let Some(path) = path {
        command.arg("--path").arg(path);
    }
    Ok(exit_code(status(&mut command)?))
}

/// Runs a benchmark, shows its table, and with `write` puts it into its page of the documentation.
pub(crate) fn bench(what: &str, write: bool, only: Option<&str>) -> Result<ExitCode> {
    if only.is_some() && what != "opensandbox" {
        bail!("benchmark {what} has no --only");
    }
    let (package, example, page) = match what {
        "abi" => ("sandbox-abi-tests", "abi-report", Some("docs/abi.md")),
        "local" => return peers(write),
        "docker" => return docker(write),
        "many" => return many(write),
        "fargate" => return fargate(write),
        "opensandbox" => return opensandbox(write, only),
        _ => bail!("no benchmark {what:?}; there are: abi, docker, fargate, local, many, opensandbox"),
    };
    let table = output(cargo(["run", "--quiet", "--release", "--package", package, "--example", example]))?;
    print!("{table}");
    match page {
        Some(page) if write => put_between_marks(page, what, &table)?,
        None if write => bail!("benchmark {what} has no page"),
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the isolated local provider beside its peers; its agent is the one that is shipped.
fn peers(write: bool) -> Result<ExitCode> {
    needs::install(&[("bwrap", "bubblewrap", "the peer of isolated local sandboxes")])?;
    let agent = build::agent(&build::native())?;
    let mut run = cargo(["run", "--quiet", "--release", "--package", "sandbox-benches", "--bin", "bench-local"]);
    run.env("SANDBOX_AGENT", agent);
    let table = output(run)?;
    print!("{table}");
    if write {
        put_between_marks("docs/performance.md", "local", &table)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the docker provider beside its peers, on the engine of the tests.
fn docker(write: bool) -> Result<ExitCode> {
    let engine = Engine::start()?;
    let agent = build::agent(&build::native())?;
    let mut run = cargo(["run", "--quiet", "--release", "--package", "sandbox-benches", "--bin", "bench-docker"]);
    run.env("SANDBOX_AGENT", agent).env(engine::VARIABLE, engine.address());
    let table = output(run)?;
    print!("{table}");
    if write {
        put_between_marks("docs/performance.md", "docker", &table)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the provider of Fargate on its double.
fn fargate(write: bool) -> Result<ExitCode> {
    needs::programs()?;
    let (name, packages, variable, program) = python::MOTO;
    let mut run = cargo(["run", "--quiet", "--release", "--package", "sandbox-benches", "--bin", "bench-fargate"]);
    run.env(variable, python::environment(name, packages)?.join(program))
        .env("SANDBOX_AGENT", build::agent(&build::native())?);
    let table = output(run)?;
    print!("{table}");
    if write {
        put_between_marks("docs/performance.md", "fargate", &table)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the provider of OpenSandbox beside that of Docker: the real server, and both on its engine.
fn opensandbox(write: bool, only: Option<&str>) -> Result<ExitCode> {
    needs::programs()?;
    engine::needs()?;
    let (name, packages, variable, program) = python::OPENSANDBOX;
    let mut run =
        cargo(["run", "--quiet", "--release", "--package", "sandbox-benches", "--bin", "bench-opensandbox", "--"]);
    run.args(only.iter().flat_map(|only| ["--only", only]))
        .env(variable, python::environment(name, packages)?.join(program))
        .env("OPENSANDBOX_EXECD", build::execd(&build::native())?)
        .env("SANDBOX_AGENT", build::agent(&build::native())?);
    let table = output(run)?;
    print!("{table}");
    if write {
        put_between_marks("docs/performance.md", "opensandbox", &table)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a thousand isolated local sandboxes at once, each with ten commands.
fn many(write: bool) -> Result<ExitCode> {
    let agent = build::agent(&build::native())?;
    let mut run = cargo(["run", "--quiet", "--release", "--package", "sandbox-api", "--features", "linked-local"]);
    run.args(["--example", "many", "--", "1000", "10", "namespaces", "table"]).env("SANDBOX_AGENT", agent);
    let table = output(run)?;
    print!("{table}");
    if write {
        put_between_marks("docs/performance.md", "many", &table)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes and removes many sandboxes, and counts what is left.
pub(crate) fn soak(what: &str, count: u32, profile: Profile) -> Result<ExitCode> {
    if what != "local" {
        bail!("nothing to soak called {what:?}; there is: local");
    }
    let agent = build::agent(&build::native())?;
    let mut run = match profile {
        // Built with all that is built for tests.
        Profile::Dev => {
            build::plugins(profile, &Selection::Workspace)?;
            Command::new(profile.folder().join("soak-local"))
        }
        Profile::Release => {
            cargo(["run", "--quiet", "--release", "--package", "sandbox-benches", "--bin", "soak-local", "--"])
        }
    };
    run.arg(count.to_string()).env("SANDBOX_AGENT", agent);
    Ok(exit_code(status(&mut run)?))
}

/// Replaces what stands between `<!-- bench:NAME -->` and `<!-- /bench -->` in a page.
fn put_between_marks(page: &str, name: &str, table: &str) -> Result<()> {
    let path = root().join(page);
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {page}"))?;
    let open = format!("<!-- bench:{name} -->\n");
    let (before, rest) = text.split_once(&open).with_context(|| format!("{page} has no mark {}", open.trim()))?;
    let (_, after) = rest.split_once("<!-- /bench -->").with_context(|| format!("{page} has no closing mark"))?;
    fs::write(&path, format!("{before}{open}\n{}\n\n<!-- /bench -->{after}", table.trim()))
        .with_context(|| format!("cannot write {page}"))
}

/// Loads and plans every compose file of a folder.
pub(crate) fn compose_corpus(folder: &std::path::Path, verbose: bool) -> Result<ExitCode> {
    let folder = folder.canonicalize().with_context(|| format!("cannot find {}", folder.display()))?;
    let mut command =
        cargo(["run", "--quiet", "--features", build::TEST_FEATURES, "--example", "compose-corpus", "--"]);
    command.arg(folder).args(verbose.then_some("--verbose"));
    Ok(exit_code(status(&mut command)?))
}
