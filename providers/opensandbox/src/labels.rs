//! Labels: what a sandbox can be found by on the server.

use std::collections::BTreeMap;

use sandbox_core::{Result, SandboxError, SandboxSpec};

use crate::{config::AttributionConfig, error::NAME};

/// Every sandbox of this system carries it.
pub(crate) const MANAGED: (&str, &str) = ("sandbox/managed", "true");

/// Which create made it.
pub(crate) const CREATE_KEY: &str = "sandbox/create";

/// The run, as a label.
pub(crate) const RUN_KEY: &str = "sandbox/run-id";

/// Longest value of a label.
const VALUE_BYTES: usize = 63;

/// Any text as the value of a label.
pub(crate) fn value(text: &str) -> String {
    let mut clean = String::new();
    for character in text.chars() {
        if character.is_ascii_alphanumeric() || "_.-".contains(character) {
            clean.push(character);
        } else if !clean.ends_with('_') {
            clean.push('_');
        }
    }
    let trimmed = clean.trim_matches(|c: char| "._-".contains(c));
    let cut = trimmed.get(..VALUE_BYTES.min(trimmed.len())).unwrap_or_default();
    let cut = cut.trim_matches(|c: char| "._-".contains(c));
    if cut.is_empty() { "metadata".to_owned() } else { cut.to_owned() }
}

/// Checks the key of a label: the server refuses a bad one, and says less.
fn check_key(key: &str) -> Result<()> {
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
    let is_name = |name: &str| {
        !name.is_empty()
            && name.len() <= VALUE_BYTES
            && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
            && name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    let is_prefix = prefix.is_empty() || prefix.len() <= 253 && prefix.split('.').all(is_name);
    if !is_name(name) || !is_prefix || key.starts_with('/') {
        let why = "must be a label: at most 63 of a-z A-Z 0-9 _ . -, with an optional DNS name and a slash in front";
        return Err(SandboxError::invalid_input(format!("metadata.{key}"), why).with_provider(NAME));
    }
    if prefix == "opensandbox.io" || key == MANAGED.0 || key == CREATE_KEY || key == RUN_KEY {
        let why = "is a label of the server or of this provider";
        return Err(SandboxError::invalid_input(format!("metadata.{key}"), why).with_provider(NAME));
    }
    Ok(())
}

/// All labels of a new sandbox.
pub(crate) fn all(spec: &SandboxSpec, config: &AttributionConfig, create: &str) -> Result<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    if config.enabled {
        let given = spec.identity.as_ref().map(|identity| &identity.attribution);
        let told = |name: &str| given.and_then(|given| given.get(name)).cloned();
        let run = spec.identity.as_ref().map(|identity| identity.run_id.clone());
        for (name, text) in [
            ("team", config.team.clone().or_else(|| told("team"))),
            ("user", config.user.clone().or_else(|| told("user"))),
            ("workload", config.workload.clone().or_else(|| told("workload"))),
            ("run", config.run.clone().or(run)),
        ] {
            if let Some(text) = text.filter(|text| !text.trim().is_empty()) {
                labels.insert(config.key(name), value(&text));
            }
        }
    }
    for (key, text) in &spec.metadata {
        check_key(key)?;
        labels.insert(key.clone(), value(text));
    }
    labels.insert(MANAGED.0.to_owned(), MANAGED.1.to_owned());
    labels.insert(CREATE_KEY.to_owned(), create.to_owned());
    if let Some(identity) = &spec.identity {
        labels.insert(RUN_KEY.to_owned(), value(&identity.run_id));
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use sandbox_core::SandboxSpec;

    use super::{all, value};
    use crate::config::AttributionConfig;

    #[test]
    fn any_text_becomes_a_value_that_every_server_takes() {
        for (text, expected) in [
            ("my team!", "my_team"),
            ("a  b//c", "a_b_c"),
            ("..x--", "x"),
            ("日本", "metadata"),
            ("", "metadata"),
            ("1.2-3_4", "1.2-3_4"),
        ] {
            assert_eq!(value(text), expected, "{text}");
        }
        assert_eq!(value(&"x".repeat(200)).len(), 63);
        assert_eq!(value(&format!("{}.y", "x".repeat(62))), "x".repeat(62));
    }

    #[test]
    fn the_labels_of_the_spec_win_and_bad_keys_are_named() {
        let config = AttributionConfig { team: Some("from settings".to_owned()), ..AttributionConfig::default() };
        let labels = all(&SandboxSpec::default().with_metadata("sandbox/team", "mine"), &config, "c").unwrap();
        assert_eq!(labels["sandbox/team"], "mine");
        let labels = all(&SandboxSpec::default(), &config, "c").unwrap();
        assert_eq!(labels["sandbox/team"], "from_settings");
        for bad in ["a b", "", "/x", "opensandbox.io/id", "sandbox/managed", "-x"] {
            let error = all(&SandboxSpec::default().with_metadata(bad, "v"), &config, "c").unwrap_err();
            assert_eq!(error.field(), Some(format!("metadata.{bad}").as_str()));
        }
    }
}
