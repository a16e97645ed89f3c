//! Where the agent's file is.

use std::path::{Path, PathBuf};

use sandbox_core::{Result, SandboxError};

const VARIABLE: &str = "SANDBOX_AGENT";

/// The agent's file for an architecture (`x86_64`, `aarch64`): the one that the settings name, else the one of the
/// variable `SANDBOX_AGENT`, else the one beside the plugin, else the one that was installed with this program. Those
/// that were named are taken for every architecture: who names one knows which it is.
///
/// # Errors
/// `NotFound`, naming every path that was tried.
pub fn find_agent(named: Option<&Path>, arch: &str) -> Result<PathBuf> {
    let named = named.map(PathBuf::from).or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    // One that was named is not replaced by another one.
    let candidates = named.map_or_else(
        || installed(sandbox_core::plugin_file(), std::env::current_exe().ok().as_deref(), arch),
        |named| vec![named],
    );
    if let Some(found) = candidates.iter().find(|path| path.is_file()) {
        return Ok(found.clone());
    }
    let tried: Vec<_> = candidates.iter().map(|path| path.display().to_string()).collect();
    Err(SandboxError::not_found(format!("the agent's file is not there; tried {}", tried.join(", ")))
        .with_field("agent_path")
        .with_help("build it with: cargo xtask build-plugins, or set agent_path"))
}

fn installed(plugin: Option<&Path>, program: Option<&Path>, arch: &str) -> Vec<PathBuf> {
    let name = format!("sandbox-agent-{arch}");
    let mut paths = Vec::new();
    paths.extend(plugin.and_then(Path::parent).map(|folder| folder.join(&name)));
    if let Some(folder) = program.and_then(Path::parent) {
        paths.push(folder.join("providers").join(&name));
        paths.push(folder.join("../lib/sandbox/providers").join(&name));
        // Tests and examples of cargo are one folder further down.
        paths.push(folder.join("../providers").join(&name));
    }
    paths
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sandbox_core::ErrorKind;

    use super::{find_agent, installed};

    #[test]
    fn a_file_that_is_missing_is_told_with_every_path_that_was_tried() {
        let error = find_agent(Some(Path::new("/no/such/agent")), "x86_64").unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("agent_path")));
        assert!(error.message().contains("/no/such/agent"));
        assert!(error.help().unwrap().contains("cargo xtask build-plugins"));
        let paths = installed(Some(Path::new("/p/libx.so")), Some(Path::new("/b/program")), "riscv64");
        let names: Vec<_> = paths.iter().map(|path| path.to_str().unwrap()).collect();
        let expected = ["/p/", "/b/providers/", "/b/../lib/sandbox/providers/", "/b/../providers/"];
        assert_eq!(names, expected.map(|folder| format!("{folder}sandbox-agent-riscv64")));
    }
}
