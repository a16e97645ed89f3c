use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{Admitted, Env, Result, SandboxError, Session, SessionEvent};

/// What an image says of itself.
#[crate::async_trait]
pub trait ImageConfigs: Send + Sync {
    /// The configuration of an image; pulls it if needed.
    ///
    /// # Errors
    /// `NotFound`, `Unauthorized`, `Exhausted` (rate limit).
    async fn image_config(&self, image: String) -> Result<ImageConfig>;
}

/// What an image says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// Digest or id.
    pub id: String,
    /// Program and first arguments.
    pub entrypoint: Vec<String>,
    /// Further arguments.
    pub command: Vec<String>,
    /// Environment.
    pub env: Env,
    /// Working directory.
    pub workdir: Option<String>,
    /// User.
    pub user: Option<String>,
    /// Ports that it says it listens on.
    pub exposed_ports: Vec<u16>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Operating system and architecture, such as `linux/amd64`.
    pub platform: String,
    /// How it says it is found out whether it is well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<ImageHealthcheck>,
    /// The signal that asks it to stop, by name or number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
}

/// The health check of an image. What it does not say is none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageHealthcheck {
    /// `["CMD", program, …]`, `["CMD-SHELL", script]` or `["NONE"]`.
    pub test: Vec<String>,
    /// Seconds between two tests.
    pub interval_s: Option<f64>,
    /// Seconds that one may take.
    pub timeout_s: Option<f64>,
    /// How many must fail in a row.
    pub retries: Option<u32>,
    /// Seconds after the start in which a failure does not count.
    pub start_period_s: Option<f64>,
    /// Seconds between two tests in that time.
    pub start_interval_s: Option<f64>,
}

/// Building images.
#[crate::async_trait]
pub trait BuildImage: Send + Sync {
    /// Starts a build. Its log comes as events; the last one carries the image.
    ///
    /// * Files that the context's `.dockerignore` names are not part of it.
    /// * A build that fails, and one whose session is dropped before its end, leaves nothing.
    /// * A failed step is told by its number and instruction; what it wrote last is the error's cause.
    ///
    /// # Errors
    /// `InvalidInput` or `NotFound` for a context or file that is not there, naming the field. A build that fails ends
    /// its stream with `Create`; with `InvalidInput` for a build file that is none; with `NotFound` or `Unauthorized`
    /// for an image that it begins with.
    async fn build_image(&self, request: BuildRequest) -> Result<Session<BuildEvent>>;
}

/// An image to build.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BuildRequest {
    /// Folder of this host, absolute.
    pub context: String,
    /// Build file, relative to the context, or absolute. Default: `Dockerfile`.
    pub dockerfile: Option<String>,
    /// The text of the build file, in place of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dockerfile_inline: Option<String>,
    /// Names for the image.
    pub tags: Vec<String>,
    /// Build arguments.
    pub args: Env,
    /// Stage to stop at.
    pub target: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Operating system and architecture, such as `linux/amd64`. Default: the provider's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<String>,
    /// Every step is done again, also where it was done before.
    #[serde(skip_serializing_if = "is_false")]
    pub no_cache: bool,
    /// Images that it begins with are pulled, also where they are there already.
    #[serde(skip_serializing_if = "is_false")]
    pub pull: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// The result of a build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltImage {
    /// Usable as the image of a spec.
    pub image: String,
}

/// What happens during a build.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildEvent {
    /// A piece of the build log.
    Log(Bytes),
    /// The image is there. Last.
    Built(BuiltImage),
}

impl SessionEvent for BuildEvent {
    const WHAT: &'static str = "image build";

    fn is_last(&self) -> bool {
        matches!(self, Self::Built(_))
    }

    fn into_frame(self) -> (u32, Bytes) {
        match self {
            Self::Built(image) => (0, serde_json::to_vec(&image).unwrap_or_default().into()),
            Self::Log(bytes) => (1, bytes),
        }
    }

    fn from_frame(channel: u32, data: Bytes) -> Result<Option<Self>> {
        Ok(match channel {
            0 => Some(Self::Built(
                serde_json::from_slice(&data)
                    .map_err(|_| SandboxError::lost("the image build sent an unreadable message", Admitted::Yes))?,
            )),
            1 => Some(Self::Log(data)),
            _ => None,
        })
    }
}
