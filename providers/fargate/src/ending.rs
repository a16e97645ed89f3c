//! Why a task has ended, and whether another one may fare better.

use sandbox_core::{ErrorKind, SandboxError};

use crate::{
    aws::{Task, one_line},
    definition::MAIN,
    error::NAME,
    scripts::{NO_PROGRAM, NOT_FETCHED, NOT_THE_SAME, NOT_WRITTEN},
    time::now_ms,
};

/// What became of a launch that did not get to run.
pub(crate) struct Ended {
    pub(crate) error: SandboxError,
    /// The same may work the next time.
    pub(crate) may_retry: bool,
}

/// Everything that ECS says about the end, in one line.
fn reasons(task: &Task) -> String {
    let mut all = vec![task.stopped_reason.clone()];
    for container in &task.containers {
        if !container.reason.is_empty() {
            all.push(format!("{}: {}", container.name, container.reason));
        } else if let Some(code) = container.exit_code.filter(|code| *code != 0) {
            all.push(format!("{}: ended with code {code}", container.name));
        }
    }
    all.retain(|reason| !reason.is_empty());
    one_line(&all.join("; "))
}

/// Why a task does not run any more, in one line.
pub(crate) fn ending(task: &Task, expires_at_ms: Option<u64>) -> String {
    let main = task.containers.iter().find(|container| container.name == MAIN);
    let code = main.and_then(|main| main.exit_code);
    match (task.stop_code.as_str(), code) {
        (_, Some(137)) if reasons(task).contains("OutOfMemory") => {
            "it was killed (137): it ran out of memory".to_owned()
        }
        ("EssentialContainerExited", Some(0)) if expires_at_ms.is_some_and(|at| at <= now_ms()) => {
            "it has expired: its ttl passed".to_owned()
        }
        ("SpotInterruption", _) => "AWS has taken its spot capacity back".to_owned(),
        ("EssentialContainerExited", Some(code)) => format!("its main process ended with code {code}"),
        _ => match reasons(task).as_str() {
            "" => "it was stopped".to_owned(),
            said => said.to_owned(),
        },
    }
}

/// Sorts the end of a task that has not got ready.
pub(crate) fn not_started(task: &Task, image: &str) -> Ended {
    let said = reasons(task);
    let text = said.to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let message = format!("the task did not start: {said}");
    if text.contains("cannotpullcontainer") || text.contains("cannotpullimage") {
        if says(&[
            "not found",
            "manifest unknown",
            "does not exist",
            "no such",
            "invalid reference",
            "manifest does not",
        ]) || says(&["descriptor matching platform", "pull access denied"])
        {
            let error = SandboxError::not_found(format!("image {image:?}: {said}")).with_field("image");
            return Ended { error, may_retry: false };
        }
        if says(&["unauthorized", "authorization", "access denied", "forbidden", "no basic auth"]) {
            let error = SandboxError::unauthorized(format!("image {image:?}: {said}")).with_field("image");
            let help = "does the execution role, or image_pull_secret_arn, let AWS pull it?";
            return Ended { error: error.with_help(help), may_retry: false };
        }
        // Limits of the registry, and of the network.
        return Ended { error: SandboxError::create(message), may_retry: true };
    }
    if let Some(ended) = without_agent(task, image) {
        return ended;
    }
    let may_retry = task.stop_code == "SpotInterruption"
        || says(&[
            "network interface",
            "resource:eni",
            "capacity is unavailable",
            "internal error",
            "timed out",
            "timeout",
        ]);
    let kind = match task.stop_code.as_str() {
        "EssentialContainerExited" => ErrorKind::CreateVerification,
        _ => ErrorKind::Create,
    };
    Ended { error: SandboxError::new(kind, message).with_provider(NAME), may_retry }
}

/// An image that was to fetch the agent, and did not.
fn without_agent(task: &Task, image: &str) -> Option<Ended> {
    let main = task.containers.iter().find(|container| container.name == MAIN)?;
    let (what, may_retry) = match main.exit_code {
        Some(NO_PROGRAM) => ("has neither curl nor wget to fetch the agent", false),
        Some(NOT_FETCHED) => ("could not fetch the agent from the bucket", true),
        Some(NOT_THE_SAME) => ("has fetched something else than the agent", true),
        Some(NOT_WRITTEN) => ("cannot write the agent to its folder", false),
        None if main.reason.contains("CannotStartContainer") && is_about_sh(&main.reason) => {
            ("cannot be started; without the sidecar's image it needs a shell to fetch the agent", false)
        }
        _ => return None,
    };
    let error = SandboxError::new(ErrorKind::CreateVerification, format!("image {image:?} {what}"));
    let help = "set sidecar.image, which brings the agent into any image; else let tasks reach the bucket";
    Some(Ended { error: error.with_provider(NAME).with_field("image").with_help(help), may_retry })
}

fn is_about_sh(reason: &str) -> bool {
    reason.contains("\"sh\"") || reason.ends_with(": sh")
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;
    use serde_json::json;

    use super::{ending, not_started};
    use crate::aws::Task;

    fn task(code: &str, reason: &str, exit_code: Option<i64>, said: &str) -> Task {
        let main = json!({"name": "main", "exitCode": exit_code, "reason": said});
        serde_json::from_value(json!({"stopCode": code, "stoppedReason": reason, "containers": [main]})).unwrap()
    }

    #[test]
    fn launches_that_may_work_the_next_time_are_told_from_those_that_never_will() {
        let failed = "TaskFailedToStart";
        for (task, kind, may_retry) in [
            (
                task(failed, "Timeout waiting for network interface provisioning to complete.", None, ""),
                ErrorKind::Create,
                true,
            ),
            (task(failed, "CannotPullContainerError: toomanyrequests: rate limit", None, ""), ErrorKind::Create, true),
            (task(failed, "CannotPullContainerError: docker.io/x: not found", None, ""), ErrorKind::NotFound, false),
            (task(failed, "", None, "CannotPullContainerError: pull access denied"), ErrorKind::NotFound, false),
            (task(failed, "CannotPullContainerError: 403 Forbidden", None, ""), ErrorKind::Unauthorized, false),
            (task(failed, "ResourceInitializationError: no role", None, ""), ErrorKind::Create, false),
            (task("SpotInterruption", "", None, ""), ErrorKind::Create, true),
            (task("EssentialContainerExited", "x", Some(193), ""), ErrorKind::CreateVerification, false),
            (task("EssentialContainerExited", "x", Some(194), ""), ErrorKind::CreateVerification, true),
            (
                task("EssentialContainerExited", "Essential container in task exited", Some(1), ""),
                ErrorKind::CreateVerification,
                false,
            ),
        ] {
            let ended = not_started(&task, "x");
            assert_eq!((ended.error.kind(), ended.may_retry), (kind, may_retry), "{}", ended.error);
        }
    }

    #[test]
    fn an_end_is_told_in_words() {
        let exited = "EssentialContainerExited";
        assert_eq!(ending(&task(exited, "x", Some(3), ""), None), "its main process ended with code 3");
        assert!(ending(&task(exited, "x", Some(0), ""), Some(1)).contains("expired"));
        let oom = task(exited, "x", Some(137), "OutOfMemoryError: Container killed due to memory usage");
        assert!(ending(&oom, None).contains("out of memory"));
        assert_eq!(ending(&task("UserInitiated", "by hand", None, ""), None), "by hand");
    }
}
