//! The connection to the engine, made when it is first needed, and what is known of it.

use std::{sync::Arc, time::Duration};

use bollard::{API_DEFAULT_VERSION, Docker};
use sandbox_core::{ErrorKind, Result, SandboxError};
use tokio::sync::OnceCell;

use crate::{config::DockerConfig, error, tls};

/// How often a first connection that breaks off is tried. One by TLS may, before the reason has arrived.
const CONNECT_TRIES: u32 = 3;
const CONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Storage drivers that can limit a container's own layer whatever lies below them.
const DRIVERS_WITH_LIMIT: [&str; 4] = ["btrfs", "zfs", "devicemapper", "windowsfilter"];

/// The engine of a provider.
pub(crate) struct Engine {
    pub(crate) config: Arc<DockerConfig>,
    docker: OnceCell<Docker>,
    facts: OnceCell<Facts>,
}

/// What does not change while the engine runs.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// `x86_64`, `aarch64`, …: as the agent's files are named.
    pub(crate) arch: String,
    /// Whether root inside is somebody else on the engine's machine, so that a folder of ours is not theirs.
    pub(crate) is_remapped: bool,
    /// Whether the size of a container's own layer can be limited.
    pub(crate) can_limit_disk: bool,
    /// The driver of container layers, for texts.
    pub(crate) storage_driver: String,
}

impl Engine {
    pub(crate) fn new(config: Arc<DockerConfig>) -> Self {
        Self { config, docker: OnceCell::new(), facts: OnceCell::new() }
    }

    /// The client, speaking the lower version of both sides. What failed is tried again by the next call.
    pub(crate) async fn docker(&self) -> Result<&Docker> {
        self.docker.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Docker> {
        let client = self.client()?.with_timeout(self.config.request_timeout());
        let mut tries = 1;
        loop {
            let connected = client.clone().negotiate_version().await;
            match connected.map_err(|error| error::engine("the engine cannot be reached", error)) {
                Err(error) if error.kind() == ErrorKind::Lost && tries < CONNECT_TRIES => tries += 1,
                connected => return connected,
            }
            tokio::time::sleep(CONNECT_PAUSE).await;
        }
    }

    /// True if the engine is reached by a socket of this machine.
    pub(crate) fn is_by_socket(&self) -> bool {
        self.config.host().starts_with("unix://")
    }

    fn client(&self) -> Result<Docker> {
        let host = self.config.host();
        // Overridden by the settings; the client wants whole seconds.
        let timeout_s = self.config.request_timeout().as_secs().max(1);
        let made = match self.config.tls() {
            _ if host.starts_with("unix://") => Docker::connect_with_unix(&host, timeout_s, API_DEFAULT_VERSION),
            Some(files) => {
                let address = host.split_once("://").map_or(host.as_str(), |(_, address)| address);
                return tls::client(address.trim_end_matches('/'), &files, timeout_s);
            }
            None => Docker::connect_with_http(&host, timeout_s, API_DEFAULT_VERSION),
        };
        made.map_err(|error| error::engine("the engine cannot be reached", error))
    }

    pub(crate) async fn facts(&self) -> Result<&Facts> {
        let ask = async {
            let docker = self.docker().await?;
            let info = docker.info().await.map_err(|error| error::engine("asking the engine what it is", error))?;
            let storage_driver = info.driver.unwrap_or_default();
            let status = info.driver_status.unwrap_or_default();
            let backing = status.iter().find(|pair| pair.first().is_some_and(|key| key == "Backing Filesystem"));
            let is_on_xfs = backing.and_then(|pair| pair.get(1)).is_some_and(|kind| kind == "xfs");
            let options = info.security_options.unwrap_or_default();
            Ok::<_, SandboxError>(Facts {
                arch: machine(&info.architecture.unwrap_or_default()).to_owned(),
                is_remapped: options.iter().any(|option| option.contains("userns") || option.contains("rootless")),
                can_limit_disk: DRIVERS_WITH_LIMIT.contains(&storage_driver.as_str())
                    || storage_driver == "overlay2" && is_on_xfs,
                storage_driver,
            })
        };
        self.facts.get_or_try_init(|| ask).await
    }
}

/// The name of an architecture as kernels have it, for one as images have it, or the other way round the same.
pub(crate) fn machine(arch: &str) -> &str {
    match arch {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        "386" => "i686",
        other => other,
    }
}
