//! A provider in this process that has networks, volumes and programs of its own, for stacks.
#![allow(dead_code, unreachable_pub, reason = "every test program uses a part of it")]

mod program;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use sandbox_core::{
    BuildEvent, BuildImage, BuildRequest, BuiltImage, ByteString, Capability, Connect, Endpoint, ExecRequest,
    ExecStream, Field, ImageConfig, ImageConfigs, NamedNetwork, NamedVolume, Network, NetworkMode, NetworkRequest,
    Networks, ProviderInfo, Result, SandboxEndpoint, SandboxError, SandboxHandle, SandboxProvider, SandboxSpec,
    SandboxStatus, Session, VolumeRequest, Volumes, async_trait,
};
use serde_json::{Value, json};

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// What the fake can do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Networks, volumes, images.
    DockerLike,
    /// Addresses and hosts files; no images, no volumes.
    LocalLike,
    /// Nothing but commands.
    Poor,
}

pub struct FakeSandbox {
    pub spec: SandboxSpec,
    /// Network by name, with the names there.
    pub networks: BTreeMap<String, Vec<String>>,
    pub hosts: BTreeMap<String, String>,
    pub address: String,
}

#[derive(Default)]
pub struct World {
    pub calls: Vec<String>,
    pub sandboxes: BTreeMap<String, FakeSandbox>,
    pub networks: BTreeMap<String, String>,
    pub volumes: BTreeSet<String>,
    pub files: BTreeMap<(String, String), Vec<u8>>,
    /// What an image says of itself.
    pub images: BTreeMap<String, ImageConfig>,
    /// The service whose sandbox cannot be made.
    pub fail_create_of: Option<String>,
    /// The sandbox whose removal still fails so often.
    pub fail_close: usize,
    /// Health checks fail so often, by service.
    pub sick: BTreeMap<String, usize>,
    /// How often a program ran, by service.
    pub runs: BTreeMap<String, usize>,
    pub most_made_at_once: usize,
    making: usize,
    next: usize,
}

pub struct StackFake {
    pub kind: Kind,
    pub world: Arc<Mutex<World>>,
}

impl StackFake {
    pub fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self { kind, world: Arc::default() })
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub fn calls(&self) -> Vec<String> {
        self.world().calls.clone()
    }

    /// How many networks, volumes and sandboxes there are.
    pub fn counts(&self) -> (usize, usize, usize) {
        let world = self.world();
        (world.networks.len(), world.volumes.len(), world.sandboxes.len())
    }

    /// True if nothing of any stack is left.
    pub fn is_empty(&self) -> bool {
        let world = self.world();
        world.sandboxes.is_empty() && world.networks.is_empty() && world.volumes.is_empty()
    }

    fn has<'a, T: ?Sized>(&self, kinds: &[Kind], interface: &'a T) -> Option<&'a T> {
        kinds.contains(&self.kind).then_some(interface)
    }
}

/// The service of a sandbox, as the stack labels it.
pub fn service_of(spec: &SandboxSpec) -> String {
    spec.metadata.get("sandbox.compose.service").cloned().unwrap_or_default()
}

/// What a provider of a kind says of itself.
pub fn info(kind: Kind) -> ProviderInfo {
    let all = Field::ALL.iter().copied();
    match kind {
        Kind::DockerLike => {
            let mut info = ProviderInfo::new("docker-like").honours(all).with_isolation("container");
            for option in [
                "hostname",
                "init",
                "ulimits",
                "sysctls",
                "dns",
                "dns_search",
                "dns_opt",
                "read_only",
                "platform",
                "pull_policy",
                "published_ports",
                "network_addresses",
                "group_add",
                "ipc",
                "pid",
                "devices",
                "security_opt",
                "runtime",
                "cpuset",
                "domainname",
                "mac_address",
                "memswap_limit",
            ] {
                info.fields.insert(format!("provider_options.{option}"), sandbox_core::FieldSupport::Honoured);
            }
            info.fields.insert("volumes.copy_up".to_owned(), sandbox_core::FieldSupport::Honoured);
            info
        }
        Kind::LocalLike => {
            let refused = [
                Field::VolumesNamed,
                Field::NetworkNamed,
                Field::Privileged,
                Field::Gpu,
                Field::CapAdd,
                Field::ShmSizeMib,
            ];
            ProviderInfo::new("local-like").honours(all.filter(|field| !refused.contains(field)))
        }
        Kind::Poor => ProviderInfo::new("poor").honours([Field::Env, Field::ExecEnv]),
    }
}

#[async_trait]
impl SandboxProvider for StackFake {
    fn name(&self) -> &str {
        match self.kind {
            Kind::DockerLike => "docker-like",
            Kind::LocalLike => "local-like",
            Kind::Poor => "poor",
        }
    }

    fn info(&self) -> ProviderInfo {
        info(self.kind)
    }

    async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle> {
        let service = service_of(&spec);
        {
            let mut world = self.world();
            world.calls.push(format!("create {service}"));
            world.making += 1;
            world.most_made_at_once = world.most_made_at_once.max(world.making);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        let mut world = self.world();
        world.making -= 1;
        if world.fail_create_of.as_ref() == Some(&service) {
            return Err(SandboxError::create("scripted"));
        }
        world.next += 1;
        let id = format!("s{}", world.next);
        let mut networks = BTreeMap::new();
        if let Some(NetworkMode::Named(name)) = &spec.network {
            if !world.networks.contains_key(name) {
                return Err(SandboxError::not_found(format!("network {name:?}")));
            }
            networks.insert(name.clone(), Vec::new());
        }
        let address = format!("10.0.0.{}", world.next);
        world.sandboxes.insert(id.clone(), FakeSandbox { spec, networks, hosts: BTreeMap::new(), address });
        Ok(SandboxHandle::new(id, self.name()))
    }

    async fn exec(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream> {
        program::run(self.world.clone(), handle.sandbox_id.clone(), request)
    }

    async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        let contents = std::fs::read(local).map_err(|error| SandboxError::io("local", error))?;
        self.world().files.insert((handle.sandbox_id.clone(), remote.to_string()), contents);
        Ok(())
    }

    async fn download_file(&self, _handle: &SandboxHandle, remote: &ByteString, _local: &Path) -> Result<()> {
        Err(SandboxError::not_found(format!("{remote}")))
    }

    async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus> {
        let is_there = self.world().sandboxes.contains_key(&handle.sandbox_id);
        Ok(if is_there { SandboxStatus::Running } else { SandboxStatus::Stopped })
    }

    async fn close(&self, handle: &SandboxHandle) -> Result<()> {
        let mut world = self.world();
        if world.fail_close > 0 {
            world.fail_close -= 1;
            return Err(SandboxError::internal("scripted close failure"));
        }
        if let Some(sandbox) = world.sandboxes.remove(&handle.sandbox_id) {
            let service = service_of(&sandbox.spec);
            world.calls.push(format!("close {service}"));
        }
        Ok(())
    }

    async fn aclose(&self) -> Result<()> {
        self.world().calls.push("aclose".to_owned());
        Ok(())
    }

    fn as_networks(&self) -> Option<&dyn Networks> {
        self.has(&[Kind::DockerLike], self as &dyn Networks)
    }

    fn as_volumes(&self) -> Option<&dyn Volumes> {
        self.has(&[Kind::DockerLike], self as &dyn Volumes)
    }

    fn as_image_config(&self) -> Option<&dyn ImageConfigs> {
        self.has(&[Kind::DockerLike], self as &dyn ImageConfigs)
    }

    fn as_build_image(&self) -> Option<&dyn BuildImage> {
        self.has(&[Kind::DockerLike], self as &dyn BuildImage)
    }

    fn as_network(&self) -> Option<&dyn Network> {
        self.has(&[Kind::LocalLike], self as &dyn Network)
    }

    fn as_endpoint(&self) -> Option<&dyn Endpoint> {
        self.has(&[Kind::DockerLike, Kind::LocalLike], self as &dyn Endpoint)
    }

    fn as_connect(&self) -> Option<&dyn Connect> {
        self.has(&[Kind::DockerLike, Kind::LocalLike], self as &dyn Connect)
    }
}

#[async_trait]
impl Networks for StackFake {
    async fn create_network(&self, request: NetworkRequest) -> Result<NamedNetwork> {
        let mut world = self.world();
        let subnet = request.subnet.unwrap_or_else(|| "172.17.0.0/16".to_owned());
        if world.networks.values().any(|taken| *taken == subnet) {
            return Err(SandboxError::exhausted("the range is taken"));
        }
        world.calls.push(format!("network {}", if request.internal { "internal" } else { "open" }));
        world.networks.insert(request.name.clone(), subnet.clone());
        Ok(NamedNetwork {
            id: request.name.clone(),
            name: request.name,
            subnet: Some(subnet),
            metadata: request.metadata,
        })
    }

    async fn list_networks(&self) -> Result<Vec<NamedNetwork>> {
        Ok(Vec::new())
    }

    async fn remove_network(&self, name: String) -> Result<()> {
        let mut world = self.world();
        if world.sandboxes.values().any(|sandbox| sandbox.networks.contains_key(&name)) {
            return Err(SandboxError::invalid_state("sandboxes are attached"));
        }
        world.networks.remove(&name);
        Ok(())
    }

    async fn attach_network(&self, handle: &SandboxHandle, name: String, aliases: Vec<String>) -> Result<()> {
        let mut world = self.world();
        let sandbox = world.sandboxes.get_mut(&handle.sandbox_id).ok_or_else(|| SandboxError::not_found("gone"))?;
        if sandbox.networks.contains_key(&name) {
            return Err(SandboxError::already_exists("it is attached"));
        }
        sandbox.networks.insert(name, aliases);
        Ok(())
    }

    async fn detach_network(&self, handle: &SandboxHandle, name: String) -> Result<()> {
        if let Some(sandbox) = self.world().sandboxes.get_mut(&handle.sandbox_id) {
            sandbox.networks.remove(&name);
        }
        Ok(())
    }
}

#[async_trait]
impl Volumes for StackFake {
    async fn create_volume(&self, request: VolumeRequest) -> Result<NamedVolume> {
        let mut world = self.world();
        if !world.volumes.insert(request.name.clone()) {
            return Err(SandboxError::already_exists("volume"));
        }
        Ok(NamedVolume { id: request.name.clone(), name: request.name, metadata: request.metadata })
    }

    async fn list_volumes(&self) -> Result<Vec<NamedVolume>> {
        let named = |name: &String| NamedVolume { id: name.clone(), name: name.clone(), metadata: BTreeMap::new() };
        Ok(self.world().volumes.iter().map(named).collect())
    }

    async fn remove_volume(&self, name: String) -> Result<()> {
        self.world().volumes.remove(&name);
        Ok(())
    }
}

#[async_trait]
impl ImageConfigs for StackFake {
    async fn image_config(&self, image: String) -> Result<ImageConfig> {
        self.world().images.get(&image).cloned().ok_or_else(|| SandboxError::not_found(format!("image {image:?}")))
    }
}

#[async_trait]
impl BuildImage for StackFake {
    async fn build_image(&self, request: BuildRequest) -> Result<Session<BuildEvent>> {
        self.world().calls.push(format!("build {}", request.tags.join(",")));
        let image = request.tags.first().cloned().unwrap_or_default();
        let config = ImageConfig { command: vec!["serve".to_owned()], ..ImageConfig::default() };
        self.world().images.insert(image.clone(), config);
        Ok(Session::from_events(vec![BuildEvent::Built(BuiltImage { image })]))
    }
}

#[async_trait]
impl Network for StackFake {
    async fn validate_networking(&self) -> Result<()> {
        Ok(())
    }

    async fn network_address(&self, handle: &SandboxHandle) -> Result<String> {
        let world = self.world();
        world
            .sandboxes
            .get(&handle.sandbox_id)
            .map(|s| s.address.clone())
            .ok_or_else(|| SandboxError::not_found("gone"))
    }

    async fn set_hosts(&self, handle: &SandboxHandle, hosts: BTreeMap<String, String>) -> Result<()> {
        if let Some(sandbox) = self.world().sandboxes.get_mut(&handle.sandbox_id) {
            sandbox.hosts = hosts;
        }
        Ok(())
    }
}

#[async_trait]
impl Endpoint for StackFake {
    async fn endpoint(&self, handle: &SandboxHandle, port: u16) -> Result<SandboxEndpoint> {
        SandboxEndpoint::new(format!("http://{}:{port}", handle.sandbox_id), BTreeMap::new())
    }
}

#[async_trait]
impl Connect for StackFake {
    async fn serialize_handle(&self, handle: &SandboxHandle, _scope: Option<String>) -> Result<Value> {
        Ok(json!({ "id": handle.sandbox_id }))
    }

    async fn connect(&self, descriptor: Value) -> Result<SandboxHandle> {
        let id = descriptor["id"].as_str().unwrap_or_default();
        if !self.world().sandboxes.contains_key(id) {
            return Err(SandboxError::not_found("gone"));
        }
        Ok(SandboxHandle::new(id, self.name()))
    }
}

/// Capabilities that a kind has, as a set.
pub fn capabilities(kind: Kind) -> Vec<Capability> {
    StackFake::new(kind).capabilities().known().collect()
}
