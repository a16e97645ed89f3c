//! Builds the fixtures, as their authors would: each in a workspace of its own.
//!
//! They share one target folder, so that what they all need is built once. That is safe only because no two of their
//! packages have the same name: cargo mixes up equal ones of different workspaces (it was seen to hand out the wrong
//! library). It is apart from the target folder of this workspace, whose cargo may hold its lock.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// How a fixture is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// For tests.
    Dev,
    /// For measurements.
    Release,
}

impl Profile {
    fn folder(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }
}

/// A provider in `tests/fixtures`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fixture {
    /// Provider `acme`, which behaves.
    Good,
    /// Provider `second`, which has other settings.
    Second,
    /// Provider `misbehaving`.
    Misbehaving,
    /// Built with `panic = "abort"`.
    PanicAbort,
    /// Provider `acme` in another edition and with another allocator.
    Foreign,
}

impl Fixture {
    fn folder(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Second => "second",
            Self::Misbehaving => "misbehaving",
            Self::PanicAbort => "panic-abort",
            Self::Foreign => "foreign",
        }
    }

    fn slot(self, profile: Profile) -> &'static OnceLock<PathBuf> {
        static BUILT: [OnceLock<PathBuf>; 10] = [const { OnceLock::new() }; 10];
        &BUILT[self as usize * 2 + profile as usize]
    }

    /// The plugin file, built if it is not, or if something has changed.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn path(self) -> PathBuf {
        self.path_in(Profile::Dev)
    }

    /// As `path`, in the profile.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn path_in(self, profile: Profile) -> PathBuf {
        let built = self.slot(profile).get_or_init(|| {
            let folder = repository().join("tests/fixtures").join(self.folder());
            let output = cargo(&["build"], &folder, profile, &[]);
            output.join(format!("libacme_{}.so", self.folder().replace('-', "_")))
        });
        built.clone()
    }
}

/// Runs a command of cargo that builds something in a workspace, and gives the folder of its results. `compiler` is for
/// the compiler of the last crate only.
///
/// # Panics
/// When it fails, with what cargo said.
pub(crate) fn cargo(arguments: &[&str], workspace: &Path, profile: Profile, compiler: &[&str]) -> PathBuf {
    let _lock = lock();
    // The versions of the main workspace: nothing is resolved again, so nothing is asked of a registry.
    update(&workspace.join("Cargo.lock"), &fs::read(repository().join("Cargo.lock")).expect("there is a lock file"));
    let target = fixtures_folder().join("target");
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(workspace).args(arguments).arg("--quiet").env("CARGO_TARGET_DIR", &target);
    if profile == Profile::Release {
        command.arg("--release");
    }
    if !compiler.is_empty() {
        command.arg("--").args(compiler);
    }
    // What the cargo that runs this test has set for its own children, and what would build something else elsewhere.
    for (name, _) in std::env::vars_os() {
        let own = name.to_string_lossy().into_owned();
        let changes_builds = ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"].contains(&own.as_str());
        if own.starts_with("CARGO_PKG_") || own.starts_with("CARGO_MANIFEST_") || changes_builds {
            command.env_remove(name);
        }
    }
    let output = command.output().expect("cargo can be started");
    assert!(
        output.status.success(),
        "{} could not be built:\n{}",
        workspace.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    target.join(profile.folder())
}

/// One build at a time, also of other test programs.
pub(crate) fn lock() -> File {
    fs::create_dir_all(fixtures_folder()).expect("the target folder can be written");
    let file = File::create(fixtures_folder().join("lock")).expect("the target folder can be written");
    file.lock().expect("the lock can be taken");
    file
}

/// Writes a file only if it is another, so that cargo sees what has changed.
pub(crate) fn update(path: &Path, contents: &[u8]) {
    let stamp = path.with_extension("given");
    // Cargo writes its lock file anew; what it was made from is what counts.
    let given = if path.ends_with("Cargo.lock") { &stamp } else { path };
    if path.exists() && fs::read(given).is_ok_and(|old| old == contents) {
        return;
    }
    fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("the folder can be made");
    fs::write(path, contents).expect("the file can be written");
    if given != path {
        fs::write(given, contents).expect("the file can be written");
    }
}

/// The workspace.
///
/// # Panics
/// Never: this package is in its folder `tests/abi`.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("tests/abi is two folders deep").to_owned()
}

/// Where everything about fixtures is kept: below the target folder that this program came from.
///
/// # Panics
/// When this program is in no target folder.
pub fn fixtures_folder() -> PathBuf {
    let program = std::env::current_exe().expect("a program has a path");
    let target = program.ancestors().find(|folder| folder.join("CACHEDIR.TAG").exists());
    target.expect("this program was built by cargo").join("fixtures")
}
