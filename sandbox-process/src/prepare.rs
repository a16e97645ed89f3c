//! Turns a command into what the kernel takes, and refuses what the kernel would refuse later and vaguely.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use libc::c_char;

use crate::command::Command;
use crate::error::StartError;
use crate::launch::DESCRIPTORS_MAX;
use crate::user::User;

/// Longest argument or `NAME=value`, in bytes without the NUL (Linux: 32 pages, whatever the total).
pub(crate) const STRING_BYTES_MAX: usize = 131_071;
/// All arguments and variables together, with their pointers.
const TOTAL_BYTES_MAX: usize = 2 << 20;
/// What the kernel puts on the same stack: the path, the platform's strings, alignment.
const TOTAL_HEADROOM_BYTES: usize = 8 << 10;
/// The least the kernel grants for arguments, however small the stack limit is.
const TOTAL_BYTES_MIN: usize = 128 << 10;
#[allow(clippy::unnecessary_cast, reason = "glibc and musl differ in the type")]
const STACK: u32 = libc::RLIMIT_STACK as u32;
#[allow(clippy::unnecessary_cast, reason = "glibc and musl differ in the type")]
const OPEN_FILES: u32 = libc::RLIMIT_NOFILE as u32;
/// Where programs are searched when the environment has no `PATH`.
const PATH_DEFAULT: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Open files a command may have at least, where the hard limit allows it.
const OPEN_FILES_MIN: u64 = 1024;

/// A checked command, as C strings.
pub(crate) struct Prepared {
    pub(crate) argv: Vec<CString>,
    pub(crate) env: Vec<CString>,
    pub(crate) candidates: Vec<CString>,
    pub(crate) cwd: Option<CString>,
    pub(crate) limits: Vec<(u32, libc::rlimit)>,
    /// With ascending groups.
    pub(crate) user: Option<User>,
    pub(crate) no_new_privs: bool,
    pub(crate) terminal: bool,
}

impl Prepared {
    pub(crate) fn new(command: &Command) -> Result<Prepared, StartError> {
        check_descriptors(command)?;
        let argv = argument_strings(&command.argv)?;
        let env = environment_strings(&command.env)?;
        check_total(command, &argv, &env)?;
        let candidates = program_candidates(command)?;
        let cwd = match &command.cwd {
            Some(path) => Some(c_string(path.clone(), || "cwd".into())?),
            None => None,
        };
        let user = command.user.clone().map(|mut user| {
            user.groups.sort_unstable();
            user.groups.dedup();
            user
        });
        let limits = resource_limits(command);
        let (no_new_privs, terminal) = (command.no_new_privs, command.terminal.is_some());
        Ok(Prepared { argv, env, candidates, cwd, limits, user, no_new_privs, terminal })
    }
}

fn check_descriptors(command: &Command) -> Result<(), StartError> {
    let mut targets: Vec<RawFd> = command.extra_fds.iter().map(|(_, target)| *target).collect();
    if targets.len() > DESCRIPTORS_MAX - 3 {
        return Err(StartError::invalid("extra descriptors", "are too many"));
    }
    targets.sort_unstable();
    if targets.first().is_some_and(|&target| target < 3) {
        return Err(StartError::invalid("extra descriptor", "has a number below 3"));
    }
    match targets.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(StartError::invalid(format!("extra descriptor {}", pair[0]), "is asked for twice")),
        None => Ok(()),
    }
}

fn c_string(bytes: Vec<u8>, field: impl FnOnce() -> String) -> Result<CString, StartError> {
    CString::new(bytes).map_err(|_| StartError::invalid(field(), "has a NUL byte"))
}

fn checked_string(bytes: Vec<u8>, field: impl Fn() -> String) -> Result<CString, StartError> {
    if bytes.len() > STRING_BYTES_MAX {
        return Err(StartError::too_large(field(), STRING_BYTES_MAX, bytes.len()));
    }
    c_string(bytes, field)
}

fn argument_strings(argv: &[Vec<u8>]) -> Result<Vec<CString>, StartError> {
    if argv.is_empty() {
        return Err(StartError::invalid("argument 0", "is missing: there is no program"));
    }
    argv.iter()
        .enumerate()
        .map(|(index, argument)| checked_string(argument.clone(), || format!("argument {index}")))
        .collect()
}

fn environment_strings(env: &[(Vec<u8>, Vec<u8>)]) -> Result<Vec<CString>, StartError> {
    env.iter()
        .map(|(name, value)| {
            let field = || format!("environment variable {}", String::from_utf8_lossy(name).escape_debug());
            if name.is_empty() || name.contains(&b'=') {
                return Err(StartError::invalid(field(), "has a name that is empty or holds '='"));
            }
            checked_string([name, &b"="[..], value].concat(), field)
        })
        .collect()
}

fn check_total(command: &Command, argv: &[CString], env: &[CString]) -> Result<(), StartError> {
    let pointer = size_of::<*const c_char>();
    let size: usize = argv.iter().chain(env).map(|string| string.as_bytes_with_nul().len() + pointer).sum();
    let stack = command
        .limits
        .iter()
        .rev()
        .find(|limit| limit.resource == STACK)
        .map(|limit| limit.soft)
        .or_else(|| current_limit(STACK).map(|limit| limit.rlim_cur))
        .map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let limit = (stack / 4).clamp(TOTAL_BYTES_MIN, TOTAL_BYTES_MAX) - TOTAL_HEADROOM_BYTES;
    if size > limit {
        return Err(StartError::too_large("all arguments and environment variables together", limit, size));
    }
    Ok(())
}

/// Like `execvp`: a name with a slash is itself, any other is looked for in every folder of `PATH`.
fn program_candidates(command: &Command) -> Result<Vec<CString>, StartError> {
    let Some(program) = command.argv.first() else { return Ok(Vec::new()) };
    let field = || "argument 0".to_owned();
    if program.is_empty() || program.contains(&b'/') {
        return Ok(vec![c_string(program.clone(), field)?]);
    }
    let path = command.env.iter().find(|(name, _)| name == b"PATH").map_or(PATH_DEFAULT, |(_, value)| value);
    path.split(|&byte| byte == b':')
        .map(|folder| match folder {
            // An empty folder is the working directory.
            [] => c_string([b"./", program.as_slice()].concat(), field),
            folder => c_string([folder, b"/", program.as_slice()].concat(), field),
        })
        .collect()
}

fn current_limit(resource: u32) -> Option<libc::rlimit> {
    let mut limit = MaybeUninit::<libc::rlimit>::uninit();
    // SAFETY: the pointer is valid for one rlimit; glibc and musl differ only in the resource's integer type.
    if unsafe { libc::getrlimit(resource as _, limit.as_mut_ptr()) } < 0 {
        return None;
    }
    // SAFETY: getrlimit succeeded and filled the value.
    Some(unsafe { limit.assume_init() })
}

fn resource_limits(command: &Command) -> Vec<(u32, libc::rlimit)> {
    let open_files = OPEN_FILES;
    let mut limits: Vec<(u32, libc::rlimit)> = command
        .limits
        .iter()
        .map(|limit| (limit.resource, libc::rlimit { rlim_cur: limit.soft, rlim_max: limit.hard }))
        .collect();
    if !limits.iter().any(|(resource, _)| *resource == open_files)
        && let Some(mut now) = current_limit(open_files)
        && now.rlim_cur < OPEN_FILES_MIN.min(now.rlim_max)
    {
        now.rlim_cur = OPEN_FILES_MIN.min(now.rlim_max);
        limits.push((open_files, now));
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::{PATH_DEFAULT, Prepared, STRING_BYTES_MAX};
    use crate::command::Command;
    use crate::error::{StartError, StartErrorKind};

    fn refusal(command: &Command) -> StartError {
        match Prepared::new(command) {
            Ok(_) => panic!("must be refused"),
            Err(error) => error,
        }
    }

    fn true_command() -> Command {
        Command::new(["true"])
    }

    #[test]
    fn a_nul_byte_is_refused_with_its_place() {
        for (command, field) in [
            (Command::new([&b"true"[..], b"a\0b"]), "argument 1"),
            (true_command().env("A", "x").env("B", "a\0b"), "environment variable B"),
            (true_command().env("A\0B", "x"), "environment variable A\\0B"),
            (true_command().cwd("/a\0b"), "cwd"),
            (Command::new(["a\0b"]), "argument 0"),
        ] {
            let error = refusal(&command);
            assert_eq!((error.kind(), error.field()), (StartErrorKind::InvalidInput, Some(field)));
        }
    }

    #[test]
    fn a_command_that_cannot_be_meant_is_refused() {
        let file = || std::fs::File::open("/dev/null").expect("/dev/null opens");
        for command in [
            Command::new(Vec::<Vec<u8>>::new()),
            true_command().env("", "x"),
            true_command().env("A=B", "x"),
            true_command().extra_fd(file(), 2),
            true_command().extra_fd(file(), 7).extra_fd(file(), 7),
        ] {
            assert_eq!(refusal(&command).kind(), StartErrorKind::InvalidInput);
        }
    }

    #[test]
    fn sizes_are_checked_to_the_byte_and_named_without_values() {
        assert!(Prepared::new(&Command::new([b"true".to_vec(), vec![b'x'; STRING_BYTES_MAX]])).is_ok());
        let error = refusal(&Command::new([b"true".to_vec(), vec![b'x'; STRING_BYTES_MAX + 1]]));
        assert_eq!(error.kind(), StartErrorKind::TooLarge);
        assert_eq!(error.field(), Some("argument 1"));
        assert_eq!(error.limit_bytes(), Some(STRING_BYTES_MAX));
        assert_eq!(error.size_bytes(), Some(STRING_BYTES_MAX + 1));
        let error = refusal(&true_command().env("BIG", vec![b's'; STRING_BYTES_MAX - 3]));
        assert_eq!(error.field(), Some("environment variable BIG"));
        assert!(!error.to_string().contains("sss"));
        assert!(Prepared::new(&true_command().env("BIG", vec![b's'; STRING_BYTES_MAX - 4])).is_ok());
        let many = vec![vec![b'x'; 100_000]; 30];
        let error = refusal(&Command::new(many));
        assert_eq!(error.kind(), StartErrorKind::TooLarge);
        assert!(error.to_string().contains("together"), "{error}");
    }

    #[test]
    fn the_program_is_searched_like_execvp_does() {
        let found = |command: &Command| -> Vec<String> {
            let prepared = Prepared::new(command).unwrap_or_else(|error| panic!("{error}"));
            prepared.candidates.iter().map(|path| path.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(found(&true_command().env("PATH", "/a::b")), ["/a/true", "./true", "b/true"]);
        assert_eq!(found(&Command::new(["./x"]).env("PATH", "/a")), ["./x"]);
        assert_eq!(found(&true_command()).len(), PATH_DEFAULT.split(|&byte| byte == b':').count());
    }
}
