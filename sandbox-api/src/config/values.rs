//! Values that stand somewhere else: `${oc.env:NAME}` in text, and secrets by reference.

use std::{fs, path::Path};

use sandbox_core::{Result, SandboxError};
use serde_json::Value;

use crate::Environment;

/// A credential has fewer bytes than this.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// A configuration with what stands elsewhere filled in, as a new value:
///
/// * `${oc.env:NAME}` and `${oc.env:NAME,default}` in text, as in the model: the variable's value, as text. A default
///   may be quoted, may hold another one, and `null` is nothing. `\${` is the characters themselves.
/// * `{"from_env": "NAME"}` and `{"from_file": "/absolute/path"}` in the place of a value: the variable's value, or the
///   file's contents without the line end. For credentials, which then stand in no configuration file.
///
/// # Errors
/// `InvalidInput`, naming where it stands in the configuration and the variable or file that is missing; never a value.
pub fn resolve_config_values(value: &Value, environment: &Environment) -> Result<Value> {
    resolve(value, environment, "")
}

fn resolve(value: &Value, environment: &Environment, path: &str) -> Result<Value> {
    match value {
        Value::String(text) => interpolate(text, environment, path),
        Value::Array(list) => {
            let each = |(index, value)| resolve(value, environment, &format!("{path}[{index}]"));
            list.iter().enumerate().map(each).collect()
        }
        Value::Object(map) => match reference(map) {
            Some((kind, target)) => read_secret(kind, target, environment, path).map(Value::String),
            None => map
                .iter()
                .map(|(key, value)| {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    Ok((key.clone(), resolve(value, environment, &path)?))
                })
                .collect::<Result<_>>()
                .map(Value::Object),
        },
        other => Ok(other.clone()),
    }
}

/// Whether anything in a value stands elsewhere: the path to the first such thing.
pub(super) fn first_reference(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::String(text) => text.contains("${").then(|| path.to_owned()),
        Value::Array(list) => list.iter().find_map(|value| first_reference(value, path)),
        Value::Object(map) if reference(map).is_some() => Some(path.to_owned()),
        Value::Object(map) => map.iter().find_map(|(key, value)| first_reference(value, &format!("{path}.{key}"))),
        _ => None,
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Variable,
    File,
}

fn reference(map: &serde_json::Map<String, Value>) -> Option<(Kind, &str)> {
    let mut entries = map.iter();
    let (key, target) = (entries.next()?, entries.next().is_none());
    match (key.0.as_str(), key.1, target) {
        ("from_env", Value::String(name), true) => Some((Kind::Variable, name)),
        ("from_file", Value::String(file), true) => Some((Kind::File, file)),
        _ => None,
    }
}

fn read_secret(kind: Kind, target: &str, environment: &Environment, path: &str) -> Result<String> {
    match kind {
        Kind::Variable => variable(target, environment, path),
        Kind::File => {
            let refuse = |why: String| SandboxError::invalid_input(path, format!("the file {target:?} {why}"));
            if !Path::new(target).is_absolute() {
                return Err(refuse("must be an absolute path".to_owned()));
            }
            let found = fs::metadata(target).map_err(|error| refuse(format!("cannot be read: {}", error.kind())))?;
            if !found.is_file() || found.len() > MAX_SECRET_BYTES {
                return Err(refuse(format!("must be a regular file of at most {MAX_SECRET_BYTES} bytes")));
            }
            let text =
                fs::read_to_string(target).map_err(|error| refuse(format!("cannot be read: {}", error.kind())))?;
            Ok(text.trim_end_matches(['\n', '\r']).to_owned())
        }
    }
}

fn variable(name: &str, environment: &Environment, path: &str) -> Result<String> {
    environment.get(name).map(str::to_owned).ok_or_else(|| {
        SandboxError::invalid_input(path, format!("the environment variable {name:?} is not set"))
            .with_help(format!("set {name}, or write a default: ${{oc.env:{name},default}}"))
    })
}

/// Text with its interpolations filled in. Text that is nothing but one whose default is null is null.
fn interpolate(text: &str, environment: &Environment, path: &str) -> Result<Value> {
    if !text.contains("${") {
        return Ok(Value::String(text.to_owned()));
    }
    let (mut done, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("${") {
        if let Some(before) = rest[..at].strip_suffix('\\') {
            done.push_str(before);
            done.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        done.push_str(&rest[..at]);
        let length = closing(&rest[at + 2..]).ok_or_else(|| unknown(path, "an interpolation is not closed"))?;
        let inner = &rest[at + 2..at + 2 + length];
        rest = &rest[at + 2 + length + 1..];
        match one(inner, environment, path)? {
            Value::Null if done.is_empty() && rest.is_empty() => return Ok(Value::Null),
            Value::String(value) => done.push_str(&value),
            other => done.push_str(&other.to_string()),
        }
    }
    done.push_str(rest);
    Ok(Value::String(done))
}

/// Where the brace is that ends an interpolation.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quote) = (0usize, None);
    for (at, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(character),
            (None, '{') => depth += 1,
            (None, '}') if depth == 0 => return Some(at),
            (None, '}') => depth -= 1,
            (None, _) => {}
        }
    }
    None
}

fn one(inner: &str, environment: &Environment, path: &str) -> Result<Value> {
    let arguments =
        inner.trim().strip_prefix("oc.env:").ok_or_else(|| unknown(path, "only ${oc.env:NAME} is known"))?;
    let (name, default) = match arguments.split_once(',') {
        Some((name, default)) => (name.trim(), Some(default.trim())),
        None => (arguments.trim(), None),
    };
    if name.is_empty() || name.contains(['$', '{', '}']) {
        return Err(unknown(path, "the name of a variable is missing"));
    }
    match (environment.get(name), default) {
        (Some(value), _) => Ok(Value::String(value.to_owned())),
        (None, None) => variable(name, environment, path).map(Value::String),
        (None, Some("null")) => Ok(Value::Null),
        (None, Some(default)) => {
            let quoted = ['\'', '"'].into_iter().find_map(|quote| default.strip_prefix(quote)?.strip_suffix(quote));
            match quoted {
                Some(text) => Ok(Value::String(text.to_owned())),
                None => interpolate(default, environment, path),
            }
        }
    }
}

fn unknown(path: &str, why: &str) -> SandboxError {
    SandboxError::invalid_input(path, why).with_help("where the characters themselves are meant, write \\${")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::resolve_config_values;
    use crate::Environment;

    fn environment() -> Environment {
        [("A", "1"), ("EMPTY", ""), ("KEY", "canary")].into_iter().collect()
    }

    #[test]
    fn variables_and_defaults_are_filled_in_as_the_model_writes_them() {
        let cases = [
            ("plain", json!("plain")),
            ("${oc.env:A}", json!("1")),
            ("x-${oc.env:A}-${ oc.env:A }-y", json!("x-1-1-y")),
            ("${oc.env:EMPTY,other}", json!("")),
            ("${oc.env:NONE,10}", json!("10")),
            ("${oc.env:NONE, http://h:80/p }", json!("http://h:80/p")),
            ("${oc.env:NONE,'a, } b'}", json!("a, } b")),
            ("${oc.env:NONE,\"\"}", json!("")),
            ("${oc.env:NONE,}", json!("")),
            ("${oc.env:NONE,null}", json!(null)),
            ("${oc.env:NONE,${oc.env:A}}", json!("1")),
            ("${oc.env:NONE,${oc.env:NONE,deep}/x}", json!("deep/x")),
            ("\\${HOME}", json!("${HOME}")),
            ("$HOME {x}", json!("$HOME {x}")),
        ];
        for (text, expected) in cases {
            assert_eq!(
                resolve_config_values(&json!({ "k": [text] }), &environment()).unwrap(),
                json!({ "k": [expected] })
            );
        }
    }

    #[test]
    fn what_cannot_be_filled_in_is_named_by_its_place_and_never_by_a_value() {
        for (text, says) in [
            ("${oc.env:NONE}", "\"NONE\" is not set"),
            ("${HOME}", "only ${oc.env:NAME} is known"),
            ("${sandbox.image}", "only ${oc.env:NAME} is known"),
            ("${oc.env:A", "not closed"),
            ("${oc.env:}", "name of a variable is missing"),
            ("${oc.env:KEY}${oc.env:NONE}", "\"NONE\" is not set"),
        ] {
            let error = resolve_config_values(&json!({"docker": {"list": ["x", text]}}), &environment()).unwrap_err();
            assert_eq!(error.field(), Some("docker.list[1]"));
            assert!(error.to_string().contains(says) && !error.to_string().contains("canary"), "{error}");
        }
    }

    #[test]
    fn a_secret_by_reference_is_read_from_its_variable_or_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        std::fs::write(&file, "from the file\n").unwrap();
        let config = json!({"d": {"a": {"from_env": "KEY"}, "b": {"from_file": file}, "c": {"from_env": 1}}});
        let resolved = resolve_config_values(&config, &environment()).unwrap();
        assert_eq!(resolved, json!({"d": {"a": "canary", "b": "from the file", "c": {"from_env": 1}}}));
        for bad in [
            json!({"from_env": "NONE"}),
            json!({"from_file": "key"}),
            json!({"from_file": "/no/such/file"}),
            json!({"from_file": "/"}),
        ] {
            let error = resolve_config_values(&json!({"d": {"api_key": bad}}), &environment()).unwrap_err();
            assert_eq!(error.field(), Some("d.api_key"), "{error}");
        }
    }
}
