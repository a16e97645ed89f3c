use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use sandbox_core::{ByteString, Env, ExecCommand, ExecRequest, StartFailure, StdinSource};

use super::{
    processes,
    world::{FakeBox, World},
};
use crate::fault::Fault;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Closes what this process has inherited itself, then becomes the program.
const CLOSE_FDS: &str = "for f in /proc/self/fd/*; do n=${f##*/}; \
                         if [ \"$n\" -gt 2 ]; then eval \"exec $n>&-\" 2>/dev/null; fi; done; exec \"$@\"";
const LEAK_FDS: &str = "exec 7</dev/null 8</dev/null; exec \"$@\"";

/// Everything that is needed to start a process.
pub(super) struct Launch {
    pub(super) argv: Vec<ByteString>,
    pub(super) cwd: PathBuf,
    pub(super) env: Env,
    pub(super) user: Option<(u32, u32)>,
    pub(super) mark: String,
    wrap: &'static str,
}

type Refusal = (StartFailure, String);

impl Launch {
    pub(super) fn new(world: &World, sandbox: &FakeBox, request: &ExecRequest) -> Result<Self, Refusal> {
        let cwd = cwd(world, sandbox, request)?;
        let user = user(world, sandbox, request)?;
        let mark = format!("{}.{}", sandbox.id, sandbox.execs.fetch_add(1, Ordering::Relaxed));
        let env = env(world, sandbox, request, user, &mark);
        let mut argv = argv(world, sandbox, request, &mark);
        if let ExecCommand::Argv(_) = request.command {
            argv[0] = ByteString::from(find_program(world, &argv[0], &cwd, &env)?);
        }
        let wrap = if world.has(Fault::DescriptorInherited) { LEAK_FDS } else { CLOSE_FDS };
        Ok(Self { argv, cwd, env, user, mark, wrap })
    }

    /// The process, without its input and output.
    pub(super) fn command(&self, world: &World, before: &[&str]) -> tokio::process::Command {
        let bash = ["/bin/bash", "-p", "-c", self.wrap, "fake"];
        let words: Vec<&str> = before.iter().copied().chain(bash).collect();
        let mut command = tokio::process::Command::new(words[0]);
        command.args(&words[1..]).args(self.argv.iter().map(|argument| argument.as_path()));
        if !world.has(Fault::HostEnvMerged) {
            command.env_clear();
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value.as_path()))).current_dir(&self.cwd);
        if let Some((uid, gid)) = self.user {
            command.gid(gid).uid(uid);
        }
        command
    }
}

fn cwd(world: &World, sandbox: &FakeBox, request: &ExecRequest) -> Result<PathBuf, Refusal> {
    let base = if world.has(Fault::RelativeCwdBelowRoot) { Path::new("/") } else { &sandbox.workdir };
    let Some(cwd) = request.cwd.as_ref().filter(|_| !world.has(Fault::CwdIgnored)) else {
        return Ok(sandbox.workdir.clone());
    };
    let cwd = base.join(cwd.as_path());
    match std::fs::metadata(&cwd) {
        Ok(found) if found.is_dir() => Ok(cwd),
        Ok(_) if !world.has(Fault::FileCwdAsMissing) => {
            Err((StartFailure::CwdNotADirectory, format!("{} is not a folder", cwd.display())))
        }
        _ if world.has(Fault::MissingCwdRunsElsewhere) => Ok("/".into()),
        _ => Err((StartFailure::CwdMissing, format!("{} does not exist", cwd.display()))),
    }
}

fn user(world: &World, sandbox: &FakeBox, request: &ExecRequest) -> Result<Option<(u32, u32)>, Refusal> {
    let of_spec = sandbox.spec.user.as_ref().filter(|_| !world.has(Fault::SpecUserIgnored));
    let Some(user) = request.user.as_ref().or(of_spec).filter(|_| !world.has(Fault::UserIgnored)) else {
        return Ok(None);
    };
    match ids(user) {
        Some((uid, _)) if world.has(Fault::GroupsKept) => Ok(Some((uid, 0))),
        Some(ids) => Ok(Some(ids)),
        None if world.has(Fault::UnknownUserIsRoot) => Ok(None),
        None => Err((StartFailure::UnknownUser, format!("there is no user {user}"))),
    }
}

/// User and group of `NAME`, `UID` or `UID:GID`.
pub(super) fn ids(user: &str) -> Option<(u32, u32)> {
    let (name, group) = user.split_once(':').map_or((user, None), |(name, group)| (name, Some(group)));
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let entry = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|parts| parts[0] == name);
    let (uid, gid) = match entry {
        Some(parts) => (parts[2].parse().ok()?, parts[3].parse().ok()?),
        None => (name.parse().ok()?, name.parse().ok()?),
    };
    Some((uid, group.map_or(Some(gid), |group| group.parse().ok())?))
}

fn env(world: &World, sandbox: &FakeBox, request: &ExecRequest, user: Option<(u32, u32)>, mark: &str) -> Env {
    let home = if user.is_none_or(|(uid, _)| uid == 0) { "/root" } else { "/" };
    let path = if world.has(Fault::NoPath) { "/nowhere" } else { PATH };
    let base = Env::from_iter([("PATH", path), ("HOME", home)]);
    let mut of_spec = if world.has(Fault::SpecEnvIgnored) { Env::default() } else { sandbox.spec.env.clone() };
    if let Some(token) = sandbox.spec.env.get("SANDBOX_CONFORMANCE_TOKEN") {
        of_spec.insert("SANDBOX_CONFORMANCE_TOKEN", token.clone());
    }
    if !world.has(Fault::BashEnvSourced) {
        of_spec = Env::from_iter(of_spec.iter().filter(|(name, _)| *name != "BASH_ENV").map(|(n, v)| (n, v.clone())));
    }
    let mut of_exec = if world.has(Fault::ExecEnvIgnored) { Env::default() } else { request.env.clone() };
    if world.has(Fault::EnvCutAtNewline) {
        let lines = of_exec.iter().flat_map(|(name, value)| {
            let text = format!("{name}={}", value.to_text_lossy());
            let pairs = text.lines().filter_map(|line| line.split_once('='));
            pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect::<Vec<_>>()
        });
        of_exec = Env::from_iter(lines);
    }
    if world.has(Fault::EnvStays) {
        let mut kept = world.kept_env.lock().unwrap();
        of_exec = kept.overridden_by(&of_exec);
        *kept = of_exec.clone();
    }
    let merged = if world.has(Fault::SpecEnvGoesBeforeExec) {
        base.overridden_by(&of_exec).overridden_by(&of_spec)
    } else {
        base.overridden_by(&of_spec).overridden_by(&of_exec)
    };
    merged.overridden_by(&Env::from_iter([(processes::SANDBOX, sandbox.id.as_str()), (processes::EXEC, mark)]))
}

fn argv(world: &World, sandbox: &FakeBox, request: &ExecRequest, mark: &str) -> Vec<ByteString> {
    match &request.command {
        ExecCommand::Argv(argv) if world.has(Fault::ArgvThroughShell) => {
            let words: Vec<_> = argv.iter().map(|word| word.to_text_lossy().into_owned()).collect();
            ["/bin/sh".to_owned(), "-c".to_owned(), words.join(" ")].map(ByteString::from).into()
        }
        ExecCommand::Argv(argv) if world.has(Fault::ArgumentsCut) => {
            argv.iter().map(|word| ByteString::new(&word.as_bytes()[..word.len().min(4096)])).collect()
        }
        ExecCommand::Argv(argv) => argv.clone(),
        ExecCommand::Shell { script, shell } => {
            let shell = shell.as_deref().filter(|_| !world.has(Fault::ChosenShellIgnored)).unwrap_or("bash");
            let mut script = script.as_bytes().to_vec();
            if world.has(Fault::ScriptSplicedIntoOneLine) {
                script = [&b"{ "[..], &script, b"; }"].concat();
            }
            if world.has(Fault::WrapperAfterScript) {
                script = [&b"( "[..], &script, b" ); exit $?"].concat();
            }
            if world.has(Fault::PipedThroughCat) {
                script = [&b"( "[..], &script, b"\n) | cat"].concat();
            }
            let state = sandbox.home.join("state").to_string_lossy().into_owned();
            if world.has(Fault::VariablesKept) {
                let (head, tail) = (format!(". {state} 2>/dev/null\n"), format!("\nexport -p > {state}"));
                script = [head.as_bytes(), &script, tail.as_bytes()].concat();
            }
            if world.has(Fault::FolderKept) {
                let (head, tail) = (format!("cd \"$(cat {state} 2>/dev/null)\"\n"), format!("\npwd > {state}"));
                script = [head.as_bytes(), &script, tail.as_bytes()].concat();
            }
            if world.has(Fault::ScriptCutAt128K) {
                script.truncate(131_000);
            }
            let mut argv = vec![ByteString::from(shell)];
            if world.has(Fault::LoginShell) {
                argv.push("-l".into());
            }
            if script.len() > 100_000 {
                let file = sandbox.home.join(mark);
                let _ = std::fs::write(&file, script);
                argv.push(file.into());
            } else {
                argv.extend(["-c".into(), ByteString::new(script)]);
            }
            argv
        }
        _ => vec!["false".into()],
    }
}

fn find_program(world: &World, name: &ByteString, cwd: &Path, env: &Env) -> Result<PathBuf, Refusal> {
    let shown = name.to_text_lossy();
    let missing = || (StartFailure::NotFound, format!("{shown} is not there"));
    let path = env.get("PATH").map(|path| path.to_text_lossy().into_owned()).unwrap_or_default();
    let found = if shown.contains('/') {
        Some(cwd.join(name.as_path()))
    } else {
        path.split(':').map(|folder| Path::new(folder).join(name.as_path())).find(|file| file.exists())
    };
    let found = found.filter(|file| file.exists()).ok_or_else(missing)?;
    let is_program = found.is_file() && found.metadata().is_ok_and(|file| file.permissions().mode() & 0o111 != 0);
    match is_program {
        true => Ok(found),
        false if world.has(Fault::NotExecutableAsNotFound) => Err(missing()),
        false => Err((StartFailure::NotExecutable, format!("{shown} is not a program"))),
    }
}

/// What of the input is given, and whether it stays open after it.
pub(super) fn input(world: &World, source: &StdinSource) -> (Option<Vec<u8>>, bool) {
    match source {
        StdinSource::Bytes(bytes) => {
            let mut bytes = bytes.to_vec();
            if world.has(Fault::StdinLossy) {
                bytes = String::from_utf8_lossy(&bytes).into_owned().into_bytes();
            }
            if world.has(Fault::StdinCutAt64K) {
                bytes.truncate(65_536);
            }
            let stays =
                world.has(Fault::StdinBytesNeverClosed) || bytes.is_empty() && world.has(Fault::EmptyStdinLeftOpen);
            (Some(bytes), stays)
        }
        StdinSource::Stream => (Some(Vec::new()), true),
        _ => (world.has(Fault::StdinLeftOpen).then(Vec::new), true),
    }
}
