//! A stack whose process is gone: what its sandboxes keep of it.

use sandbox_api::compose::AsyncSandboxCompose;
use sandbox_core::ErrorKind;

use super::state::Running;
use crate::{app::App, failure::Failure, providers, runtime};

/// Finds a stack again and does something with it. None when there is nothing to find: its provider cannot, or its life
/// is over.
pub(super) fn with_stack<T>(
    app: &App,
    running: &Running,
    work: impl AsyncFnOnce(&AsyncSandboxCompose) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let Some(descriptor) = running.descriptor.clone() else { return Ok(None) };
    let config = app.config()?;
    let host = providers::host(&config)?;
    runtime::block_on_until_signal(async {
        let provider = providers::create(&host, &config, &running.provider)?;
        let result = match AsyncSandboxCompose::connect(provider.clone(), descriptor).await {
            Ok(stack) => work(&stack).await.map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Failure::of_command(&error)),
        };
        let ended = provider.aclose().await.map_err(|error| Failure::of_command(&error));
        let result = result?;
        ended.map(|()| result)
    })
}
