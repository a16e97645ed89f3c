//! What a provider says of itself.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::{CapabilitySet, ExecRequest, Result, SandboxError, SandboxSpec};

macro_rules! fields {
    ($($variant:ident = $path:literal;)*) => {
        /// A field of [`SandboxSpec`] or [`ExecRequest`] that a provider honours, emulates or refuses.
        ///
        /// Start-up files, `identity` and the command itself are not among them: the host or every provider does those.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[allow(missing_docs, reason = "each variant is the field of that name")]
        pub enum Field {
            $($variant,)*
        }

        impl Field {
            /// Every field that this version of the contract knows.
            pub const ALL: &[Field] = &[$(Field::$variant),*];

            /// The path as it is written in JSON; those of a command start with `exec.`.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $path),* }
            }
        }
    };
}

fields! {
    Image = "image";
    Name = "name";
    TtlS = "ttl_s";
    ReadyTimeoutS = "ready_timeout_s";
    Workdir = "workdir";
    Env = "env";
    Metadata = "metadata";
    Cpu = "resources.cpu";
    MemoryMib = "resources.memory_mib";
    DiskGib = "resources.disk_gib";
    Gpu = "resources.gpu";
    GpuType = "resources.gpu_type";
    Pids = "resources.pids";
    Entrypoint = "entrypoint";
    ProviderOptions = "provider_options";
    Ports = "ports";
    Sidecars = "sidecars";
    User = "user";
    VolumesBind = "volumes.bind";
    VolumesNamed = "volumes.named";
    VolumesTmpfs = "volumes.tmpfs";
    NetworkNone = "network.none";
    NetworkHost = "network.host";
    NetworkNamed = "network.named";
    ShmSizeMib = "shm_size_mib";
    CapAdd = "security.cap_add";
    CapDrop = "security.cap_drop";
    SeccompProfile = "security.seccomp_profile";
    NoNewPrivs = "security.no_new_privs";
    Privileged = "security.privileged";
    ExtraHosts = "extra_hosts";
    ExecEnv = "exec.env";
    ExecCwd = "exec.cwd";
    ExecUser = "exec.user";
    ExecTimeoutS = "exec.timeout_s";
    ExecIdleTimeoutS = "exec.idle_timeout_s";
    ExecKillGraceS = "exec.kill_grace_s";
    ExecStdinBytes = "exec.stdin_bytes";
    ExecStdinStream = "exec.stdin_stream";
    ExecSignal = "exec.signal";
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a provider does with a field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FieldSupport {
    /// The backend does it.
    Honoured,
    /// The provider does it by other means, which the text names.
    Emulated(String),
    /// A spec with this field is refused; the text says why.
    Refused(String),
}

/// What a provider says of itself, for this configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProviderInfo {
    /// The provider's name.
    pub name: String,
    /// How commands are kept from the rest of the machine, in one word: `none`, `container`, `microvm`, ….
    #[serde(default)]
    pub isolation: String,
    /// The capabilities that work with this configuration. Filled in from the provider's accessors.
    #[serde(default)]
    pub capabilities: CapabilitySet,
    /// What happens with each field, by [`Field::as_str`]. What is not listed is refused.
    #[serde(default)]
    pub fields: BTreeMap<String, FieldSupport>,
    /// Anything else worth knowing, for people: backend version, limits, endpoints.
    #[serde(default)]
    pub details: BTreeMap<String, String>,
}

impl ProviderInfo {
    /// A provider that honours nothing optional yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            isolation: "unknown".to_owned(),
            capabilities: CapabilitySet::default(),
            fields: BTreeMap::new(),
            details: BTreeMap::new(),
        }
    }

    /// Says how commands are kept from the rest of the machine.
    #[must_use]
    pub fn with_isolation(mut self, isolation: impl Into<String>) -> Self {
        self.isolation = isolation.into();
        self
    }

    /// Says that the backend honours these fields.
    #[must_use]
    pub fn honours(mut self, fields: impl IntoIterator<Item = Field>) -> Self {
        self.fields.extend(fields.into_iter().map(|field| (field.as_str().to_owned(), FieldSupport::Honoured)));
        self
    }

    /// Says that the provider does this field by other means.
    #[must_use]
    pub fn emulates(mut self, field: Field, how: impl Into<String>) -> Self {
        self.fields.insert(field.as_str().to_owned(), FieldSupport::Emulated(how.into()));
        self
    }

    /// Says why a field is refused.
    #[must_use]
    pub fn refuses(mut self, field: Field, why: impl Into<String>) -> Self {
        self.fields.insert(field.as_str().to_owned(), FieldSupport::Refused(why.into()));
        self
    }

    /// Adds something worth knowing.
    #[must_use]
    pub fn with_detail(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.details.insert(key.into(), value.into());
        self
    }

    /// What happens with a field.
    pub fn support(&self, field: Field) -> FieldSupport {
        self.fields.get(field.as_str()).cloned().unwrap_or_else(|| FieldSupport::Refused("not supported".to_owned()))
    }

    /// Checks a spec against what this provider honours. Called once by the host, before anything is created.
    ///
    /// # Errors
    /// `Unsupported`, naming the first field that would be refused.
    pub fn check_spec(&self, spec: &SandboxSpec) -> Result<()> {
        self.check(spec.used_fields())
    }

    /// Checks a command against what this provider honours. Called once by the host, before anything is started.
    ///
    /// # Errors
    /// `Unsupported`, naming the first field that would be refused.
    pub fn check_exec(&self, request: &ExecRequest) -> Result<()> {
        self.check(request.used_fields())
    }

    fn check(&self, used: Vec<Field>) -> Result<()> {
        for field in used {
            if let FieldSupport::Refused(why) = self.support(field) {
                return Err(SandboxError::unsupported_field(&self.name, field.as_str(), why)
                    .with_help("leave the field out, or see what each provider honours with: sandboxctl explain"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Field, ProviderInfo};
    use crate::{ErrorKind, ExecRequest, SandboxSpec};

    #[test]
    fn a_field_that_is_not_listed_is_refused_by_name() {
        let info = ProviderInfo::new("acme").honours([Field::Env]).emulates(Field::TtlS, "a timer");
        info.check_spec(&SandboxSpec::default().with_env("A", "b").with_ttl_s(1.0)).unwrap();
        let error = info.check_spec(&SandboxSpec::image("x")).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("image")));
        let error = info.check_exec(&ExecRequest::shell("x").with_user("root")).unwrap_err();
        assert_eq!(error.field(), Some("exec.user"));
    }
}
