use sandbox_core::{Result, SandboxError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{AsyncSandbox, Config, create_provider};

/// How a borrower reaches a sandbox: by itself, with a provider of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DirectSandboxConnection {
    /// Always `direct`.
    pub kind: DirectKind,
    /// The name of a provider block that the borrower has, too.
    pub provider_config_ref: String,
    /// What [`AsyncSandbox::serialize`] gave.
    pub descriptor: Map<String, Value>,
}

/// The only kind of connection there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DirectKind {
    /// Without anybody between.
    #[default]
    #[serde(rename = "direct")]
    Direct,
}

/// A borrower's view of a sandbox that somebody else owns: made by the owner, sent as JSON, and used by the borrower,
/// who disconnects at the end and never stops it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxAccess {
    /// How to reach it.
    pub connection: DirectSandboxConnection,
    /// Where the borrower works.
    pub workdir: String,
}

impl AsyncSandbox {
    /// A view of this sandbox for a borrower who has the same provider block under this name.
    ///
    /// # Errors
    /// `InvalidInput` for a blank name, and when the sandbox has no directory to work in; those of
    /// [`serialize`](Self::serialize).
    pub async fn access(&self, provider_config_ref: &str) -> Result<SandboxAccess> {
        if provider_config_ref.trim().is_empty() {
            return Err(SandboxError::invalid_input("provider_config_ref", "must name a provider block"));
        }
        let Value::Object(descriptor) = self.serialize(None).await? else {
            return Err(SandboxError::internal("a descriptor is an object"));
        };
        let named = ["default_workdir", "workdir"].into_iter().find_map(|key| descriptor.get(key)?.as_str());
        let workdir = named.map(str::to_owned).ok_or_else(|| {
            SandboxError::invalid_input("workdir", "the sandbox has no directory that a borrower could work in")
                .with_help("give the spec a workdir, or call set_default_workdir()")
        })?;
        let provider_config_ref = provider_config_ref.to_owned();
        let connection = DirectSandboxConnection { kind: DirectKind::Direct, provider_config_ref, descriptor };
        Ok(SandboxAccess { connection, workdir })
    }
}

impl SandboxAccess {
    /// Reaches the sandbox with a provider of the borrower's own configuration. End with
    /// [`disconnect`](AsyncSandbox::disconnect).
    ///
    /// # Errors
    /// Those of [`Config::resolve`], [`create_provider`] and [`AsyncSandbox::connect`].
    pub async fn borrow(&self, config: &Config) -> Result<AsyncSandbox> {
        let provider = create_provider(&config.resolve(&self.connection.provider_config_ref)?.config())?;
        self.borrow_with(provider).await
    }

    /// [`borrow`](Self::borrow) with a provider that is there already.
    ///
    /// # Errors
    /// Those of [`AsyncSandbox::connect`].
    pub async fn borrow_with(
        &self,
        provider: std::sync::Arc<dyn sandbox_core::SandboxProvider>,
    ) -> Result<AsyncSandbox> {
        AsyncSandbox::connect(provider, Value::Object(self.connection.descriptor.clone())).await
    }
}
