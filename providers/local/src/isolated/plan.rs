//! From the settings and a spec to a launch.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use sandbox_agent::{
    Access, Bind, BindOwner, CgroupConfig, HostEntry, LaunchConfig, Limits, Network, Root as RootConfig, Workdir,
};
use sandbox_core::{ByteString, Env, NetworkMode, Result, SandboxError, SandboxSpec};

use crate::{
    config::{LocalConfig, NetworkDefault, invalid},
    error::NAME,
    isolated::{image::Image, info::Abilities, network::DEFAULT_NETWORK, volume::Mounts},
    user::is_privileged,
    workspace::Root,
};

/// Where commands work when a spec says nothing.
const WORKDIR_DEFAULT: &str = "/workspace";

/// The most that unpacked images may take: 16 TiB.
const CACHE_MAX_MIB: u64 = 1 << 24;

/// Checks the settings that only isolated sandboxes have.
pub(crate) fn check_settings(config: &LocalConfig) -> Result<()> {
    for (key, path) in
        [("agent_path", &config.agent_path), ("rootfs", &config.rootfs), ("shared_root", &config.shared_root)]
    {
        if path
            .as_deref()
            .is_some_and(|path| !path.is_absolute() || path.to_str().is_none_or(|text| text.contains('\0')))
        {
            return Err(invalid(key, "must be an absolute path in UTF-8"));
        }
    }
    if config.image_cache_mib.is_some_and(|mib| !(1..=CACHE_MAX_MIB).contains(&mib)) {
        return Err(invalid("image_cache_mib", format!("must be 1 to {CACHE_MAX_MIB}")));
    }
    if config.network == Some(NetworkDefault::Private) && !is_privileged() {
        return Err(invalid("network", "\"private\" needs root: it connects the networks of sandboxes")
            .with_help("set network = \"none\" or \"host\""));
    }
    let mut launch = LaunchConfig { binds: binds(config), ..LaunchConfig::default() };
    launch.sizes = config.sizes.clone().unwrap_or_default();
    launch.validate().map_err(|error| invalid(error.key(), error.to_string()))
}

fn binds(config: &LocalConfig) -> Vec<Bind> {
    let bind = |bind: &crate::config::BindSetting| Bind {
        source: bind.source.clone(),
        target: bind.target.clone(),
        access: access(bind.read_only),
        owner: BindOwner::Unchanged,
    };
    config.binds.iter().map(bind).collect()
}

pub(crate) fn access(read_only: bool) -> Access {
    if read_only { Access::ReadOnly } else { Access::ReadWrite }
}

/// What a sandbox is to be.
pub(crate) struct Plan {
    pub(crate) launch: LaunchConfig,
    /// The default user as the agent finds it; none: the one that the launch names.
    pub(crate) user: Option<String>,
    /// Under the environment of every request.
    pub(crate) env: Env,
    pub(crate) has_rootfs: bool,
}

impl Plan {
    /// Plans a sandbox with a folder in this root, which has no links on its way.
    pub(crate) fn new(
        config: &LocalConfig,
        spec: &SandboxSpec,
        id: &str,
        root: &Root,
        abilities: &Abilities,
        image: Option<&Image>,
        mounts: &Mounts,
    ) -> Result<Self> {
        let rootfs = image.map(|image| &image.lower);
        let target = spec.workdir.as_deref().unwrap_or(WORKDIR_DEFAULT);
        let mut launch = LaunchConfig {
            network: network(config, spec),
            hostname: spec.name.as_deref().map(host_name),
            workdir: Some(Workdir { source: root.inside(id), target: plain(target), chown: false }),
            binds: binds(config),
            sizes: config.sizes.clone().unwrap_or_default(),
            hosts: hosts(spec)?,
            cgroup: cgroup(spec, id, abilities),
            die_with_parent: Some(std::process::id()),
            ..LaunchConfig::default()
        };
        if let Some(lower) = rootfs {
            launch.root = RootConfig::Rootfs { lower: lower.clone(), upper: root.upper(id) };
        }
        if let Some(mib) = spec.shm_size_mib {
            launch.sizes.shm_mib = u32::try_from(mib).unwrap_or(u32::MAX);
        }
        mounts.apply(&mut launch);
        if spec.security.no_new_privs == Some(false) {
            let why = "set-user-id bits never count in an isolated sandbox";
            return Err(SandboxError::unsupported_field(NAME, "security.no_new_privs", why));
        }
        launch.validate().map_err(|error| {
            let field = match error.key() {
                "workdir.target" => "workdir",
                "binds.target" | "binds.source" | "memory.target" | "memory.mib" => "volumes",
                "sizes" => "shm_size_mib",
                "hosts.names" => "extra_hosts",
                key => key,
            };
            SandboxError::invalid_input(field, error.to_string())
        })?;
        // A system of its own need not know the user that the launch names.
        let user = spec.user.clone().or_else(|| rootfs.is_some().then(|| "0:0".to_owned()));
        Ok(Self { launch, user, env: environment(config, spec), has_rootfs: rootfs.is_some() })
    }
}

/// The same path without slashes at the end and dots between.
pub(crate) fn plain(path: &str) -> PathBuf {
    Path::new(path).components().collect()
}

fn network(config: &LocalConfig, spec: &SandboxSpec) -> Network {
    match (&spec.network, config.network) {
        (Some(NetworkMode::Host), _) | (None | Some(NetworkMode::Default), Some(NetworkDefault::Host)) => Network::Host,
        _ => Network::None,
    }
}

/// The private network that a sandbox is put into.
pub(crate) fn network_name<'a>(config: &LocalConfig, spec: &'a SandboxSpec) -> Option<&'a str> {
    match (&spec.network, config.network) {
        (Some(NetworkMode::Named(name)), _) => Some(name),
        (None | Some(NetworkMode::Default), Some(NetworkDefault::Private)) => Some(DEFAULT_NETWORK),
        _ => None,
    }
}

/// The name for people as a host name.
fn host_name(name: &str) -> String {
    name.replace('_', "-")
}

fn hosts(spec: &SandboxSpec) -> Result<Vec<HostEntry>> {
    let entry = |(index, host): (usize, &sandbox_core::HostEntry)| {
        let address = host.address.parse().map_err(|_| {
            SandboxError::invalid_input(format!("extra_hosts[{index}].address"), "must be an address, not a name")
        })?;
        Ok(HostEntry { address, names: vec![host.name.clone()] })
    };
    spec.extra_hosts.iter().enumerate().map(entry).collect()
}

fn cgroup(spec: &SandboxSpec, id: &str, abilities: &Abilities) -> Option<CgroupConfig> {
    let resources = &spec.resources;
    let limits = Limits {
        memory_bytes: resources.memory_mib.map(|mib| mib.saturating_mul(1 << 20)),
        pids: resources.pids.map(|pids| pids.max(2)),
        cpu_millis: resources.cpu.map(|cores| ((cores * 1000.0).round() as u64).max(10)),
    };
    // For pausing one is made without limits, too.
    let is_wanted = abilities.can_pause || limits != Limits::default();
    is_wanted.then(|| CgroupConfig { name: id.to_owned(), limits })
}

/// Later ones win: `PATH` of the settings, what they let through from this process, the spec's.
fn environment(config: &LocalConfig, spec: &SandboxSpec) -> Env {
    use std::os::unix::ffi::OsStringExt;
    let mut variables: BTreeMap<String, ByteString> = BTreeMap::new();
    variables.insert("PATH".to_owned(), config.path.as_str().into());
    for (name, value) in config.passed_variables() {
        variables.insert(name.to_owned(), ByteString::new(value.into_vec()));
    }
    variables.extend(spec.env.iter().map(|(name, value)| (name.to_owned(), value.clone())));
    variables.into_iter().collect()
}
