//! How a command ended, in the words of execd: those of the Go runtime.

use sandbox_core::{ExecExit, ExecOutcome, StartFailure};

/// What clients of execd are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// None: it never ran.
    pub(crate) code: Option<i32>,
    pub(crate) words: String,
}

fn signal(number: i32) -> String {
    let name = match number {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal: signal {other}"),
    };
    format!("signal: {name}")
}

fn start_failure(reason: StartFailure, program: &str, message: &str) -> String {
    match reason {
        StartFailure::NotFound if !program.contains('/') => {
            format!("exec: {program:?}: executable file not found in $PATH")
        }
        StartFailure::NotFound => format!("fork/exec {program}: no such file or directory"),
        StartFailure::NotExecutable => format!("fork/exec {program}: permission denied"),
        StartFailure::CwdMissing => "chdir: no such file or directory".to_owned(),
        StartFailure::CwdNotADirectory => "chdir: not a directory".to_owned(),
        StartFailure::CwdNotAccessible => "chdir: permission denied".to_owned(),
        StartFailure::UserRefused | StartFailure::UnknownUser => "fork/exec: operation not permitted".to_owned(),
        StartFailure::NoShell => "exec: \"sh\": executable file not found in $PATH".to_owned(),
        StartFailure::Resources => "fork/exec: resource temporarily unavailable".to_owned(),
        _ => message.to_owned(),
    }
}

/// The end of a command. `program` is what was to be started.
pub(crate) fn told(exit: &ExecExit, program: &str) -> Told {
    let (code, words) = match &exit.outcome {
        ExecOutcome::Exited(code) => (Some(*code), format!("exit status {code}")),
        ExecOutcome::Signalled(number) => (Some(-1), signal(*number)),
        ExecOutcome::TimedOut { .. } => (Some(-1), signal(9)),
        ExecOutcome::StartFailed { reason, message } => (None, start_failure(*reason, program, message)),
        _ => (Some(-1), "the end is of a kind that is not known".to_owned()),
    };
    Told { code, words }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ExecExit, ExecOutcome, StartFailure};

    use super::{Told, told};

    #[test]
    fn every_end_has_the_words_of_the_model() {
        let of = |outcome| told(&ExecExit::new(outcome), "x");
        let expect = |code, words: &str| Told { code, words: words.to_owned() };
        assert_eq!(of(ExecOutcome::Exited(7)), expect(Some(7), "exit status 7"));
        assert_eq!(of(ExecOutcome::Signalled(15)), expect(Some(-1), "signal: terminated"));
        assert_eq!(of(ExecOutcome::Signalled(40)), expect(Some(-1), "signal: signal 40"));
        assert_eq!(of(ExecOutcome::TimedOut { idle: false }), expect(Some(-1), "signal: killed"));
        let missing = ExecExit::start_failed(StartFailure::NotFound, "m");
        assert_eq!(told(&missing, "x"), expect(None, "exec: \"x\": executable file not found in $PATH"));
        assert_eq!(told(&missing, "/x"), expect(None, "fork/exec /x: no such file or directory"));
    }
}
