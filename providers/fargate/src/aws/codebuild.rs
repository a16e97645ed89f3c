//! The calls of the build service, and of the log that it writes.

use sandbox_core::SandboxError;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Aws, Called, Service};

const PREFIX: &str = "CodeBuild_20161006";
const LOGS_PREFIX: &str = "Logs_20140328";

/// A build as the service knows it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Build {
    pub(crate) id: String,
    /// `IN_PROGRESS`, `SUCCEEDED`, `FAILED`, `FAULT`, `TIMED_OUT` or `STOPPED`.
    pub(crate) build_status: String,
    phases: Vec<Phase>,
    logs: Logs,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Phase {
    phase_type: String,
    phase_status: Option<String>,
    contexts: Option<Vec<Context>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Context {
    status_code: Option<String>,
    message: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Logs {
    group_name: Option<String>,
    stream_name: Option<String>,
}

impl Build {
    pub(crate) fn is_over(&self) -> bool {
        self.build_status != "IN_PROGRESS"
    }

    /// Group and stream of its log, once it has one.
    pub(crate) fn log(&self) -> Option<(&str, &str)> {
        Some((self.logs.group_name.as_deref()?, self.logs.stream_name.as_deref()?))
    }

    /// The phases that went wrong, and why.
    pub(crate) fn failed_phases(&self) -> Vec<String> {
        let is_bad = |phase: &&Phase| phase.phase_status.as_deref().is_some_and(|status| status != "SUCCEEDED");
        let told = |phase: &Phase| {
            let contexts = phase.contexts.iter().flatten();
            let words = contexts.flat_map(|context| [context.status_code.as_deref(), context.message.as_deref()]);
            let words: Vec<&str> = words.flatten().filter(|word| !word.is_empty()).collect();
            match words.is_empty() {
                true => phase.phase_type.clone(),
                false => format!("{} ({})", phase.phase_type, words.join(": ")),
            }
        };
        self.phases.iter().filter(is_bad).map(told).collect()
    }
}

#[derive(Deserialize)]
struct Started {
    build: Build,
}

#[derive(Deserialize)]
struct Builds {
    #[serde(default)]
    builds: Vec<Build>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Events {
    #[serde(default)]
    events: Vec<Event>,
    #[serde(default)]
    next_forward_token: Option<String>,
}

#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    message: String,
}

impl Aws {
    /// Starts a build; repeated with the same `idempotencyToken` it is the same one.
    pub(crate) async fn start_build(&self, input: &Value, deadline: Instant) -> Called<Build> {
        let started: Started = self.json(Service::CodeBuild, (PREFIX, "StartBuild"), input, deadline).await?;
        Ok(started.build)
    }

    /// How far a build is.
    pub(crate) async fn build(&self, id: &str, deadline: Instant) -> Called<Build> {
        let input = json!({ "ids": [id] });
        let found: Builds = self.json(Service::CodeBuild, (PREFIX, "BatchGetBuilds"), &input, deadline).await?;
        let build = found.builds.into_iter().next();
        Ok(build.ok_or_else(|| SandboxError::not_found("the build is not known any more"))?)
    }

    pub(crate) async fn stop_build(&self, id: &str, deadline: Instant) -> Called<()> {
        let input = json!({ "id": id });
        self.json::<Map<String, Value>>(Service::CodeBuild, (PREFIX, "StopBuild"), &input, deadline).await.map(drop)
    }

    /// What a log holds behind a place, and the place behind that.
    pub(crate) async fn log_events(
        &self,
        log: (&str, &str),
        place: Option<&str>,
        deadline: Instant,
    ) -> Called<(Vec<String>, Option<String>)> {
        let mut input = json!({ "logGroupName": log.0, "logStreamName": log.1, "startFromHead": true });
        if let Some(place) = place {
            input["nextToken"] = place.into();
        }
        let found: Events = self.json(Service::Logs, (LOGS_PREFIX, "GetLogEvents"), &input, deadline).await?;
        Ok((found.events.into_iter().map(|event| event.message).collect(), found.next_forward_token))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Build;

    #[test]
    fn phases_that_went_wrong_are_told_with_their_reason() {
        let build: Build = serde_json::from_value(json!({
            "id": "p:1", "buildStatus": "FAILED", "logs": {"groupName": "g", "streamName": "s"}, "phases": [
                {"phaseType": "INSTALL", "phaseStatus": "SUCCEEDED", "contexts": []},
                {"phaseType": "BUILD", "phaseStatus": "FAILED",
                 "contexts": [{"statusCode": "COMMAND_EXECUTION_ERROR", "message": "exit status 1"}]},
                {"phaseType": "COMPLETED"},
            ],
        }))
        .unwrap();
        assert!(build.is_over());
        assert_eq!(build.log(), Some(("g", "s")));
        assert_eq!(build.failed_phases(), ["BUILD (COMMAND_EXECUTION_ERROR: exit status 1)"]);
    }
}
