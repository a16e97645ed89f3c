//! What surrounds commands: the environment of the container, and the file to which variables are added while it runs.
//! The only file that reads this process's environment for commands.

use std::{
    env,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use sandbox_agent::{Entrypoint, ServeConfig};
use sandbox_core::{ByteString, Env};

use crate::env_file;

/// The variable that names the file of variables, and where that is if it names none.
const ENVS_VARIABLE: &str = "EXECD_ENVS";
const ENVS_FILE: &str = "/opt/opensandbox/.env";

/// What belongs to this process alone.
const NOT_INHERITED: [&str; 6] = ["PWD", "OLDPWD", "SHLVL", "_", "EXECD_ACCESS_TOKEN", "EXECD_INIT"];

/// In front of the name of a variable whose value is a format of printf, with a mark at the end: a server that takes text
/// only carries bytes in this way.
const ENCODED_PREFIX: &str = "SANDBOX_BYTES_";

/// How the agent is to serve: in this process's folder and environment, with this main process.
pub(crate) fn config(command: &[String]) -> ServeConfig {
    let env =
        of_commands(env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_vec()))));
    let entrypoint = (!command.is_empty())
        .then(|| Entrypoint { argv: command.iter().map(ByteString::from).collect(), ..Entrypoint::default() });
    ServeConfig {
        inherit_workdir: true,
        env,
        exit_with_entrypoint: entrypoint.is_some(),
        entrypoint,
        ..ServeConfig::default()
    }
}

/// The shell of scripts: bash, else sh, as this process finds it; a command's own environment does not say where. None: the
/// agent looks for one.
pub(crate) fn shell() -> Option<String> {
    let folders = env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let find = |name: &str| env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    find("bash").or_else(|| find("sh"))?.into_os_string().into_string().ok()
}

/// The file of variables.
pub(crate) fn envs_file() -> PathBuf {
    env::var_os(ENVS_VARIABLE).filter(|file| !file.is_empty()).map_or_else(|| ENVS_FILE.into(), PathBuf::from)
}

/// The value of a variable of this process, for paths that name one.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// The environment of commands, from that of this process.
fn of_commands(own: impl Iterator<Item = (String, Vec<u8>)>) -> Env {
    let home = own_home();
    let mut all = Env::default();
    all.insert(ENVS_VARIABLE, ENVS_FILE);
    for (name, value) in own {
        if NOT_INHERITED.contains(&name.as_str()) {
            continue;
        }
        // That of the daemon's own user is what an engine makes up; commands of others have one of their own.
        if name == "HOME" && home.as_deref().is_some_and(|home| home.as_bytes() == value) {
            continue;
        }
        match name.strip_prefix(ENCODED_PREFIX).and_then(|name| Some((name, decode(&value)?))) {
            Some((name, value)) => all.insert(name, ByteString::new(value)),
            None => all.insert(name, ByteString::new(value)),
        }
    }
    all
}

/// The home of this process's own user.
fn own_home() -> Option<String> {
    let (uid, passwd) =
        (rustix::process::getuid().as_raw(), std::fs::read_to_string("/etc/passwd").unwrap_or_default());
    passwd.lines().find_map(|line| {
        let parts: Vec<&str> = line.split(':').collect();
        (parts.get(2)?.parse() == Ok(uid)).then(|| parts.get(5).map(|home| (*home).to_owned()))?
    })
}

/// Bytes of a format of printf that holds letters, digits and octal escapes only, and ends with a mark.
fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut rest = text.strip_suffix(b"_")?;
    let mut bytes = Vec::with_capacity(rest.len());
    while let [first, after @ ..] = rest {
        if *first != b'\\' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let digits = std::str::from_utf8(after.get(..3)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 8).ok()?);
        rest = &after[3..];
    }
    Some(bytes)
}

/// What the file of variables holds at this moment.
pub(crate) fn read_envs(file: &Path) -> Env {
    let text = std::fs::read(file).unwrap_or_default();
    env_file::read(&String::from_utf8_lossy(&text)).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use sandbox_core::ByteString;

    use super::{decode, of_commands};

    #[test]
    fn bytes_come_back_from_a_format_of_printf() {
        assert_eq!(decode(b"x\\377\\045\\012_").unwrap(), b"x\xff%\n");
        assert_eq!(decode(b"_").unwrap(), b"");
        for wrong in [&b"x"[..], b"x\\9_", b"\\400_"] {
            assert_eq!(decode(wrong), None);
        }
        let given = [("SANDBOX_BYTES_A", "\\377_"), ("PWD", "/x"), ("B", "b"), ("EXECD_ACCESS_TOKEN", "canary")];
        let env = of_commands(given.map(|(name, value)| (name.to_owned(), value.into())).into_iter());
        assert_eq!(env.get("A"), Some(&ByteString::from(&b"\xff"[..])));
        assert_eq!(env.get("B"), Some(&ByteString::from("b")));
        assert!(["PWD", "EXECD_ACCESS_TOKEN", "SANDBOX_BYTES_A"].iter().all(|name| env.get(name).is_none()));
    }
}
