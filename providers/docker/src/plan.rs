//! From a spec to what the engine is asked to make.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use bollard::models::{
    ContainerCreateBody, DeviceMapping, DeviceRequest, HostConfig, Mount, MountType, NetworkingConfig, PortBinding,
    ResourcesUlimits,
};
use sandbox_core::{ByteString, Env, NetworkMode, Result, SandboxError, SandboxSpec, VolumeMount, VolumeSource};
use serde_json::json;

use crate::{
    config::DockerConfig,
    engine::Facts,
    error::NAME,
    image::Image,
    kernel::Capabilities,
    labels::{Labels, Via},
    network::endpoint,
    options::{DockerOptions, Ulimit},
};

/// The folder of ours inside: the agent's socket, and for a moment what it is told.
pub(crate) const FOLDER: &str = "/.sandbox";
/// The agent's file inside, where this machine shares it.
const AGENT_SHARED: &str = "/.sandbox-agent";
/// The agent's file inside, where it is copied.
const AGENT_COPIED: &str = "/.sandbox/agent";
pub(crate) const SOCKET: &str = "agent.sock";
pub(crate) const CONFIG: &str = "config.json";
pub(crate) const TOKEN: &str = "token";

/// What keeps a container alive in which no agent runs.
const KEEP_ALIVE: &str = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done";

const MIB: i64 = 1 << 20;

/// Everything that is decided before the first request to the engine.
pub(crate) struct Plan<'a> {
    pub(crate) config: &'a DockerConfig,
    pub(crate) facts: &'a Facts,
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) options: &'a DockerOptions,
    pub(crate) image: &'a Image,
    pub(crate) labels: &'a Labels,
    /// For an agent by socket: its file on this machine, and the folder of its socket.
    pub(crate) shared: Option<(PathBuf, PathBuf)>,
}

/// The program with which the agent is reached through the engine.
pub(crate) fn relay_command() -> Vec<String> {
    [AGENT_COPIED, "relay", &format!("{FOLDER}/{SOCKET}")].map(str::to_owned).to_vec()
}

impl Plan<'_> {
    /// What the agent is told, as JSON.
    pub(crate) fn agent_config(&self, peer_uid: u32) -> Result<Vec<u8>> {
        let is_shared = self.labels.traits.via == Via::Socket;
        let capabilities = self.capabilities()?;
        let entrypoint = self.spec.entrypoint.as_ref().map(|argv| json!({ "argv": argv }));
        let config = json!({
            // As a container's main process does, it takes the sandbox with it.
            "exit_with_entrypoint": entrypoint.is_some(),
            "entrypoint": entrypoint,
            "workdir": ByteString::from(self.labels.traits.workdir.as_str()),
            "user": self.labels.traits.user,
            "env": self.environment(),
            "shell": self.config.shell,
            "ttl_s": self.spec.ttl_s,
            "incarnation": self.labels.incarnation,
            "peer_uids": if is_shared { vec![peer_uid, 0] } else { vec![0] },
            "outside_peers_only": is_shared,
            "commands": { "capabilities": capabilities.commands },
        });
        serde_json::to_vec(&config)
            .map_err(|_| SandboxError::internal("what the agent is told could not be written").with_provider(NAME))
    }

    /// The image's, and the spec's over it.
    pub(crate) fn environment(&self) -> Env {
        self.image.config.env.overridden_by(&self.spec.env)
    }

    /// The container as the engine makes it.
    pub(crate) fn body(&self) -> Result<ContainerCreateBody> {
        let (spec, traits) = (self.spec, &self.labels.traits);
        let has_agent = traits.via != Via::Engine;
        let network = self.network()?;
        let published = self.published(&network)?;
        let mut body = ContainerCreateBody {
            image: Some(match self.image.id.is_empty() {
                true => self.image.reference.clone(),
                false => self.image.id.clone(),
            }),
            labels: Some(self.labels.to_map()?),
            exposed_ports: Some(published.keys().cloned().collect()),
            host_config: Some(self.host_config(&network, published)?),
            tty: Some(false),
            open_stdin: Some(false),
            ..ContainerCreateBody::default()
        };
        if network != "host" {
            let name =
                self.options.hostname.clone().or_else(|| spec.name.as_deref().map(|name| name.replace('_', "-")));
            body.hostname = name;
            body.domainname = self.options.domainname.clone();
        }
        let address = self.options.network_addresses.get(&network);
        if !self.options.aliases.is_empty() || address.is_some() {
            let endpoint = endpoint(self.options.aliases.clone(), address);
            let endpoints = HashMap::from([(network, endpoint)]);
            body.networking_config = Some(NetworkingConfig { endpoints_config: Some(endpoints) });
        }
        if has_agent {
            body.user = Some("0:0".to_owned());
            body.entrypoint = Some(self.agent_command());
            body.cmd = Some(Vec::new());
            // Where the agent could not make it, or not in time, the engine does.
            let is_made_before = self.is_read_only() || spec.entrypoint.is_some();
            body.working_dir = Some(if is_made_before { traits.workdir.clone() } else { "/".to_owned() });
            // Nothing of the image's health check runs beside the agent.
            return Ok(body);
        }
        body.user = traits.user.clone();
        body.working_dir = Some(traits.workdir.clone());
        body.env = Some(variables(&spec.env)?);
        match &spec.entrypoint {
            Some(entrypoint) => {
                body.entrypoint = Some(entrypoint[..1].to_vec());
                body.cmd = Some(entrypoint[1..].to_vec());
            }
            None => {
                body.entrypoint = Some(vec![self.config.shell.clone().unwrap_or_else(|| "/bin/sh".to_owned())]);
                body.cmd = Some(vec!["-c".to_owned(), KEEP_ALIVE.to_owned()]);
            }
        }
        Ok(body)
    }

    fn agent_command(&self) -> Vec<String> {
        let agent = if self.shared.is_some() { AGENT_SHARED } else { AGENT_COPIED };
        let at = |name: &str| format!("{FOLDER}/{name}");
        let words = ["serve", "--listen-unix", &at(SOCKET), "--config-file", &at(CONFIG), "--token-file", &at(TOKEN)];
        std::iter::once(agent).chain(words).map(str::to_owned).collect()
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.config.read_only || self.options.read_only
    }

    fn capabilities(&self) -> Result<Capabilities> {
        let security = &self.spec.security;
        let has_agent = self.labels.traits.via != Via::Engine;
        Capabilities::new(&security.cap_add, &security.cap_drop, &self.config.cap_drop, has_agent)
    }

    fn host_config(&self, network: &str, published: HashMap<String, Option<Vec<PortBinding>>>) -> Result<HostConfig> {
        let (spec, resources, options) = (self.spec, &self.spec.resources, self.options);
        let capabilities = self.capabilities()?;
        let bytes = |mib: u64| i64::try_from(mib).unwrap_or(i64::MAX).saturating_mul(MIB);
        let memory = resources.memory_mib.map(bytes);
        let pids = resources.pids.or(self.config.pids_limit);
        let ulimit = |(name, Ulimit { soft, hard }): (&String, &Ulimit)| ResourcesUlimits {
            name: Some(name.clone()),
            soft: Some(*soft),
            hard: Some(*hard),
        };
        let list = |list: &Vec<String>| Some(list.clone()).filter(|list| !list.is_empty());
        let (mounts, tmpfs) = self.mounts()?;
        Ok(HostConfig {
            nano_cpus: resources.cpu.map(|cores| ((cores * 1e9).round() as i64).max(10_000_000)),
            memory,
            // The same limit with swap: there is none.
            memory_swap: options.memswap_limit.or(memory),
            memory_reservation: options.mem_reservation,
            pids_limit: pids.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX)),
            shm_size: spec.shm_size_mib.map(bytes),
            storage_opt: self.storage_opt()?,
            device_requests: self.devices(),
            network_mode: Some(network.to_owned()),
            port_bindings: Some(published),
            readonly_rootfs: Some(self.is_read_only()),
            privileged: Some(self.privileged()?),
            cap_add: Some(capabilities.add),
            cap_drop: Some(capabilities.drop),
            security_opt: Some(self.security_opt()?),
            extra_hosts: Some(self.extra_hosts()?),
            mounts: Some(mounts),
            tmpfs: Some(tmpfs),
            dns: list(&options.dns),
            dns_options: list(&options.dns_opt),
            dns_search: list(&options.dns_search),
            runtime: options.runtime.clone(),
            cpuset_cpus: options.cpuset.clone(),
            cpu_shares: options.cpu_shares,
            cpu_period: options.cpu_period,
            cpu_quota: options.cpu_quota,
            oom_score_adj: options.oom_score_adj,
            ulimits: Some(options.ulimits.iter().map(ulimit).collect()),
            sysctls: Some(options.sysctls.clone().into_iter().collect()),
            ipc_mode: options.ipc.clone(),
            pid_mode: options.pid.clone(),
            uts_mode: options.uts.clone(),
            userns_mode: options.userns_mode.clone(),
            devices: Some(options.devices.iter().map(|device| mapping(device)).collect()),
            device_cgroup_rules: list(&options.device_cgroup_rules),
            cgroup_parent: options.cgroup_parent.clone(),
            // The agent reaps what loses its parent.
            init: Some(self.labels.traits.via == Via::Engine),
            auto_remove: Some(false),
            ..HostConfig::default()
        })
    }

    fn network(&self) -> Result<String> {
        let network = match &self.spec.network {
            None | Some(NetworkMode::Default) => self.config.network.clone(),
            Some(NetworkMode::None) => "none".to_owned(),
            Some(NetworkMode::Host) if self.config.allow_host_network => "host".to_owned(),
            Some(NetworkMode::Host) => {
                let why = "the settings do not allow the network of the host (allow_host_network)";
                return Err(SandboxError::unsupported_field(NAME, "network.host", why));
            }
            Some(NetworkMode::Named(name)) if name == "host" || name.contains(':') || name.is_empty() => {
                return Err(SandboxError::invalid_input("network", "is no name of a network"));
            }
            Some(NetworkMode::Named(name)) => name.clone(),
            Some(_) => return Err(SandboxError::unsupported_field(NAME, "network", "this form is not known")),
        };
        if !self.options.aliases.is_empty() && ["bridge", "none", "host"].contains(&network.as_str()) {
            let message = "only a named network has further names";
            return Err(SandboxError::invalid_input("provider_options.aliases", message));
        }
        Ok(network)
    }

    fn published(&self, network: &str) -> Result<HashMap<String, Option<Vec<PortBinding>>>> {
        let listed = &self.options.published_ports;
        if (!self.spec.ports.is_empty() || !listed.is_empty()) && (network == "none" || network == "host") {
            let message = format!("no port can be published with the network {network:?}");
            return Err(
                SandboxError::invalid_input("ports", message).with_help("leave the ports out, or name another network")
            );
        }
        // The engine chooses the port of the host: one that is chosen here may be taken meanwhile.
        let any = |text: &str| if text == "0" { String::new() } else { text.to_owned() };
        let mut published: HashMap<String, Option<Vec<PortBinding>>> = HashMap::new();
        for port in listed {
            let host_ip = port.host_ip.unwrap_or(self.config.publish_host).to_string();
            let binding = PortBinding { host_ip: Some(host_ip), host_port: Some(any(&port.published)) };
            let key = format!("{}/{}", port.target, port.protocol.as_str());
            published.entry(key).or_default().get_or_insert_default().push(binding);
        }
        let host = PortBinding { host_ip: Some(self.config.publish_host.to_string()), host_port: Some(String::new()) };
        for port in &self.spec.ports {
            published.entry(format!("{port}/tcp")).or_insert_with(|| Some(vec![host.clone()]));
        }
        Ok(published)
    }

    fn privileged(&self) -> Result<bool> {
        if self.spec.security.privileged && !self.config.allow_privileged {
            let why = "the settings do not allow it (allow_privileged)";
            return Err(SandboxError::unsupported_field(NAME, "security.privileged", why));
        }
        Ok(self.spec.security.privileged)
    }

    fn security_opt(&self) -> Result<Vec<String>> {
        let mut all = self.config.security_opt.clone();
        all.extend(self.options.security_opt.iter().cloned());
        let is_set = |key: &str| self.config.security_opt.iter().any(|option| option.starts_with(key));
        if let Some(profile) = &self.spec.security.seccomp_profile {
            if is_set("seccomp") {
                let message = "the provider's settings choose the profile";
                return Err(SandboxError::invalid_input("security.seccomp_profile", message));
            }
            match profile.as_str() {
                "default" => {}
                "unconfined" => all.push("seccomp=unconfined".to_owned()),
                _ => {
                    let message = "must be \"default\" or \"unconfined\"; others are settings: security_opt";
                    return Err(SandboxError::invalid_input("security.seccomp_profile", message));
                }
            }
        }
        match self.spec.security.no_new_privs {
            Some(false) if is_set("no-new-privileges") => {
                let message = "the provider's settings turn it on";
                return Err(SandboxError::invalid_input("security.no_new_privs", message));
            }
            Some(true) if !is_set("no-new-privileges") => all.push("no-new-privileges:true".to_owned()),
            _ => {}
        }
        Ok(all)
    }

    fn extra_hosts(&self) -> Result<Vec<String>> {
        let entry = |(index, host): (usize, &sandbox_core::HostEntry)| {
            let is_address = host.address == "host-gateway" || host.address.parse::<std::net::IpAddr>().is_ok();
            if !is_address || host.name.is_empty() || host.name.contains([':', ' ', '\n']) {
                let message = "must be a name and an address (or host-gateway)";
                return Err(SandboxError::invalid_input(format!("extra_hosts[{index}]"), message));
            }
            Ok(format!("{}:{}", host.name, host.address))
        };
        self.spec.extra_hosts.iter().enumerate().map(entry).collect()
    }

    fn storage_opt(&self) -> Result<Option<HashMap<String, String>>> {
        let own = self.spec.resources.disk_gib.map(|gib| format!("{gib}G"));
        let Some(size) = own.or_else(|| self.options.storage_opt.get("size").cloned()) else { return Ok(None) };
        if !self.facts.can_limit_disk {
            let why = format!("the engine's storage driver {} has no limit for a container", self.facts.storage_driver);
            return Err(SandboxError::unsupported_field(NAME, "resources.disk_gib", why)
                .with_help("leave it out, or give the engine overlay2 on xfs with project quotas"));
        }
        Ok(Some(HashMap::from([("size".to_owned(), size)])))
    }

    fn devices(&self) -> Option<Vec<DeviceRequest>> {
        let count = self.spec.resources.gpu.filter(|count| *count > 0)?;
        Some(vec![DeviceRequest {
            count: Some(i64::from(count)),
            capabilities: Some(vec![vec!["gpu".to_owned()]]),
            ..DeviceRequest::default()
        }])
    }

    fn mounts(&self) -> Result<(Vec<Mount>, HashMap<String, String>)> {
        let (mut mounts, mut tmpfs) = (Vec::new(), HashMap::new());
        for volume in self.spec.volumes.iter().chain(&self.options.volumes) {
            self.mount(volume, &mut mounts, &mut tmpfs)?;
        }
        let bind = |source: &Path, target: &str, read_only| Mount {
            typ: Some(MountType::BIND),
            source: Some(source.to_string_lossy().into_owned()),
            target: Some(target.to_owned()),
            read_only: Some(read_only),
            ..Mount::default()
        };
        if let Some((agent, folder)) = &self.shared {
            mounts.push(bind(agent, AGENT_SHARED, true));
            mounts.push(bind(folder, FOLDER, false));
        } else if self.labels.traits.via == Via::Relay && self.is_read_only() {
            // The root takes nothing; a volume of its own does.
            let target = Some(FOLDER.to_owned());
            mounts.push(Mount { typ: Some(MountType::VOLUME), target, ..Mount::default() });
        }
        Ok((mounts, tmpfs))
    }

    fn mount(&self, volume: &VolumeMount, mounts: &mut Vec<Mount>, tmpfs: &mut HashMap<String, String>) -> Result<()> {
        let target = volume.target.trim_end_matches('/');
        if target.is_empty() || target == FOLDER || target.starts_with("/.sandbox/") || target == AGENT_SHARED {
            return Err(SandboxError::invalid_input("volumes", format!("nothing can be mounted at {}", volume.target)));
        }
        let (typ, source) = match &volume.source {
            VolumeSource::Bind(path) => (MountType::BIND, self.bind_source(path)?),
            VolumeSource::Named(name) => (MountType::VOLUME, name.clone()),
            VolumeSource::Tmpfs(size_mib) => {
                let size = size_mib.map(|mib| format!(",size={mib}m")).unwrap_or_default();
                let access = if volume.read_only { "ro" } else { "rw" };
                tmpfs.insert(target.to_owned(), format!("{access},exec,nosuid,nodev{size}"));
                return Ok(());
            }
            _ => return Err(SandboxError::unsupported_field(NAME, "volumes", "this kind of volume is not known")),
        };
        mounts.push(Mount {
            typ: Some(typ),
            source: Some(source),
            target: Some(target.to_owned()),
            read_only: Some(volume.read_only),
            ..Mount::default()
        });
        Ok(())
    }

    fn bind_source(&self, path: &str) -> Result<String> {
        let path = Path::new(path);
        if !crate::config::is_plain(path) {
            return Err(SandboxError::invalid_input("volumes", "a folder to mount must be absolute and without .."));
        }
        if let Some(roots) = &self.config.bind_roots
            && !roots.iter().any(|root| path.starts_with(root))
        {
            let message = format!("{} is not below a folder of bind_roots", path.display());
            return Err(SandboxError::new(sandbox_core::ErrorKind::PermissionDenied, message).with_field("volumes"));
        }
        Ok(path.to_string_lossy().into_owned())
    }
}

/// True for what the agent needs of this machine.
pub(crate) fn is_of_agent(mount: &Mount) -> bool {
    matches!(mount.target.as_deref(), Some(FOLDER | AGENT_SHARED))
}

/// `/dev/x[:/dev/y[:rwm]]`.
fn mapping(device: &str) -> DeviceMapping {
    let mut parts = device.split(':');
    let outside = parts.next().unwrap_or_default().to_owned();
    let inside = parts.next().unwrap_or(&outside).to_owned();
    let permissions = parts.next().unwrap_or("rwm").to_owned();
    DeviceMapping {
        path_on_host: Some(outside),
        path_in_container: Some(inside),
        cgroup_permissions: Some(permissions),
    }
}

/// `NAME=VALUE` of each; the engine's API is text.
pub(crate) fn variables(env: &Env) -> Result<Vec<String>> {
    let pair = |(name, value): (&str, &ByteString)| match std::str::from_utf8(value.as_bytes()) {
        Ok(value) => Ok(format!("{name}={value}")),
        Err(_) => {
            let message = "must be UTF-8 without our agent: the engine takes text only";
            Err(SandboxError::invalid_input(format!("env.{name}"), message))
        }
    };
    env.iter().map(pair).collect()
}
