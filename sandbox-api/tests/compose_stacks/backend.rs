//! The two real backends, and what is left of a stack on them.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_api::{
    SandboxProvider,
    compose::{AsyncSandboxCompose, ComposeOptions, ComposeProject},
    serde_json::json,
};
use sandbox_core::ListFilter;

/// Where `cargo xtask` puts the address of its engine.
const VARIABLE: &str = "SANDBOX_TEST_DOCKER";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Docker,
    Local,
}

pub(crate) struct Backend {
    pub(crate) kind: Kind,
    pub(crate) provider: Arc<dyn SandboxProvider>,
    pub(crate) folder: PathBuf,
    // Removed at the end, unless another process made it.
    _own: Option<tempfile::TempDir>,
}

/// The engine's address.
pub(crate) fn engine() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!("these tests need an engine: cargo xtask engine -- cargo nextest run -p sandbox-api")
    })
}

/// The agent's file, as it was built with the plugins: static, so that it runs in any image.
fn agent() -> PathBuf {
    let name = format!("sandbox-agent-{}", std::env::consts::ARCH);
    let agent = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("providers").join(name);
    assert!(agent.is_file(), "{} is missing: cargo xtask build-plugins", agent.display());
    agent
}

impl Backend {
    pub(crate) fn new(kind: Kind) -> Self {
        let own = tempfile::tempdir().unwrap();
        let mut backend = Self::in_folder(kind, own.path());
        backend._own = Some(own);
        backend
    }

    /// As another process finds it.
    pub(crate) fn in_folder(kind: Kind, folder: &Path) -> Self {
        let provider = match kind {
            Kind::Docker => sandbox_provider_docker::plugin_entry().new_provider(&json!({
                "host": engine(), "agent_path": agent(), "use_docker_config": false, "run_dir": folder.join("run"),
                "pull": "never",
            })),
            Kind::Local => sandbox_provider_local::plugin_entry().new_provider(&json!({
                "isolation": "namespaces", "workspace_root": folder.join("root"), "agent_path": agent(),
            })),
        };
        Self { kind, provider: provider.unwrap(), folder: folder.to_owned(), _own: None }
    }

    /// A stack of this document. `IMAGE` in it becomes busybox; a local sandbox has it anyway.
    pub(crate) fn stack(&self, text: &str) -> AsyncSandboxCompose {
        self.project("stack", text)
    }

    /// The same with a name.
    pub(crate) fn project(&self, project: &str, text: &str) -> AsyncSandboxCompose {
        let image = match self.kind {
            Kind::Docker => "image: sandbox-test/busybox:1, ",
            Kind::Local => "",
        };
        let folder = tempfile::tempdir_in(&self.folder).unwrap();
        std::fs::write(folder.path().join("compose.yaml"), text.replace("IMAGE ", image)).unwrap();
        let mut options = ComposeOptions::default();
        options.working_directory = Some(folder.path().to_owned());
        options.project_name = Some(project.to_owned());
        let loaded = ComposeProject::load(&options);
        let project = loaded.project.unwrap_or_else(|| panic!("{}", loaded.report));
        AsyncSandboxCompose::new(self.provider.clone(), project).with_poll_interval_s(0.02).with_timeout_s(300.0)
    }

    /// Starts it; a failure is told with what the services wrote.
    pub(crate) async fn up(&self, text: &str) -> AsyncSandboxCompose {
        let stack = self.stack(text);
        if let Err(error) = stack.start().await {
            let names = stack.plan().0.map(|plan| plan.services).unwrap_or_default();
            let logs =
                names.iter().filter_map(|one| Some((one.name.clone(), stack.logs(&one.name, 1).ok()?.tail(500))));
            panic!("{error}\nhelp: {:?}\nlogs: {:?}", error.help(), logs.collect::<Vec<_>>());
        }
        stack
    }

    /// Everything that carries the id of a stack: sandboxes, networks, volumes.
    pub(crate) async fn left(&self, id: &str) -> Vec<String> {
        let of = |metadata: &std::collections::BTreeMap<String, String>| {
            metadata.get("sandbox.compose.id").is_some_and(|value| value == id)
        };
        let lister = self.provider.as_list_sweep().unwrap();
        let all = lister.list(ListFilter::default()).await.unwrap();
        let sandboxes = all.into_iter().filter(|one| of(&one.metadata)).map(|one| one.handle.sandbox_id);
        let networks = self.provider.as_networks().unwrap().list_networks().await.unwrap();
        let networks = networks.into_iter().filter(|one| of(&one.metadata)).map(|one| one.name);
        let volumes = self.provider.as_volumes().unwrap().list_volumes().await.unwrap();
        let volumes = volumes.into_iter().filter(|one| of(&one.metadata)).map(|one| one.name);
        sandboxes.chain(networks).chain(volumes).collect()
    }

    /// Names of all sandboxes, networks and volumes.
    pub(crate) async fn names(&self) -> std::collections::BTreeSet<String> {
        let networks = self.provider.as_networks().unwrap().list_networks().await.unwrap();
        let volumes = self.provider.as_volumes().unwrap().list_volumes().await.unwrap();
        let all = self.provider.as_list_sweep().unwrap().list(ListFilter::default()).await.unwrap();
        let sandboxes = all.into_iter().map(|one| one.name.unwrap_or_default());
        let names = networks.into_iter().map(|one| one.name).chain(volumes.into_iter().map(|one| one.name));
        names.chain(sandboxes).collect()
    }

    /// Stops a stack, and fails unless nothing of it is left.
    pub(crate) async fn down(&self, stack: AsyncSandboxCompose) {
        let id = stack.id().unwrap();
        stack.stop().await.unwrap();
        assert_eq!(self.left(&id).await, Vec::<String>::new());
    }
}

/// The output of a script in a service that must succeed, without the last line end.
pub(crate) async fn text(stack: &AsyncSandboxCompose, service: &str, script: &str) -> String {
    let result = stack.service(service).unwrap().run(script).await.unwrap();
    assert_eq!(result.return_code(), 0, "{service}: {script}: {}", result.stderr_text());
    result.stdout_text().trim_end_matches('\n').to_owned()
}

/// The code of a script in a service.
pub(crate) async fn code(stack: &AsyncSandboxCompose, service: &str, script: &str) -> i32 {
    stack.service(service).unwrap().run(script).await.unwrap().return_code()
}

/// The docker command on the tests' engine: somebody else's hand.
pub(crate) fn by_hand(arguments: &[&str]) -> String {
    let output =
        Command::new("docker").args(["--host", &engine()]).args(arguments).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "docker {}: {}", arguments[0], String::from_utf8_lossy(&output.stderr));
    text
}

/// Asks again and again until the answer is yes.
pub(crate) async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_true().await {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The same test on both backends.
macro_rules! on_both {
    ($($name:ident: $scenario:ident;)*) => { $(
        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_docker() {
                super::$scenario(&crate::backend::Backend::new(crate::backend::Kind::Docker)).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn on_local() {
                super::$scenario(&crate::backend::Backend::new(crate::backend::Kind::Local)).await;
            }
        }
    )* };
}
pub(crate) use on_both;
