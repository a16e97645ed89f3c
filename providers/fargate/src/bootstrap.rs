//! The agent for images that fetch it by themselves, where no image brings it: one object of the bucket for each version,
//! which stays there, and the right to read it in each launch.

use reqwest::Method;
use sandbox_agent_client::find_agent;
use sandbox_core::{Result, SandboxError, tracing};

use crate::{
    aws::{Aws, Bucket, Object},
    config::{Architecture, FargateConfig},
    key::sha256,
};

/// The folder of the agents below the prefix.
const FOLDER: &str = "agents";

/// The agent in the bucket.
pub(crate) struct Fetched {
    object: Object,
    size: u64,
    pub(crate) sha256: String,
}

impl Fetched {
    /// Puts the agent of this machine there, if it is not there already.
    ///
    /// # Errors
    /// `NotFound` where this machine has none; what the bucket refuses with.
    pub(crate) async fn find(config: &FargateConfig, aws: &Aws, bucket: &Bucket) -> Result<Self> {
        let arch = match config.architecture {
            Architecture::X86_64 => "x86_64",
            Architecture::Aarch64 => "aarch64",
        };
        let named = config.sidecar.agent_file.as_deref();
        let path = find_agent(named, arch).map_err(|error| error.with_field("sidecar.agent_file"))?;
        let read = tokio::fs::read(&path).await;
        let bytes = read.map_err(|error| SandboxError::io(path.display(), error).with_field("sidecar.agent_file"))?;
        let (size, sha256) = (bytes.len() as u64, sha256(&bytes));
        let object = bucket.object(&format!("{}/{FOLDER}/{sha256}", config.s3_prefix));
        if !aws.has_object(&object, size).await? {
            aws.put_file(&object, &path).await?;
            tracing::debug!(size, "the agent was put into the bucket");
        }
        Ok(Self { object, size, sha256 })
    }

    /// An address from which anybody can fetch it for a while. Whoever may describe tasks sees it: it says nothing but what
    /// the agent is.
    ///
    /// # Errors
    /// What the credentials failed with.
    pub(crate) async fn url(&self, aws: &Aws) -> Result<String> {
        Ok(aws.allow(&Method::GET, &self.object, self.size).await?.url())
    }
}
