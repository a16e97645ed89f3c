//! What a spec can say in `provider_options`.

use sandbox_core::{Result, SandboxSpec, from_json, serde_json::Value};
use serde::Deserialize;

use crate::config::Capacity;

/// The names of the options.
pub(crate) const OPTIONS: [&str; 2] = ["capacity", "tags"];

/// Options of this provider. Every key has a default; an unknown one is refused.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FargateOptions {
    /// As the setting of this name.
    pub(crate) capacity: Option<Capacity>,
    /// Further tags of the task, for bills.
    pub(crate) tags: std::collections::BTreeMap<String, String>,
}

impl FargateOptions {
    pub(crate) fn of(spec: &SandboxSpec) -> Result<Self> {
        let options: Self = from_json(Value::Object(spec.provider_options.clone()), "provider_options")?;
        crate::tags::check("provider_options.tags", &options.tags)?;
        Ok(options)
    }
}
