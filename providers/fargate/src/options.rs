//! What a spec can say in `provider_options`.

use sandbox_core::{Result, SandboxError, SandboxSpec, from_json, serde_json::Value};
use serde::Deserialize;

use crate::config::Capacity;

/// The names of the options.
pub(crate) const OPTIONS: [&str; 4] = ["capacity", "environment_dir", "shared_volumes", "tags"];

/// Options of this provider. Every key has a default; an unknown one is refused.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FargateOptions {
    /// As the setting of this name.
    pub(crate) capacity: Option<Capacity>,
    /// A folder of this machine, absolute, from which the image is built: in place of an image.
    pub(crate) environment_dir: Option<String>,
    /// Parts of the shared storage.
    pub(crate) shared_volumes: Vec<SharedVolume>,
    /// Further tags of the task, for bills.
    pub(crate) tags: std::collections::BTreeMap<String, String>,
}

/// A part of the shared storage, and where it is seen.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SharedVolume {
    /// A path below the storage. Default: all of it.
    #[serde(default)]
    pub(crate) source: Option<String>,
    /// An absolute path inside.
    pub(crate) target: String,
    /// Whether it can only be read.
    #[serde(default)]
    pub(crate) read_only: bool,
}

impl FargateOptions {
    pub(crate) fn of(spec: &SandboxSpec) -> Result<Self> {
        let options: Self = from_json(Value::Object(spec.provider_options.clone()), "provider_options")?;
        crate::tags::check("provider_options.tags", &options.tags)?;
        if options.environment_dir.is_some() && spec.image.is_some() {
            let why = "must be left out where provider_options.environment_dir says what it is built from";
            return Err(SandboxError::invalid_input("image", why));
        }
        Ok(options)
    }
}
