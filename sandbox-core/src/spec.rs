//! What a sandbox should be.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{
    ByteString, Env, Field, HostEntry, NetworkMode, Result, SandboxError, SandboxIdentity, SandboxResources,
    SandboxSecurity, SandboxSidecarSpec, StartupFile, StartupFiles, VolumeMount, VolumeSource, from_json,
    validate::{check_no_nul, check_seconds, check_user, to_duration},
};

/// What a sandbox should be. Every field is optional; what a provider cannot honour it refuses by name.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct SandboxSpec {
    /// Image reference. Some providers need one, some take none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// A name for people: 1 to 63 of `a-z A-Z 0-9 . _ -`, starting with a letter or digit. Not the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Longest life, in seconds. Enforced on the sandbox's side, so that it holds when the caller is gone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<f64>,
    /// How long `create` may take until commands run, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready_timeout_s: Option<f64>,
    /// Default working directory of commands, absolute; made if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Environment of every command, over the image's.
    #[serde(skip_serializing_if = "Env::is_empty")]
    pub env: Env,
    /// Files written after the sandbox runs, in order.
    #[serde(skip_serializing_if = "no_files")]
    pub files: StartupFiles,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// Limits.
    pub resources: SandboxResources,
    /// Replaces the main process of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Settings that one provider knows, checked by that provider.
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    pub provider_options: serde_json::Map<String, Value>,
    /// TCP ports that can be asked for by `endpoint`. In JSON numbers, or strings of digits.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "read_ports")]
    pub ports: Vec<u16>,
    /// Containers beside the main one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sidecars: Vec<SandboxSidecarSpec>,
    /// Default user of commands and owner of files: `NAME`, `UID`, `UID:GID` or `NAME:GROUP`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Mounted volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// What the sandbox can reach.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkMode>,
    /// Size of `/dev/shm` in MiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_size_mib: Option<u64>,
    /// How much of the kernel it may use.
    pub security: SandboxSecurity,
    /// Names that resolve inside.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra_hosts: Vec<HostEntry>,
    /// Who made it; filled in by the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<SandboxIdentity>,
}

fn no_files(files: &StartupFiles) -> bool {
    files.0.is_empty()
}

fn read_ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u16>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Port {
        Number(i64),
        Text(String),
    }
    let ports = Vec::<Port>::deserialize(deserializer)
        .map_err(|_| serde::de::Error::custom("must be a list of port numbers"))?;
    ports
        .into_iter()
        .map(|port| {
            let (number, shown) = match port {
                Port::Number(number) => (Some(number), number.to_string()),
                // Plain digits only: no sign, no blanks, no separators.
                Port::Text(text) if text.bytes().all(|b| b.is_ascii_digit()) => (text.parse().ok(), text),
                Port::Text(text) => (None, format!("{text:?}")),
            };
            number
                .and_then(|number| u16::try_from(number).ok())
                .filter(|number| *number > 0)
                .ok_or_else(|| serde::de::Error::custom(format!("a port must be 1 to 65535, not {shown}")))
        })
        .collect()
}

impl SandboxSpec {
    /// A spec for this image.
    pub fn image(image: impl Into<String>) -> Self {
        Self { image: Some(image.into()), ..Self::default() }
    }

    /// Reads a spec from JSON and checks it.
    ///
    /// # Errors
    /// `InvalidInput`, naming the key and, for an unknown one, the accepted keys and the nearest.
    pub fn from_json(value: Value) -> Result<Self> {
        let spec: Self = from_json(value, "spec")?;
        spec.validate()?;
        Ok(spec)
    }

    /// Sets one environment variable.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<ByteString>) -> Self {
        self.env.insert(name, value);
        self
    }

    /// Sets the longest life, in seconds.
    #[must_use]
    pub fn with_ttl_s(mut self, ttl_s: f64) -> Self {
        self.ttl_s = Some(ttl_s);
        self
    }

    /// Sets the default working directory.
    #[must_use]
    pub fn with_workdir(mut self, workdir: impl Into<String>) -> Self {
        self.workdir = Some(workdir.into());
        self
    }

    /// Sets the default user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Adds a start-up file.
    #[must_use]
    pub fn with_file(mut self, path: impl Into<String>, contents: impl Into<ByteString>) -> Self {
        self.files.0.push(StartupFile { path: path.into(), contents: contents.into() });
        self
    }

    /// Declares ports.
    #[must_use]
    pub fn with_ports(mut self, ports: impl IntoIterator<Item = u16>) -> Self {
        self.ports.extend(ports);
        self
    }

    /// Adds a label.
    #[must_use]
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(key.into(), value.into());
        self
    }

    /// The longest life.
    pub fn ttl(&self) -> Option<Duration> {
        to_duration(self.ttl_s)
    }

    /// How long `create` may take.
    pub fn ready_timeout(&self) -> Option<Duration> {
        to_duration(self.ready_timeout_s)
    }

    /// Checks every value that can be checked without a provider.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field, what is wrong and the limit.
    pub fn validate(&self) -> Result<()> {
        let invalid = SandboxError::invalid_input;
        if self.image.as_deref().is_some_and(|image| image.trim().is_empty() || image.contains(char::is_whitespace)) {
            return Err(invalid("image", "must not be blank and must not contain blanks"));
        }
        if self.name.as_deref().is_some_and(|name| !is_name(name)) {
            return Err(invalid("name", "must be 1 to 63 of a-z A-Z 0-9 . _ - and start with a letter or a digit"));
        }
        check_seconds("ttl_s", self.ttl_s)?;
        check_seconds("ready_timeout_s", self.ready_timeout_s)?;
        if let Some(workdir) = &self.workdir {
            check_no_nul("workdir", workdir.as_bytes())?;
            if !workdir.starts_with('/') {
                return Err(invalid("workdir", "must be an absolute path"));
            }
        }
        self.env.validate("env")?;
        self.validate_files()?;
        self.resources.validate()?;
        if let Some(entrypoint) = &self.entrypoint {
            if entrypoint.first().is_none_or(String::is_empty) {
                return Err(invalid("entrypoint", "must name a program"));
            }
            for (index, argument) in entrypoint.iter().enumerate() {
                check_no_nul(&format!("entrypoint[{index}]"), argument.as_bytes())?;
            }
        }
        self.validate_ports()?;
        self.validate_sidecars()?;
        check_user("user", self.user.as_deref())?;
        for (index, volume) in self.volumes.iter().enumerate() {
            validate_volume(index, volume)?;
        }
        if self.shm_size_mib == Some(0) {
            return Err(invalid("shm_size_mib", "must be above 0"));
        }
        Ok(())
    }

    fn validate_files(&self) -> Result<()> {
        for (index, file) in self.files.0.iter().enumerate() {
            if file.path.is_empty() || file.path.ends_with('/') {
                return Err(SandboxError::invalid_input(format!("files[{index}]"), "the path must name a file"));
            }
            check_no_nul(&format!("files[{index}]"), file.path.as_bytes())?;
        }
        Ok(())
    }

    fn validate_ports(&self) -> Result<()> {
        for (index, port) in self.ports.iter().enumerate() {
            if *port == 0 {
                return Err(SandboxError::invalid_input("ports", "a port must be 1 to 65535, not 0"));
            }
            if self.ports[..index].contains(port) {
                return Err(SandboxError::invalid_input("ports", format!("port {port} is declared twice")));
            }
        }
        Ok(())
    }

    fn validate_sidecars(&self) -> Result<()> {
        for (index, sidecar) in self.sidecars.iter().enumerate() {
            let field = format!("sidecars[{index}]");
            if sidecar.name.trim().is_empty() || sidecar.image.trim().is_empty() {
                return Err(SandboxError::invalid_input(field, "needs a name and an image"));
            }
            if self.sidecars[..index].iter().any(|other| other.name == sidecar.name) {
                return Err(SandboxError::invalid_input(field, format!("the name {:?} is used twice", sidecar.name)));
            }
            sidecar.env.validate(&format!("{field}.env"))?;
            sidecar.resources.validate()?;
        }
        Ok(())
    }

    /// The fields that are set, for the check against what a provider honours.
    pub fn used_fields(&self) -> Vec<Field> {
        let resources = &self.resources;
        let security = &self.security;
        let used = [
            (Field::Image, self.image.is_some()),
            (Field::Name, self.name.is_some()),
            (Field::TtlS, self.ttl_s.is_some()),
            (Field::ReadyTimeoutS, self.ready_timeout_s.is_some()),
            (Field::Workdir, self.workdir.is_some()),
            (Field::Env, !self.env.is_empty()),
            (Field::Metadata, !self.metadata.is_empty()),
            (Field::Cpu, resources.cpu.is_some()),
            (Field::MemoryMib, resources.memory_mib.is_some()),
            (Field::DiskGib, resources.disk_gib.is_some()),
            (Field::Gpu, resources.gpu.is_some()),
            (Field::GpuType, resources.gpu_type.is_some()),
            (Field::Pids, resources.pids.is_some()),
            (Field::Entrypoint, self.entrypoint.is_some()),
            (Field::ProviderOptions, !self.provider_options.is_empty()),
            (Field::Ports, !self.ports.is_empty()),
            (Field::Sidecars, !self.sidecars.is_empty()),
            (Field::User, self.user.is_some()),
            (Field::VolumesBind, self.has_volume(|source| matches!(source, VolumeSource::Bind(_)))),
            (Field::VolumesNamed, self.has_volume(|source| matches!(source, VolumeSource::Named(_)))),
            (Field::VolumesTmpfs, self.has_volume(|source| matches!(source, VolumeSource::Tmpfs(_)))),
            (Field::NetworkNone, self.network == Some(NetworkMode::None)),
            (Field::NetworkHost, self.network == Some(NetworkMode::Host)),
            (Field::NetworkNamed, matches!(self.network, Some(NetworkMode::Named(_)))),
            (Field::ShmSizeMib, self.shm_size_mib.is_some()),
            (Field::CapAdd, !security.cap_add.is_empty()),
            (Field::CapDrop, !security.cap_drop.is_empty()),
            (Field::SeccompProfile, security.seccomp_profile.is_some()),
            (Field::NoNewPrivs, security.no_new_privs.is_some()),
            (Field::Privileged, security.privileged),
            (Field::ExtraHosts, !self.extra_hosts.is_empty()),
        ];
        used.into_iter().filter_map(|(field, is_used)| is_used.then_some(field)).collect()
    }

    fn has_volume(&self, test: impl Fn(&VolumeSource) -> bool) -> bool {
        self.volumes.iter().any(|volume| test(&volume.source))
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

fn validate_volume(index: usize, volume: &VolumeMount) -> Result<()> {
    let field = format!("volumes[{index}]");
    if !volume.target.starts_with('/') || volume.target.contains('\0') {
        return Err(SandboxError::invalid_input(format!("{field}.target"), "must be an absolute path"));
    }
    match &volume.source {
        VolumeSource::Bind(path) if !path.starts_with('/') || path.contains('\0') => {
            Err(SandboxError::invalid_input(format!("{field}.source"), "must be an absolute path of the host"))
        }
        VolumeSource::Named(name) if !is_name(name) => {
            Err(SandboxError::invalid_input(format!("{field}.source"), "is not a volume name"))
        }
        _ => Ok(()),
    }
}

impl fmt::Debug for SandboxSpec {
    // Names of fields only: the values hold environment, file contents and credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<_> = self.used_fields().iter().map(|field| field.as_str()).collect();
        f.debug_struct("SandboxSpec").field("image", &self.image).field("fields", &fields).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::SandboxSpec;
    use crate::{ErrorKind, Field};

    fn error(value: serde_json::Value) -> crate::SandboxError {
        SandboxSpec::from_json(value.clone()).expect_err(&value.to_string())
    }

    #[test]
    fn every_bad_value_is_refused_with_its_field() {
        let cases = [
            (json!({"imag": "x"}), "imag"),
            (json!({"image": " "}), "image"),
            (json!({"name": "a b"}), "name"),
            (json!({"name": "-a"}), "name"),
            (json!({"ttl_s": 0}), "ttl_s"),
            (json!({"ttl_s": -1.5}), "ttl_s"),
            (json!({"workdir": "rel"}), "workdir"),
            (json!({"workdir": "/a\u{0}"}), "workdir"),
            (json!({"env": {"A=B": "x"}}), "env.A=B"),
            (json!({"env": {"A": "x\u{0}y"}}), "env.A"),
            (json!({"files": {"dir/": "x"}}), "files[0]"),
            (json!({"resources": {"cpus": 1}}), "resources.cpus"),
            (json!({"entrypoint": []}), "entrypoint"),
            (json!({"ports": [80, "80"]}), "ports"),
            (json!({"sidecars": [{"name": "a", "image": ""}]}), "sidecars[0]"),
            (json!({"user": "a:b:c"}), "user"),
            (json!({"volumes": [{"source": {"bind": "rel"}, "target": "/x"}]}), "volumes[0].source"),
            (json!({"volumes": [{"source": {"tmpfs": null}, "target": "x"}]}), "volumes[0].target"),
        ];
        for (value, field) in cases {
            let error = error(value.clone());
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{value}");
            assert_eq!(error.field(), Some(field), "{value}: {error}");
        }
    }

    #[test]
    fn ports_are_numbers_or_digits_from_1_to_65535() {
        assert_eq!(SandboxSpec::from_json(json!({"ports": [1, "8000", 65535]})).unwrap().ports, [1, 8000, 65535]);
        for bad in [json!([0]), json!([65536]), json!([80.5]), json!([true]), json!(["+80"]), json!(["8_0"]), json!(80)]
        {
            assert_eq!(error(json!({"ports": bad})).kind(), ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn files_keep_their_order_and_a_spec_comes_back_from_json_as_it_was() {
        let text = r#"{"files":{"z":"1","a":"2","m":"3"},"env":{"B":"x","A":{"hex":"ff"}},"resources":{"cpu":0.5}}"#;
        let spec: SandboxSpec = serde_json::from_str(text).unwrap();
        let paths: Vec<_> = spec.files.0.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["z", "a", "m"]);
        let again: SandboxSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
        assert_eq!(again, spec);
        assert_eq!(spec.used_fields(), [Field::Env, Field::Cpu]);
    }

    #[test]
    fn debug_shows_no_value_of_the_environment_or_a_file() {
        let spec = SandboxSpec::default().with_env("TOKEN", "canary").with_file("/f", "canary");
        assert!(!format!("{spec:?}").contains("canary"));
    }
}
