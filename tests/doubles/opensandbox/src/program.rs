//! The product's daemon, for the inside of containers.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// The path of the static program `sandbox-execd`: what `OPENSANDBOX_EXECD` names, else it is built, into the folder of the
/// programs for the inside of sandboxes, whose flags are not those of the rest.
///
/// # Panics
/// When it cannot be built.
pub fn execd_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match env::var_os("OPENSANDBOX_EXECD") {
        Some(program) => program.into(),
        None => build(),
    })
}

fn build() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    let folder = target.join("agent");
    let triple = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    // As xtask does it.
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", "sandbox-execd", "--bin", "sandbox-execd", "--profile", "agent"])
        .args(["--target", &triple])
        .current_dir(&root)
        .env("RUSTFLAGS", "-C target-feature=+crt-static -C relocation-model=static")
        .env("CARGO_TARGET_DIR", &folder)
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "the daemon for containers could not be built");
    folder.join(triple).join("agent/sandbox-execd")
}
