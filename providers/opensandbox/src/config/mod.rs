//! The settings, one section a subject. Names and defaults are those of the model where it has them.

mod connection;
mod create;
mod extras;
mod operations;

use std::{fmt::Display, time::Duration};

use sandbox_core::{Result, SandboxError};
use serde::Deserialize;

pub use connection::{ConnectionConfig, OnUnverified, Protocol, TransportBackend};
pub use create::{CreateConfig, ImagePullPolicy, ProbeConfig};
pub use extras::{AttributionConfig, NetworkingConfig, RuntimeRequirementsConfig, SharedStorageConfig};
pub use operations::{NativeSetting, OperationsConfig, OutputDialectSetting};

/// The longest time that a setting may name: a week.
const LONGEST_S: f64 = 604_800.0;

/// Settings of the provider.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct OpenSandboxConfig {
    /// Where the server is, and how to talk to it.
    pub connection: ConnectionConfig,
    /// How sandboxes are made.
    pub create: CreateConfig,
    /// What a new sandbox must answer before it is handed out.
    pub probe: ProbeConfig,
    /// How everything else is done.
    pub operations: OperationsConfig,
    /// Who the sandboxes belong to.
    pub attribution: AttributionConfig,
    /// Traffic between sandboxes.
    pub networking: NetworkingConfig,
    /// Storage that several sandboxes share.
    pub shared_storage: SharedStorageConfig,
    /// Kernel capabilities and shared memory that services need.
    pub runtime_requirements: RuntimeRequirementsConfig,
}

impl OpenSandboxConfig {
    /// Checks every value. Reads the environment for what is not set.
    ///
    /// # Errors
    /// `InvalidInput`, naming the key and its range.
    pub fn validate(&self) -> Result<()> {
        self.connection.validate()?;
        self.create.validate()?;
        self.probe.validate()?;
        self.operations.validate()?;
        self.attribution.validate()?;
        self.networking.validate()?;
        self.shared_storage.validate()?;
        self.runtime_requirements.validate()
    }
}

/// The refusal of a setting.
pub(crate) fn invalid(key: &str, why: impl Display) -> SandboxError {
    SandboxError::invalid_input(key, why.to_string())
}

/// A time that must be above 0.
fn check_time(key: &str, seconds: f64) -> Result<()> {
    if seconds > 0.0 && seconds <= LONGEST_S {
        return Ok(());
    }
    Err(invalid(key, format!("must be above 0 and at most {LONGEST_S} seconds, not {seconds}")))
}

/// A time that may be 0.
fn check_pause(key: &str, seconds: f64) -> Result<()> {
    if (0.0..=LONGEST_S).contains(&seconds) {
        return Ok(());
    }
    Err(invalid(key, format!("must be 0 to {LONGEST_S} seconds, not {seconds}")))
}

fn check_option(key: &str, seconds: Option<f64>) -> Result<()> {
    seconds.map_or(Ok(()), |seconds| check_time(key, seconds))
}

fn check_count(key: &str, count: u32, range: std::ops::RangeInclusive<u32>) -> Result<()> {
    if range.contains(&count) {
        return Ok(());
    }
    Err(invalid(key, format!("must be {} to {}, not {count}", range.start(), range.end())))
}

/// A checked time.
pub(crate) fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
