//! A provider of its own for every test.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sandbox_core::{
    CaptureLimits, ExecOutcome, ExecRequest, SandboxExecResult, SandboxHandle, SandboxProvider, SandboxSpec, from_json,
    serde_json::{Value, json},
};
use sandbox_provider_local::LocalProvider;

use crate::agent::agent;

pub(crate) struct Local {
    pub(crate) provider: LocalProvider,
    temp: tempfile::TempDir,
}

/// Makes a provider of isolated sandboxes with these settings and a root of its own.
pub(crate) fn isolated(settings: Value) -> Local {
    let temp = tempfile::tempdir().unwrap();
    Local { provider: provider(temp.path(), settings), temp }
}

/// A provider of isolated sandboxes with its root in this folder.
pub(crate) fn provider(folder: &Path, mut settings: Value) -> LocalProvider {
    settings["workspace_root"] = json!(folder.join("root"));
    settings["isolation"] = json!("namespaces");
    settings["state_root"] = json!(folder.join("state"));
    if settings.get("agent_path").is_none() {
        settings["agent_path"] = json!(agent());
    }
    LocalProvider::new(from_json(settings, "settings").unwrap()).unwrap()
}

impl Local {
    pub(crate) fn temp(&self) -> &Path {
        self.temp.path()
    }

    /// The working folder as this machine sees it.
    pub(crate) fn work(&self, handle: &SandboxHandle) -> PathBuf {
        self.temp().join("root/.inside").join(&handle.sandbox_id)
    }

    /// Folders of sandboxes and records that are there.
    pub(crate) fn remains(&self) -> Vec<String> {
        remains(self.temp())
    }

    pub(crate) async fn create(&self) -> SandboxHandle {
        self.create_with(SandboxSpec::default()).await
    }

    pub(crate) async fn create_with(&self, spec: SandboxSpec) -> SandboxHandle {
        self.provider.create(spec).await.unwrap()
    }

    pub(crate) async fn run(&self, handle: &SandboxHandle, request: ExecRequest) -> SandboxExecResult {
        run(&self.provider, handle, request).await
    }

    /// The output of a script that must succeed, without the last line end.
    pub(crate) async fn text(&self, handle: &SandboxHandle, script: &str) -> String {
        let result = self.run(handle, ExecRequest::shell(script)).await;
        assert_eq!(*result.outcome(), ExecOutcome::Exited(0), "{script}: {}", result.stderr_text());
        result.stdout_text().trim_end_matches('\n').to_owned()
    }
}

pub(crate) async fn run(provider: &LocalProvider, handle: &SandboxHandle, request: ExecRequest) -> SandboxExecResult {
    provider.exec(handle, request).await.unwrap().collect(CaptureLimits::default()).await.unwrap()
}

pub(crate) fn remains(folder: &Path) -> Vec<String> {
    let names = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    };
    let mut all = names(folder.join("root"));
    all.retain(|name| name != ".records" && name != ".inside");
    all.extend(names(folder.join("root/.inside")));
    all.extend(names(folder.join("root/.records")));
    all.extend(names(folder.join("state")));
    all
}

/// The socket of a sandbox that ends with its program.
pub(crate) fn socket(id: &str) -> PathBuf {
    PathBuf::from("/run/sandbox-local").join(format!("{id}.sock"))
}

/// Asks again and again until the answer is yes.
pub(crate) async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_true() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Folders of cgroups with this name, in every hierarchy.
pub(crate) fn cgroups(name: &str) -> Vec<PathBuf> {
    fn search(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            match entry.file_name() == name {
                true => found.push(entry.path()),
                false => search(&entry.path(), name, found),
            }
        }
    }
    let mut found = Vec::new();
    search(Path::new("/sys/fs/cgroup"), name, &mut found);
    found
}

/// Processes of this machine whose arguments hold a text.
pub(crate) fn processes_with(text: &str) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let holds = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| line.windows(text.len()).any(|window| window == text.as_bytes()))
    };
    pids.filter(|pid| holds(pid) && *pid != std::process::id()).collect()
}

/// Digits that no other test uses: a number of seconds to sleep that can be found again.
pub(crate) fn marker() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(1);
    format!("3{:07}.{:04}", std::process::id() % 10_000_000, NEXT.fetch_add(1, Ordering::Relaxed))
}
