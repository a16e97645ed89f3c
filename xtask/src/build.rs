//! Building sandboxctl and the plugins, and putting them where they find each other.

use std::{
    env,
    env::consts::{DLL_PREFIX, DLL_SUFFIX},
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use anyhow::{Context, Result};

use crate::command::{cargo, must, root, target};

#[derive(Clone, Copy)]
pub(crate) enum Profile {
    Dev,
    Release,
}

impl Profile {
    pub(crate) fn of(release: bool) -> Self {
        if release { Self::Release } else { Self::Dev }
    }

    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Dev => &[],
            Self::Release => &["--release"],
        }
    }

    pub(crate) fn folder(self) -> PathBuf {
        target().join(match self {
            Self::Dev => "debug",
            Self::Release => "release",
        })
    }
}

/// The providers of this repository: the folders of `providers/`.
pub(crate) fn providers() -> Result<Vec<String>> {
    let folder = root().join("providers");
    let mut names = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        if entry.path().join("provider.toml").is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// What is off by default in the workspace and used by its tests.
pub(crate) const TEST_FEATURES: &str = "sandbox-conformance/cli,sandbox-api/opentelemetry";

/// The same with what is tested in a run of its own: a linked provider takes the place of a loaded one.
pub(crate) const LINKED_FEATURES: &str = "sandbox-conformance/cli,sandbox-api/opentelemetry,sandbox-api/linked-local";

/// What cargo is to select wherever tests are built or run: with one set of features, each dependency is compiled once.
/// Every selection of packages has features of its own.
pub(crate) const WORKSPACE: [&str; 3] = ["--workspace", "--features", TEST_FEATURES];

/// Set for the commands of the documentation: what they would build is there already, as a part of the workspace.
pub(crate) const WHOLE: &str = "SANDBOX_XTASK_WHOLE";

/// What is built.
pub(crate) enum Selection {
    /// Every library and program of the workspace, as tests use them.
    Workspace,
    /// sandboxctl, and the plugins of these providers.
    Providers(Vec<String>),
}

impl Selection {
    /// For a user's command that needs these providers.
    pub(crate) fn needed(providers: Vec<String>) -> Self {
        match env::var_os(WHOLE) {
            Some(_) => Self::Workspace,
            None => Self::Providers(providers),
        }
    }
}

pub(crate) fn package(provider: &str) -> String {
    format!("sandbox-provider-{provider}")
}

pub(crate) fn library(provider: &str) -> String {
    format!("{DLL_PREFIX}{}{DLL_SUFFIX}", package(provider).replace('-', "_"))
}

/// Builds sandboxctl, the plugins and the programs for the inside of sandboxes, and puts all but sandboxctl into `providers/`
/// beside the programs of that profile. Returns that folder.
pub(crate) fn plugins(profile: Profile, selection: &Selection) -> Result<PathBuf> {
    let all;
    let mut build = cargo(["build", "--quiet", "--lib"]);
    build.args(profile.arguments());
    let names = match selection {
        Selection::Workspace => {
            // With the dependencies of tests, whose features are others.
            build.args(WORKSPACE).args(["--bins", "--test", "conformance"]);
            all = providers()?;
            &all
        }
        Selection::Providers(names) => {
            build.args(["--package", "sandbox-cli", "--bin", "sandboxctl"]);
            for name in names {
                build.args(["--package", &package(name)]);
            }
            names
        }
    };
    // Beside each other: the last step of a static program's build keeps one core busy.
    let (built, inside) = thread::scope(|scope| {
        let inside = scope.spawn(|| Ok::<_, anyhow::Error>([agent(&native())?, execd(&native())?]));
        (must(build), inside.join())
    });
    built?;
    let [agent, execd] = inside.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    let folder = profile.folder().join("providers");
    for name in names {
        place(&profile.folder().join(library(name)), &folder.join(library(name)), 0o755)?;
    }
    place(&agent, &folder.join(agent_name()), 0o755)?;
    place(&execd, &folder.join(execd_name(&native())), 0o755)?;
    Ok(folder)
}

/// Builds the same. Returns the path of sandboxctl.
pub(crate) fn sandboxctl(profile: Profile, selection: &Selection) -> Result<PathBuf> {
    plugins(profile, selection)?;
    Ok(profile.folder().join("sandboxctl"))
}

/// The target of this machine.
pub(crate) fn native() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// The name of the agent's file for this machine.
pub(crate) fn agent_name() -> String {
    agent_name_for(&native())
}

pub(crate) fn agent_name_for(triple: &str) -> String {
    name_for("sandbox-agent", triple)
}

/// Builds the agent for a target as one static program, small and optimised whatever the profile of the rest. Returns its
/// path.
pub(crate) fn agent(triple: &str) -> Result<PathBuf> {
    static_program("sandbox-agent", triple)
}

/// Builds the daemon of OpenSandbox in front of the agent, in the same way.
pub(crate) fn execd(triple: &str) -> Result<PathBuf> {
    static_program("sandbox-execd", triple)
}

/// The name of that daemon's file.
pub(crate) fn execd_name(triple: &str) -> String {
    name_for("sandbox-execd", triple)
}

fn name_for(program: &str, triple: &str) -> String {
    format!("{program}-{}", triple.split('-').next().unwrap_or(triple))
}

fn static_program(name: &str, triple: &str) -> Result<PathBuf> {
    // A folder of its own: its flags and features would make the other builds start over.
    let folder = target().join("agent");
    let mut build = cargo(["build", "--quiet", "--package", name, "--bin", name, "--profile", "agent"]);
    // At a fixed address: what a loader would relocate, each of the processes of a sandbox would have for itself.
    let flags = "-C target-feature=+crt-static -C relocation-model=static";
    build.args(["--target", triple]).env("RUSTFLAGS", flags).env("CARGO_TARGET_DIR", &folder);
    must(build)?;
    Ok(folder.join(triple).join("agent").join(name))
}

/// Puts a file in its place by rename, never in place: a program that has the old one loaded keeps it.
pub(crate) fn place(from: &Path, to: &Path, mode: u32) -> Result<()> {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let folder = to.parent().expect("a target has a folder");
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    if same_contents(from, to) {
        return Ok(());
    }
    let unique = format!(".{}.{}.new", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
    let temporary = folder.join(unique);
    let placed = fs::copy(from, &temporary)
        .and_then(|_| fs::set_permissions(&temporary, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&temporary, to));
    if placed.is_err() {
        // Nothing half-made stays behind.
        let _ = fs::remove_file(&temporary);
    }
    placed.with_context(|| format!("cannot put {} to {}", from.display(), to.display()))
}

fn same_contents(left: &Path, right: &Path) -> bool {
    let length = |path: &Path| fs::metadata(path).map(|data| data.len()).ok();
    length(left).is_some_and(|bytes| Some(bytes) == length(right))
        && fs::read(left).is_ok_and(|bytes| fs::read(right).is_ok_and(|others| bytes == others))
}
