//! What surrounds a command: its user, environment, shell and working directory.

use std::{
    collections::BTreeMap,
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    sync::{Mutex, PoisonError},
};

use sandbox_core::{ByteString, Env, ErrorKind, Result, SandboxError};
use sandbox_process::{Command, ResourceLimit, User};

use super::config::ServeConfig;

const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// Makes bash run a file before a script: only taken from the request itself.
const BASH_ENV: &str = "BASH_ENV";

/// A user inside. `switch` is none for the agent's own.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) user: User,
    pub(super) is_own: bool,
}

/// What is asked for beside the command.
pub(super) struct Wish<'a> {
    pub(super) cwd: Option<&'a ByteString>,
    pub(super) env: &'a Env,
    pub(super) user: Option<&'a str>,
    pub(super) is_script: bool,
    pub(super) has_terminal: bool,
}

/// The sandbox's own surroundings.
#[derive(Debug)]
pub(super) struct Surroundings {
    pub(super) config: ServeConfig,
    /// The default identity, and the state of the passwd file for which it is right.
    default: Mutex<Option<(Stamp, Identity)>>,
}

type Stamp = Option<(u64, i64, i64, u64)>;

fn stamp() -> Stamp {
    let found = std::fs::metadata(PASSWD).ok()?;
    Some((found.ino(), found.ctime(), found.ctime_nsec(), found.size()))
}

fn read_or_empty(path: &str) -> Result<Vec<u8>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        read => read.map_err(|error| SandboxError::io(path, error)),
    }
}

/// Why there is no such user; the text names it.
pub(super) struct UnknownUser(pub(super) String);

impl Surroundings {
    pub(super) fn new(config: ServeConfig) -> Self {
        Self { config, default: Mutex::new(None) }
    }

    /// The identity of a name, or the default one.
    pub(super) fn identity(&self, name: Option<&str>) -> Result<Result<Identity, UnknownUser>> {
        if let Some(name) = name {
            return resolve(name);
        }
        let now = stamp();
        if let Some((_, identity)) =
            self.default.lock().unwrap_or_else(PoisonError::into_inner).as_ref().filter(|(stamp, _)| *stamp == now)
        {
            return Ok(Ok(identity.clone()));
        }
        let resolved = match &self.config.user {
            Some(user) => resolve(user)?,
            None => {
                let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
                resolve(&format!("{uid}:{gid}"))?.map(|identity| Identity { is_own: true, ..identity })
            }
        };
        if let Ok(identity) = &resolved {
            *self.default.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, identity.clone()));
        }
        Ok(resolved)
    }

    /// The owner of files: of the default user, or of the one that is named.
    pub(super) fn owner(&self, name: Option<&str>) -> Result<Option<(u32, u32)>> {
        match self.identity(name)? {
            Ok(identity) if identity.is_own => Ok(None),
            Ok(identity) => Ok(Some((identity.user.uid, identity.user.gid))),
            Err(UnknownUser(text)) => Err(SandboxError::new(ErrorKind::InvalidInput, text).with_field("owner")),
        }
    }

    /// A path as the kernel takes it: relative ones are below the working directory.
    pub(super) fn absolute(&self, path: &[u8]) -> Vec<u8> {
        match path.first() {
            Some(b'/') => path.to_vec(),
            _ => [self.config.workdir.as_bytes(), b"/", path].concat(),
        }
    }

    pub(super) fn cwd(&self, cwd: Option<&ByteString>) -> Vec<u8> {
        cwd.map_or_else(|| self.config.workdir.as_bytes().to_vec(), |cwd| self.absolute(cwd.as_bytes()))
    }

    /// Gives a command its surroundings.
    pub(super) fn surround(&self, command: Command, wish: &Wish<'_>, identity: &Identity) -> Command {
        let cwd = self.cwd(wish.cwd);
        let mut command = self
            .variables(wish, identity, &cwd)
            .into_iter()
            .fold(command, |command, (name, value)| command.env(name, value));
        command = command.cwd(cwd);
        if !identity.is_own {
            command = command.user(identity.user.clone());
        }
        for &(resource, soft, hard) in &self.config.commands.rlimits {
            command = command.limit(ResourceLimit { resource, soft, hard });
        }
        command
    }

    /// Later ones win: the basics, the sandbox's, the request's.
    fn variables(&self, wish: &Wish<'_>, identity: &Identity, cwd: &[u8]) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let uid = identity.user.uid.to_string();
        let name = identity.user.name.clone().unwrap_or_else(|| uid.into_bytes());
        let mut basics = vec![
            ("PATH", PATH_DEFAULT.into()),
            ("HOME", identity.user.home.clone()),
            ("USER", name.clone()),
            ("LOGNAME", name),
            ("LANG", b"C.UTF-8".to_vec()),
            ("PWD", cwd.to_vec()),
        ];
        if wish.has_terminal {
            basics.push(("TERM", b"xterm-256color".to_vec()));
        }
        let mut variables: BTreeMap<Vec<u8>, Vec<u8>> =
            basics.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let mut add = |env: &Env, with_bash_env: bool| {
            for (name, value) in env.iter().filter(|(name, _)| with_bash_env || *name != BASH_ENV) {
                variables.insert(name.into(), value.as_bytes().to_vec());
            }
        };
        add(&self.config.env, !wish.is_script);
        add(wish.env, true);
        variables
    }

    /// The shell that is asked for, or the sandbox's; `Err` is what was looked for.
    pub(super) fn shell(&self, wanted: Option<&str>, env: &Env) -> Result<Vec<u8>, String> {
        let path = env.get("PATH").or_else(|| self.config.env.get("PATH"));
        let path = path.map_or(PATH_DEFAULT.as_bytes(), ByteString::as_bytes);
        match wanted.or(self.config.shell.as_deref()) {
            Some(shell) => find(path, shell).ok_or_else(|| shell.to_owned()),
            None => ["bash", "sh"].iter().find_map(|shell| find(path, shell)).ok_or_else(|| "bash or sh".to_owned()),
        }
    }
}

fn resolve(name: &str) -> Result<Result<Identity, UnknownUser>> {
    let (passwd, group) = (read_or_empty(PASSWD)?, read_or_empty(GROUP)?);
    Ok(match User::resolve(name.as_bytes(), &passwd, &group) {
        Ok(user) => Ok(Identity { user, is_own: false }),
        Err(error) => Err(UnknownUser(format!("{error}: {}", name.escape_debug()))),
    })
}

fn find(path: &[u8], program: &str) -> Option<Vec<u8>> {
    use std::os::unix::ffi::OsStrExt;
    if program.contains('/') {
        return Some(program.into());
    }
    path.split(|byte| *byte == b':')
        .filter(|folder| !folder.is_empty())
        .map(|folder| [folder, b"/", program.as_bytes()].concat())
        .find(|candidate| {
            std::fs::metadata(std::ffi::OsStr::from_bytes(candidate))
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
}
