//! The agent's file, built once; and this test program as another user.

use std::{
    ffi::OsString,
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
    as_user_by(NOBODY, wrapper, test)
}

/// As [`as_nobody_by`], as the user of a number.
#[allow(dead_code, reason = "each test program uses its part")]
pub(crate) fn as_user_by(user: &str, wrapper: &[&str], test: &str) -> String {
    let place = Place::of(user);
    let program = place.copy(&std::env::current_exe().unwrap(), "tests");
    let mut words: Vec<OsString> = wrapper.iter().map(OsString::from).collect();
    words.push(program.into());
    words.extend(["--exact", test, "--nocapture", "--test-threads=1"].map(OsString::from));
    let said = place.run(&words);
    assert!(said.contains("1 passed"), "no test is called {test}:\n{said}");
    said
}

/// Folders of another user's, with what he may run.
pub(crate) struct Place {
    user: String,
    temp: tempfile::TempDir,
    own: PathBuf,
}

impl Place {
    #[allow(dead_code, reason = "each test program uses its part")]
    pub(crate) fn of_nobody() -> Place {
        Place::of(NOBODY)
    }

    fn of(user: &str) -> Place {
        use std::os::unix::fs::PermissionsExt;
        // Where that user may pass, unlike the folders of cargo.
        let temp = tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir().unwrap();
        let mut place = Place { user: user.to_owned(), own: PathBuf::new(), temp };
        place.own = place.folder("own");
        place
    }

    /// Makes a folder that is the user's own.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let (folder, id) = (self.temp.path().join(name), self.user.parse().ok());
        std::fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, id, id).unwrap();
        folder
    }

    /// Puts a file where the user can run it, and gives its place.
    pub(crate) fn copy(&self, file: &Path, name: &str) -> PathBuf {
        let place = self.temp.path().join(name);
        std::fs::copy(file, &place).unwrap_or_else(|error| panic!("{}: {error}: cargo xtask test", file.display()));
        place
    }

    /// Runs a command as the user, which must succeed and leave nothing. Gives what it wrote.
    pub(crate) fn run(&self, words: &[OsString]) -> String {
        let agent = self.copy(agent(), "agent");
        let output = Command::new("setpriv")
            .args(["--reuid", &self.user, "--regid", &self.user, "--clear-groups", "--inh-caps=-all", "--"])
            .args(words)
            .env(AGENT, &agent)
            .env(OTHER_USER, "1")
            .env("TMPDIR", &self.own)
            .env("HOME", &self.own)
            .current_dir(&self.own)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "as user {}:\n{said}", self.user);
        let left: Vec<_> = std::fs::read_dir(&self.own).unwrap().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        said
    }
}
