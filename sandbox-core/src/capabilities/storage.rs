use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Result;

/// Storage that several sandboxes share.
#[crate::async_trait]
pub trait SharedStorage: Send + Sync {
    /// Provider options that mount a part of the shared storage. `source` none mounts its root.
    ///
    /// # Errors
    /// `InvalidInput` for a source outside of it; `Unsupported` when none is configured.
    async fn shared_volume_options(&self, source: Option<String>, target: String, read_only: bool) -> Result<Value>;

    /// Labels that such a sandbox must carry.
    ///
    /// # Errors
    /// `Unsupported` when none is configured.
    async fn shared_volume_metadata(&self) -> Result<BTreeMap<String, String>>;
}

/// Named volumes.
#[crate::async_trait]
pub trait Volumes: Send + Sync {
    /// Makes a volume.
    ///
    /// # Errors
    /// `AlreadyExists`, `Exhausted`.
    async fn create_volume(&self, request: VolumeRequest) -> Result<NamedVolume>;

    /// All volumes that this system made.
    ///
    /// # Errors
    /// What the backend said.
    async fn list_volumes(&self) -> Result<Vec<NamedVolume>>;

    /// Removes a volume and its contents. One that is gone is fine.
    ///
    /// # Errors
    /// `InvalidState` while it is in use.
    async fn remove_volume(&self, name: String) -> Result<()>;
}

/// A volume to make.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeRequest {
    /// Its name.
    pub name: String,
    /// Largest size in GiB.
    pub size_gib: Option<u64>,
    /// Labels.
    pub metadata: BTreeMap<String, String>,
}

/// A volume that is there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NamedVolume {
    /// Its name.
    pub name: String,
    /// The backend's id.
    pub id: String,
    /// Labels.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}
