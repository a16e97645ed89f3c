//! The agent's file, built once; and this test program as another user.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// The agent's file, where it is built already: `cargo xtask test` gives the one that is shipped.
const AGENT: &str = "SANDBOX_AGENT";

/// Set where this program runs as another user.
const OTHER_USER: &str = "SANDBOX_TEST_OTHER_USER";

/// An account that owns nothing.
const NOBODY: &str = "65534";

/// The agent's file. Cargo's own lock lets one build it at a time.
pub(crate) fn agent() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| std::env::var_os(AGENT).map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "sandbox-agent"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(built.success(), "the agent cannot be built");
    let target = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    target.join("sandbox-agent")
}

/// Whether this program was started by [`as_nobody`].
#[allow(dead_code, reason = "each test program uses its part")]
pub(crate) fn is_nobody() -> bool {
    std::env::var_os(OTHER_USER).is_some()
}

/// Runs one test of this program as a user without privileges, and gives what it wrote.
#[allow(dead_code, reason = "each test program uses its part")]
pub(crate) fn as_nobody(test: &str) -> String {
    as_nobody_by(&[], test)
}

/// As [`as_nobody`], through another command.
#[allow(dead_code, reason = "each test program uses its part")]
pub(crate) fn as_nobody_by(wrapper: &[&str], test: &str) -> String {
    use std::os::unix::fs::{PermissionsExt, chown};
    // Where that user may pass, unlike the folders of cargo.
    let temp = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir().unwrap();
    let (program, agent_copy, own) = (temp.path().join("tests"), temp.path().join("agent"), temp.path().join("own"));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    std::fs::copy(agent(), &agent_copy).unwrap();
    std::fs::create_dir(&own).unwrap();
    let id = NOBODY.parse().ok();
    chown(&own, id, id).unwrap();
    let output = Command::new("setpriv")
        .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--inh-caps=-all", "--"])
        .args(wrapper)
        .arg(program)
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(AGENT, &agent_copy)
        .env(OTHER_USER, "1")
        .env("TMPDIR", &own)
        .env("HOME", &own)
        .current_dir(&own)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "as nobody:\n{said}");
    assert!(said.contains("1 passed"), "no test is called {test}:\n{said}");
    let left: Vec<_> = std::fs::read_dir(&own).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    said
}
