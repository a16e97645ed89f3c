//! What a job's folder tells: parts of the output, and how the command ended.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use sandbox_core::{ExecCommand, ExecExit, ExecOutcome, ExecRequest, StartFailure};
use serde::{Deserialize, Serialize};

/// News of a command.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct News {
    /// Bytes written to each stream so far.
    pub(crate) stdout_total: u64,
    pub(crate) stderr_total: u64,
    pub(crate) stdout: Bytes,
    pub(crate) stderr: Bytes,
    /// True once something keeps watch over it.
    pub(crate) is_up: bool,
    /// How it ended.
    pub(crate) end: Option<End>,
}

/// How a command ended, in the words of its folder.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    kind: String,
    code: i32,
    is_held: bool,
}

/// What an answer can be.
#[derive(Debug, PartialEq)]
pub(crate) enum Told {
    News(News),
    /// The folder was given up: the command ran before, or never will.
    Gone,
    /// The answer is not whole, or not from the job's text.
    Unreadable,
}

fn decode(text: &str) -> Option<Bytes> {
    let joined: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD.decode(joined).ok().map(Bytes::from)
}

/// Reads an answer. `mark` starts its lines, so that what a shell's start-up files print is no news.
pub(crate) fn read(mark: &str, text: &str) -> Told {
    let parse = || -> Option<Told> {
        let (_, text) = text.split_once(mark)?;
        let (head, rest) = text.split_once('\n')?;
        let head = head.trim();
        if head == "gone" {
            return Some(Told::Gone);
        }
        let (stdout, rest) = rest.split_once(&format!("{mark} err"))?;
        let (stderr, _) = rest.split_once(&format!("{mark} end"))?;
        let mut words = head.split_whitespace();
        let mut news = News {
            stdout_total: words.next()?.parse().ok()?,
            stderr_total: words.next()?.parse().ok()?,
            stdout: decode(stdout)?,
            stderr: decode(stderr)?,
            is_up: words.next()? == "up",
            end: None,
        };
        news.end = End::read(&mut words)?;
        Some(Told::News(news))
    };
    parse().unwrap_or(Told::Unreadable)
}

impl End {
    /// Reads it from the words that are left of a line: without any there is none yet. None: it is not whole.
    pub(crate) fn read<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Option<Self>> {
        let Some(kind) = words.next() else { return Some(None) };
        let (kind, code) = (kind.to_owned(), words.next()?.parse().ok()?);
        Some(Some(Self { kind, code, is_held: words.next()? == "1" }))
    }

    /// The ending in the contract's words.
    pub(crate) fn exit(&self, request: &Attempt) -> ExecExit {
        let failed = |reason, what: &str, culprit: &str| {
            ExecExit::start_failed(reason, format!("{what}: {}", culprit.escape_debug()))
        };
        let Attempt { program, cwd, user } = request;
        match self.kind.as_str() {
            "timeout" => ExecExit::new(ExecOutcome::TimedOut { idle: false }),
            "idle" => ExecExit::new(ExecOutcome::TimedOut { idle: true }),
            "signalled" => ExecExit::new(ExecOutcome::Signalled(self.code - 128)).with_output_open(self.is_held),
            "exited" => ExecExit::new(ExecOutcome::Exited(self.code)).with_output_open(self.is_held),
            "not_found" => failed(StartFailure::NotFound, "no such program", program),
            "not_executable" => failed(StartFailure::NotExecutable, "not a program", program),
            "no_shell" => failed(StartFailure::NoShell, "no such shell in the sandbox", program),
            "cwd_missing" => failed(StartFailure::CwdMissing, "no such folder", cwd),
            "cwd_no_folder" => failed(StartFailure::CwdNotADirectory, "not a folder", cwd),
            "cwd_no_access" => failed(StartFailure::CwdNotAccessible, "the folder may not be entered", cwd),
            "user_unknown" => failed(StartFailure::UnknownUser, "no such user or group in the sandbox", user),
            "user_refused" => failed(
                StartFailure::UserRefused,
                "the sandbox's user is not root or has no setpriv, so it cannot become",
                user,
            ),
            _ => failed(StartFailure::Other, "the command did not start", program),
        }
    }
}

/// What was being started, for the text of a failure.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Attempt {
    program: String,
    cwd: String,
    user: String,
}

impl Attempt {
    pub(crate) fn new(request: &ExecRequest, workdir: Option<&str>) -> Self {
        let program = match &request.command {
            ExecCommand::Shell { shell, .. } => shell.clone().unwrap_or_else(|| "bash or sh".to_owned()),
            ExecCommand::Argv(argv) => argv.first().map(ToString::to_string).unwrap_or_default(),
            _ => String::new(),
        };
        let cwd = request.cwd.as_ref().map(ToString::to_string);
        let cwd = cwd.or_else(|| workdir.map(str::to_owned)).unwrap_or_default();
        Self { program, cwd, user: request.user.clone().unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ExecOutcome, ExecRequest};

    use super::{Attempt, Told, read};

    #[test]
    fn news_are_read_past_noise_and_half_an_answer_is_none() {
        let whole = "motd\nM 5 3 up exited 7 1\naGVs\nbG8=\nM err\neHh4\nM end\n";
        let Told::News(news) = read("M", whole) else { panic!("it is whole") };
        assert_eq!((&news.stdout[..], &news.stderr[..]), (&b"hello"[..], &b"xxx"[..]));
        assert_eq!((news.stdout_total, news.stderr_total, news.is_up), (5, 3, true));
        let exit = news.end.unwrap().exit(&Attempt::new(&ExecRequest::shell("x"), None));
        assert_eq!((exit.outcome, exit.output_open), (ExecOutcome::Exited(7), true));
        for length in 0..whole.len() - 4 {
            assert_eq!(read("M", &whole[..length]), Told::Unreadable, "{length} bytes of it");
        }
        assert_eq!(read("M", "M gone\n"), Told::Gone);
        let Told::News(news) = read("M", "M 0 0 new \nM err\nM end\n") else { panic!("it is whole") };
        assert!(news.end.is_none() && !news.is_up);
    }
}
