//! What is kept of a running stack, for other calls of this program.

use std::{
    fs,
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use sandbox_core::Owner;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{environment, failure::Failure};

/// A running stack.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Running {
    /// The version of this form.
    pub(super) schema: String,
    pub(super) project: String,
    pub(super) id: String,
    pub(super) provider: String,
    /// The process that runs it.
    pub(super) pid: u32,
    pub(super) start_time: u64,
    /// From which its sandboxes are found again; none where the provider cannot.
    pub(super) descriptor: Option<Value>,
}

/// The folder of a stack.
pub(super) struct Folder(PathBuf);

const RUNNING: &str = "running.json";
/// While this file is there, the process that runs the stack is asked to stop it.
const STOP: &str = "stop";

impl Folder {
    /// The folder of a project. Not made.
    pub(super) fn of(project: &str) -> Result<Self, Failure> {
        let is_safe = !project.is_empty() && project.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        if !is_safe {
            return Err(
                Failure::usage("the name of a project has only letters, digits, - and _").with_field("--project-name")
            );
        }
        let home = environment::state_home().ok_or_else(|| {
            Failure::usage("there is no place for the state of a stack: neither XDG_STATE_HOME nor HOME is set")
        })?;
        Ok(Self(home.join("compose").join(project)))
    }

    pub(super) fn make(&self) -> Result<(), Failure> {
        let mut builder = fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(self.0.join("logs"))
            .map_err(|error| self.failure("make", &self.0, &error))
    }

    fn failure(&self, what: &str, path: &Path, error: &std::io::Error) -> Failure {
        Failure::infrastructure(format!("cannot {what} {}: {error}", path.display()))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The log of one sandbox.
    pub(super) fn log(&self, service: &str, replica: u32) -> PathBuf {
        self.0.join("logs").join(format!("{service}-{replica}.log"))
    }

    /// Writes a file as a whole.
    pub(super) fn write(&self, name: &str, value: &impl Serialize) -> Result<(), Failure> {
        let path = self.path(name);
        let part = self.path(&format!(".{name}.{}", std::process::id()));
        let text = serde_json::to_vec(value).map_err(|error| Failure::infrastructure(format!("no JSON: {error}")))?;
        let written = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part);
        written
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&part, &path))
            .map_err(|error| self.failure("write", &path, &error))
    }

    /// Reads a file; none where there is none, or one that is no such JSON.
    pub(super) fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&fs::read(self.path(name)).ok()?).ok()
    }

    pub(super) fn running(&self) -> Option<Running> {
        self.read(RUNNING)
    }

    /// The running stack, or the failure that there is none.
    pub(super) fn expect_running(&self, project: &str) -> Result<Running, Failure> {
        self.running().ok_or_else(|| {
            Failure::failed("compose.not_running", format!("project {project:?} is not running"))
                .with_help("start it with: sandboxctl compose up")
        })
    }

    pub(super) fn set_running(&self, running: &Running) -> Result<(), Failure> {
        self.write(RUNNING, running)
    }

    pub(super) fn ask_to_stop(&self) -> Result<(), Failure> {
        self.write(STOP, &true)
    }

    pub(super) fn is_asked_to_stop(&self) -> bool {
        self.path(STOP).exists()
    }

    /// Removes everything.
    pub(super) fn remove(&self) -> Result<(), Failure> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(self.failure("remove", &self.0, &error)),
            _ => Ok(()),
        }
    }
}

impl Running {
    /// Whether the process that runs it is alive.
    pub(super) fn is_owned(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let start_time =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(19)?.parse().ok());
        start_time == Some(self.start_time)
    }
}

/// This process, as an owner.
pub(super) fn own_start_time() -> u64 {
    match sandbox_api::process_owner() {
        Owner::Process { start_time, .. } => start_time,
        _ => 0,
    }
}
