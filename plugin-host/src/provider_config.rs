//! The shape of a provider's configuration: one key, its name, with its settings.

use sandbox_core::{Result, SandboxError};
use serde_json::{Map, Value};

const SHAPE: &str = "write {\"NAME\": {settings}}, such as {\"local\": {}}";

/// Takes `{"docker": {…}}` apart. No settings (null) become an empty object.
///
/// # Errors
/// `InvalidInput` unless it is an object with exactly one key that is not empty and whose value is an object or null.
pub(crate) fn split(config: &Value) -> Result<(&str, Value)> {
    let bad = |message: String| SandboxError::invalid_input("provider config", message).with_help(SHAPE);
    let Value::Object(config) = config else {
        return Err(bad(format!("must be an object with one key, the provider's name; it is {}", kind_of(config))));
    };
    let mut entries = config.iter();
    let (Some((name, settings)), None) = (entries.next(), entries.next()) else {
        let names: Vec<&str> = config.keys().map(String::as_str).collect();
        let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(bad(format!("must have exactly one key, the provider's name; it has {found}")));
    };
    if name.is_empty() {
        return Err(bad("the provider's name is empty".to_owned()));
    }
    Ok((name, check_settings(name, settings)?))
}

/// The settings as an object.
///
/// # Errors
/// `InvalidInput`, naming the provider, if they are neither an object nor null.
pub(crate) fn check_settings(name: &str, settings: &Value) -> Result<Value> {
    match settings {
        Value::Object(_) => Ok(settings.clone()),
        Value::Null => Ok(Value::Object(Map::new())),
        other => Err(SandboxError::invalid_input(
            format!("provider config.{name}"),
            format!("the settings of provider {name:?} must be an object; they are {}", kind_of(other)),
        )
        .with_provider(name)
        .with_help(SHAPE)),
    }
}

/// The kind of a value; never the value, which may be a secret.
fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;
    use serde_json::json;

    use super::split;

    #[test]
    fn one_key_with_settings_or_null_is_taken() {
        assert_eq!(split(&json!({"a": {"x": 1}})).unwrap(), ("a", json!({"x": 1})));
        assert_eq!(split(&json!({"a": null})).unwrap(), ("a", json!({})));
    }

    #[test]
    fn every_other_shape_is_refused_and_no_value_is_shown() {
        for (config, says) in [
            (json!({}), "it has none"),
            (json!({"b": {}, "a": {}}), "it has a, b"),
            (json!({"": {}}), "name is empty"),
            (json!({"a": "hunter2"}), "settings of provider \"a\" must be an object; they are a text"),
            (json!({"a": ["hunter2"]}), "they are a list"),
            (json!("hunter2"), "it is a text"),
            (json!(null), "it is null"),
        ] {
            let error = split(&config).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.to_string().contains(says), "{error}");
            assert!(!format!("{error:?} {:?}", error.help()).contains("hunter2"), "{error}");
        }
    }
}
