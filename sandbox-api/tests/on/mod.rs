//! Where a case runs: on every provider, linked into this program and loaded.
#![allow(dead_code, unreachable_pub, unused_imports, unused_macros, reason = "every test program uses a part of it")]

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use opensandbox_double::{Control, ControlOptions};
use plugin_host::{BuiltinSource, PluginHost};
use sandbox_api::{
    AsyncSandbox, Ownership, SandboxProvider, SandboxSpec,
    serde_json::{Value, json},
};

use sandbox_daytona_double::Double;

use crate::local;

/// Where `cargo xtask` puts the address of its engine, and the folder of the plugins.
const ENGINE: &str = "SANDBOX_TEST_DOCKER";
const PLUGINS: &str = "SANDBOX_PROVIDER_DIR";

/// The key of the stand-in for an OpenSandbox server.
const KEY: &str = "key-of-these-tests";

/// A provider, and how it comes into this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    LinkedLocal,
    LoadedLocal,
    LinkedDocker,
    LoadedDocker,
    /// Without isolation and without an agent: commands and files, and nothing else.
    BareLocal,
    /// On a stand-in for the service.
    LinkedDaytona,
    LoadedDaytona,
    LinkedOpensandbox,
    LoadedOpensandbox,
}

/// A program that draws on a terminal, and a sandbox that has it.
pub(crate) struct ScreenProgram {
    pub(crate) spec: SandboxSpec,
    pub(crate) command: &'static str,
    /// What an editor shows while it inserts, and when it takes commands again.
    pub(crate) modes: Option<[&'static str; 2]>,
}

impl On {
    /// A provider with a folder of its own.
    pub(crate) fn place(self) -> Place {
        self.place_on(Backend::None)
    }

    /// The same, also for those that need a service, which is started.
    pub(crate) async fn ready(self) -> Place {
        let backend = match self {
            Self::LinkedDaytona | Self::LoadedDaytona => Backend::Daytona(Double::start().await.unwrap()),
            Self::LinkedOpensandbox | Self::LoadedOpensandbox => {
                let options =
                    ControlOptions { api_key: Some(KEY.to_owned()), containers: true, ..ControlOptions::default() };
                Backend::Opensandbox(Box::new(Control::start(options).await.unwrap()))
            }
            _ => Backend::None,
        };
        self.place_on(backend)
    }

    fn place_on(self, backend: Backend) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let settings = self.settings(folder.path(), &backend);
        let provider = match self {
            Self::LinkedLocal | Self::BareLocal => sandbox_provider_local::plugin_entry().new_provider(&settings),
            Self::LinkedDocker => sandbox_provider_docker::plugin_entry().new_provider(&settings),
            Self::LinkedDaytona => sandbox_provider_daytona::plugin_entry().new_provider(&settings),
            Self::LinkedOpensandbox => sandbox_provider_opensandbox::plugin_entry().new_provider(&settings),
            Self::LoadedLocal | Self::LoadedDocker | Self::LoadedDaytona | Self::LoadedOpensandbox => {
                let host = PluginHost::builder()
                    .builtin(self.name(), BuiltinSource::Installed)
                    .provider_dirs([plugins()])
                    .build()
                    .unwrap();
                host.create_provider(&json!({self.name(): settings}))
            }
        };
        Place { on: self, provider: provider.unwrap(), settings, backend, _folder: folder }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::LinkedLocal | Self::LoadedLocal | Self::BareLocal => "local",
            Self::LinkedDocker | Self::LoadedDocker => "docker",
            Self::LinkedDaytona | Self::LoadedDaytona => "daytona",
            Self::LinkedOpensandbox | Self::LoadedOpensandbox => "opensandbox",
        }
    }

    fn settings(self, folder: &Path, backend: &Backend) -> Value {
        match (self.name(), backend) {
            ("local", _) if self == Self::BareLocal => {
                json!({"isolation": "none", "workspace_root": folder.join("root")})
            }
            ("local", _) => json!({
                "isolation": "namespaces",
                "workspace_root": folder.join("root"),
                "agent_path": local::agent(),
            }),
            ("docker", _) => {
                let host = std::env::var(ENGINE).unwrap_or_else(|_| {
                    panic!("needs an engine of its own: cargo xtask engine -- cargo nextest run -p sandbox-api")
                });
                json!({
                    "host": host,
                    "agent_path": plugins().join(format!("sandbox-agent-{}", std::env::consts::ARCH)),
                    "run_dir": folder.join("run"),
                    "use_docker_config": false,
                    "pull": "never",
                })
            }
            (_, Backend::Daytona(double)) => {
                json!({"connection": {"api_key": sandbox_daytona_double::KEY, "api_url": format!("{}/api", double.url())}})
            }
            (_, Backend::Opensandbox(control)) => json!({
                "connection": {"domain": control.address(), "api_key": KEY, "use_server_proxy": true},
                "create": {"default_image": "double", "connect_poll_s": 0.2},
            }),
            _ => panic!("{self:?} needs its service: ready()"),
        }
    }

    fn spec(self) -> SandboxSpec {
        match self.name() {
            "docker" => SandboxSpec::image("sandbox-test/debian:1"),
            "daytona" => SandboxSpec::image("debian:12"),
            _ => SandboxSpec::default(),
        }
    }

    /// A real vim where there is one, else that of busybox.
    pub(crate) fn editor(self) -> ScreenProgram {
        match self.name() {
            "docker" => ScreenProgram {
                spec: busybox(),
                command: "exec vi /tmp/f.txt",
                // Its escape key and what comes right behind it are one key.
                modes: Some(["I /tmp/f.txt", "- /tmp/f.txt"]),
            },
            _ => {
                let command = "exec vim.basic -u NONE -n --not-a-term /tmp/f.txt";
                ScreenProgram { spec: self.spec(), command, modes: None }
            }
        }
    }

    pub(crate) fn top(self) -> ScreenProgram {
        let spec = if self.name() == "docker" { busybox() } else { self.spec() };
        ScreenProgram { spec, command: "exec top", modes: None }
    }
}

fn busybox() -> SandboxSpec {
    SandboxSpec::image("sandbox-test/busybox:1")
}

/// The folder of the plugins and of the agent that is shipped with them.
pub(crate) fn plugins() -> PathBuf {
    let beside = || std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("providers");
    let folder = std::env::var_os(PLUGINS).map_or_else(beside, PathBuf::from);
    assert!(folder.is_dir(), "{} is missing: cargo xtask build-plugins", folder.display());
    folder
}

/// What a provider of a service talks to; ended with this value.
enum Backend {
    None,
    Daytona(Double),
    Opensandbox(Box<Control>),
}

/// A provider that is there for one case.
pub(crate) struct Place {
    on: On,
    pub(crate) provider: Arc<dyn SandboxProvider>,
    settings: Value,
    backend: Backend,
    _folder: tempfile::TempDir,
}

impl Place {
    /// What another process makes the same provider of.
    pub(crate) fn config(&self) -> Value {
        json!({self.on.name(): self.settings})
    }

    pub(crate) fn spec(&self) -> SandboxSpec {
        self.on.spec()
    }

    /// Ends the service that it talks to, and fails if a sandbox is left there.
    pub(crate) async fn end(self) {
        self.provider.aclose().await.unwrap();
        match self.backend {
            Backend::None => {}
            Backend::Daytona(double) => {
                assert_eq!(double.sandboxes().await, [], "sandboxes that are left");
                double.stop().await;
            }
            Backend::Opensandbox(control) => {
                assert!(control.ids().is_empty(), "sandboxes are left: {:?}", control.ids());
                control.end().await;
            }
        }
    }

    /// A started sandbox.
    pub(crate) async fn start(&self) -> AsyncSandbox {
        self.start_with(self.spec()).await
    }

    pub(crate) async fn start_with(&self, spec: SandboxSpec) -> AsyncSandbox {
        let sandbox = AsyncSandbox::new(self.provider.clone()).with_ownership(Ownership::Shared);
        sandbox.start(Some(spec)).await.unwrap();
        sandbox
    }
}

/// Makes a test of each case for each provider that has terminals.
macro_rules! on_each {
    ($($case:ident),+ $(,)?) => {
        $crate::on::on_each! { @in linked_local, LinkedLocal: $($case),+ }
        $crate::on::on_each! { @in loaded_local, LoadedLocal: $($case),+ }
        $crate::on::on_each! { @in linked_docker, LinkedDocker: $($case),+ }
        $crate::on::on_each! { @in loaded_docker, LoadedDocker: $($case),+ }
    };
    (@every $($case:ident),+ $(,)?) => {
        $crate::on::on_each! { $($case),+ }
        $crate::on::on_each! { @in bare_local, BareLocal: $($case),+ }
        $crate::on::on_each! { @in linked_daytona, LinkedDaytona: $($case),+ }
        $crate::on::on_each! { @in loaded_daytona, LoadedDaytona: $($case),+ }
        $crate::on::on_each! { @in linked_opensandbox, LinkedOpensandbox: $($case),+ }
        $crate::on::on_each! { @in loaded_opensandbox, LoadedOpensandbox: $($case),+ }
    };
    (@in $place:ident, $on:ident: $($case:ident),+) => {
        mod $place {
            $(
                #[test]
                fn $case() {
                    $crate::on::run(|| super::$case($crate::on::On::$on));
                }
            )+
        }
    };
}

pub(crate) use on_each;

/// Runs a case to its end.
pub(crate) fn run<C: Future<Output = ()>>(case: impl FnOnce() -> C) {
    tokio::runtime::Runtime::new().unwrap().block_on(case());
}
