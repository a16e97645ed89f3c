//! The environment of commands: nothing is inherited but what was allowed by name.

use std::{
    collections::BTreeMap,
    os::unix::ffi::OsStringExt,
    path::{Path, PathBuf},
};

use sandbox_core::{Env, ExecRequest};

use crate::{config::LocalConfig, sandbox::Sandbox, user::Identity};

/// Makes bash run a file before a script: only taken from the request itself.
const BASH_ENV: &str = "BASH_ENV";

/// The variables of a command.
pub(crate) type Variables = BTreeMap<Vec<u8>, Vec<u8>>;

/// Where a command runs, and how.
pub(crate) struct Surroundings<'a> {
    pub(crate) config: &'a LocalConfig,
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) user: &'a Identity,
    pub(crate) cwd: &'a [u8],
    pub(crate) is_script: bool,
}

impl Surroundings<'_> {
    /// Later ones win: the basics, what the settings let through from the host, the sandbox's, the request's.
    pub(crate) fn variables(&self, request: &ExecRequest) -> Variables {
        let mut variables = self.basics();
        for (name, value) in self.config.passed_variables() {
            variables.insert(name.into(), value.into_vec());
        }
        add(&mut variables, &self.sandbox.env);
        if self.is_script {
            variables.remove(BASH_ENV.as_bytes());
        }
        add(&mut variables, &request.env);
        variables
    }

    fn basics(&self) -> Variables {
        let home = self.user.home.clone().unwrap_or_else(|| bytes(self.sandbox.paths.workdir()));
        let mut basics = vec![
            ("PATH", self.config.path.clone().into_bytes()),
            ("HOME", home),
            ("USER", self.user.name.clone()),
            ("LOGNAME", self.user.name.clone()),
            ("LANG", b"C.UTF-8".to_vec()),
            ("PWD", self.cwd.to_vec()),
        ];
        basics.extend(self.sandbox.shell.as_deref().map(|shell| ("SHELL", bytes(shell))));
        basics.into_iter().map(|(name, value)| (name.into(), value)).collect()
    }
}

fn add(variables: &mut Variables, env: &Env) {
    variables.extend(env.iter().map(|(name, value)| (name.into(), value.as_bytes().to_vec())));
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}

/// A program by name in `PATH` of the settings, or by path. None when it is not there.
pub(crate) fn find_program(path: &str, program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The shell for scripts.
pub(crate) fn find_shell(config: &LocalConfig) -> Option<PathBuf> {
    match &config.shell {
        Some(shell) => find_program(&config.path, shell),
        None => ["bash", "sh"].iter().find_map(|shell| find_program(&config.path, shell)),
    }
}
