//! A document in its normal form: long forms, absolute paths, variables filled in.

mod canonical;

use serde_json::{Map, Value as Json, json};

use super::{
    ComposeMount, ComposeNetworkMode, ComposeProject, ComposeService, HealthTest, HostPort, MountSource,
    load::{Node, Value},
};

impl ComposeProject {
    /// The document with everything resolved, in the form of `docker compose config`: commands and lists in their long
    /// form, absolute paths, env files read into `environment`, names of networks and volumes.
    ///
    /// Holds the values of variables, secrets among them where the document has them in `environment`.
    pub fn resolved(&self) -> Json {
        let mut services = Map::new();
        for (name, service) in &self.services {
            services.insert(name.clone(), self.service(service));
        }
        let mut document =
            Map::from_iter([("name".to_owned(), json!(self.name)), ("services".to_owned(), Json::Object(services))]);
        for section in ["networks", "volumes", "secrets", "configs"] {
            let resources = self.section(section);
            if !resources.is_empty() {
                document.insert(section.to_owned(), Json::Object(resources));
            }
        }
        if let Some(map) = self.document.as_map() {
            let extensions = map.iter().filter(|(key, _)| key.starts_with("x-"));
            document.extend(extensions.map(|(key, entry)| (key.to_owned(), to_json(&entry.node))));
        }
        let mut document = Json::Object(document);
        canonical::escape(&mut document);
        document
    }

    fn section(&self, section: &str) -> Map<String, Json> {
        let written = self.document.get(section).and_then(Node::as_map);
        let names: Vec<String> = match section {
            "networks" => self.networks.keys().cloned().collect(),
            _ => {
                let written = written.into_iter().flat_map(|map| map.iter()).map(|(name, _)| name.to_owned());
                written.filter(|name| self.uses(section, name)).collect()
            }
        };
        let mut resources = Map::new();
        for name in names {
            let node = written.and_then(|map| map.get(&name));
            let mut value = match node.map(to_json) {
                Some(Json::Object(map)) => map,
                _ => Map::new(),
            };
            value.entry("name").or_insert_with(|| json!(format!("{}_{name}", self.name)));
            if let Some(super::FileSource::File(path)) =
                self.secrets.get(&name).or(self.configs.get(&name)).map(|file| &file.source)
                && value.contains_key("file")
            {
                value.insert("file".to_owned(), json!(path));
            }
            resources.insert(name, Json::Object(value));
        }
        resources
    }

    /// Whether a service has it. What nobody has is not part of the normal form.
    fn uses(&self, section: &str, name: &str) -> bool {
        self.services.values().any(|service| match section {
            "volumes" => service
                .mounts
                .iter()
                .any(|mount| matches!(&mount.source, MountSource::Volume { name: of } if of == name)),
            "configs" => service.configs.iter().any(|grant| grant.source == name),
            // A build has them, too, in its own way.
            _ => service.secrets.iter().any(|grant| grant.source == name) || service.build.is_some(),
        })
    }

    fn service(&self, service: &ComposeService) -> Json {
        let mut value = match service.node.as_ref().map(to_json) {
            Some(Json::Object(map)) => map,
            _ => Map::new(),
        };
        for key in ["env_file", "label_file", "extends"] {
            value.remove(key);
        }
        canonical::service(&mut value);
        value.insert("command".to_owned(), json!(service.command));
        value.insert("entrypoint".to_owned(), json!(service.entrypoint));
        let mut put = |key: &str, json: Option<Json>| match json {
            Some(json) => drop(value.insert(key.to_owned(), json)),
            None => drop(value.remove(key)),
        };
        let variables = service.environment.iter().map(|(name, value)| (name.to_owned(), json!(value.to_string())));
        // A variable without a value that outside has none either is still asked for.
        let asked = service.node.as_ref().and_then(|node| node.get("environment")).and_then(Node::as_map);
        let asked = asked
            .into_iter()
            .flat_map(|map| map.iter())
            .filter(|(name, entry)| matches!(entry.node.value, Value::Null) && service.environment.get(name).is_none());
        let variables: Map<_, _> = variables.chain(asked.map(|(name, _)| (name.to_owned(), Json::Null))).collect();
        put("environment", Some(variables).filter(|variables| !variables.is_empty()).map(Json::Object));
        put("labels", Some(json!(service.labels)).filter(|_| !service.labels.is_empty()));
        put("ports", Some(service.ports.iter().map(port).collect()).filter(|_| !service.ports.is_empty()));
        let mounts = service.mounts.iter().enumerate();
        let mounts: Vec<Json> = mounts
            .filter(|(index, _)| service.mount_keys.get(*index).is_none_or(|key| !key.starts_with("tmpfs")))
            .map(|(_, mount)| self::mount(mount))
            .collect();
        put("volumes", Some(json!(mounts)).filter(|_| !mounts.is_empty()));
        let depends_on: Map<String, Json> = service
            .depends_on
            .iter()
            .map(|(name, needed)| {
                let mut json = json!({ "condition": needed.condition, "required": needed.required });
                if needed.restart {
                    json["restart"] = json!(true);
                }
                (name.clone(), json)
            })
            .collect();
        let mut depends_on = depends_on;
        if let Some(ComposeNetworkMode::Service(name)) = &service.network_mode {
            // It has the network of the other one, so it goes with it.
            let with_it = || json!({ "condition": "service_started", "required": true, "restart": true });
            depends_on.entry(name.clone()).or_insert_with(with_it);
        }
        put("depends_on", Some(depends_on).filter(|needs| !needs.is_empty()).map(Json::Object));
        if service.network_mode.is_none() && !service.networks.is_empty() {
            let written = service.node.as_ref().and_then(|node| node.get("networks"));
            let network =
                |name: &String| (name.clone(), written.and_then(|node| node.get(name)).map_or(Json::Null, to_json));
            put("networks", Some(Json::Object(service.networks.keys().map(network).collect())));
        }
        if let Some(build) = &service.build
            && let Some(Json::Object(map)) = value.get_mut("build")
        {
            map.insert("context".to_owned(), json!(build.context));
            if build.dockerfile_inline.is_none() {
                map.entry("dockerfile").or_insert_with(|| json!("Dockerfile"));
            }
            if let Some(Json::Object(args)) = map.get_mut("args") {
                // Those without a value have it from outside.
                for (name, value) in args.iter_mut().filter(|(_, value)| value.is_null()) {
                    if let Some(outside) = build.args.get(name) {
                        *value = json!(outside.to_string());
                    }
                }
            }
        }
        if let Some(check) = &service.healthcheck
            && let Some(Json::Object(map)) = value.get_mut("healthcheck")
            && let Some(test) = &check.test
        {
            let test = match test {
                HealthTest::None => json!(["NONE"]),
                HealthTest::Shell(script) => json!(["CMD-SHELL", script]),
                HealthTest::Command(argv) => {
                    json!(["CMD"].into_iter().chain(argv.iter().map(String::as_str)).collect::<Vec<_>>())
                }
            };
            if !map.contains_key("disable") {
                map.insert("test".to_owned(), test);
            }
        }
        for key in ["secrets", "configs"] {
            let grants = if key == "secrets" { &service.secrets } else { &service.configs };
            if let Some(Json::Array(list)) = value.get_mut(key) {
                for (item, grant) in list.iter_mut().zip(grants) {
                    if item.is_string() {
                        *item = json!({ "source": grant.source });
                        if key == "secrets" {
                            item["target"] = json!(grant.target);
                        }
                    } else if let Some(mode) = grant.mode {
                        item["mode"] = json!(format!("0{mode:o}"));
                    }
                }
            }
        }
        Json::Object(value)
    }
}

fn port(port: &super::ComposePort) -> Json {
    let mut json = json!({ "target": port.target, "protocol": port.protocol });
    json["mode"] = json!(if port.is_host_mode { "host" } else { "ingress" });
    match port.published {
        HostPort::Any => {}
        HostPort::Fixed(number) => json["published"] = json!(number.to_string()),
        HostPort::Range(first, last) => json["published"] = json!(format!("{first}-{last}")),
    }
    if let Some(address) = port.host_ip {
        json["host_ip"] = json!(address);
    }
    json
}

fn mount(mount: &ComposeMount) -> Json {
    let mut json = match &mount.source {
        MountSource::Bind { path } => json!({ "type": "bind", "source": path }),
        MountSource::Volume { name } => json!({ "type": "volume", "source": name }),
        MountSource::Anonymous => json!({ "type": "volume" }),
        MountSource::Tmpfs { size_mib, .. } => {
            let mut json = json!({ "type": "tmpfs" });
            if let Some(size) = size_mib {
                json["tmpfs"] = json!({ "size": (size << 20).to_string() });
            }
            json
        }
    };
    json["target"] = json!(mount.target);
    if mount.read_only {
        json["read_only"] = json!(true);
    }
    if !mount.copy_up && matches!(mount.source, MountSource::Volume { .. } | MountSource::Anonymous) {
        json["volume"] = json!({ "nocopy": true });
    }
    json
}

/// A node as JSON, each scalar by its type in YAML 1.2.
pub(super) fn to_json(node: &Node) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Scalar { text, plain: true } => match (text.as_str(), text.parse::<i64>(), text.parse::<f64>()) {
            ("true" | "True" | "TRUE", ..) => Json::Bool(true),
            ("false" | "False" | "FALSE", ..) => Json::Bool(false),
            (_, Ok(number), _) => json!(number),
            // Text such as 1.2.3, inf or 0x1F is kept as it stands.
            (digits, _, Ok(number))
                if number.is_finite() && digits.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) =>
            {
                json!(number)
            }
            _ => json!(text),
        },
        Value::Scalar { text, .. } => json!(text),
        Value::List(list) => list.iter().map(to_json).collect(),
        Value::Map(map) => {
            Json::Object(map.iter().map(|(key, entry)| (key.to_owned(), to_json(&entry.node))).collect())
        }
    }
}
