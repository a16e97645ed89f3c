//! What this process's environment says of AWS. The only place that reads it.

use std::{collections::HashMap, path::PathBuf};

/// Beginnings of the variables that are looked at.
const PREFIXES: [&str; 1] = ["AWS_"];
const OTHERS: [&str; 2] = ["HOME", "XDG_STATE_HOME"];

/// A copy of the variables that matter.
#[derive(Clone, Default)]
pub(crate) struct Environment(HashMap<String, String>);

impl Environment {
    pub(crate) fn of_process() -> Self {
        let is_ours = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || OTHERS.contains(&name);
        let all =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self(all.filter(|(name, _)| is_ours(name)).collect())
    }

    #[cfg(test)]
    pub(crate) fn of(pairs: &[(&str, &str)]) -> Self {
        Self(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    /// The value of a variable that is set and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The first of these variables that is set.
    pub(crate) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.get(name))
    }

    /// A file of this user: the variable's, else this path below the home folder.
    pub(crate) fn file(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        let named = self.get(variable).map(PathBuf::from);
        named.or_else(|| Some(PathBuf::from(self.get("HOME")?).join(below_home)))
    }
}
