//! Installing, and making release archives.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context, Result};

use crate::{
    build::{self, Profile, Selection, library, package, place},
    command::{cargo, must, output, root, target},
};

/// The targets that are released.
const TARGETS: &[&str] = &["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// Set where what is installed is only tried: the optimiser takes minutes, and changes nothing that is looked at.
pub(crate) const UNOPTIMISED: &str = "SANDBOX_XTASK_UNOPTIMISED";

pub(crate) fn install(prefix: &Path) -> Result<ExitCode> {
    let profile = Profile::of(std::env::var_os(UNOPTIMISED).is_none());
    let sandboxctl = build::sandboxctl(profile, &Selection::needed(build::providers()?))?;
    let prefix = std::path::absolute(prefix).context("the prefix is not a path")?;
    lay_out(&build::native(), &profile.folder(), &sandboxctl, &prefix)?;
    println!("installed {}", prefix.join("bin/sandboxctl").display());
    Ok(ExitCode::SUCCESS)
}

/// bin/sandboxctl, and lib/sandbox/providers/ where it finds its plugins and they find the programs for the inside.
fn lay_out(triple: &str, built: &Path, sandboxctl: &Path, prefix: &Path) -> Result<()> {
    place(sandboxctl, &prefix.join("bin/sandboxctl"), 0o755)?;
    let providers = prefix.join("lib/sandbox/providers");
    place(&build::agent(triple)?, &providers.join(build::agent_name_for(triple)), 0o755)?;
    place(&build::execd(triple)?, &providers.join(build::execd_name(triple)), 0o755)?;
    for provider in build::providers()? {
        let file = library(&provider);
        place(&built.join(&file), &providers.join(&file), 0o755)?;
    }
    Ok(())
}

pub(crate) fn dist() -> Result<ExitCode> {
    let version = env!("CARGO_PKG_VERSION");
    let installed = installed_targets()?;
    let folder = target().join("dist");
    for triple in TARGETS {
        if !installed.iter().any(|name| name == triple) {
            println!("{triple}: not built, this toolchain does not have the target");
            continue;
        }
        let mut build =
            cargo(["build", "--quiet", "--release", "--target", triple, "--package", "sandbox-cli", "--bins"]);
        for provider in build::providers()? {
            build.args(["--package", &package(&provider), "--lib"]);
        }
        must(build)?;
        let name = format!("sandbox-{version}-{triple}");
        let stage = folder.join(&name);
        if stage.exists() {
            fs::remove_dir_all(&stage).with_context(|| format!("cannot remove {}", stage.display()))?;
        }
        let built = target().join(triple).join("release");
        lay_out(triple, &built, &built.join("sandboxctl"), &stage)?;
        for file in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            place(&root().join(file), &stage.join(file), 0o644)?;
        }
        let archive = archive(&folder, &name)?;
        println!("{}", archive.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn archive(folder: &Path, name: &str) -> Result<PathBuf> {
    let archive = folder.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    // The same files give the same archive.
    tar.args(["--sort=name", "--owner=0", "--group=0", "--mtime=@0", "-czf"])
        .arg(&archive)
        .arg("-C")
        .arg(folder)
        .arg(name);
    must(tar)?;
    Ok(archive)
}

/// The targets whose standard library is there.
fn installed_targets() -> Result<Vec<String>> {
    let mut rustc = Command::new("rustc");
    rustc.args(["--print", "sysroot"]).current_dir(root());
    let sysroot = output(rustc)?;
    let folder = Path::new(sysroot.trim()).join("lib/rustlib");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    Ok(entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.path().join("lib").is_dir())
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect())
}
