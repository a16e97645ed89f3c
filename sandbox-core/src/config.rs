//! Typed values out of JSON, with errors that name the key and what was meant.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{Result, SandboxError, validate::near_match};

/// Reads a typed value out of JSON. `what` names the thing in errors: `spec`, `config of provider "acme"`.
///
/// A null counts as an empty object, so that a provider without settings needs none.
///
/// # Errors
/// `InvalidInput`, naming the key; for an unknown key also the accepted ones and the nearest of them.
pub fn from_json<T: DeserializeOwned>(value: Value, what: &str) -> Result<T> {
    let value = if value.is_null() { Value::Object(serde_json::Map::new()) } else { value };
    let mut track = serde_path_to_error::Track::new();
    T::deserialize(serde_path_to_error::Deserializer::new(value, &mut track)).map_err(|error: serde_json::Error| {
        let path = track.path().to_string();
        let text = error.to_string();
        match unknown_key(&text) {
            Some((key, accepted)) => {
                // The tracker ends with the unknown key itself where it has seen it.
                let parent = path.strip_suffix(&key).map_or(path.as_str(), |parent| parent.trim_end_matches('.'));
                let field = if parent == "." || parent.is_empty() { key.clone() } else { format!("{parent}.{key}") };
                let accepted_list = if accepted.is_empty() { "none".to_owned() } else { accepted.join(", ") };
                let error = SandboxError::invalid_input(
                    field,
                    format!("unknown key in {what}; accepted keys: {accepted_list}"),
                );
                match near_match(&key, accepted.iter().map(String::as_str)) {
                    Some(near) => error.with_help(format!("did you mean {near:?}?")),
                    None => error,
                }
            }
            None if path == "." => SandboxError::invalid_input(what, text),
            None => SandboxError::invalid_input(path, format!("{text} (in {what})")),
        }
    })
}

/// Takes apart serde's own text for an unknown field or variant: "unknown field `x`, expected one of `a`, `b`".
fn unknown_key(text: &str) -> Option<(String, Vec<String>)> {
    let rest = text.strip_prefix("unknown field `").or_else(|| text.strip_prefix("unknown variant `"))?;
    let (key, rest) = rest.split_once('`')?;
    let mut accepted: Vec<String> = rest.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    accepted.sort();
    Some((key.to_owned(), accepted))
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::from_json;
    use crate::ErrorKind;

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Config {
        #[allow(dead_code)]
        workspace_root: String,
        #[allow(dead_code)]
        inner: Inner,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Inner {
        #[allow(dead_code)]
        retries: u8,
    }

    #[test]
    fn an_unknown_key_is_named_with_the_accepted_ones_and_the_nearest() {
        let error = from_json::<Config>(json!({"workspace_rot": "/x"}), "config").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert_eq!(error.field(), Some("workspace_rot"));
        assert!(error.to_string().contains("accepted keys: inner, workspace_root"), "{error}");
        assert_eq!(error.help(), Some("did you mean \"workspace_root\"?"));
    }

    #[test]
    fn a_nested_key_is_named_by_its_path() {
        let error = from_json::<Config>(json!({"inner": {"retrys": 1}}), "config").unwrap_err();
        assert_eq!(error.field(), Some("inner.retrys"), "{error}");
        let error = from_json::<Config>(json!({"inner": {"retries": 300}}), "config").unwrap_err();
        assert_eq!(error.field(), Some("inner.retries"), "{error}");
    }

    #[test]
    fn null_is_an_empty_object_and_other_shapes_are_refused() {
        assert!(from_json::<Config>(json!(null), "config").is_ok());
        assert!(from_json::<Config>(json!("text"), "config").is_err());
    }
}
