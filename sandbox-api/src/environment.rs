//! The one place that reads environment variables.

use std::{collections::BTreeMap, path::PathBuf};

/// Names of variables, in the order in which they count. Our own first, then the model's, then the scheduler's.
pub(crate) const RUN_ID: &[&str] = &["SANDBOX_RUN_ID", "NEMO_GYM_RUN_ID"];
pub(crate) const TEAM: &[&str] = &["SANDBOX_TEAM", "NEMO_GYM_TEAM", "SLURM_JOB_ACCOUNT"];
pub(crate) const USER: &[&str] = &["SANDBOX_USER", "NEMO_GYM_USER", "SLURM_JOB_USER"];
pub(crate) const WORKLOAD: &[&str] =
    &["SANDBOX_WORKLOAD", "NEMO_GYM_WORKLOAD", "SLURM_JOB_NAME", "SANDBOX_CONFIG_PATH", "NEMO_GYM_CONFIG_PATH"];
/// The provider of commands that name none.
pub(crate) const PROVIDER: &str = "SANDBOX_PROVIDER";
/// What names of variables for the settings of a provider begin with.
const SETTING: &str = "SANDBOX_PROVIDER__";
/// How a login names itself.
pub(crate) const LOGIN: &[&str] = &["LOGNAME", "USER"];
/// Where Linux has no `/proc/sys/kernel/hostname`.
pub(crate) const HOST: &[&str] = &["HOSTNAME"];

/// Environment variables, as they are at one moment.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Those of this process. Variables that are not UTF-8 are left out.
    pub fn process() -> Self {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// All variables by name.
    pub(crate) fn into_variables(self) -> BTreeMap<String, String> {
        self.0
    }

    /// The value of a variable as it is, if it is set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Variables that are settings of providers: the variable's name, provider, key and text.
    pub(crate) fn provider_settings(&self) -> impl Iterator<Item = (String, String, String, String)> {
        self.0.range(SETTING.to_owned()..).take_while(|(variable, _)| variable.starts_with(SETTING)).filter_map(
            |(variable, text)| {
                let (name, key) = variable[SETTING.len()..].split_once("__")?;
                let is_named = !name.is_empty() && !key.is_empty();
                is_named.then(|| (variable.clone(), name.to_lowercase(), key.to_lowercase(), text.clone()))
            },
        )
    }

    /// The folder of the user's configuration. A relative folder in a variable counts as none.
    pub(crate) fn config_home(&self) -> Option<PathBuf> {
        let absolute = |name: &str| self.get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let folder = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")))?;
        Some(folder.join("sandbox"))
    }

    /// The value of the first variable that is there and not blank, without blanks around it.
    pub(crate) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.0.get(*name).map(|value| value.trim()).filter(|value| !value.is_empty()))
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl std::fmt::Debug for Environment {
    // Values may be credentials.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Environment({} variables)", self.0.len())
    }
}
