//! What to run.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use bytes::Bytes;

use crate::error::StartError;
use crate::shell;
use crate::terminal::TerminalSize;
use crate::user::User;

/// The standard input of a command.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Stdin {
    /// `/dev/null`: the command reads end-of-file at once.
    #[default]
    Null,
    /// These bytes, then end-of-file. A command that does not read them all is not an error.
    Bytes(Bytes),
    /// Written by [`Controller::write_stdin`](crate::Controller::write_stdin), ended by
    /// [`Controller::close_stdin`](crate::Controller::close_stdin).
    Stream,
}

/// A resource limit of the command and its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceLimit {
    /// The `RLIMIT_*` number.
    pub resource: u32,
    /// The limit in force, in the unit of the resource.
    pub soft: u64,
    /// What the command may raise it to. Above the host's own it needs privilege, else the start fails.
    pub hard: u64,
}

/// A command, its surroundings and its input. All text is bytes; none of it is decoded.
///
/// The environment is exactly what is given: nothing is inherited. A program name without a slash is searched in
/// the `PATH` that is given (without one: `/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin`), after
/// the change of directory and user.
///
/// What is not given is the host's as it was when the [`ProcessSet`](crate::ProcessSet) started its first command:
/// working directory, umask, resource limits, credentials, namespaces.
#[derive(Debug)]
pub struct Command {
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) env: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) cwd: Option<Vec<u8>>,
    pub(crate) user: Option<User>,
    pub(crate) stdin: Stdin,
    pub(crate) limits: Vec<ResourceLimit>,
    pub(crate) extra_fds: Vec<(OwnedFd, RawFd)>,
    pub(crate) no_new_privs: bool,
    pub(crate) terminal: Option<TerminalSize>,
}

impl Command {
    /// A command with these arguments; the first is the program.
    pub fn new<I, A>(argv: I) -> Command
    where
        I: IntoIterator<Item = A>,
        A: Into<Vec<u8>>,
    {
        Command {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            user: None,
            stdin: Stdin::Null,
            limits: Vec::new(),
            extra_fds: Vec::new(),
            no_new_privs: false,
            terminal: None,
        }
    }

    /// A script run by `shell -c`. A script too long for one argument is passed in a sealed memory file on
    /// descriptor 9 (closed before the first command of the script runs); `$0`, exit codes, here-documents and
    /// standard input are the same either way. The long form needs `/proc` where the shell runs.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::StartErrorKind::InvalidInput) for a NUL byte in the script;
    /// [`Resource`](crate::StartErrorKind::Resource) or [`Other`](crate::StartErrorKind::Other) when the memory
    /// file cannot be made.
    pub fn shell(shell: impl Into<Vec<u8>>, script: &[u8]) -> Result<Command, StartError> {
        let (text, file) = shell::script_argument(script)?;
        let mut command = Command::new([shell.into(), b"-c".to_vec(), text]);
        if let Some(file) = file {
            command.extra_fds.push((file, shell::SCRIPT_FD));
        }
        Ok(command)
    }

    /// Adds one environment variable. Names are not looked up for doubles; the list is passed as it is.
    #[must_use]
    pub fn env(mut self, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Command {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs in this directory.
    #[must_use]
    pub fn cwd(mut self, path: impl Into<Vec<u8>>) -> Command {
        self.cwd = Some(path.into());
        self
    }

    /// Runs as this user (uid, gid and exactly these groups). Never as someone else: a refusal fails the start.
    #[must_use]
    pub fn user(mut self, user: User) -> Command {
        self.user = Some(user);
        self
    }

    /// Sets the standard input.
    #[must_use]
    pub fn stdin(mut self, stdin: Stdin) -> Command {
        self.stdin = stdin;
        self
    }

    /// Adds a resource limit. Unless given, the soft limit of open files is raised to 1024 where the hard one
    /// allows it, and all others are the host's.
    #[must_use]
    pub fn limit(mut self, limit: ResourceLimit) -> Command {
        self.limits.push(limit);
        self
    }

    /// Gives the command this descriptor under the number `target` (3 or above).
    #[must_use]
    pub fn extra_fd(mut self, fd: impl Into<OwnedFd>, target: RawFd) -> Command {
        self.extra_fds.push((fd.into(), target));
        self
    }

    /// Forbids the command and its children to gain privileges by executing a program.
    #[must_use]
    pub fn no_new_privs(mut self) -> Command {
        self.no_new_privs = true;
        self
    }

    /// Runs on a terminal of its own, of this size from the start: the command's controlling terminal, and all of its
    /// standard streams. What it shows comes as [`Event::Stdout`](crate::Event::Stdout); it is written to like
    /// [`Stdin::Stream`], whatever [`Command::stdin`] says.
    ///
    /// Signals then go to the foreground group, [`Controller::close_stdin`](crate::Controller::close_stdin) types
    /// the end-of-file character, and a kill with grace begins with SIGHUP.
    #[must_use]
    pub fn terminal(mut self, size: TerminalSize) -> Command {
        self.terminal = Some(size);
        self
    }

    pub(crate) fn extra_pairs(&self) -> Vec<(RawFd, RawFd)> {
        self.extra_fds.iter().map(|(fd, target)| (fd.as_raw_fd(), *target)).collect()
    }
}
