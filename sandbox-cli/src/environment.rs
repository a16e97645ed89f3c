//! The one file that reads the environment of this program.

use std::{env, ffi::OsString, path::PathBuf};

/// A variable as text; none if it is unset, empty or not UTF-8.
pub(crate) fn text(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// A variable as it is, for a copy into a sandbox.
pub(crate) fn raw(name: &str) -> Option<OsString> {
    env::var_os(name)
}

/// True for a variable that is set to anything but nothing, `0`, `false` or `no`.
pub(crate) fn is_on(name: &str) -> bool {
    text(name).is_some_and(|value| !matches!(value.as_str(), "0" | "false" | "no"))
}

/// Whether standard error may be coloured, as far as the environment says: `NO_COLOR`, `CLICOLOR`, `TERM=dumb`.
pub(crate) fn allows_colour() -> bool {
    text("NO_COLOR").is_none()
        && text("CLICOLOR").is_none_or(|value| value != "0")
        && text("TERM").is_none_or(|value| value != "dumb")
}

/// Whether colour is wanted even when standard error is no terminal.
pub(crate) fn forces_colour() -> bool {
    text("NO_COLOR").is_none() && is_on("CLICOLOR_FORCE")
}

/// A folder of the XDG rules: the variable, else a folder below the home. A relative one counts as none.
fn xdg(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let given = env::var_os(variable).map(PathBuf::from).and_then(absolute);
    given.or_else(|| env::var_os("HOME").map(PathBuf::from).and_then(absolute).map(|home| home.join(below_home)))
}

/// The folder of the user's configuration.
pub(crate) fn config_home() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME", ".config").map(|folder| folder.join("sandbox"))
}

/// The folder of what is known of sandboxes that outlive this program.
pub(crate) fn state_home() -> Option<PathBuf> {
    xdg("XDG_STATE_HOME", ".local/state").map(|folder| folder.join("sandboxctl"))
}

/// The folder of the user's own plugins; discovery looks there too.
pub(crate) fn plugin_folder() -> Option<PathBuf> {
    xdg("XDG_DATA_HOME", ".local/share").map(|folder| folder.join("sandbox/plugins"))
}

/// Whether a program of this name is in `PATH`.
pub(crate) fn has_program(name: &str) -> bool {
    if name.contains('/') {
        return PathBuf::from(name).exists();
    }
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}
