//! What a configuration may say.

use std::path::{Component, Path};

use crate::config::{LaunchConfig, Root};

/// A value that is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} must be {expected}")]
pub struct ConfigError {
    key: &'static str,
    expected: &'static str,
}

impl ConfigError {
    /// The key, as in the JSON document.
    pub fn key(&self) -> &'static str {
        self.key
    }
}

const NO_TARGET: [&str; 4] = ["/", "/proc", "/sys", "/dev"];
const HOST_PATH: &str = "an absolute path without `..`";
const TARGET: &str = "an absolute path without `..`, not `/` and not in /proc, /sys or /dev";
const SIZE: &str = "1..=1048576 MiB";

impl LaunchConfig {
    /// Checks every value that its type does not.
    ///
    /// # Errors
    /// The first key that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if let Root::Rootfs { lower, upper } = &self.root {
            check(is_plain(lower), "root.lower", HOST_PATH)?;
            check(is_plain(upper), "root.upper", HOST_PATH)?;
            check(!upper.starts_with(lower) && !lower.starts_with(upper), "root.upper", "apart from root.lower")?;
            check(is_overlay_safe(lower) && is_overlay_safe(upper), "root.lower", "at most 2048 bytes")?;
        }
        let has_one_end = self.die_with_parent.is_none() || !self.outlives_parent;
        check(has_one_end, "outlives_parent", "false with die_with_parent")?;
        if let Some(name) = &self.hostname {
            check(is_host_name(name), "hostname", "1..=64 letters, digits, `-` and `.`")?;
        }
        if let Some(workdir) = &self.workdir {
            check(is_plain(&workdir.source), "workdir.source", HOST_PATH)?;
            check(is_target(&workdir.target), "workdir.target", TARGET)?;
        }
        for bind in &self.binds {
            check(is_plain(&bind.source), "binds.source", HOST_PATH)?;
            check(is_target(&bind.target), "binds.target", TARGET)?;
        }
        for folder in &self.memory {
            check(is_target(&folder.target), "memory.target", TARGET)?;
            check((1..=1_048_576).contains(&folder.mib), "memory.mib", SIZE)?;
        }
        for entry in &self.hosts {
            let named = !entry.names.is_empty() && entry.names.iter().all(|name| is_host_name(name));
            check(named, "hosts.names", "one or more host names")?;
        }
        self.validate_ids()?;
        let sizes = &self.sizes;
        for mib in [sizes.tmp_mib, sizes.var_tmp_mib, sizes.run_mib, sizes.home_mib, sizes.root_mib, sizes.shm_mib] {
            check((1..=1_048_576).contains(&mib), "sizes", SIZE)?;
        }
        if let Some(cgroup) = &self.cgroup {
            check(is_name(&cgroup.name, 128), "cgroup.name", "1..=128 of `A-Z a-z 0-9 _ -`")?;
            cgroup.limits.validate().map_err(|(key, expected)| ConfigError { key, expected })?;
        }
        check(self.die_with_parent != Some(0), "die_with_parent", "the pid of the process that starts the launcher")?;
        if let Some(argv) = &self.init {
            let program = argv.first().is_some_and(|program| program.starts_with('/'));
            check(program, "init", "an absolute path inside the sandbox, then arguments")?;
            check(argv.iter().all(|word| !word.contains('\0')), "init", "free of zero bytes")?;
        }
        for (name, value) in &self.env.0 {
            let sound = !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
            check(sound, "env", "names without `=`, values without zero bytes")?;
        }
        Ok(())
    }

    fn validate_ids(&self) -> Result<(), ConfigError> {
        let user = &self.user;
        let named = is_name(&user.name, 32) && user.name != "root" && user.name != "nobody";
        check(named, "user.name", "1..=32 of `a-z 0-9 _ -`, not root or nobody")?;
        check((1..=65533).contains(&user.uid), "user.uid", "1..=65533")?;
        check((1..=65533).contains(&user.gid), "user.gid", "1..=65533")?;
        if let Some(base) = self.ids.host_base {
            check((65536..=4_294_836_224).contains(&base), "ids.host_base", "65536..=4294836224")?;
        }
        check(self.ids.inside_uid <= 65534, "ids.inside_uid", "0..=65534")?;
        check(self.ids.inside_gid <= 65534, "ids.inside_gid", "0..=65534")
    }
}

fn check(holds: bool, key: &'static str, expected: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { key, expected }) }
}

fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && !path.as_os_str().as_encoded_bytes().contains(&0)
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

fn is_overlay_safe(path: &Path) -> bool {
    path.as_os_str().len() <= 2048
}

fn is_target(path: &Path) -> bool {
    // "/" is a prefix of every path, so it is compared whole.
    is_plain(path) && path != Path::new("/") && !NO_TARGET[1..].iter().any(|no| path.starts_with(no))
}

fn is_host_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
}

fn is_name(name: &str, longest: usize) -> bool {
    (1..=longest).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_refused(json: &str) -> &'static str {
        let config: LaunchConfig = serde_json::from_str(json).expect("the document is well-formed");
        config.validate().expect_err("the value is out of range").key()
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_its_key() {
        assert_eq!(key_refused(r#"{"hostname": "a b"}"#), "hostname");
        assert_eq!(key_refused(r#"{"workdir": {"source": "relative"}}"#), "workdir.source");
        assert_eq!(key_refused(r#"{"workdir": {"source": "/a", "target": "/proc/x"}}"#), "workdir.target");
        assert_eq!(key_refused(r#"{"binds": [{"source": "/a/../b", "target": "/b"}]}"#), "binds.source");
        assert_eq!(key_refused(r#"{"binds": [{"source": "/a", "target": "/"}]}"#), "binds.target");
        assert_eq!(key_refused(r#"{"memory": [{"target": "/dev/x", "mib": 1}]}"#), "memory.target");
        assert_eq!(key_refused(r#"{"memory": [{"target": "/x", "mib": 0}]}"#), "memory.mib");
        assert_eq!(key_refused(r#"{"ids": {"host_base": 0}}"#), "ids.host_base");
        assert_eq!(key_refused(r#"{"ids": {"host_base": 65535}}"#), "ids.host_base");
        assert_eq!(key_refused(r#"{"user": {"uid": 0}}"#), "user.uid");
        assert_eq!(key_refused(r#"{"init": ["sh"]}"#), "init");
        assert_eq!(key_refused(r#"{"env": {"A=B": "x"}}"#), "env");
        assert_eq!(key_refused(r#"{"cgroup": {"name": "../x"}}"#), "cgroup.name");
        let nested = r#"{"root": {"mode": "rootfs", "lower": "/a", "upper": "/a/b"}}"#;
        assert_eq!(key_refused(nested), "root.upper");
    }

    #[test]
    fn an_unknown_key_is_refused() {
        for json in [r#"{"netwrok": "host"}"#, r#"{"workdir": {"source": "/a", "ro": true}}"#, r#"{"sizes": {"x": 1}}"#]
        {
            assert!(serde_json::from_str::<LaunchConfig>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn an_empty_document_is_a_valid_configuration() {
        let config: LaunchConfig = serde_json::from_str("{}").expect("every key has a default");
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn debug_does_not_show_the_environment() {
        let config: LaunchConfig = serde_json::from_str(r#"{"env": {"K": "canary"}}"#).expect("well-formed");
        assert!(!format!("{config:?}").contains("canary"));
    }
}
