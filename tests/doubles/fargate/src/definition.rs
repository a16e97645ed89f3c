//! Task definitions and overrides, as far as tasks are run from them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::error::Refusal;

/// What a container may ask for in vain: it is refused, so that no test believes in it.
const NOT_THERE: [&str; 6] =
    ["healthCheck", "secrets", "environmentFiles", "volumesFrom", "firelensConfiguration", "systemControls"];

/// A registered definition.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Definition {
    pub(crate) container_definitions: Vec<ContainerDefinition>,
    #[serde(default)]
    pub(crate) volumes: Vec<Volume>,
    pub(crate) cpu: String,
    pub(crate) memory: String,
    pub(crate) ephemeral_storage: Option<Value>,
    pub(crate) task_role_arn: Option<String>,
}

/// One of its containers.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerDefinition {
    pub(crate) name: String,
    pub(crate) image: String,
    #[serde(default = "yes")]
    pub(crate) essential: bool,
    pub(crate) entry_point: Option<Vec<String>>,
    pub(crate) command: Option<Vec<String>>,
    #[serde(default)]
    pub(crate) environment: Vec<Variable>,
    #[serde(default)]
    pub(crate) mount_points: Vec<MountPoint>,
    #[serde(default)]
    pub(crate) port_mappings: Vec<PortMapping>,
    #[serde(default)]
    pub(crate) depends_on: Vec<Dependency>,
    pub(crate) working_directory: Option<String>,
    pub(crate) user: Option<String>,
    #[serde(default)]
    pub(crate) readonly_root_filesystem: bool,
    pub(crate) stop_timeout: Option<u64>,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Variable {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) value: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MountPoint {
    pub(crate) source_volume: String,
    pub(crate) container_path: String,
    #[serde(default)]
    pub(crate) read_only: bool,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PortMapping {
    pub(crate) container_port: u16,
}

/// Another container, and what of it is waited for.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Dependency {
    pub(crate) container_name: String,
    pub(crate) condition: Condition,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum Condition {
    /// It has started.
    Start,
    /// It has ended.
    Complete,
    /// It has ended with 0.
    Success,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) efs_volume_configuration: Option<FileSystem>,
}

/// A shared file system.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileSystem {
    pub(crate) file_system_id: String,
    #[serde(default)]
    pub(crate) root_directory: String,
    #[serde(default)]
    pub(crate) authorization_config: Value,
    #[serde(default)]
    transit_encryption: String,
}

impl FileSystem {
    fn check(&self, has_role: bool) -> Result<(), Refusal> {
        let refused = |message: &str| Err(Refusal::new("ClientException", message));
        let has_point = !self.authorization_config["accessPointId"].is_null();
        let asks_rights = self.authorization_config["iam"] == "ENABLED";
        if (has_point || asks_rights) && self.transit_encryption != "ENABLED" {
            return refused("Transit encryption must be enabled with an authorization config.");
        }
        if has_point && !matches!(self.root_directory.as_str(), "" | "/") {
            return refused("Root directory must be / with an access point.");
        }
        match asks_rights && !has_role {
            true => refused("A task role is needed for the rights of an EFS volume."),
            false => Ok(()),
        }
    }
}

impl Definition {
    /// What the answer to RegisterTaskDefinition or DescribeTaskDefinition says.
    pub(crate) fn parse(definition: &Value) -> Result<Self, Refusal> {
        serde_json::from_value(definition.clone()).map_err(|error| Refusal::new("ClientException", error.to_string()))
    }

    /// Checks a request to register one.
    pub(crate) fn check(request: &Value) -> Result<(), Refusal> {
        let refused = |message: String| Refusal::new("ClientException", message);
        crate::sizes::check(request, &Value::Null, "ClientException")?;
        if request["networkMode"] != "awsvpc" {
            return Err(refused("Fargate only supports network mode ‘awsvpc’.".to_owned()));
        }
        for container in request["containerDefinitions"].as_array().into_iter().flatten() {
            let asks = |key: &&str| match &container[*key] {
                Value::Null => false,
                Value::Array(list) => !list.is_empty(),
                _ => true,
            };
            if let Some(key) = NOT_THERE.iter().find(|key| asks(key)) {
                return Err(refused(format!("the double has no {key}")));
            }
        }
        let definition = Self::parse(request)?;
        let names: Vec<&str> = definition.container_definitions.iter().map(|one| one.name.as_str()).collect();
        for container in &definition.container_definitions {
            for dependency in &container.depends_on {
                if !names.contains(&dependency.container_name.as_str()) || dependency.container_name == container.name {
                    let name = &dependency.container_name;
                    return Err(refused(format!("Invalid 'dependsOn' setting for container {name}.")));
                }
            }
            for mount in &container.mount_points {
                if !definition.volumes.iter().any(|volume| volume.name == mount.source_volume) {
                    return Err(refused(format!("Unknown volume '{}'.", mount.source_volume)));
                }
            }
        }
        for system in definition.volumes.iter().filter_map(|volume| volume.efs_volume_configuration.as_ref()) {
            system.check(definition.task_role_arn.is_some())?;
        }
        if !definition.container_definitions.iter().any(|container| container.essential) {
            return Err(refused("Task definition does not have any essential containers.".to_owned()));
        }
        Ok(())
    }
}

/// What RunTask changes of one container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContainerOverride {
    name: String,
    pub(crate) command: Option<Vec<String>>,
    #[serde(default)]
    environment: Vec<Variable>,
}

/// The changes of RunTask, by the name of the container.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overrides(BTreeMap<String, ContainerOverride>);

impl Overrides {
    /// Checks the `overrides` of a request.
    pub(crate) fn parse(overrides: &Value, definition: &Definition) -> Result<Self, Refusal> {
        let all: Vec<ContainerOverride> = match &overrides["containerOverrides"] {
            Value::Null => Vec::new(),
            list => serde_json::from_value(list.clone()).map_err(|error| Refusal::parameter(error.to_string()))?,
        };
        let unknown =
            all.iter().find(|one| definition.container_definitions.iter().all(|known| known.name != one.name));
        if let Some(unknown) = unknown {
            return Err(Refusal::parameter(format!(
                "Override for container named {} is not a container in the TaskDefinition.",
                unknown.name
            )));
        }
        // The service takes no more than this.
        if overrides.to_string().len() > 8192 {
            return Err(Refusal::parameter("Container Overrides length must be at most 8192"));
        }
        Ok(Self(all.into_iter().map(|one| (one.name.clone(), one)).collect()))
    }

    pub(crate) fn command(&self, container: &ContainerDefinition) -> Option<Vec<String>> {
        self.0.get(&container.name).and_then(|change| change.command.clone()).or_else(|| container.command.clone())
    }

    /// The variables of a container, with the changes over them.
    pub(crate) fn environment(&self, container: &ContainerDefinition) -> BTreeMap<String, String> {
        let changes = self.0.get(&container.name).map(|change| change.environment.as_slice()).unwrap_or_default();
        container.environment.iter().chain(changes).map(|one| (one.name.clone(), one.value.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Definition, Overrides};

    fn request() -> Value {
        json!({
            "family": "f", "networkMode": "awsvpc", "cpu": "256", "memory": "512",
            "volumes": [{"name": "v"}],
            "containerDefinitions": [
                {"name": "a", "image": "i", "essential": false},
                {"name": "b", "image": "i", "environment": [{"name": "K", "value": "1"}, {"name": "L", "value": "2"}],
                 "dependsOn": [{"containerName": "a", "condition": "SUCCESS"}],
                 "mountPoints": [{"sourceVolume": "v", "containerPath": "/v"}]},
            ],
        })
    }

    #[test]
    fn what_the_double_cannot_run_is_refused() {
        Definition::check(&request()).unwrap();
        let changes: [(&str, Value, &str); 6] = [
            ("/networkMode", json!("bridge"), "awsvpc"),
            ("/memory", json!("700"), "No Fargate configuration"),
            ("/containerDefinitions/1/dependsOn/0/containerName", json!("c"), "dependsOn"),
            ("/containerDefinitions/1/dependsOn/0/condition", json!("HEALTHY"), "HEALTHY"),
            ("/containerDefinitions/1/mountPoints/0/sourceVolume", json!("w"), "Unknown volume"),
            ("/containerDefinitions/1/essential", json!(false), "essential"),
        ];
        for (place, value, part) in changes {
            let mut changed = request();
            match changed.pointer_mut(place) {
                Some(old) => *old = value,
                None => changed["containerDefinitions"][1]["essential"] = value,
            }
            let refusal = Definition::check(&changed).unwrap_err();
            assert!(refusal.message.contains(part), "{place}: {}", refusal.message);
        }
        let mut changed = request();
        changed["containerDefinitions"][0]["healthCheck"] = json!({"command": ["CMD", "true"]});
        assert!(Definition::check(&changed).unwrap_err().message.contains("healthCheck"));
    }

    #[test]
    fn overrides_win_over_the_definition_and_must_name_a_container() {
        let definition = Definition::parse(&request()).unwrap();
        let overrides = json!({"containerOverrides": [
            {"name": "b", "command": ["x"], "environment": [{"name": "L", "value": "3"}]},
        ]});
        let overrides = Overrides::parse(&overrides, &definition).unwrap();
        let container = &definition.container_definitions[1];
        assert_eq!(overrides.command(container), Some(vec!["x".to_owned()]));
        let environment: Vec<_> = overrides.environment(container).into_iter().collect();
        assert_eq!(environment, [("K".to_owned(), "1".to_owned()), ("L".to_owned(), "3".to_owned())]);
        let stranger = json!({"containerOverrides": [{"name": "z"}]});
        assert!(Overrides::parse(&stranger, &definition).is_err());
    }
}
