//! What goes along with a launch: everything in which sandboxes of the same image differ.

use sandbox_core::{ByteString, Result, SandboxError, SandboxSpec};
use serde_json::{Value, json};

use crate::{
    config::{FargateConfig, TransportKind},
    definition::{CONFIG_VARIABLE, MAIN, SHA256_VARIABLE, SSH, SSH_VARIABLE, TOKEN_VARIABLE, URL_VARIABLE},
    error::NAME,
    key::Keys,
    size::Size,
    transport::STREAM_WINDOW_BYTES,
};

/// The most characters of all overrides of a launch, as ECS has it.
const OVERRIDES_MAX: usize = 8192;

/// One launch, decided.
pub(crate) struct Plan<'a> {
    pub(crate) config: &'a FargateConfig,
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) keys: &'a Keys,
    pub(crate) incarnation: &'a str,
    pub(crate) size: Size,
    pub(crate) ttl_s: Option<f64>,
    /// Where the image fetches the agent, and its SHA-256.
    pub(crate) fetches: Option<(String, &'a str)>,
}

impl Plan<'_> {
    /// The overrides of RunTask.
    ///
    /// # Errors
    /// `InvalidInput` where they are longer than ECS takes.
    pub(crate) fn overrides(&self) -> Result<Value> {
        let variable = |name: &str, value: String| json!({ "name": name, "value": value });
        let mut agent = vec![
            variable(CONFIG_VARIABLE, self.agent_config().to_string()),
            variable(TOKEN_VARIABLE, self.keys.token_sha256(self.incarnation)),
        ];
        if let Some((url, sha256)) = &self.fetches {
            agent.push(variable(URL_VARIABLE, url.clone()));
            agent.push(variable(SHA256_VARIABLE, (*sha256).to_owned()));
        }
        let mut containers = vec![json!({ "name": MAIN, "environment": agent })];
        if self.config.transport == TransportKind::Ssh {
            let key = variable(SSH_VARIABLE, self.keys.ssh_public(self.incarnation)?);
            containers.push(json!({ "name": SSH, "environment": [key] }));
        }
        let mut overrides = json!({
            "cpu": self.size.cpu.to_string(),
            "memory": self.size.memory_mib.to_string(),
            "containerOverrides": containers,
        });
        if let Some(gib) = self.size.disk_gib {
            overrides["ephemeralStorage"] = json!({ "sizeInGiB": gib });
        }
        let length = overrides.to_string().chars().count();
        if length > OVERRIDES_MAX {
            let text = format!("what goes along with the launch has {length} characters; ECS takes {OVERRIDES_MAX}");
            let error = SandboxError::invalid_input("env", text).with_provider(NAME);
            return Err(error.with_help("put large values into files, or give them with each command"));
        }
        Ok(overrides)
    }

    /// What the agent is told. Everybody who may describe tasks can read it.
    fn agent_config(&self) -> Value {
        let spec = self.spec;
        let mut config = json!({
            // The image's own, which nobody else knows here.
            "inherit_env": true,
            "inherit_workdir": spec.workdir.is_none(),
            "env": spec.env,
            "incarnation": self.incarnation,
            "window_bytes": STREAM_WINDOW_BYTES,
        });
        let mut set = |key: &str, value: Value| config[key] = value;
        if self.config.transport == TransportKind::Ssh {
            // The SSH server is in another container: what is in this one cannot even connect.
            set("peer_uids", json!([0]));
            set("outside_peers_only", true.into());
        }
        if let Some(workdir) = &spec.workdir {
            set("workdir", json!(ByteString::from(workdir.as_str())));
        }
        if let Some(user) = &spec.user {
            set("user", user.as_str().into());
        }
        if let Some(ttl_s) = self.ttl_s {
            set("ttl_s", ttl_s.into());
        }
        if let Some(argv) = &spec.entrypoint {
            set("entrypoint", json!({ "argv": argv }));
            set("exit_with_entrypoint", true.into());
        }
        if spec.security.no_new_privs == Some(true) {
            set("commands", json!({ "no_new_privs": true }));
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::SandboxSpec;
    use serde_json::{Value, json};

    use super::Plan;
    use crate::{
        config::{FargateConfig, TransportKind},
        key::Keys,
        size::Size,
    };

    fn overrides(config: &FargateConfig, spec: &SandboxSpec) -> sandbox_core::Result<Value> {
        let keys = Keys::of_test();
        let size = Size { cpu: 2048, memory_mib: 4096, disk_gib: Some(30) };
        Plan { config, spec, keys: &keys, incarnation: "inc", size, ttl_s: Some(60.0), fetches: None }.overrides()
    }

    fn variables(overrides: &Value, container: usize) -> std::collections::BTreeMap<String, String> {
        let list = overrides["containerOverrides"][container]["environment"].as_array().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        list.iter().map(|one| (text(&one["name"]), text(&one["value"]))).collect()
    }

    #[test]
    fn what_differs_goes_along_with_the_launch_and_nothing_in_it_opens_a_sandbox() {
        let spec = SandboxSpec::from_json(json!({
            "image": "a", "env": {"A": "1"}, "workdir": "/w", "user": "7:8", "entrypoint": ["run", "it"],
        }))
        .unwrap();
        let overrides = overrides(&FargateConfig::default(), &spec).unwrap();
        assert_eq!((&overrides["cpu"], &overrides["memory"]), (&json!("2048"), &json!("4096")));
        assert_eq!(overrides["ephemeralStorage"]["sizeInGiB"], 30);
        let main = variables(&overrides, 0);
        let told: Value = serde_json::from_str(&main["SANDBOX_AGENT_CONFIG"]).unwrap();
        for (key, value) in [
            ("workdir", json!("/w")),
            ("inherit_workdir", json!(false)),
            ("inherit_env", json!(true)),
            ("user", json!("7:8")),
            ("ttl_s", json!(60.0)),
            ("incarnation", json!("inc")),
            ("window_bytes", json!(1 << 20)),
            ("outside_peers_only", json!(true)),
            ("exit_with_entrypoint", json!(true)),
            ("env", json!({"A": "1"})),
        ] {
            assert_eq!(told[key], value, "{key}");
        }
        let ssh = variables(&overrides, 1);
        assert!(ssh["SANDBOX_SSH_PUBLIC_KEY"].starts_with("ssh-ed25519 "));
        let token = Keys::of_test().token("inc");
        assert!(!overrides.to_string().contains(token.expose()));
        assert_eq!(main["SANDBOX_AGENT_TOKEN_SHA256"], Keys::of_test().token_sha256("inc"));
    }

    #[test]
    fn direct_has_one_container_to_tell_something() {
        let config = FargateConfig { transport: TransportKind::Direct, ..FargateConfig::default() };
        let overrides = overrides(&config, &SandboxSpec::image("a")).unwrap();
        assert_eq!(overrides["containerOverrides"].as_array().unwrap().len(), 1);
        let told: Value = serde_json::from_str(&variables(&overrides, 0)["SANDBOX_AGENT_CONFIG"]).unwrap();
        assert!(told.get("outside_peers_only").is_none());
        assert_eq!(told["inherit_workdir"], true);
    }

    #[test]
    fn more_than_ecs_takes_is_refused_with_the_limit() {
        let spec = SandboxSpec::image("a").with_env("BIG", "x".repeat(9000));
        let error = overrides(&FargateConfig::default(), &spec).unwrap_err();
        assert_eq!(error.field(), Some("env"));
        assert!(error.to_string().contains("8192"), "{error}");
    }
}
