//! What CI does, step by step.

use std::{process::ExitCode, time::Instant};

use anyhow::{Result, bail};

use crate::{
    build,
    command::{cargo, must},
    deps, needs, test,
};

type Step = (&'static str, &'static str, fn() -> Result<ExitCode>);

const STEPS: &[Step] = &[
    ("fmt", "cargo fmt --check", || simple(&["fmt", "--all", "--check"])),
    ("deps", "direction of the dependencies", deps::deps),
    ("clippy", "clippy without a warning", || {
        simple(&[
            "clippy",
            "--workspace",
            "--features",
            build::LINKED_FEATURES,
            "--all-targets",
            "--quiet",
            "--",
            "--deny",
            "warnings",
        ])
    }),
    ("core", "the contract without its ABI", || {
        simple(&["check", "--quiet", "--package", "sandbox-core", "--no-default-features"])
    }),
    ("host", "the host without plugins", || {
        needs::programs()?;
        simple(&["test", "--quiet", "--package", "plugin-host", "--no-default-features"])
    }),
    ("doc", "documentation without a warning", || {
        let mut doc = cargo(["doc", "--workspace", "--features", build::LINKED_FEATURES, "--no-deps", "--quiet"]);
        // With a target of which tests' dependencies are a part, what clippy has checked is not checked again.
        doc.args(["--lib", "--example", "hello"]).env("RUSTDOCFLAGS", "--deny warnings");
        must(doc)?;
        Ok(ExitCode::SUCCESS)
    }),
    ("test", "every test", test::test),
];

fn simple(arguments: &[&str]) -> Result<ExitCode> {
    must(cargo(arguments))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn list() -> Result<ExitCode> {
    for (name, what, _) in STEPS {
        println!("{name:8} {what}");
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn check(steps: &[String], skip: &[String]) -> Result<ExitCode> {
    for name in steps.iter().chain(skip) {
        if !STEPS.iter().any(|(known, ..)| known == name) {
            bail!("no step {name:?}; see: cargo xtask check --list");
        }
    }
    for (name, what, step) in STEPS {
        let wanted = steps.is_empty() || steps.iter().any(|step| step == name);
        if !wanted || skip.iter().any(|step| step == name) {
            continue;
        }
        eprintln!("==> {name}: {what}");
        let start = Instant::now();
        if step()? != ExitCode::SUCCESS {
            bail!("step {name} failed");
        }
        eprintln!("    {name} took {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(ExitCode::SUCCESS)
}
