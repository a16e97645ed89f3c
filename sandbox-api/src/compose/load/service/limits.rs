//! The rest of a service: limits, names, restart, secrets.

use super::{
    super::{
        Node,
        shape::whole,
        values::{bytes, mebibytes},
    },
    Reader,
};
use crate::compose::model::{ComposeGrant, ComposeRestart};

impl Reader<'_, '_> {
    pub(super) fn resources(&mut self) {
        let limits = ["deploy", "resources", "limits"].iter().try_fold(self.node, |node, key| node.get(key)).cloned();
        let limit = |key: &str| limits.as_ref().and_then(|limits| limits.get(key)).cloned();
        self.service.cpus = self.number("cpus", limit("cpus").as_ref());
        self.service.pids = self.count("pids_limit", limit("pids").as_ref());
        let memory = match limit("memory") {
            Some(node) => self.bytes_of(&node, "deploy.resources.limits.memory"),
            None => None,
        };
        self.service.memory_mib = self.bytes("mem_limit").or(memory).map(mebibytes);
        self.service.shm_size_mib = self.bytes("shm_size").map(mebibytes);
        self.gpus();
    }

    fn bytes_of(&mut self, node: &Node, key: &str) -> Option<u64> {
        match bytes(node.as_text().unwrap_or_default()) {
            Ok(bytes) => Some(bytes).filter(|bytes| *bytes > 0),
            Err(why) => {
                self.invalid_at(node.place, key, why);
                None
            }
        }
    }

    /// A number of the service, or of its deployment.
    fn number(&mut self, key: &str, deployed: Option<&Node>) -> Option<f64> {
        let own = self.get(key).cloned();
        let node = own.as_ref().or(deployed)?;
        match node.as_text().and_then(|text| text.parse::<f64>().ok()) {
            Some(number) if (0.0..=4096.0).contains(&number) => Some(number).filter(|number| *number > 0.0),
            _ => {
                self.invalid_at(node.place, key, "must be a number from 0 to 4096");
                None
            }
        }
    }

    fn count(&mut self, key: &str, deployed: Option<&Node>) -> Option<u64> {
        let own = self.get(key).cloned();
        let node = own.as_ref().or(deployed)?;
        match node.as_text().and_then(whole) {
            // 0 and -1 are how "no limit" is written.
            Some(-1 | 0) => None,
            Some(count) if count > 0 => Some(count as u64),
            _ => {
                self.invalid_at(node.place, key, "must be a whole number");
                None
            }
        }
    }

    /// `gpus: all`, or devices with the capability `gpu`.
    fn gpus(&mut self) {
        let path = ["deploy", "resources", "reservations", "devices"];
        let reserved = path.iter().try_fold(self.node, |node, key| node.get(key));
        let devices = self.get("gpus").or(reserved).cloned();
        let Some(devices) = devices else { return };
        let Some(list) = devices.as_list() else {
            self.service.gpus = Some(1);
            return;
        };
        let mut sum = 0;
        for device in list {
            let count = match device.get("count").and_then(Node::as_text) {
                None | Some("all") => 1,
                Some(text) => whole(text).and_then(|count| u32::try_from(count).ok()).unwrap_or(1),
            };
            let ids = device.get("device_ids").and_then(Node::as_list).map_or(0, <[Node]>::len) as u32;
            sum += count.max(ids);
        }
        self.service.gpus = Some(sum).filter(|sum| *sum > 0);
    }

    /// Kernel capabilities without their prefix.
    pub(super) fn capabilities(&mut self, key: &str) -> Vec<String> {
        let mut names = Vec::new();
        for name in self.list(key) {
            let name = name.to_ascii_uppercase();
            let name = name.strip_prefix("CAP_").unwrap_or(&name).to_owned();
            if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') {
                self.invalid(key, "must be names of capabilities such as NET_ADMIN");
            } else if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    pub(super) fn extra_hosts(&mut self) {
        for (index, line) in self.list("extra_hosts").into_iter().enumerate() {
            // `name=address`, or `name:address`; an address may have colons.
            let parts = line.split_once('=').or_else(|| line.split_once(':'));
            match parts.map(|(name, address)| (name.trim(), address.trim().trim_matches(['[', ']']))) {
                Some((name, address)) if !name.is_empty() && !address.is_empty() => {
                    self.service.extra_hosts.push((name.to_owned(), address.to_owned()));
                }
                _ => self.invalid("extra_hosts", format!("entry {index} must be NAME=ADDRESS")),
            }
        }
    }

    pub(super) fn restart(&mut self) {
        let Some(text) = self.text("restart") else {
            self.deployed_restart();
            return;
        };
        self.service.restart = match text.split_once(':').unwrap_or((&text, "")) {
            ("no" | "", "") => ComposeRestart::No,
            ("always", "") => ComposeRestart::Always,
            ("unless-stopped", "") => ComposeRestart::UnlessStopped,
            ("on-failure", "") => ComposeRestart::OnFailure(None),
            ("on-failure", count) if count.parse::<u32>().is_ok() => ComposeRestart::OnFailure(count.parse().ok()),
            _ => {
                self.invalid("restart", "must be no, always, unless-stopped, on-failure or on-failure:COUNT");
                ComposeRestart::No
            }
        };
    }

    fn deployed_restart(&mut self) {
        let policy = ["deploy", "restart_policy"].iter().try_fold(self.node, |node, key| node.get(key));
        let Some(policy) = policy else { return };
        let text = |key: &str| policy.get(key).and_then(Node::as_text);
        let most = text("max_attempts").and_then(whole).and_then(|count| u32::try_from(count).ok());
        self.service.restart = match text("condition") {
            Some("none") => ComposeRestart::No,
            Some("on-failure") => ComposeRestart::OnFailure(most),
            _ => ComposeRestart::Always,
        };
    }

    pub(super) fn scale(&mut self) {
        let deployed = ["deploy", "replicas"].iter().try_fold(self.node, |node, key| node.get(key)).cloned();
        let count = |node: &Node| node.as_text().and_then(whole);
        let (own, deployed) = (self.get("scale").and_then(count), deployed.as_ref().and_then(count));
        self.service.scale = match own.or(deployed).unwrap_or(1) {
            count @ 0..=100 => count as u32,
            _ => {
                self.invalid("scale", "must be 0 to 100");
                1
            }
        };
        if let (Some(own), Some(deployed)) = (own, deployed)
            && own != deployed
        {
            self.invalid("scale", "says another number than deploy.replicas");
        }
    }

    pub(super) fn grants(&mut self, key: &str, folder: &str) -> Vec<ComposeGrant> {
        let mut grants = Vec::new();
        for (index, node) in self.get(key).and_then(Node::as_list).unwrap_or_default().to_vec().iter().enumerate() {
            let path = format!("{key}[{index}]");
            let text = |key: &str| node.get(key).and_then(Node::as_text).map(str::to_owned);
            let Some(source) = node.as_text().map(str::to_owned).or_else(|| text("source")) else {
                self.invalid_at(node.place, &path, "source is missing");
                continue;
            };
            let target = text("target").unwrap_or_else(|| source.clone());
            let target = if target.starts_with('/') { target } else { format!("{folder}{target}") };
            let mode = text("mode").map(|mode| u32::from_str_radix(mode.trim_start_matches("0o"), 8));
            if matches!(mode, Some(Err(_))) || matches!(mode, Some(Ok(mode)) if mode > 0o7777) {
                self.invalid_at(node.place, &path, "mode must be octal permission bits such as 0440");
            }
            let owner = match (text("uid"), text("gid")) {
                (None, None) => None,
                (uid, None) => uid,
                (uid, Some(gid)) => Some(format!("{}:{gid}", uid.unwrap_or_else(|| "0".to_owned()))),
            };
            let mode = mode.and_then(Result::ok);
            self.service.places.insert(path, node.place);
            grants.push(ComposeGrant { source, target, mode, owner, place: node.place });
        }
        grants
    }

    /// Our own extension: `x-sandbox: {hosts: [], resolve_environment: [NAME]}`.
    pub(super) fn x_sandbox(&mut self) {
        let Some(node) = self.get("x-sandbox").cloned() else { return };
        let Some(map) = node.as_map() else {
            self.invalid("x-sandbox", "must be a mapping");
            return;
        };
        for (key, entry) in map.iter() {
            let list = entry.node.as_list();
            match (key, list) {
                ("hosts", Some([])) => self.service.writes_hosts = false,
                ("resolve_environment", Some(names)) => {
                    self.service.resolve_environment =
                        names.iter().filter_map(|name| name.as_text().map(str::to_owned)).collect();
                }
                ("hosts", _) => self.invalid_at(entry.node.place, "x-sandbox.hosts", "can only be an empty list"),
                ("resolve_environment", None) => {
                    self.invalid_at(entry.node.place, "x-sandbox.resolve_environment", "must be a list of variables");
                }
                _ => self.invalid_at(entry.key_place, "x-sandbox", "has only hosts and resolve_environment"),
            }
        }
    }
}
