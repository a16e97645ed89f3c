//! What a build says, and what it means when it has failed.

use std::collections::VecDeque;

use sandbox_core::{ErrorKind, SandboxError};

use crate::{
    aws::{Build, one_line},
    error::NAME,
};

/// Lines that are kept for the end.
const LINES_MAX: usize = 60;
/// How many of them go along with a failure.
const CAUSE_LINES: usize = 12;

/// The last lines of a build's log.
#[derive(Default)]
pub(super) struct Story(VecDeque<String>);

impl Story {
    pub(super) fn push(&mut self, text: &str) {
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if self.0.len() == LINES_MAX {
                self.0.pop_front();
            }
            self.0.push_back(one_line(line));
        }
    }

    fn says(&self, words: &[&str]) -> bool {
        self.0.iter().any(|line| {
            let line = line.to_ascii_lowercase();
            words.iter().any(|word| line.contains(word))
        })
    }

    /// Number and instruction of the step that failed, in the words of either builder.
    fn step(&self) -> Option<(String, String)> {
        let named = |text: &str| {
            let (inside, rest) = text.split_once(']')?;
            let number = inside.split_whitespace().last().filter(|word| word.contains('/'))?;
            Some((number.to_owned(), rest.split_whitespace().next()?.to_owned()))
        };
        let of_new = |line: &String| line.trim().strip_prefix("> [").and_then(named);
        let of_old = |line: &String| {
            let (number, rest) = line.trim().strip_prefix("Step ")?.split_once(" : ")?;
            Some((number.to_owned(), rest.split_whitespace().next()?.to_owned()))
        };
        self.0.iter().rev().find_map(of_new).or_else(|| self.0.iter().rev().find_map(of_old))
    }

    /// Why a build came to nothing.
    pub(super) fn failure(&self, build: &Build, what: &str) -> SandboxError {
        let phases = build.failed_phases();
        let phases = match phases.is_empty() {
            true => build.build_status.clone(),
            false => phases.join(", "),
        };
        let (kind, field) = if build.build_status == "TIMED_OUT" {
            (ErrorKind::TimedOut, None)
        } else if self.says(&["parse error", "unknown instruction", "file with no instructions", "no build stage"]) {
            (ErrorKind::InvalidInput, Some("dockerfile"))
        } else if self.says(&["manifest unknown", "pull access denied", "repository does not exist", "manifest for"]) {
            (ErrorKind::NotFound, Some("image"))
        } else if self.says(&["unauthorized", "authentication required", "no basic auth credentials"]) {
            (ErrorKind::Unauthorized, Some("image"))
        } else if self.says(&["toomanyrequests", "rate limit"]) {
            (ErrorKind::Exhausted, None)
        } else {
            (ErrorKind::Create, None)
        };
        let step =
            self.step().map(|(number, instruction)| format!("step {number} ({instruction}) of ")).unwrap_or_default();
        let text = format!("{step}{what} failed: {}", one_line(&phases));
        let first = self.0.len().saturating_sub(CAUSE_LINES);
        let said: Vec<&str> = self.0.iter().skip(first).map(String::as_str).collect();
        let mut error = SandboxError::new(kind, text).with_provider(NAME);
        if let Some(field) = field {
            error = error.with_field(field);
        }
        if !said.is_empty() {
            error = error.with_source(std::io::Error::other(said.join("\n")));
        }
        error
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;
    use serde_json::json;

    use super::Story;
    use crate::aws::Build;

    fn build(status: &str) -> Build {
        let phase = json!({"phaseType": "BUILD", "phaseStatus": status, "contexts": [{"message": "exit status 1"}]});
        serde_json::from_value(json!({"buildStatus": status, "phases": [phase]})).unwrap()
    }

    fn failure(log: &str, status: &str) -> sandbox_core::SandboxError {
        let mut story = Story::default();
        story.push(log);
        story.failure(&build(status), "the build")
    }

    #[test]
    fn the_step_that_failed_is_told_in_the_words_of_either_builder() {
        let new =
            "#5 [1/2] FROM x\n#6 [2/2] COPY no-such-file /\n------\n > [2/2] COPY no-such-file /:\n------\nERROR: no";
        let old = "Step 1/2 : FROM x\nStep 2/2 : COPY no-such-file /\nCOPY failed";
        let stages = "------\n > [stage-1 2/2] COPY x /:\n------";
        for log in [new, old, stages] {
            let error = failure(log, "FAILED");
            assert_eq!(error.kind(), ErrorKind::Create);
            assert!(
                error.to_string().contains("step 2/2 (COPY) of the build failed: BUILD (exit status 1)"),
                "{error}"
            );
        }
    }

    #[test]
    fn what_the_caller_can_act_on_has_a_kind_of_its_own() {
        for (log, status, kind) in [
            ("dockerfile parse error on line 1: unknown instruction: this", "FAILED", ErrorKind::InvalidInput),
            ("Error response from daemon: manifest unknown", "FAILED", ErrorKind::NotFound),
            ("unauthorized: authentication required", "FAILED", ErrorKind::Unauthorized),
            ("toomanyrequests: You have reached your pull rate limit", "FAILED", ErrorKind::Exhausted),
            ("", "TIMED_OUT", ErrorKind::TimedOut),
            ("", "FAULT", ErrorKind::Create),
        ] {
            assert_eq!(failure(log, status).kind(), kind, "{log}");
        }
        let long = "x\n".repeat(5000);
        let error = failure(&long, "FAILED");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.lines().count() <= super::CAUSE_LINES, "{}", cause.len());
    }
}
