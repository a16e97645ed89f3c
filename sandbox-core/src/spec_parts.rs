//! The parts of a sandbox spec.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeMap};

use crate::{
    ByteString, Result, SandboxError, SandboxResources,
    validate::{MAX_ARGUMENT_BYTES, check_env_name, check_no_nul},
};

/// Environment variables. Values are never shown by `Debug`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Env(BTreeMap<String, ByteString>);

impl Env {
    /// Sets one variable.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<ByteString>) {
        self.0.insert(name.into(), value.into());
    }

    /// The value of a variable.
    pub fn get(&self, name: &str) -> Option<&ByteString> {
        self.0.get(name)
    }

    /// Name and value of every variable, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &ByteString)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// True if no variable is set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These variables, overridden by those of `other`.
    #[must_use]
    pub fn overridden_by(&self, other: &Env) -> Env {
        let mut merged = self.0.clone();
        merged.extend(other.0.iter().map(|(name, value)| (name.clone(), value.clone())));
        Env(merged)
    }

    pub(crate) fn validate(&self, field: &str) -> Result<()> {
        for (name, value) in self.iter() {
            check_env_name(field, name)?;
            let path = format!("{field}.{name}");
            check_no_nul(&path, value.as_bytes())?;
            let size = name.len() + 1 + value.len();
            if size > MAX_ARGUMENT_BYTES {
                return Err(SandboxError::invalid_input(
                    path,
                    format!("NAME=VALUE has {size} bytes; the kernel takes at most {MAX_ARGUMENT_BYTES}"),
                )
                .with_help("pass large values through a file or stdin"));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl<N: Into<String>, V: Into<ByteString>> FromIterator<(N, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// A file that is there when the sandbox starts.
#[derive(Clone, PartialEq, Eq)]
pub struct StartupFile {
    /// Where it goes; relative paths are below the workdir.
    pub path: String,
    /// What it holds.
    pub contents: ByteString,
}

impl fmt::Debug for StartupFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StartupFile({} bytes)", self.contents.len())
    }
}

/// Start-up files in the order in which they are written. In JSON an object of path to contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartupFiles(pub Vec<StartupFile>);

impl Serialize for StartupFiles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for file in &self.0 {
            map.serialize_entry(&file.path, &file.contents)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for StartupFiles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = StartupFiles;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of path to contents")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<StartupFiles, A::Error> {
                let mut files = Vec::new();
                while let Some((path, contents)) = map.next_entry()? {
                    files.push(StartupFile { path, contents });
                }
                Ok(StartupFiles(files))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// What a sandbox can reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NetworkMode {
    /// Nothing but its own loopback.
    None,
    /// The network of the host, unfiltered.
    Host,
    /// Whatever the provider gives by default.
    Default,
    /// A network made before, by name.
    Named(String),
}

/// Where a mounted volume comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum VolumeSource {
    /// A folder or file of the host, by absolute path.
    Bind(String),
    /// A volume of the provider, by name.
    Named(String),
    /// Memory, with an optional size limit in MiB.
    Tmpfs(Option<u64>),
}

/// One mounted volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    /// Where it comes from.
    pub source: VolumeSource,
    /// Where it is seen, an absolute path inside the sandbox.
    pub target: String,
    /// Whether it can only be read.
    #[serde(default)]
    pub read_only: bool,
}

/// How much of the kernel a sandbox may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSecurity {
    /// Linux capabilities to add, without the `CAP_` prefix.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cap_add: Vec<String>,
    /// Linux capabilities to drop; `ALL` drops every one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cap_drop: Vec<String>,
    /// A seccomp profile by the provider's name for it, or `unconfined`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp_profile: Option<String>,
    /// Whether programs can gain privileges by set-user-id bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_new_privs: Option<bool>,
    /// All privileges of the host.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub privileged: bool,
}

/// A name that resolves inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostEntry {
    /// The host name.
    pub name: String,
    /// Its address.
    pub address: String,
}

/// A container beside the main one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSidecarSpec {
    /// Unique in the sandbox.
    pub name: String,
    /// Image reference.
    pub image: String,
    /// Its environment.
    pub env: Env,
    /// Its limits.
    pub resources: SandboxResources,
}

/// Who answers for a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Owner {
    /// A process: when it is gone, the sandbox may be swept. Process ids are reused, so the start time belongs to it.
    Process {
        /// Host name.
        host: String,
        /// Process id.
        pid: u32,
        /// Start time of the process in clock ticks since boot (`/proc/<pid>/stat`, field 22).
        start_time: u64,
    },
    /// Nobody in particular: it may be swept when its expiry has passed.
    Lease,
}

/// What every sandbox carries, so that it can be found again and is never swept by mistake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxIdentity {
    /// The run that made it.
    pub run_id: String,
    /// Who answers for it.
    pub owner: Owner,
    /// When it was made, in milliseconds since the Unix epoch.
    pub created_at_ms: u64,
    /// When it ends by itself, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
    /// Team, user, workload and the like.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attribution: BTreeMap<String, String>,
}
