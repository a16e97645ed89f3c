//! One build of the build service, from its start to its end. Given up, it is stopped.

use std::{sync::Arc, time::Duration};

use sandbox_core::{BuildEvent, Result, SandboxError, SessionSink, tracing};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::story::Story;
use crate::{
    aws::Build,
    error::NAME,
    provider::{CALL_LIMIT, Shared},
};

/// The pauses between two looks: each longer than the one before, up to a longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// Pages of a log that are read at a time.
const PAGES_MAX: usize = 20;

/// What is built, and how.
pub(super) struct Order {
    /// The part of the request that is this build's own.
    pub(super) input: Value,
    /// What it is called in a failure.
    pub(super) what: &'static str,
}

/// Stops a build that nobody waits for any more.
struct StopOnDrop {
    shared: Arc<Shared>,
    id: Option<String>,
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current()) else { return };
        let shared = self.shared.clone();
        runtime.spawn(async move {
            if let Err(error) = shared.aws.stop_build(&id, Instant::now() + CALL_LIMIT).await {
                tracing::warn!(kind = %SandboxError::from(error).kind(), "a build could not be stopped");
            }
        });
    }
}

impl Order {
    /// Runs it to its end. The sink gets what it says.
    ///
    /// # Errors
    /// `NotFound` for a project that is none; why the build failed.
    pub(super) async fn run(mut self, shared: &Arc<Shared>, sink: Option<&SessionSink<BuildEvent>>) -> Result<()> {
        let config = &shared.config.build;
        let project = config.project.as_deref().ok_or_else(|| {
            let error = SandboxError::unsupported_field(NAME, "build.project", "is needed for this, and not set");
            error.with_help("name a project of CodeBuild; the provider's README says what it must be like")
        })?;
        let deadline = Instant::now() + Duration::from_secs_f64(config.timeout_s);
        self.input["projectName"] = project.into();
        self.input["idempotencyToken"] = sandbox_agent_client::random_hex(32)?.into();
        self.input["artifactsOverride"] = json!({ "type": "NO_ARTIFACTS" });
        // The builder needs it.
        self.input["privilegedModeOverride"] = true.into();
        // It ends by itself when this process does not.
        self.input["timeoutInMinutesOverride"] = ((config.timeout_s / 60.0).ceil().clamp(5.0, 2160.0) as u64).into();
        let started = shared.aws.start_build(&self.input, deadline).await.map_err(|error| {
            let is_missing = error.code() == "ResourceNotFoundException";
            let error = SandboxError::from(error);
            if is_missing { error.with_field("build.project") } else { error }
        })?;
        let mut stop = StopOnDrop { shared: shared.clone(), id: Some(started.id.clone()) };
        let (mut build, mut story, mut log) = (started, Story::default(), Log::default());
        let mut pause = FIRST_PAUSE;
        while !build.is_over() {
            if Instant::now() + pause >= deadline {
                let message = format!("{} took longer than build.timeout_s = {}", self.what, config.timeout_s);
                return Err(SandboxError::timed_out(message).with_provider(NAME));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
            build = shared.aws.build(&build.id, deadline).await.map_err(SandboxError::from)?;
            for text in log.read(shared, &build, deadline).await {
                story.push(&text);
                say(sink, text).await;
            }
        }
        stop.id = None;
        tracing::debug!(status = %build.build_status, "a build is over");
        match build.build_status.as_str() {
            "SUCCEEDED" => Ok(()),
            _ => Err(story.failure(&build, self.what)),
        }
    }
}

/// Writes a line into the log of whoever builds.
pub(super) async fn say(sink: Option<&SessionSink<BuildEvent>>, text: String) {
    if let Some(sink) = sink {
        // Whether anybody reads it is looked at elsewhere.
        sink.send(BuildEvent::Log(text.into())).await;
    }
}

/// How far a log was read.
#[derive(Default)]
struct Log {
    place: Option<String>,
    /// It may not be read; the build goes on without.
    is_closed: bool,
}

impl Log {
    async fn read(&mut self, shared: &Shared, build: &Build, deadline: Instant) -> Vec<String> {
        let mut all = Vec::new();
        let Some(log) = build.log().filter(|_| !self.is_closed) else { return all };
        for _ in 0..PAGES_MAX {
            match shared.aws.log_events(log, self.place.as_deref(), deadline).await {
                Ok((events, place)) => {
                    all.extend(events);
                    // The same place again is the end.
                    if place.is_none() || place == self.place {
                        break;
                    }
                    self.place = place;
                }
                // It is made with its first line.
                Err(error) if error.code() == "ResourceNotFoundException" => break,
                Err(error) => {
                    tracing::debug!(kind = %SandboxError::from(error).kind(), "the log of a build cannot be read");
                    self.is_closed = true;
                    break;
                }
            }
        }
        all
    }
}
