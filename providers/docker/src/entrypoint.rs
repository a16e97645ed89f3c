//! The entrypoint of a spec: the agent runs it, and the sandbox ends with it.

use sandbox_core::{ErrorKind, ExecOutcome, Result, SandboxError};
use sandbox_protocol::{
    Client,
    methods::{self, ExecWait, ExecWaited},
};

use crate::error::NAME;

/// The id under which the agent knows it.
const ID: &str = "entrypoint";

/// How long is looked whether it ends at once, in seconds.
const LOOK_S: f64 = 0.1;

/// Looks whether it runs. One that cannot be started, or ends at once, fails the creation.
pub(crate) async fn stays(client: &Client) -> Result<()> {
    let wait = ExecWait { exec_id: ID.to_owned(), timeout_s: Some(LOOK_S) };
    match client.call(methods::EXEC_WAIT, &wait).await {
        Ok(ExecWaited { exit: None }) => Ok(()),
        Ok(ExecWaited { exit: Some(exit) }) => Err(match exit.outcome {
            ExecOutcome::StartFailed { message, .. } => failed(&message),
            outcome => failed(&format!("it ended at once with code {}", outcome.return_code())),
        }),
        // The agent goes with it.
        Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable) => {
            Err(failed("it ended at once"))
        }
        Err(error) => Err(error),
    }
}

/// The refusal of a sandbox whose entrypoint does not stay.
pub(crate) fn failed(why: &str) -> SandboxError {
    SandboxError::create(format!("the entrypoint does not run: {why}")).with_provider(NAME).with_field("entrypoint")
}
