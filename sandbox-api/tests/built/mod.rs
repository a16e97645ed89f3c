//! The examples as programs.
#![allow(unreachable_pub, reason = "test programs share it")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// The folder of the examples with the local provider linked: what `SANDBOX_TEST_EXAMPLES` names, else they are built.
pub fn examples() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        if let Some(folder) = std::env::var_os("SANDBOX_TEST_EXAMPLES") {
            return folder.into();
        }
        let target = std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned();
        // Each test is a program of its own: one builds, the others wait.
        let lock = std::fs::File::create(target.join("sandbox-api-examples.lock")).unwrap();
        lock.lock().unwrap();
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "sandbox-api", "--features", "linked-local", "--examples"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", &target)
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(built.success(), "the examples cannot be built");
        target.join("debug/examples")
    })
}
