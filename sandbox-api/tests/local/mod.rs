//! The real local provider, isolated, in this process.
#![allow(dead_code, unreachable_pub, reason = "every test program uses a part of it")]

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, OnceLock},
};

use sandbox_api::{AsyncSandbox, Ownership, SandboxProvider, SandboxSpec, serde_json::json};

/// The agent's file: what `SANDBOX_AGENT` names, else it is built. Cargo's own lock lets one build it at a time.
pub fn agent() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        if let Some(agent) = std::env::var_os("SANDBOX_AGENT") {
            return agent.into();
        }
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "sandbox-agent"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .stdin(Stdio::null())
            .status()
            .unwrap();
        assert!(built.success(), "the agent cannot be built");
        let target = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
        target.join("sandbox-agent")
    })
}

/// A provider with a folder of its own.
pub struct Local {
    pub provider: Arc<dyn SandboxProvider>,
    pub folder: tempfile::TempDir,
}

impl Local {
    pub fn isolated() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let settings = json!({
            "isolation": "namespaces",
            "workspace_root": folder.path().join("root"),
            "agent_path": agent(),
        });
        let provider = sandbox_provider_local::plugin_entry().new_provider(&settings).unwrap();
        Self { provider, folder }
    }

    /// A started sandbox.
    pub async fn start(&self) -> AsyncSandbox {
        self.start_with(SandboxSpec::default()).await
    }

    pub async fn start_with(&self, spec: SandboxSpec) -> AsyncSandbox {
        let sandbox = AsyncSandbox::new(self.provider.clone()).with_ownership(Ownership::Shared);
        sandbox.start(Some(spec)).await.unwrap();
        sandbox
    }
}
