//! The direction of the dependencies between the crates (ARCHITECTURE.md), from cargo's own metadata.

use std::{collections::BTreeMap, process::ExitCode};

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::command::{cargo, output};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// None for ordinary dependencies, else `dev` or `build`.
    kind: Option<String>,
    optional: bool,
}

/// What a crate may depend on. Test dependencies are free, but for the contract's own.
fn allowed(package: &str) -> &'static [&'static str] {
    match package {
        "sandbox-core" => &[],
        "sandbox-process" | "sandbox-protocol" => &["sandbox-core"],
        "sandbox-agent-client" => &["sandbox-core", "sandbox-protocol"],
        "plugin-host" => &["sandbox-core"],
        "sandbox-agent" => &["sandbox-core", "sandbox-protocol", "sandbox-process"],
        // Another protocol in front of the agent, in one process.
        "sandbox-execd" => &["sandbox-core", "sandbox-protocol", "sandbox-agent"],
        "sandbox-cli" | "sandbox-server" => &["sandbox-api", "plugin-host", "sandbox-core"],
        "sandbox-conformance" => &["sandbox-core"],
        "sandbox-api" => &["sandbox-core", "plugin-host"],
        "sandbox-abi-tests" => &["sandbox-core", "plugin-host"],
        "sandbox-fuzz" => &["sandbox-core", "sandbox-protocol", "plugin-host"],
        "sandbox-benches" => &[
            "sandbox-core",
            "sandbox-provider-docker",
            "sandbox-provider-fargate",
            "sandbox-provider-local",
            "sandbox-provider-opensandbox",
            "fargate-double",
            "opensandbox-double",
        ],
        "xtask" => &[],
        // It starts the agent itself, so it shares the agent's types of the launch.
        "sandbox-provider-local" => {
            &["sandbox-core", "sandbox-protocol", "sandbox-process", "sandbox-agent-client", "sandbox-agent"]
        }
        provider if provider.starts_with("sandbox-provider-") => {
            &["sandbox-core", "sandbox-protocol", "sandbox-process", "sandbox-agent-client"]
        }
        _ => &[],
    }
}

/// What a crate may depend on behind a feature.
fn allowed_behind_feature(package: &str, dependency: &str) -> bool {
    match package {
        "sandbox-conformance" => dependency == "plugin-host",
        "sandbox-api" => dependency.starts_with("sandbox-provider-"),
        "sandbox-cli" => dependency == "sandbox-conformance",
        _ => false,
    }
}

/// Who may depend on a crate that is fenced: replacing it is then a matter of one crate.
fn may_name(dependency: &str, package: &str) -> bool {
    match dependency {
        "abi_stable" | "async-ffi" => package == "sandbox-core",
        // The tests of the ABI measure against dlopen and nothing else.
        "libloading" => ["plugin-host", "sandbox-abi-tests"].contains(&package),
        "object" => package == "plugin-host",
        _ => true,
    }
}

pub(crate) fn deps() -> Result<ExitCode> {
    let json = output(cargo(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Metadata = serde_json::from_str(&json).context("cargo metadata printed something else")?;
    let violations = violations(&metadata.packages);
    for (package, dependency) in &violations {
        eprintln!("error: {package} must not depend on {dependency} (see ARCHITECTURE.md, direction of dependencies)");
    }
    if violations.is_empty() {
        println!("dependencies of {} crates point the right way", metadata.packages.len());
    }
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn violations(packages: &[Package]) -> Vec<(String, String)> {
    let members: BTreeMap<&str, &Package> = packages.iter().map(|package| (package.name.as_str(), package)).collect();
    let mut found = Vec::new();
    for package in packages {
        for dependency in &package.dependencies {
            let inside = members.contains_key(dependency.name.as_str());
            let is_test = dependency.kind.as_deref() == Some("dev") && package.name != "sandbox-core";
            let may = allowed(&package.name).contains(&dependency.name.as_str())
                || dependency.optional && allowed_behind_feature(&package.name, &dependency.name);
            let is_fenced = !may_name(&dependency.name, &package.name);
            if is_fenced || inside && !is_test && !may {
                found.push((package.name.clone(), dependency.name.clone()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{Dependency, Package, violations};

    fn package(name: &str, dependencies: &[(&str, Option<&str>, bool)]) -> Package {
        let dependencies = dependencies
            .iter()
            .map(|(name, kind, optional)| Dependency {
                name: (*name).to_owned(),
                kind: kind.map(str::to_owned),
                optional: *optional,
            })
            .collect();
        Package { name: name.to_owned(), dependencies }
    }

    #[test]
    fn an_arrow_that_points_the_wrong_way_is_found() {
        let packages = [
            package("sandbox-core", &[("plugin-host", Some("dev"), false)]),
            package("plugin-host", &[("sandbox-core", None, false), ("tokio", None, false)]),
            package("sandbox-api", &[("sandbox-provider-local", None, true)]),
            package("sandbox-cli", &[("sandbox-provider-local", None, false)]),
            package("sandbox-provider-local", &[("plugin-host", Some("dev"), false)]),
            package("sandbox-agent", &[("abi_stable", Some("dev"), false), ("libloading", None, true)]),
        ];
        assert_eq!(
            violations(&packages),
            [
                ("sandbox-core".to_owned(), "plugin-host".to_owned()),
                ("sandbox-cli".to_owned(), "sandbox-provider-local".to_owned()),
                ("sandbox-agent".to_owned(), "abi_stable".to_owned()),
                ("sandbox-agent".to_owned(), "libloading".to_owned()),
            ]
        );
    }
}
