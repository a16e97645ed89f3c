//! A container as the engine describes it.

use std::{collections::HashMap, net::IpAddr, path::PathBuf};

use bollard::models::{ContainerInspectResponse, ContainerStateStatusEnum};
use sandbox_core::{Result, SandboxStatus};

use crate::{
    engine::Engine,
    error,
    labels::{Labels, now_ms, pool_identity},
    plan::FOLDER,
    pool::read_record,
};

/// The code of what SIGKILL ended.
const KILLED: i64 = 137;

/// What later calls need of it.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) container: String,
    /// None: not a sandbox of this system.
    pub(crate) labels: Option<Labels>,
    /// It was made ahead.
    is_pooled: bool,
    pub(crate) status: SandboxStatus,
    /// The number of its first process on the engine's machine; 0 when it does not run.
    pub(crate) pid: i32,
    oom_killed: bool,
    exit_code: i64,
    /// The folder of this machine that it shares with its agent.
    pub(crate) run_folder: Option<PathBuf>,
    /// Port inside → address and port of the host.
    pub(crate) published: HashMap<u16, Vec<(String, u16)>>,
    /// Its addresses, by network.
    pub(crate) addresses: Vec<(String, IpAddr)>,
    pub(crate) cap_add: Vec<String>,
    pub(crate) is_privileged: bool,
    pub(crate) shm_bytes: i64,
}

/// The container of this name or id; none if there is none.
pub(crate) async fn find(engine: &Engine, container: &str) -> Result<Option<Found>> {
    match engine.docker().await?.inspect_container(container, None).await {
        Ok(inspected) => {
            let name = inspected.name.as_deref().unwrap_or_default().trim_start_matches('/').to_owned();
            let mut found = Found::new(inspected);
            if found.is_pooled {
                found.labels = read_record(engine, &name).await?;
            }
            Ok(Some(found))
        }
        Err(error) if error::is_missing(&error) => Ok(None),
        Err(error) => Err(error::engine("looking at the sandbox", error)),
    }
}

impl Found {
    fn new(inspected: ContainerInspectResponse) -> Self {
        let state = inspected.state.unwrap_or_default();
        let labels = inspected.config.and_then(|config| config.labels).unwrap_or_default();
        let settings = inspected.network_settings.unwrap_or_default();
        let published = settings.ports.unwrap_or_default().into_iter().filter_map(|(port, bindings)| {
            let inside = port.strip_suffix("/tcp")?.parse().ok()?;
            let bindings = bindings.unwrap_or_default().into_iter();
            let outside =
                bindings.filter_map(|one| Some((one.host_ip.unwrap_or_default(), one.host_port?.parse().ok()?)));
            Some((inside, outside.collect()))
        });
        let addresses = settings.networks.unwrap_or_default().into_iter().filter_map(|(name, endpoint)| {
            let texts = [endpoint.ip_address, endpoint.global_ipv6_address];
            let address = texts.into_iter().flatten().find_map(|text| text.parse().ok())?;
            Some((name, address))
        });
        let shared = inspected
            .mounts
            .unwrap_or_default()
            .into_iter()
            .find(|mount| mount.destination.as_deref() == Some(FOLDER) && mount.typ.as_deref() == Some("bind"));
        let host = inspected.host_config.unwrap_or_default();
        Self {
            container: inspected.id.unwrap_or_default(),
            labels: Labels::read(&labels),
            is_pooled: pool_identity(&labels).is_some(),
            status: status(state.status),
            pid: state.pid.and_then(|pid| i32::try_from(pid).ok()).unwrap_or(0),
            oom_killed: state.oom_killed.unwrap_or(false),
            exit_code: state.exit_code.unwrap_or(0),
            run_folder: shared.and_then(|mount| mount.source).map(PathBuf::from),
            published: published.collect(),
            addresses: addresses.collect(),
            cap_add: host.cap_add.unwrap_or_default(),
            is_privileged: host.privileged.unwrap_or(false),
            shm_bytes: host.shm_size.unwrap_or(0),
        }
    }

    /// True if what ended it was that it ran out of memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        // The engine remembers every kill inside: alone it says nothing of the end.
        self.exit_code == KILLED && self.oom_killed
    }

    /// True if it was killed, by whoever.
    pub(crate) fn is_killed(&self) -> bool {
        self.exit_code == KILLED
    }

    /// Why it does not run any more, in one line.
    pub(crate) fn ending(&self) -> String {
        let expires_at_ms = self.labels.as_ref().and_then(|labels| labels.identity.expires_at_ms);
        match self.exit_code {
            KILLED if self.is_out_of_memory() => "it was killed (137): it ran out of memory".to_owned(),
            0 if expires_at_ms.is_some_and(|at| at <= now_ms()) => "it has expired: its ttl passed".to_owned(),
            KILLED => "it was killed (137) by somebody else".to_owned(),
            code => format!("its main process ended with code {code}"),
        }
    }
}

fn status(state: Option<ContainerStateStatusEnum>) -> SandboxStatus {
    use ContainerStateStatusEnum as State;
    match state {
        Some(State::RUNNING) => SandboxStatus::Running,
        Some(State::PAUSED) => SandboxStatus::Paused,
        Some(State::CREATED | State::RESTARTING) => SandboxStatus::Starting,
        Some(State::EXITED | State::DEAD | State::REMOVING) => SandboxStatus::Stopped,
        _ => SandboxStatus::Unknown,
    }
}
