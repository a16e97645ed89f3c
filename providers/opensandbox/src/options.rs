//! What a spec may say to this provider alone.

use std::collections::BTreeMap;

use sandbox_core::{Result, SandboxError, SandboxSpec, Secret, from_json};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::error::NAME;

/// `provider_options` of a spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// Who may pull the image.
    pub(crate) image_auth: Option<ImageAuth>,
    /// What the sandbox may reach, in the server's words: `{defaultAction, egress: [{action, target}]}`.
    pub(crate) network_policy: Option<Map<String, Value>>,
    /// Where it runs.
    pub(crate) platform: Option<Platform>,
    /// The snapshot that it is made from, in place of an image.
    pub(crate) snapshot_id: Option<String>,
    /// Further volumes, in the server's words.
    pub(crate) volumes: Vec<Map<String, Value>>,
    /// Hand it out before its daemon answers.
    pub(crate) skip_health_check: Option<bool>,
    /// Extensions of the server.
    pub(crate) extensions: BTreeMap<String, String>,
    /// What is asked of the scheduler: a map, or `"limits"` for the limits.
    pub(crate) resource_requests: Option<Requests>,
}

/// Who may pull an image.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageAuth {
    pub(crate) username: String,
    pub(crate) password: Secret,
}

/// Where a sandbox runs.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Platform {
    pub(crate) os: String,
    pub(crate) arch: String,
}

/// What is asked of the scheduler.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Requests {
    Word(String),
    Map(BTreeMap<String, String>),
}

impl Options {
    pub(crate) fn of(spec: &SandboxSpec) -> Result<Self> {
        let value = Value::Object(spec.provider_options.clone());
        let options: Self = from_json(value, "provider_options").map_err(|error| {
            let field = format!("provider_options.{}", error.field().unwrap_or_default());
            error.with_field(field).with_provider(NAME)
        })?;
        let invalid = |key: &str, why: &str| {
            Err(SandboxError::invalid_input(format!("provider_options.{key}"), why).with_provider(NAME))
        };
        if let Some(platform) = &options.platform {
            if !["linux", "windows"].contains(&platform.os.as_str()) {
                return invalid("platform.os", "must be linux or windows");
            }
            if !["amd64", "arm64"].contains(&platform.arch.as_str()) {
                return invalid("platform.arch", "must be amd64 or arm64");
            }
        }
        if matches!(&options.resource_requests, Some(Requests::Word(word)) if word != "limits") {
            return invalid("resource_requests", "must be a map, or \"limits\"");
        }
        if options.snapshot_id.is_some() && spec.image.is_some() {
            return invalid("snapshot_id", "takes the place of an image: leave image out");
        }
        if options.extensions.contains_key(crate::state::KEPT_KEY) {
            return invalid("extensions", "holds a key of this provider");
        }
        Ok(options)
    }
}

/// The limits in the server's words. Without any those of the official client: one core, 2 GiB.
pub(crate) fn limits(spec: &SandboxSpec) -> BTreeMap<String, String> {
    let resources = &spec.resources;
    let mut limits = BTreeMap::new();
    if let Some(cpu) = resources.cpu {
        let thousandths = (cpu * 1000.0).round().max(1.0) as u64;
        let text =
            if thousandths.is_multiple_of(1000) { (thousandths / 1000).to_string() } else { format!("{thousandths}m") };
        limits.insert("cpu".to_owned(), text);
    }
    if let Some(memory) = resources.memory_mib {
        limits.insert("memory".to_owned(), format!("{memory}Mi"));
    }
    if let Some(disk) = resources.disk_gib {
        limits.insert("ephemeral-storage".to_owned(), format!("{disk}Gi"));
    }
    if let Some(gpu) = resources.gpu {
        limits.insert("gpu".to_owned(), gpu.to_string());
    }
    if let Some(kind) = &resources.gpu_type {
        limits.insert("gpu_type".to_owned(), kind.clone());
    }
    if limits.is_empty() {
        limits.insert("cpu".to_owned(), "1".to_owned());
        limits.insert("memory".to_owned(), "2Gi".to_owned());
    }
    limits
}

impl Requests {
    pub(crate) fn value(&self, limits: &BTreeMap<String, String>) -> Value {
        match self {
            Self::Word(_) => json!(limits),
            Self::Map(map) => json!(map),
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, SandboxSpec};
    use serde_json::{Value, json};

    use super::{Options, limits};

    fn refusal(value: Value) -> Option<String> {
        let spec = json!({ "provider_options": value });
        let error = Options::of(&SandboxSpec::from_json(spec).unwrap()).expect_err(&value.to_string());
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        error.field().map(str::to_owned)
    }

    #[test]
    fn every_bad_option_is_refused_with_its_name() {
        for (value, key) in [
            (json!({"imageauth": {}}), "imageauth"),
            (json!({"image_auth": {"username": "u"}}), "image_auth"),
            (json!({"platform": {"os": "plan9", "arch": "amd64"}}), "platform.os"),
            (json!({"platform": {"os": "linux", "arch": "mips"}}), "platform.arch"),
            (json!({"resource_requests": "all"}), "resource_requests"),
            (json!({"skip_health_check": "yes"}), "skip_health_check"),
            (json!({"extensions": {"opensandbox.extensions.sandbox-record": "x"}}), "extensions"),
        ] {
            let field = refusal(value).unwrap();
            assert!(field.starts_with(&format!("provider_options.{key}")), "{field}");
        }
    }

    #[test]
    fn what_is_asked_of_the_scheduler_is_a_map_or_a_copy_of_the_limits() {
        let requests = |value: Value| {
            let spec = json!({ "resources": {"cpu": 2.0}, "provider_options": { "resource_requests": value } });
            let spec = SandboxSpec::from_json(spec).unwrap();
            Options::of(&spec).unwrap().resource_requests.map(|requests| requests.value(&limits(&spec)))
        };
        assert_eq!(requests(json!("limits")), Some(json!({"cpu": "2"})));
        assert_eq!(requests(json!({"cpu": "250m", "memory": "1Gi"})), Some(json!({"cpu": "250m", "memory": "1Gi"})));
        assert_eq!(requests(json!(null)), None);
        assert_eq!(refusal(json!({"resource_requests": 3})).as_deref(), Some("provider_options.resource_requests"));
    }

    #[test]
    fn limits_are_in_the_servers_units() {
        let spec = |value: Value| SandboxSpec::from_json(json!({ "resources": value })).unwrap();
        let given = limits(&spec(json!({"cpu": 2.0, "memory_mib": 256, "disk_gib": 3, "gpu": 1, "gpu_type": "a100"})));
        assert_eq!(
            json!(given),
            json!({"cpu": "2", "memory": "256Mi", "ephemeral-storage": "3Gi", "gpu": "1", "gpu_type": "a100"})
        );
        assert_eq!(limits(&spec(json!({"cpu": 0.5})))["cpu"], "500m");
        assert_eq!(json!(limits(&spec(json!({})))), json!({"cpu": "1", "memory": "2Gi"}));
    }
}
