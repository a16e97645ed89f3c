//! What the environment says of where providers are. The only file that reads it.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use sandbox_core::{Result, SandboxError};

/// Folders and files of discovered plugins, separated by colons.
const PLUGIN_PATH: &str = "SANDBOX_PLUGIN_PATH";
/// The folder of the built-in providers.
const PROVIDER_DIR: &str = "SANDBOX_PROVIDER_DIR";

const SYSTEM_PLUGIN_DIRS: [&str; 2] = ["/usr/local/lib/sandbox/plugins", "/usr/lib/sandbox/plugins"];

/// Where to look, in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    /// Folders of built-in providers.
    pub(crate) provider_dirs: Vec<PathBuf>,
    /// Folders and files of discovered plugins.
    pub(crate) plugin_paths: Vec<PathBuf>,
}

/// Reads the environment. A program that runs with more rights than its caller has takes nothing from it.
///
/// # Errors
/// `InvalidInput` for a relative path: it would mean another file in each working folder.
pub(crate) fn places() -> Result<Places> {
    let exe = env::current_exe().ok();
    if is_elevated() {
        return places_from(|_| None, exe.as_deref());
    }
    places_from(|name| env::var_os(name), exe.as_deref())
}

fn is_elevated() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};
    getuid() != geteuid() || getgid() != getegid()
}

fn places_from(get: impl Fn(&str) -> Option<OsString>, exe: Option<&Path>) -> Result<Places> {
    let mut places = Places::default();
    let provider_dir = get(PROVIDER_DIR).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = provider_dir {
        places.provider_dirs.push(absolute(folder, PROVIDER_DIR)?);
    }
    if let Some(folder) = exe.and_then(Path::parent) {
        places.provider_dirs.push(folder.join("providers"));
        if let Some(prefix) = folder.parent() {
            places.provider_dirs.push(prefix.join("lib/sandbox/providers"));
        }
    }
    for entry in env::split_paths(&get(PLUGIN_PATH).unwrap_or_default()) {
        // An empty entry means the working folder elsewhere; here it means nothing.
        if !entry.as_os_str().is_empty() {
            places.plugin_paths.push(absolute(entry, PLUGIN_PATH)?);
        }
    }
    // The XDG rules: a relative path counts as none.
    let folder_in = |name: &str| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = folder_in("XDG_DATA_HOME").or_else(|| folder_in("HOME").map(|home| home.join(".local/share")));
    places.plugin_paths.extend(data.map(|data| data.join("sandbox/plugins")));
    places.plugin_paths.extend(SYSTEM_PLUGIN_DIRS.map(PathBuf::from));
    Ok(places)
}

/// Checks a path that was given by `source`.
///
/// # Errors
/// `InvalidInput` for a relative one.
pub(crate) fn absolute(path: PathBuf, source: &str) -> Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path);
    }
    Err(SandboxError::invalid_input(source, format!("{} is not an absolute path", path.display()))
        .with_help("write the whole path, from / on: plugins are never looked for in the working folder"))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, ffi::OsString, path::Path};

    use sandbox_core::{ErrorKind, Result};

    use super::{Places, places_from};

    fn places(variables: &[(&str, &str)]) -> Result<Places> {
        let variables: BTreeMap<String, OsString> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
        places_from(|name| variables.get(name).cloned(), Some(Path::new("/opt/sbx/bin/sandboxctl")))
    }

    #[test]
    fn the_order_is_variable_then_user_then_system_and_the_installation_for_built_ins() {
        let found =
            places(&[("SANDBOX_PLUGIN_PATH", "/a:/b/libx.so::"), ("SANDBOX_PROVIDER_DIR", "/p"), ("HOME", "/home/u")])
                .unwrap();
        let shown = |paths: &[std::path::PathBuf]| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(&found.provider_dirs), "/p /opt/sbx/bin/providers /opt/sbx/lib/sandbox/providers");
        assert_eq!(
            shown(&found.plugin_paths),
            "/a /b/libx.so /home/u/.local/share/sandbox/plugins /usr/local/lib/sandbox/plugins /usr/lib/sandbox/plugins"
        );
    }

    #[test]
    fn the_data_folder_is_the_xdg_one_unless_that_is_relative() {
        let found = places(&[("XDG_DATA_HOME", "/data"), ("HOME", "/home/u")]).unwrap();
        assert_eq!(found.plugin_paths[0], Path::new("/data/sandbox/plugins"));
        let found = places(&[("XDG_DATA_HOME", "data"), ("HOME", "/home/u")]).unwrap();
        assert_eq!(found.plugin_paths[0], Path::new("/home/u/.local/share/sandbox/plugins"));
        assert_eq!(places(&[("HOME", "")]).unwrap().plugin_paths.len(), 2);
    }

    #[test]
    fn a_relative_path_is_refused_and_named() {
        for (variable, value) in [("SANDBOX_PLUGIN_PATH", "/a:plugins"), ("SANDBOX_PROVIDER_DIR", "./plugins")] {
            let error = places(&[(variable, value)]).unwrap_err();
            assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(variable)));
            assert!(error.to_string().contains("plugins"), "{error}");
        }
    }
}
