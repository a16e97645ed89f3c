//! Running a command in an isolated sandbox.

use sandbox_core::{ExecRequest, ExecStream, Result};

use crate::{
    exec::permit,
    isolated::{create::is_only_user, inside::Inside, memory::MemoryWatch},
    provider::Shared,
    sandbox::Sandbox,
};

/// Starts a command. A start that fails is an outcome, which the agent tells.
pub(crate) async fn exec(
    shared: &Shared,
    sandbox: &Sandbox,
    inside: &Inside,
    mut request: ExecRequest,
) -> Result<ExecStream> {
    request.validate()?;
    let permit = permit(shared, sandbox).await?;
    // From here on a close waits for the start.
    let busy = sandbox.enter()?;
    inside.check_not_paused(&sandbox.id)?;
    // Where others may have started it, the agent knows: it attaches to what it has started under this id.
    if !sandbox.is_lasting {
        sandbox.admit_exec(&request.exec_id)?;
    }
    request.user = inside.user(request.user);
    let watched = inside.memory.as_ref().map(MemoryWatch::begin);
    let started = inside.client.exec(request).await;
    drop(busy);
    let stream = started.map_err(|error| sandbox.explain(error))?;
    let stream = match watched {
        Some(watched) => watched.through(stream),
        None => stream,
    };
    Ok(match permit {
        Some(permit) => stream.with_guard(permit),
        None => stream,
    })
}

impl Inside {
    /// Where there is one user only, that one by its name is no switch.
    pub(crate) fn user(&self, wanted: Option<String>) -> Option<String> {
        wanted.filter(|user| !(self.has_one_user() && is_only_user(user)))
    }
}
