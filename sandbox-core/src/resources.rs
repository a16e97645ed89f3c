//! How much of the machine a sandbox may use.

use std::{fmt::Display, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{Result, SandboxError};

/// Limits of a sandbox. What is not set is the provider's default. In JSON, a number may be written as text: `"0.5"`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxResources {
    /// Cores, fractions allowed; above 0.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "number_or_text")]
    pub cpu: Option<f64>,
    /// Memory in MiB; above 0.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "number_or_text")]
    pub memory_mib: Option<u64>,
    /// Disk in GiB; above 0.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "number_or_text")]
    pub disk_gib: Option<u64>,
    /// Number of GPUs.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "number_or_text")]
    pub gpu: Option<u32>,
    /// Kind of GPU, in the provider's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu_type: Option<String>,
    /// How many processes may exist at once; above 0.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "number_or_text")]
    pub pids: Option<u64>,
}

/// A number, or text that is one. Nothing is rounded.
fn number_or_text<'de, D: Deserializer<'de>, N>(deserializer: D) -> Result<Option<N>, D::Error>
where
    N: FromStr<Err: Display> + Deserialize<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given<N> {
        Number(N),
        Text(String),
        Other(serde::de::IgnoredAny),
    }
    match Option::<Given<N>>::deserialize(deserializer)? {
        None => Ok(None),
        Some(Given::Number(number)) => Ok(Some(number)),
        Some(Given::Text(text)) => text
            .trim()
            .parse()
            .map(Some)
            .map_err(|error| D::Error::custom(format!("{text:?} is no such number: {error}"))),
        Some(Given::Other(_)) => Err(D::Error::custom("must be a number of the right kind, or text that is one")),
    }
}

impl SandboxResources {
    /// Checks every range.
    ///
    /// # Errors
    /// `InvalidInput`, naming the field and its range.
    pub fn validate(&self) -> Result<()> {
        if let Some(cpu) = self.cpu.filter(|cpu| !(*cpu > 0.0 && *cpu <= 4096.0)) {
            return Err(SandboxError::invalid_input(
                "resources.cpu",
                format!("must be above 0 and at most 4096 cores, not {cpu}"),
            ));
        }
        for (field, value) in [
            ("resources.memory_mib", self.memory_mib),
            ("resources.disk_gib", self.disk_gib),
            ("resources.pids", self.pids),
        ] {
            // 2^40 of any of these is beyond every machine and still fits when turned into bytes.
            if value.is_some_and(|value| value == 0 || value > 1 << 40) {
                return Err(SandboxError::invalid_input(field, "must be above 0 and at most 2^40"));
            }
        }
        if self.gpu_type.as_deref().is_some_and(|kind| kind.trim().is_empty()) {
            return Err(SandboxError::invalid_input("resources.gpu_type", "must not be blank"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::SandboxResources;
    use crate::from_json;

    #[test]
    fn ranges_are_checked_and_unknown_keys_refused() {
        let bad = [
            SandboxResources { cpu: Some(0.0), ..Default::default() },
            SandboxResources { cpu: Some(f64::NAN), ..Default::default() },
            SandboxResources { memory_mib: Some(0), ..Default::default() },
            SandboxResources { disk_gib: Some(u64::MAX), ..Default::default() },
            SandboxResources { gpu_type: Some(" ".into()), ..Default::default() },
        ];
        for resources in bad {
            assert!(resources.validate().is_err(), "{resources:?}");
        }
        let text = serde_json::json!({"cpu": "0.5", "memory_mib": " 4096 ", "gpu": 1, "pids": null});
        let read = from_json::<SandboxResources>(text, "resources").unwrap();
        assert_eq!((read.cpu, read.memory_mib, read.gpu, read.pids), (Some(0.5), Some(4096), Some(1), None));
        for bad in [
            serde_json::json!({"memory_mib": 4.5}),
            serde_json::json!({"memory_mib": "4.5"}),
            serde_json::json!({"memory_mib": -1}),
            serde_json::json!({"cpu": true}),
            serde_json::json!({"cpu": "many"}),
        ] {
            let error = from_json::<SandboxResources>(bad.clone(), "resources").unwrap_err();
            assert!(bad.get(error.field().unwrap()).is_some(), "{bad}: {error}");
        }
        let error = from_json::<SandboxResources>(serde_json::json!({"memory_mb": 1}), "resources").unwrap_err();
        assert_eq!(error.help(), Some("did you mean \"memory_mib\"?"));
    }
}
