use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ByteString, ExecRequest, ExecStream, Result, SandboxHandle};

/// Commands that leave services running, on a provider whose ordinary exec ends them.
#[crate::async_trait]
pub trait BackgroundServices: Send + Sync {
    /// As [`exec`](crate::SandboxProvider::exec), but what the command leaves in the background lives until the
    /// sandbox closes. The command must redirect its services' output.
    ///
    /// # Errors
    /// As `exec`.
    async fn exec_with_background_services(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream>;
}

/// Kernel capabilities and shared memory asked for at run time.
#[crate::async_trait]
pub trait RuntimeRequirements: Send + Sync {
    /// Whether these can be met. Asked before anything is created; may return metadata to create with.
    ///
    /// # Errors
    /// `Unsupported` or `InvalidInput`, naming the requirement.
    async fn validate_runtime_requirements(&self, requirements: RuntimeRequirementsSpec) -> Result<Option<Value>>;

    /// Puts them in force.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`.
    async fn configure_runtime(&self, handle: &SandboxHandle, requirements: RuntimeRequirementsSpec) -> Result<()>;
}

/// What a service needs of the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeRequirementsSpec {
    /// Linux capabilities, without the `CAP_` prefix.
    pub cap_add: Vec<String>,
    /// Size of `/dev/shm` in MiB.
    pub shm_size_mib: Option<u64>,
}

/// Containers beside the main one.
#[crate::async_trait]
pub trait Sidecars: Send + Sync {
    /// Runs a program in a sidecar, without any shell.
    ///
    /// # Errors
    /// `InvalidInput` for a name that was not declared; else as `exec`.
    async fn sidecar_exec(&self, handle: &SandboxHandle, sidecar: String, request: ExecRequest) -> Result<ExecStream>;

    /// Copies a regular file out of a sidecar.
    ///
    /// # Errors
    /// As `download_file`.
    async fn download_sidecar_file(
        &self,
        handle: &SandboxHandle,
        sidecar: &str,
        remote: &ByteString,
        local: &Path,
    ) -> Result<()>;
}
