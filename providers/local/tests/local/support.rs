//! A provider of its own for every test.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sandbox_core::{
    CaptureLimits, ExecOutcome, ExecRequest, SandboxExecResult, SandboxHandle, SandboxProvider, SandboxSpec, from_json,
    serde_json::{Value, json},
};
use sandbox_provider_local::{LocalConfig, LocalProvider};

pub(crate) struct Local {
    pub(crate) provider: LocalProvider,
    temp: tempfile::TempDir,
}

/// Makes a provider with these settings and a root of its own.
pub(crate) fn local(mut settings: Value) -> Local {
    let temp = tempfile::tempdir().unwrap();
    settings["workspace_root"] = json!(temp.path().join("root"));
    Local { provider: provider(settings), temp }
}

pub(crate) fn provider(mut settings: Value) -> LocalProvider {
    settings["isolation"] = json!("none");
    settings["state_root"] = json!("/nonexistent/state");
    LocalProvider::new(from_json::<LocalConfig>(settings, "settings").unwrap()).unwrap()
}

impl Local {
    pub(crate) fn temp(&self) -> &Path {
        self.temp.path()
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.temp.path().join("root")
    }

    pub(crate) fn workspace(&self, handle: &SandboxHandle) -> PathBuf {
        self.root().join(&handle.sandbox_id)
    }

    /// Folders of sandboxes and records that are there.
    pub(crate) fn remains(&self) -> Vec<String> {
        let names = |folder: PathBuf| {
            let entries = std::fs::read_dir(folder).into_iter().flatten();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let mut all = names(self.root());
        all.retain(|name| name != ".records");
        all.extend(names(self.root().join(".records")));
        all
    }

    pub(crate) async fn create(&self) -> SandboxHandle {
        self.provider.create(SandboxSpec::default()).await.unwrap()
    }

    pub(crate) async fn run(&self, handle: &SandboxHandle, request: ExecRequest) -> SandboxExecResult {
        run(&self.provider, handle, request).await
    }

    /// The output of a script that must succeed, without the last line end.
    pub(crate) async fn text(&self, handle: &SandboxHandle, script: &str) -> String {
        let result = self.run(handle, ExecRequest::shell(script)).await;
        assert_eq!(*result.outcome(), ExecOutcome::Exited(0), "{}", result.stderr_text());
        result.stdout_text().trim_end_matches('\n').to_owned()
    }
}

pub(crate) async fn run(provider: &LocalProvider, handle: &SandboxHandle, request: ExecRequest) -> SandboxExecResult {
    provider.exec(handle, request).await.unwrap().collect(CaptureLimits::default()).await.unwrap()
}

/// Asks again and again until the answer is yes.
pub(crate) async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Whether a process with this id is there, zombies not counted.
pub(crate) fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z')))
}
