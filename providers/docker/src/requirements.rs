//! What a service needs of the kernel: checked before a sandbox is made, and that it is in force afterwards.

use sandbox_core::{
    Result, RuntimeRequirements, RuntimeRequirementsSpec, SandboxError, SandboxHandle, async_trait,
    serde_json::{Value, json},
};

use crate::{
    error::NAME,
    found,
    kernel::Capabilities,
    provider::{DockerProvider, not_found},
};

const MIB: i64 = 1 << 20;

#[async_trait]
impl RuntimeRequirements for DockerProvider {
    async fn validate_runtime_requirements(&self, requirements: RuntimeRequirementsSpec) -> Result<Option<Value>> {
        Capabilities::new(&requirements.cap_add, &[], &self.shared.engine.config.cap_drop, true)?;
        if requirements.shm_size_mib == Some(0) {
            return Err(SandboxError::invalid_input("shm_size_mib", "must be above 0").with_provider(NAME));
        }
        // A container gets them when it is made: fields of the spec.
        Ok(Some(json!({
            "security": { "cap_add": requirements.cap_add },
            "shm_size_mib": requirements.shm_size_mib,
        })))
    }

    async fn configure_runtime(&self, handle: &SandboxHandle, requirements: RuntimeRequirementsSpec) -> Result<()> {
        let sandbox = self.open(handle).await?;
        let found = found::find(&self.shared.engine, &sandbox.container).await?;
        let found = found.ok_or_else(|| not_found(sandbox.id(), "is closed, or was removed by somebody else"))?;
        let plain = |name: &str| {
            let name = name.to_ascii_uppercase();
            name.strip_prefix("CAP_").map(str::to_owned).unwrap_or(name)
        };
        let has = |name: &String| found.is_privileged || found.cap_add.iter().any(|one| plain(one) == plain(name));
        let missing = |field: &str, what: String| {
            let message = format!("{what} is not in force, and a container cannot be given it later");
            Err(SandboxError::invalid_input(field, message)
                .with_provider(NAME)
                .with_help("make the sandbox with what validate_runtime_requirements returns"))
        };
        if let Some(name) = requirements.cap_add.iter().find(|name| !has(name)) {
            return missing("cap_add", plain(name));
        }
        match requirements.shm_size_mib {
            Some(mib) if found.shm_bytes < i64::try_from(mib).unwrap_or(i64::MAX).saturating_mul(MIB) => {
                missing("shm_size_mib", format!("/dev/shm of {mib} MiB"))
            }
            _ => Ok(()),
        }
    }
}
