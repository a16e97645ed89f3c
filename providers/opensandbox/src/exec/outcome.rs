//! How a command ended, from the words of the daemon.

use sandbox_core::{ExecExit, ExecOutcome, StartFailure};

use super::frames::FrameError;

/// The names that the Go runtime has for signals, and their numbers.
const SIGNALS: [(&str, i32); 14] = [
    ("hangup", 1),
    ("interrupt", 2),
    ("quit", 3),
    ("illegal instruction", 4),
    ("trace/breakpoint trap", 5),
    ("aborted", 6),
    ("bus error", 7),
    ("floating point exception", 8),
    ("killed", 9),
    ("user defined signal 1", 10),
    ("segmentation fault", 11),
    ("user defined signal 2", 12),
    ("broken pipe", 13),
    ("alarm clock", 14),
];

/// The signal of `signal: killed`.
fn signal(text: &str) -> Option<i32> {
    let name = text.rsplit_once("signal: ").map_or(text, |(_, name)| name);
    let name = name.split(" (core dumped)").next().unwrap_or(name).trim();
    if name == "terminated" {
        return Some(15);
    }
    if let Some(number) = name.strip_prefix("signal ") {
        return number.parse().ok();
    }
    SIGNALS.iter().find_map(|(known, number)| (*known == name).then_some(*number))
}

/// Why a program could not be started, from the words of the Go runtime.
fn start_failure(text: &str) -> StartFailure {
    let has = |part: &str| text.contains(part);
    if has("chdir") {
        return if has("permission denied") { StartFailure::CwdNotAccessible } else { StartFailure::CwdMissing };
    }
    if has("executable file not found") || has("no such file or directory") {
        StartFailure::NotFound
    } else if has("permission denied") || has("exec format error") || has("is a directory") {
        StartFailure::NotExecutable
    } else if has("operation not permitted") {
        StartFailure::UserRefused
    } else if has("resource temporarily unavailable") || has("cannot allocate memory") || has("too many open files") {
        StartFailure::Resources
    } else {
        StartFailure::Other
    }
}

/// The end of a command that its daemon reports as an error. `program` is named where it never ran.
pub(crate) fn of_error(error: &FrameError, has_timed_out: bool, program: &str) -> ExecExit {
    let trace = error.traceback.last().map(String::as_str).unwrap_or_default();
    match error.evalue.trim().parse::<i32>() {
        Ok(code) => of_code(code, trace, has_timed_out),
        Err(_) => {
            let reason = start_failure(&error.evalue);
            ExecExit::start_failed(reason, format!("{program}: {}", words(reason)))
        }
    }
}

/// The end of a command, from its code and the words for it.
pub(crate) fn of_code(code: i32, words: &str, has_timed_out: bool) -> ExecExit {
    // Both a limit and a kill read as -1: only our own clock tells them apart.
    ExecExit::new(match (code, signal(words)) {
        (0.., _) => ExecOutcome::Exited(code),
        (_, Some(_) | None) if has_timed_out => ExecOutcome::TimedOut { idle: false },
        (_, Some(signal)) => ExecOutcome::Signalled(signal),
        (_, None) => ExecOutcome::Signalled(9),
    })
}

/// What a reason is called.
pub(crate) fn words(reason: StartFailure) -> &'static str {
    match reason {
        StartFailure::NotFound => "no such program",
        StartFailure::NotExecutable => "not a program that may be run",
        StartFailure::CwdMissing => "no such folder",
        StartFailure::CwdNotADirectory => "not a folder",
        StartFailure::CwdNotAccessible => "the folder may not be entered",
        StartFailure::UnknownUser => "no such user",
        StartFailure::UserRefused => "the user cannot be switched to",
        StartFailure::NoShell => "there is no shell",
        StartFailure::Resources => "no process could be made",
        _ => "it could not be started",
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ExecOutcome, StartFailure};

    use super::{of_error, signal, start_failure};
    use crate::exec::frames::FrameError;

    fn outcome(evalue: &str, trace: &str, has_timed_out: bool) -> ExecOutcome {
        let error = FrameError { evalue: evalue.to_owned(), traceback: vec![trace.to_owned()] };
        of_error(&error, has_timed_out, "p").outcome
    }

    #[test]
    fn a_code_a_signal_and_a_limit_are_told_apart() {
        assert_eq!(outcome("3", "exit status 3", true), ExecOutcome::Exited(3));
        assert_eq!(outcome("137", "exit status 137", false), ExecOutcome::Exited(137));
        assert_eq!(outcome("-1", "signal: killed", false), ExecOutcome::Signalled(9));
        assert_eq!(outcome("-1", "signal: terminated", false), ExecOutcome::Signalled(15));
        assert_eq!(outcome("-1", "signal: killed", true), ExecOutcome::TimedOut { idle: false });
        assert_eq!(signal("signal: segmentation fault (core dumped)"), Some(11));
        assert_eq!(signal("exit status 1"), None);
    }

    #[test]
    fn what_never_ran_says_why() {
        for (text, reason) in [
            ("exec: \"x\": executable file not found in $PATH", StartFailure::NotFound),
            ("fork/exec /x: no such file or directory", StartFailure::NotFound),
            ("fork/exec /etc/passwd: permission denied", StartFailure::NotExecutable),
            ("fork/exec /x: exec format error", StartFailure::NotExecutable),
            ("chdir /x: no such file or directory", StartFailure::CwdMissing),
            ("fork/exec: operation not permitted", StartFailure::UserRefused),
            ("what", StartFailure::Other),
        ] {
            assert_eq!(start_failure(text), reason, "{text}");
        }
        let ExecOutcome::StartFailed { message, .. } = outcome("exec: \"p\": executable file not found", "", false)
        else {
            panic!("it ran");
        };
        assert_eq!(message, "p: no such program");
    }
}
