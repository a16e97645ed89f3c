//! How a launch that failed becomes an error of the contract.

use sandbox_agent::{LaunchError, Stage};
use sandbox_core::{ErrorKind, SandboxError};

use crate::error::NAME;

/// `ENOENT`.
const NOT_FOUND: i32 = 2;

/// What stopped a launch. What this machine forbids is `Unsupported` for the setting `isolation`, and the help names
/// what to change.
pub(crate) fn launch(error: LaunchError) -> SandboxError {
    let message = format!("the sandbox could not be launched: {error}");
    let kind = match error.stage() {
        Stage::Config => ErrorKind::InvalidInput,
        Stage::Source if error.errno() == Some(NOT_FOUND) => ErrorKind::NotFound,
        Stage::Source => ErrorKind::InvalidInput,
        Stage::Ids | Stage::IdMaps | Stage::Namespaces | Stage::Root | Stage::Proc | Stage::Dev | Stage::Network
            if error.hint().is_some() =>
        {
            let refusal = SandboxError::unsupported_field(NAME, "isolation", message);
            return with_help(refusal, &error);
        }
        _ => ErrorKind::Create,
    };
    with_help(SandboxError::new(kind, message).with_provider(NAME), &error)
}

fn with_help(refusal: SandboxError, error: &LaunchError) -> SandboxError {
    match error.hint() {
        Some(hint) => refusal.with_help(hint),
        None => refusal,
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, from_json};
    use serde_json::json;

    use super::launch;

    #[test]
    fn what_the_machine_forbids_names_the_setting_and_the_way_out() {
        let failed = json!({"stage": "namespaces", "message": "making the namespaces failed (EPERM)", "errno": 1,
            "hint": "set sysctl kernel.unprivileged_userns_clone = 1, or opt out"});
        let error = launch(from_json(failed, "error").unwrap());
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("isolation")));
        assert!(error.help().unwrap().contains("sysctl"));
        let missing = json!({"stage": "source", "message": "opening failed (ENOENT)", "path": "/x", "errno": 2});
        assert_eq!(launch(from_json(missing, "error").unwrap()).kind(), ErrorKind::NotFound);
    }
}
