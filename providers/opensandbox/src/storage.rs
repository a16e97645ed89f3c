//! Storage that several sandboxes share, and what services need of the kernel: both are the server's own, named in the
//! settings.

use std::collections::BTreeMap;

use sandbox_core::{
    ErrorKind, ExecRequest, Result, RuntimeRequirements, RuntimeRequirementsSpec, SandboxError, SandboxHandle,
    SharedStorage, async_trait,
};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::{error::NAME, exec::exec_as, provider::OpenSandboxProvider, state::State};

fn unsupported(text: impl Into<String>, key: &str) -> SandboxError {
    let help = format!("set {key} in the settings of opensandbox");
    SandboxError::new(ErrorKind::Unsupported, text).with_help(help).with_provider(NAME)
}

/// A name that is the same for the same folder at the same place.
fn volume_name(source: &str, target: &str) -> String {
    use std::fmt::Write;
    let digest = Sha256::digest(format!("{source}:{target}"));
    let mut name = "shared-".to_owned();
    for byte in &digest[..8] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[async_trait]
impl SharedStorage for OpenSandboxProvider {
    async fn shared_volume_options(&self, source: Option<String>, target: String, read_only: bool) -> Result<Value> {
        let Some(host_path) = &self.shared.config.shared_storage.host_path else {
            return Err(unsupported("no shared storage is configured", "shared_storage.host_path"));
        };
        let invalid = |field: &str, why: &str| SandboxError::invalid_input(field, why).with_provider(NAME);
        let is_bad = |text: &str| text.contains(['\0', '\\']) || text.split('/').any(|part| part == "..");
        if !target.starts_with('/') || is_bad(&target) {
            return Err(invalid("target", "must be an absolute path without \"..\""));
        }
        let source = source.filter(|source| !source.is_empty() && source != ".");
        if source.as_deref().is_some_and(|source| source.starts_with('/') || is_bad(source)) {
            return Err(invalid("source", "must be a path below the shared storage, without \"..\""));
        }
        let mut volume = json!({
            "name": volume_name(source.as_deref().unwrap_or_default(), &target),
            "host": { "path": host_path },
            "mountPath": target,
            "readOnly": read_only,
        });
        if let Some(source) = source {
            volume["subPath"] = json!(source);
        }
        Ok(json!({ "volumes": [volume] }))
    }

    async fn shared_volume_metadata(&self) -> Result<BTreeMap<String, String>> {
        let storage = &self.shared.config.shared_storage;
        match storage.host_path {
            Some(_) => Ok(storage.metadata.clone()),
            None => Err(unsupported("no shared storage is configured", "shared_storage.host_path")),
        }
    }
}

#[async_trait]
impl RuntimeRequirements for OpenSandboxProvider {
    async fn validate_runtime_requirements(&self, requirements: RuntimeRequirementsSpec) -> Result<Option<Value>> {
        let config = &self.shared.config.runtime_requirements;
        let mut labels = Map::new();
        for name in &requirements.cap_add {
            if !config.capability_probes.contains_key(name) {
                let key = format!("runtime_requirements.capability_probes.{name}");
                return Err(unsupported(format!("nothing shows that a sandbox has the capability {name}"), &key));
            }
            let given = config.capability_metadata.get(name).into_iter().flatten();
            labels.extend(given.map(|(key, text)| (key.clone(), json!(text))));
        }
        if let Some(size) = requirements.shm_size_mib {
            let Some(key) = &config.shm_size_metadata_key else {
                let key = "runtime_requirements.shm_size_metadata_key";
                return Err(unsupported("nothing tells the server the size of /dev/shm", key));
            };
            labels.insert(key.clone(), json!(format!("{size}Mi")));
        }
        Ok(Some(Value::Object(labels)).filter(|labels| labels != &json!({})))
    }

    async fn configure_runtime(&self, handle: &SandboxHandle, requirements: RuntimeRequirementsSpec) -> Result<()> {
        self.validate_runtime_requirements(requirements.clone()).await?;
        let state = State { user: None, ..self.shared.open(handle)? };
        let probes = &self.shared.config.runtime_requirements.capability_probes;
        let mut checks: Vec<(String, String)> = requirements
            .cap_add
            .iter()
            .filter_map(|name| Some((format!("capability {name}"), probes.get(name)?.clone())))
            .collect();
        if let Some(size) = requirements.shm_size_mib {
            // In blocks: the last one may be a part.
            let script = format!("set -- $(stat -f -c '%S %b' /dev/shm) && test $(($1 * $2 / 1048576)) -eq {size}");
            checks.push((format!("/dev/shm of {size} MiB"), script));
        }
        for (what, script) in checks {
            let request = ExecRequest::shell(script).with_user("0:0").with_cwd("/").with_timeout_s(60.0);
            let stream = exec_as(&self.shared, &handle.sandbox_id, &state, request).await?;
            let result = stream.collect(Default::default()).await?;
            if !result.outcome().is_success() {
                let text = format!("the sandbox does not have what was asked for: {what}");
                return Err(SandboxError::new(ErrorKind::Unsupported, text).with_provider(NAME));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, RuntimeRequirements, RuntimeRequirementsSpec, SharedStorage, from_json};
    use serde_json::json;

    use crate::OpenSandboxProvider;

    fn provider(config: serde_json::Value) -> OpenSandboxProvider {
        OpenSandboxProvider::new(from_json(config, "config").unwrap()).unwrap()
    }

    #[tokio::test]
    async fn a_part_of_the_shared_storage_is_a_volume_of_the_server_and_nothing_leads_out_of_it() {
        let provider = provider(json!({"shared_storage": {"host_path": "/srv/shared", "metadata": {"zone": "a"}}}));
        let options = provider.shared_volume_options(Some("a/b".to_owned()), "/data".to_owned(), true).await.unwrap();
        let volume = &options["volumes"][0];
        assert_eq!((&volume["host"]["path"], &volume["subPath"]), (&json!("/srv/shared"), &json!("a/b")));
        assert_eq!((&volume["mountPath"], &volume["readOnly"]), (&json!("/data"), &json!(true)));
        let name = volume["name"].as_str().unwrap();
        assert!(name.starts_with("shared-") && name.len() == 23, "{name}");
        for (source, target) in [("/abs", "/t"), ("a/../b", "/t"), ("a", "rel"), ("a", "/t/.."), ("a\\b", "/t")] {
            let error = provider.shared_volume_options(Some(source.to_owned()), target.to_owned(), false).await;
            assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidInput, "{source} {target}");
        }
        assert_eq!(provider.shared_volume_metadata().await.unwrap()["zone"], "a");
    }

    #[tokio::test]
    async fn a_requirement_without_a_probe_is_refused_with_the_setting() {
        let config = json!({"runtime_requirements": {"capability_probes": {"SYS_PTRACE": "true"},
            "capability_metadata": {"SYS_PTRACE": {"cap": "ptrace"}}}});
        let provider = provider(config);
        let wanted = |cap: &str, shm_size_mib| RuntimeRequirementsSpec { cap_add: vec![cap.to_owned()], shm_size_mib };
        let labels = provider.validate_runtime_requirements(wanted("SYS_PTRACE", None)).await.unwrap();
        assert_eq!(labels, Some(json!({"cap": "ptrace"})));
        for (requirements, key) in [
            (wanted("NET_ADMIN", None), "capability_probes.NET_ADMIN"),
            (wanted("SYS_PTRACE", Some(64)), "shm_size_metadata_key"),
        ] {
            let error = provider.validate_runtime_requirements(requirements).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.help().unwrap().contains(key), "{error:?}");
        }
    }
}
