//! What was checked, in which order, and what came of it.

use std::time::Duration;

use sandbox_core::Result;
use serde::{Serialize, Serializer};

/// One step on the way from a path to a provider.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct LoadStep {
    /// What was looked at: `path`, `format`, `manifest`, `contract`, `dlopen`, ….
    pub name: &'static str,
    /// What was found, or why the file was refused. The first refusal is the last step.
    #[serde(serialize_with = "outcome_as_object")]
    pub outcome: Result<String, String>,
    /// How long the step took; in JSON in seconds.
    #[serde(rename = "duration_s", serialize_with = "as_seconds")]
    pub duration: Duration,
}

fn outcome_as_object<S: Serializer>(outcome: &Result<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    let (key, text) = match outcome {
        Ok(detail) => ("ok", detail),
        Err(message) => ("refused", message),
    };
    serializer.collect_map([(key, text)])
}

fn as_seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
