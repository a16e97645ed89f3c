//! One service of a plan.

use std::collections::BTreeMap;

use sandbox_core::{Capability, Field, HostEntry, NetworkMode, SandboxSpec};
use serde_json::Value as Json;

use super::{
    ComposeAllow, DEFAULT_STOP_GRACE_S, Networking, PlannedService,
    keys::{Handling, STRONG_CAPABILITIES, danger, handling},
    networks::is_host_name,
    support::Planner,
};
use crate::compose::{
    load::{Node, Protocol},
    model::{ComposeNetworkMode, ComposeService},
    report::FindingClass,
    resolved::to_json,
};

impl Planner<'_> {
    pub(super) fn service(&mut self, service: &ComposeService, networking: Networking) -> PlannedService {
        let spec = self.options.service_specs.get(&service.name).cloned().unwrap_or_default();
        let depends_on = service.depends_on.iter();
        let mut planned = PlannedService {
            name: service.name.clone(),
            replicas: service.scale,
            spec,
            build: None,
            entrypoint: service.entrypoint.clone(),
            command: service.command.clone(),
            networks: Vec::new(),
            hosts: BTreeMap::new(),
            ports: Vec::new(),
            forwards: None,
            depends_on: depends_on
                .clone()
                .map(|(name, needed)| (name.clone(), (needed.condition, needed.required)))
                .collect(),
            restarts_with: depends_on.filter(|(_, needed)| needed.restart).map(|(name, _)| name.clone()).collect(),
            healthcheck: service.healthcheck.clone(),
            restart: service.restart,
            stop_signal: service.stop_signal.clone(),
            stop_grace_s: service.stop_grace_period.map_or(DEFAULT_STOP_GRACE_S, |grace| grace.as_secs_f64()),
            copies: Vec::new(),
            folders: Vec::new(),
            grants: Vec::new(),
            keeps_input: false,
            resolve_environment: service.resolve_environment.clone(),
        };
        self.image(service, &mut planned);
        self.identity(service, &mut planned.spec);
        self.limits(service, &mut planned.spec);
        self.security(service, &mut planned.spec);
        self.hosts(service, &mut planned.spec);
        self.network(service, networking, &mut planned);
        self.ports(service, &mut planned);
        self.mounts(service, &mut planned);
        self.grants(service, &mut planned);
        self.input(service, &mut planned);
        self.other_keys(service, &mut planned.spec);
        self.deployment(service);
        if let Err(error) = planned.spec.validate() {
            let key = error.field().unwrap_or("").to_owned();
            let at = key.split('.').next().unwrap_or_default();
            let at = if at == "env" { "environment" } else { at };
            self.log.error(service.place(at), FindingClass::Invalid, &service.key(at), error.message());
        }
        planned
    }

    /// User, folder, variables, labels.
    fn identity(&mut self, service: &ComposeService, spec: &mut SandboxSpec) {
        if let Some(user) = &service.user
            && (self.takes(Field::User) || self.needs_field(service, "user", Field::ExecUser))
        {
            spec.user = Some(user.clone());
        }
        if let Some(folder) = &service.working_dir
            && (self.takes(Field::Workdir) || self.needs_field(service, "working_dir", Field::ExecCwd))
        {
            spec.workdir = Some(folder.clone());
        }
        let key = if service.has("environment") { "environment" } else { "env_file" };
        if !service.environment.is_empty() && (self.takes(Field::Env) || self.needs_field(service, key, Field::ExecEnv))
        {
            spec.env = spec.env.overridden_by(&service.environment);
        }
        if !service.labels.is_empty() {
            if self.takes(Field::Metadata) {
                spec.metadata.extend(service.labels.clone());
            } else {
                let message = format!("provider {:?} keeps no labels", self.info.name);
                self.log.note(service.place("labels"), &service.key("labels"), message);
            }
        }
        if let Some(name) = &service.container_name {
            let message = format!("is a further name in the networks; {name:?} would be one for the whole machine");
            self.log.warning(service.place("container_name"), &service.key("container_name"), message);
        }
        if let Some(hostname) = &service.hostname {
            if self.takes_option("hostname") {
                spec.provider_options.insert("hostname".to_owned(), hostname.clone().into());
            } else if is_host_name(hostname) {
                let message = "is a further name in the networks; the service itself has another one";
                self.log.warning(service.place("hostname"), &service.key("hostname"), message);
            }
        }
        self.platform(service, spec);
    }

    fn platform(&mut self, service: &ComposeService, spec: &mut SandboxSpec) {
        if let Some(platform) = &service.platform {
            let machine = match std::env::consts::ARCH {
                "x86_64" => "linux/amd64",
                "aarch64" => "linux/arm64",
                other => other,
            };
            if self.takes_option("platform") {
                spec.provider_options.insert("platform".to_owned(), platform.clone().into());
            } else if platform != machine {
                let message = format!("provider {:?} runs its own platform only", self.info.name);
                self.unsupported(service.place("platform"), &service.key("platform"), message);
            }
        }
        let Some(policy) = &service.pull_policy else { return };
        let is_every = policy.strip_prefix("every_").is_some_and(|rest| !rest.is_empty());
        match policy.as_str() {
            "missing" | "if_not_present" | "build" => {}
            "always" | "never" => self.option(service, "pull_policy", spec),
            _ if is_every || ["daily", "weekly", "refresh"].contains(&policy.as_str()) => {
                self.option(service, "pull_policy", spec);
                if let Some(option) = spec.provider_options.get_mut("pull_policy") {
                    *option = "always".into();
                    let note = "nobody knows when an image was pulled last: it is pulled every time";
                    self.log.note(service.place("pull_policy"), &service.key("pull_policy"), note);
                }
            }
            _ => {
                let message = "must be always, never, missing, if_not_present, build, daily, weekly or every_DURATION";
                self.log.error(
                    service.place("pull_policy"),
                    FindingClass::Invalid,
                    &service.key("pull_policy"),
                    message,
                );
            }
        }
    }

    fn limits(&mut self, service: &ComposeService, spec: &mut SandboxSpec) {
        let at = |own: &'static str| if service.has(own) { own } else { "deploy" };
        if service.cpus.is_some() && self.needs_field(service, at("cpus"), Field::Cpu) {
            spec.resources.cpu = service.cpus;
        }
        if service.memory_mib.is_some() && self.needs_field(service, at("mem_limit"), Field::MemoryMib) {
            spec.resources.memory_mib = service.memory_mib;
        }
        if service.pids.is_some() && self.needs_field(service, at("pids_limit"), Field::Pids) {
            spec.resources.pids = service.pids;
        }
        if service.gpus.is_some() && self.needs_field(service, at("gpus"), Field::Gpu) {
            spec.resources.gpu = service.gpus;
        }
        if service.shm_size_mib.is_some()
            && (self.has(Capability::RuntimeRequirements) || self.needs_field(service, "shm_size", Field::ShmSizeMib))
        {
            spec.shm_size_mib = service.shm_size_mib;
        }
    }

    fn security(&mut self, service: &ComposeService, spec: &mut SandboxSpec) {
        if let Some(strong) = service.cap_add.iter().find(|name| STRONG_CAPABILITIES.contains(&name.as_str())) {
            let why = format!("capability {strong} is as good as root on this machine");
            self.allowed(service, "cap_add", ComposeAllow::Privileged, &why);
        }
        if !service.cap_add.is_empty()
            && (self.has(Capability::RuntimeRequirements) || self.needs_field(service, "cap_add", Field::CapAdd))
        {
            spec.security.cap_add = service.cap_add.clone();
        }
        if !service.cap_drop.is_empty() && self.needs_field(service, "cap_drop", Field::CapDrop) {
            spec.security.cap_drop = service.cap_drop.clone();
        }
        if service.privileged
            && self.allowed(service, "privileged", ComposeAllow::Privileged, "gives the service all of this machine")
            && self.needs_field(service, "privileged", Field::Privileged)
        {
            spec.security.privileged = true;
        }
        for option in &service.security_opt {
            self.security_option(service, option, spec);
        }
    }

    fn security_option(&mut self, service: &ComposeService, option: &str, spec: &mut SandboxSpec) {
        let key = "security_opt";
        match option.split_once([':', '=']).unwrap_or((option, "true")) {
            ("no-new-privileges", value) => {
                if self.needs_field(service, key, Field::NoNewPrivs) {
                    spec.security.no_new_privs = Some(value != "false");
                }
            }
            ("seccomp", profile) => {
                let is_safe = profile != "unconfined"
                    || self.allowed(service, key, ComposeAllow::Privileged, "takes the filter of system calls away");
                if is_safe && self.needs_field(service, key, Field::SeccompProfile) {
                    spec.security.seccomp_profile = Some(profile.to_owned());
                }
            }
            (name, value) => {
                let is_safe = value != "unconfined" && value != "disable"
                    || self.allowed(service, key, ComposeAllow::Privileged, "takes a protection of this machine away");
                if is_safe && !self.takes_option("security_opt") {
                    let message = format!("provider {:?} does not know option {name:?}", self.info.name);
                    self.unsupported(service.place(key), &service.key(key), message);
                } else if is_safe {
                    let list = spec.provider_options.entry("security_opt").or_insert_with(|| Json::Array(Vec::new()));
                    if let Json::Array(list) = list {
                        list.push(option.into());
                    }
                }
            }
        }
    }

    fn hosts(&mut self, service: &ComposeService, spec: &mut SandboxSpec) {
        if !service.extra_hosts.is_empty() && self.needs_field(service, "extra_hosts", Field::ExtraHosts) {
            let entry = |(name, address): &(String, String)| HostEntry { name: name.clone(), address: address.clone() };
            spec.extra_hosts.extend(service.extra_hosts.iter().map(entry));
        }
    }

    fn network(&mut self, service: &ComposeService, networking: Networking, planned: &mut PlannedService) {
        match &service.network_mode {
            None => {
                let networks = self.attachments(service);
                if networking == Networking::Networks {
                    planned.spec.network = networks.first().map(|(name, _)| NetworkMode::Named(name.clone()));
                    planned.networks = networks;
                } else if networking == Networking::Hosts {
                    planned.networks = networks;
                    if service.writes_hosts {
                        planned.hosts = self.peers(service);
                    }
                }
                self.fixed_addresses(service, planned);
            }
            Some(ComposeNetworkMode::None) => {
                if self.needs_field(service, "network_mode", Field::NetworkNone) {
                    planned.spec.network = Some(NetworkMode::None);
                }
            }
            Some(ComposeNetworkMode::Host) => {
                let why = "gives the service every listener and address of this machine";
                if self.allowed(service, "network_mode", ComposeAllow::HostNetwork, why)
                    && self.needs_field(service, "network_mode", Field::NetworkHost)
                {
                    planned.spec.network = Some(NetworkMode::Host);
                }
            }
            Some(ComposeNetworkMode::Bridge) => planned.spec.network = Some(NetworkMode::Default),
            Some(ComposeNetworkMode::Service(other)) => self.shared_network(service, other, planned),
            Some(ComposeNetworkMode::Container(_)) => {
                let message = "joins a container that is no part of the stack";
                self.unsupported(service.place("network_mode"), &service.key("network_mode"), message);
            }
            Some(ComposeNetworkMode::Other(_)) => {
                let message = "must be none, host, bridge or service:NAME";
                let key = service.key("network_mode");
                self.log.error(service.place("network_mode"), FindingClass::Unsupported, &key, message);
            }
        }
    }

    fn fixed_addresses(&mut self, service: &ComposeService, planned: &mut PlannedService) {
        let mut addresses = serde_json::Map::new();
        for (name, attachment) in &service.networks {
            let Some(address) = &attachment.ipv4_address else { continue };
            let key = format!("networks.{name}");
            if address.parse::<std::net::Ipv4Addr>().is_err() {
                let message = "ipv4_address is no IPv4 address";
                self.log.error(service.place(&key), FindingClass::Invalid, &service.key(&key), message);
            } else if self.takes_option("network_addresses") {
                addresses.insert(name.clone(), address.clone().into());
            } else {
                let message =
                    format!("provider {:?} chooses addresses itself; use the name of the service", self.info.name);
                self.unsupported(service.place(&key), &service.key(&key), message);
            }
        }
        if !addresses.is_empty() {
            planned.spec.provider_options.insert("network_addresses".to_owned(), addresses.into());
        }
    }

    /// `network_mode: service:NAME`: the ports of the other service appear on the loopback of this one.
    fn shared_network(&mut self, service: &ComposeService, other: &str, planned: &mut PlannedService) {
        let Some(target) = self.project.services.get(other) else { return };
        let tcp = |protocol: Protocol| protocol == Protocol::Tcp;
        let exposed = target.expose.iter().filter(|(_, protocol)| tcp(*protocol)).map(|(port, _)| *port);
        let published = target.ports.iter().filter(|port| tcp(port.protocol)).map(|port| port.target);
        let mut ports: Vec<u16> = exposed.chain(published).collect();
        ports.sort_unstable();
        ports.dedup();
        let key = "network_mode";
        if !self.has(Capability::PortForwarding) || !self.has(Capability::Network) {
            let message = format!(
                "provider {:?} cannot share the network of a service: it lacks capability port_forwarding or network",
                self.info.name
            );
            self.unsupported(service.place(key), &service.key(key), message);
        } else if ports.is_empty() {
            let message = format!("service {other:?} must say with expose which TCP ports are meant");
            self.unsupported_with(service.place(key), &service.key(key), message, "add expose: to that service");
        } else {
            planned.forwards = Some((other.to_owned(), ports));
        }
    }

    fn grants(&mut self, service: &ComposeService, planned: &mut PlannedService) {
        let (secrets, configs) = (&self.project.secrets, &self.project.configs);
        for (section, grants, files) in [("secrets", &service.secrets, secrets), ("configs", &service.configs, configs)]
        {
            for (index, grant) in grants.iter().enumerate() {
                let Some(file) = files.get(&grant.source) else { continue };
                let key = format!("{section}[{index}]");
                if let crate::compose::FileSource::External(name) = &file.source {
                    let message = format!("{name:?} is external, and no provider keeps {section}");
                    let help = "give it with file: or environment:";
                    let (place, key) = (grant.place, service.key(&key));
                    self.log.error_with_help(place, FindingClass::Unsupported, &key, message, help);
                    continue;
                }
                if grant.owner.is_some() && !self.has(Capability::Files) {
                    let message = format!("provider {:?} cannot set the owner of a file", self.info.name);
                    self.unsupported(grant.place, &service.key(&key), message);
                }
                planned.grants.push((section, grant.clone()));
            }
        }
    }

    /// A terminal keeps a shell alive that would end without input; an input that stays open does the same.
    fn input(&mut self, service: &ComposeService, planned: &mut PlannedService) {
        let is_on = |key: &str| {
            let node = service.node.as_ref().and_then(|node| node.get(key));
            node.and_then(Node::as_text)
                .is_some_and(|text| matches!(text.to_ascii_lowercase().as_str(), "true" | "yes" | "on" | "1"))
        };
        let key = if is_on("stdin_open") { "stdin_open" } else { "tty" };
        if !is_on("stdin_open") && !is_on("tty") {
            return;
        }
        planned.keeps_input = self.takes(Field::ExecStdinStream);
        let message = if planned.keeps_input {
            "the input stays open; there is no terminal"
        } else {
            "there is no terminal, and the input is at its end"
        };
        self.log.warning(service.place(key), &service.key(key), message);
    }

    /// Keys without a field of their own.
    fn other_keys(&mut self, service: &ComposeService, spec: &mut SandboxSpec) {
        let Some(map) = service.node.as_ref().and_then(Node::as_map) else { return };
        for (key, entry) in map.iter().filter(|(key, _)| !key.starts_with("x-")) {
            let path = service.key(key);
            if entry.node.is_null() || entry.node.as_text() == Some("false") {
                continue;
            }
            let value = entry.node.as_text().unwrap_or_default();
            if let Some((what, why)) = danger(key, value)
                && !self.allowed(service, key, what, why)
            {
                continue;
            }
            match handling(key) {
                Handling::Own => {}
                Handling::Option => self.option(service, key, spec),
                Handling::OptionOrNote(why) => match self.takes_option(key) {
                    true => self.option(service, key, spec),
                    false => self.log.note(entry.key_place, &path, why),
                },
                Handling::Note(why) => self.log.note(entry.key_place, &path, why),
                Handling::Refused(why) => self.log.error(entry.key_place, FindingClass::Unsupported, &path, why),
            }
        }
    }

    /// Hands a key on as an option of the provider, where the provider knows it.
    fn option(&mut self, service: &ComposeService, key: &str, spec: &mut SandboxSpec) {
        if !self.takes_option(key) {
            let message = format!("provider {:?} has no option for it", self.info.name);
            self.unsupported(service.place(key), &service.key(key), message);
            return;
        }
        if let Some(node) = service.node.as_ref().and_then(|node| node.get(key)) {
            spec.provider_options.insert(key.to_owned(), to_json(node));
        }
    }

    /// What only a swarm does.
    fn deployment(&mut self, service: &ComposeService) {
        let Some(deploy) = service.node.as_ref().and_then(|node| node.get("deploy")).and_then(Node::as_map) else {
            return;
        };
        for (key, entry) in deploy.iter() {
            let path = service.key(&format!("deploy.{key}"));
            let is_global = key == "mode" && entry.node.as_text() != Some("replicated");
            match key {
                _ if is_global => self.log.error(
                    entry.node.place,
                    FindingClass::Unsupported,
                    &path,
                    "only replicated services are supported",
                ),
                "endpoint_mode" | "labels" | "placement" | "rollback_config" | "update_config" => {
                    self.log.note(entry.key_place, &path, "is for a swarm and has no effect here");
                }
                _ => {}
            }
        }
        let reserved = deploy.get("resources").and_then(|resources| resources.get("reservations"));
        for key in ["cpus", "memory", "generic_resources"] {
            if let Some(node) = reserved.and_then(|reserved| reserved.get(key)) {
                let path = service.key(&format!("deploy.resources.reservations.{key}"));
                self.log.note(node.place, &path, "nothing is reserved; limits are what holds");
            }
        }
    }
}
