//! Reads one service whose shape was checked already.

mod limits;

use std::{collections::BTreeMap, path::Path};

use sandbox_core::Env;

use super::{
    dotenv::Format,
    files::{Loader, Variables, assignments},
    node::{Map, Node},
    ports,
    shape::{flag, whole},
    values::{bytes, duration, words},
    volumes::{self, Oddity, lexical, resolve},
};
use crate::compose::{
    model::{
        ComposeAttachment, ComposeBuild, ComposeCondition, ComposeDependency, ComposeHealthcheck, ComposeNetworkMode,
        ComposeService, HealthTest,
    },
    report::{FindingClass, Place},
};

/// Keys of a build that every builder has.
const BUILD_KEYS: [&str; 10] =
    ["args", "context", "dockerfile", "dockerfile_inline", "labels", "no_cache", "platforms", "pull", "tags", "target"];

/// Reads a service. What is wrong with it is in the loader's log.
pub(crate) fn read(
    loader: &mut Loader<'_>,
    name: &str,
    node: &Node,
    place: Place,
    outside: &Variables,
) -> ComposeService {
    let mut reader = Reader { loader, node, outside, service: ComposeService::default() };
    reader.service.name = name.to_owned();
    reader.service.writes_hosts = true;
    reader.service.places.insert(String::new(), place);
    if let Some(map) = node.as_map() {
        for (key, entry) in map.iter() {
            reader.service.places.insert(key.to_owned(), entry.key_place);
        }
    }
    reader.all();
    reader.service.node = Some(node.clone());
    reader.service
}

struct Reader<'r, 'l> {
    loader: &'r mut Loader<'l>,
    node: &'r Node,
    outside: &'r Variables,
    service: ComposeService,
}

impl<'r> Reader<'r, '_> {
    fn all(&mut self) {
        self.service.image = self.text("image").filter(|image| !image.is_empty());
        if let Some(image) = &self.service.image
            && image.contains(char::is_whitespace)
        {
            self.invalid("image", "must not contain blanks");
        }
        self.build();
        self.service.command = self.command("command");
        self.service.entrypoint = self.command("entrypoint");
        self.environment();
        self.service.working_dir = self.text("working_dir").filter(|folder| !folder.is_empty());
        if self.service.working_dir.as_ref().is_some_and(|folder| !folder.starts_with('/')) {
            self.invalid("working_dir", "must be an absolute path");
        }
        self.service.user = self.text("user").filter(|user| !user.is_empty());
        self.depends_on();
        self.healthcheck();
        self.ports();
        self.networks();
        self.mounts();
        self.resources();
        self.service.cap_add = self.capabilities("cap_add");
        self.service.cap_drop = self.capabilities("cap_drop");
        self.service.privileged = self.flag("privileged");
        self.service.security_opt = self.list("security_opt");
        self.extra_hosts();
        self.labels();
        self.service.hostname = self.text("hostname");
        self.service.container_name = self.text("container_name");
        self.service.stop_signal = self.text("stop_signal");
        self.service.stop_grace_period = self.duration("stop_grace_period");
        self.restart();
        self.scale();
        self.service.secrets = self.grants("secrets", "/run/secrets/");
        self.service.configs = self.grants("configs", "/");
        self.service.pull_policy = self.text("pull_policy");
        self.service.platform = self.text("platform");
        self.x_sandbox();
    }

    fn get(&self, key: &str) -> Option<&'r Node> {
        self.node.get(key)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.get(key)?.as_text().map(str::to_owned)
    }

    fn flag(&self, key: &str) -> bool {
        self.get(key).and_then(Node::as_text).and_then(flag).unwrap_or(false)
    }

    fn list(&self, key: &str) -> Vec<String> {
        let list = self.get(key).and_then(Node::as_list).unwrap_or_default();
        list.iter().filter_map(|node| node.as_text().map(str::to_owned)).collect()
    }

    fn invalid(&mut self, key: &str, message: impl Into<String>) {
        let place = self.get(key).map_or_else(|| self.service.place(key), |node| node.place);
        self.invalid_at(place, key, message);
    }

    fn invalid_at(&mut self, place: Place, key: &str, message: impl Into<String>) {
        let key = self.service.key(key);
        self.loader.log.error(place, FindingClass::Invalid, &key, message);
    }

    fn home(&self) -> Option<String> {
        self.outside.get("HOME").cloned()
    }

    fn duration(&mut self, key: &str) -> Option<std::time::Duration> {
        let text = self.text(key)?;
        duration(&text).map_err(|why| self.invalid(key, why)).ok()
    }

    fn bytes(&mut self, key: &str) -> Option<u64> {
        let text = self.text(key)?;
        bytes(&text).map_err(|why| self.invalid(key, why)).ok().filter(|bytes| *bytes > 0)
    }

    fn command(&mut self, key: &str) -> Option<Vec<String>> {
        let node = self.get(key)?;
        match (node.as_text(), node.as_list()) {
            (Some(text), _) => match words(text) {
                Ok(words) => Some(words),
                Err(why) => {
                    self.invalid(key, why);
                    None
                }
            },
            (_, Some(_)) => Some(self.list(key)),
            _ => None,
        }
    }

    fn build(&mut self) {
        let Some(node) = self.get("build") else { return };
        let text = |key: &str| node.get(key).and_then(Node::as_text).map(str::to_owned);
        let context = text("context").unwrap_or_else(|| ".".to_owned());
        let is_url = context.contains("://") || context.starts_with("git@");
        let place = node.get("context").map_or(node.place, |node| node.place);
        let home = self.home();
        let folder = match is_url {
            true => Ok(context.clone()),
            false => {
                resolve(&context, &self.loader.log.base(place), home.as_deref()).map(|path| path.display().to_string())
            }
        };
        let texts = |key: &str| -> Vec<String> {
            let list = node.get(key).and_then(Node::as_list).unwrap_or_default();
            list.iter().filter_map(|one| one.as_text().map(str::to_owned)).collect()
        };
        let is_on = |key: &str| node.get(key).and_then(Node::as_text).and_then(flag).unwrap_or(false);
        let other_keys = node.as_map().into_iter().flat_map(Map::iter).map(|(key, _)| key);
        let build = ComposeBuild {
            context: folder.clone().unwrap_or_default(),
            dockerfile: text("dockerfile"),
            dockerfile_inline: text("dockerfile_inline"),
            target: text("target"),
            args: self.variables(node.get("args")),
            labels: pairs(node.get("labels")),
            tags: texts("tags"),
            no_cache: is_on("no_cache"),
            pull: is_on("pull"),
            platforms: texts("platforms"),
            other_keys: other_keys
                .filter(|key| !BUILD_KEYS.contains(key) && !key.starts_with("x-"))
                .map(str::to_owned)
                .collect(),
        };
        let keys: Vec<_> = node
            .as_map()
            .into_iter()
            .flat_map(Map::iter)
            .map(|(key, entry)| (format!("build.{key}"), entry.key_place))
            .collect();
        self.service.places.extend(keys);
        if let Err(why) = folder {
            self.invalid_at(place, "build.context", why);
        }
        if build.dockerfile.is_some() && build.dockerfile_inline.is_some() {
            self.invalid("build", "has both dockerfile and dockerfile_inline; only one can hold");
        }
        self.service.build = Some(build);
    }

    /// Variables; those without a value come from outside, or are left out.
    fn variables(&self, node: Option<&Node>) -> Env {
        let mut variables = Env::default();
        for (name, entry) in node.and_then(Node::as_map).into_iter().flat_map(Map::iter) {
            match entry.node.as_text() {
                Some(value) => variables.insert(name, value),
                None => {
                    if let Some(value) = self.outside.get(name) {
                        variables.insert(name, value.as_str());
                    }
                }
            }
        }
        variables
    }

    fn environment(&mut self) {
        let mut variables = Env::default();
        let files: Vec<Node> = self.get("env_file").and_then(Node::as_list).unwrap_or_default().to_vec();
        for (index, file) in files.iter().enumerate() {
            let key = self.service.key(&format!("env_file[{index}]"));
            for (name, value) in self.env_file(file, &key) {
                variables.insert(name, value);
            }
        }
        let own = self.variables(self.get("environment"));
        let names: Vec<(String, Place)> = self
            .get("environment")
            .and_then(Node::as_map)
            .into_iter()
            .flat_map(Map::iter)
            .map(|(name, entry)| (name.to_owned(), entry.key_place))
            .collect();
        for (name, place) in names {
            if name.is_empty() || name.contains('\0') || name.contains('=') {
                self.invalid_at(place, "environment", "the name of a variable must not be empty and has no =");
            }
        }
        self.service.environment = variables.overridden_by(&own);
    }

    fn env_file(&mut self, node: &Node, key: &str) -> Vec<(String, String)> {
        let text = |name: &str| node.get(name).and_then(Node::as_text);
        let (path, place) = match node.as_text() {
            Some(path) => (path.to_owned(), node.place),
            None => {
                (text("path").unwrap_or_default().to_owned(), node.get("path").map_or(node.place, |path| path.place))
            }
        };
        let required = text("required").and_then(flag).unwrap_or(true);
        let format = match text("format") {
            None => Format::Dotenv,
            Some("raw") => Format::Raw,
            Some(_) => {
                self.loader.log.error(node.place, FindingClass::Invalid, key, "format can only be raw");
                return Vec::new();
            }
        };
        let home = self.home();
        let path = match resolve(&path, &self.loader.log.base(place), home.as_deref()) {
            Ok(path) => path,
            Err(why) => {
                self.loader.log.error(place, FindingClass::Invalid, key, why);
                return Vec::new();
            }
        };
        if !required && !path.exists() {
            return Vec::new();
        }
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        match self.loader.read(&path, &folder, place, key, "env file") {
            Some(file) => assignments(self.loader.log, file, format, self.outside),
            None => Vec::new(),
        }
    }

    /// Labels of files, then those of the document.
    fn labels(&mut self) {
        let files: Vec<Node> = self.get("label_file").and_then(Node::as_list).unwrap_or_default().to_vec();
        for (index, file) in files.iter().enumerate() {
            let key = self.service.key(&format!("label_file[{index}]"));
            let labels = self.env_file(file, &key);
            self.service.labels.extend(labels);
        }
        let own = pairs(self.get("labels"));
        self.service.labels.extend(own);
    }

    fn depends_on(&mut self) {
        let Some(map) = self.get("depends_on").and_then(Node::as_map) else { return };
        for (name, entry) in map.clone().iter() {
            let text = |key: &str| entry.node.get(key).and_then(Node::as_text);
            let condition = match text("condition") {
                Some("service_healthy") => ComposeCondition::ServiceHealthy,
                Some("service_completed_successfully") => ComposeCondition::ServiceCompletedSuccessfully,
                _ => ComposeCondition::ServiceStarted,
            };
            let is = |key: &str, default| text(key).and_then(flag).unwrap_or(default);
            let dependency =
                ComposeDependency { condition, required: is("required", true), restart: is("restart", false) };
            self.service.places.insert(format!("depends_on.{name}"), entry.key_place);
            self.service.depends_on.insert(name.to_owned(), dependency);
        }
    }

    fn healthcheck(&mut self) {
        let Some(node) = self.get("healthcheck").filter(|node| node.as_map().is_some()).cloned() else { return };
        let text = |key: &str| node.get(key).and_then(Node::as_text);
        let mut time = |key: &str| {
            let text = text(key)?;
            match duration(text) {
                Ok(duration) => Some(duration),
                Err(why) => {
                    let place = node.get(key).map_or(node.place, |node| node.place);
                    self.invalid_at(place, &format!("healthcheck.{key}"), why);
                    None
                }
            }
        };
        let (interval, timeout) = (time("interval"), time("timeout"));
        let (start_period, start_interval) = (time("start_period"), time("start_interval"));
        let retries = text("retries").map(|text| text.parse::<f64>().unwrap_or(-1.0));
        if retries.is_some_and(|retries| retries < 0.0 || retries.fract() != 0.0 || retries > 1e6) {
            self.invalid("healthcheck", "retries must be a whole number from 0");
        }
        let test = if text("disable").and_then(flag).unwrap_or(false) {
            Some(HealthTest::None)
        } else {
            node.get("test").and_then(|test| self.health_test(test))
        };
        let retries = retries.map(|retries| retries as u32).filter(|retries| *retries > 0);
        let check = ComposeHealthcheck { test, interval, timeout, retries, start_period, start_interval };
        self.service.healthcheck = Some(check);
    }

    fn health_test(&mut self, test: &Node) -> Option<HealthTest> {
        if let Some(text) = test.as_text() {
            if text.is_empty() {
                self.invalid_at(test.place, "healthcheck.test", "must not be empty");
            }
            return Some(HealthTest::Shell(text.to_owned()));
        }
        let words: Vec<String> =
            test.as_list().unwrap_or_default().iter().filter_map(|node| node.as_text().map(str::to_owned)).collect();
        let wrong = match words.split_first() {
            Some((kind, [])) if kind == "NONE" => return Some(HealthTest::None),
            Some((kind, [script])) if kind == "CMD-SHELL" => return Some(HealthTest::Shell(script.clone())),
            Some((kind, rest)) if kind == "CMD" && !rest.is_empty() => return Some(HealthTest::Command(rest.to_vec())),
            Some((kind, _)) if kind == "NONE" => "behind NONE nothing may follow",
            Some((kind, _)) if kind == "CMD-SHELL" => "behind CMD-SHELL exactly one text must follow",
            Some((kind, _)) if kind == "CMD" => "behind CMD a program must follow",
            _ => "a list must start with CMD, CMD-SHELL or NONE",
        };
        self.invalid_at(test.place, "healthcheck.test", wrong);
        None
    }

    fn ports(&mut self) {
        for (index, node) in self.get("ports").and_then(Node::as_list).unwrap_or_default().iter().enumerate() {
            let key = format!("ports[{index}]");
            match ports::read(node) {
                Ok(ports) => {
                    for port in ports {
                        self.service.places.insert(format!("ports[{}]", self.service.ports.len()), node.place);
                        self.service.ports.push(port);
                    }
                }
                Err(why) => self.invalid_at(node.place, &key, why),
            }
        }
        for (index, node) in self.get("expose").and_then(Node::as_list).unwrap_or_default().iter().enumerate() {
            match ports::exposed(node.as_text().unwrap_or_default()) {
                Ok(ports) => self.service.expose.extend(ports),
                Err(why) => self.invalid_at(node.place, &format!("expose[{index}]"), why),
            }
        }
    }

    fn networks(&mut self) {
        let mode = self.text("network_mode").filter(|mode| !mode.is_empty());
        let networks = self.get("networks").and_then(Node::as_map).cloned();
        if let Some(mode) = mode {
            if networks.is_some_and(|networks| !networks.0.is_empty()) {
                self.invalid("network_mode", "stands beside networks; only one of them can hold");
            }
            self.service.network_mode = Some(match mode.as_str() {
                "none" => ComposeNetworkMode::None,
                "host" => ComposeNetworkMode::Host,
                "bridge" | "default" => ComposeNetworkMode::Bridge,
                mode => match mode.split_once(':') {
                    Some(("service", name)) => ComposeNetworkMode::Service(name.to_owned()),
                    Some(("container", name)) => ComposeNetworkMode::Container(name.to_owned()),
                    _ => ComposeNetworkMode::Other(mode.to_owned()),
                },
            });
            return;
        }
        let Some(networks) = networks.filter(|networks| !networks.0.is_empty()) else {
            self.service.networks.insert("default".to_owned(), ComposeAttachment::default());
            return;
        };
        for (name, entry) in networks.iter() {
            let text = |key: &str| entry.node.get(key).and_then(Node::as_text).map(str::to_owned);
            let known = ["aliases", "ipv4_address", "priority", "gw_priority"];
            let keys = entry.node.as_map().into_iter().flat_map(Map::iter).map(|(key, _)| key);
            let aliases = entry.node.get("aliases").and_then(Node::as_list).unwrap_or_default();
            let attachment = ComposeAttachment {
                aliases: aliases.iter().filter_map(|alias| alias.as_text().map(str::to_owned)).collect(),
                ipv4_address: text("ipv4_address"),
                other_keys: keys
                    .filter(|key| !known.contains(key) && !key.starts_with("x-"))
                    .map(str::to_owned)
                    .collect(),
                priority: text("priority").and_then(|text| whole(&text)).unwrap_or_default(),
            };
            self.service.places.insert(format!("networks.{name}"), entry.key_place);
            self.service.networks.insert(name.to_owned(), attachment);
        }
    }

    fn mounts(&mut self) {
        let home = self.home();
        let mut mounts = Vec::new();
        for (index, node) in self.get("volumes").and_then(Node::as_list).unwrap_or_default().iter().enumerate() {
            let key = format!("volumes[{index}]");
            let place = node.get("source").map_or(node.place, |source| source.place);
            let base = self.loader.log.base(place);
            match volumes::read(node, &base, home.as_deref()) {
                Ok((mount, oddities)) => {
                    mounts.push((mount, node.place, key.clone()));
                    for oddity in oddities {
                        let path = self.service.key(&key);
                        match oddity {
                            Oddity::NoEffect(why) => self.loader.log.note(node.place, &path, why),
                            Oddity::Unsupported(what) => self.loader.log.error(
                                node.place,
                                FindingClass::Unsupported,
                                &path,
                                format!("{what} are not supported"),
                            ),
                        }
                    }
                }
                Err(why) => self.invalid_at(node.place, &key, why),
            }
        }
        for (index, node) in self.get("tmpfs").and_then(Node::as_list).unwrap_or_default().iter().enumerate() {
            match volumes::read_tmpfs(node.as_text().unwrap_or_default()) {
                Ok(mount) => mounts.push((mount, node.place, format!("tmpfs[{index}]"))),
                Err(why) => self.invalid_at(node.place, &format!("tmpfs[{index}]"), why),
            }
        }
        for (mount, place, key) in mounts {
            if self.service.mounts.iter().any(|other| other.target == mount.target) {
                self.invalid_at(place, &key, format!("two mounts at {}", mount.target));
                continue;
            }
            self.service.places.insert(key.clone(), place);
            self.service.mount_keys.push(key);
            self.service.mounts.push(mount);
        }
    }
}

/// Names and values of a mapping as text.
pub(crate) fn pairs(node: Option<&Node>) -> BTreeMap<String, String> {
    let map = node.and_then(Node::as_map);
    map.into_iter()
        .flat_map(Map::iter)
        .map(|(name, entry)| (name.to_owned(), entry.node.as_text().unwrap_or_default().to_owned()))
        .collect()
}

/// A path of this machine in a document.
pub(crate) fn path_of(loader: &Loader<'_>, node: &Node) -> std::path::PathBuf {
    lexical(&loader.log.base(node.place).join(node.as_text().unwrap_or_default()))
}
