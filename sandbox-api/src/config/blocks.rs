//! Provider blocks of a configuration: `{"my-block": {"docker": {…}, "default_metadata": {…}}}`.

use std::collections::BTreeMap;

use sandbox_core::{Result, SandboxError};
use serde_json::{Map, Value};

use super::resolve_config_values;
use crate::Environment;

/// The keys of a provider block that do not name a provider.
const RESERVED_KEYS: [&str; 1] = ["default_metadata"];

/// The one provider of a block and its settings, as [`create_provider`](crate::create_provider) takes them: a new map
/// of one key, with what stands elsewhere filled in ([`resolve_config_values`]).
///
/// `reference` is the name of a block in `named`, or the block itself.
///
/// # Errors
/// `InvalidInput`: a blank name; a block that is missing, null or no object (naming the reference and the blocks that
/// would do); not exactly one provider in it (naming the keys); a reference that is neither text nor an object.
pub fn resolve_provider_config(reference: &Value, named: Option<&Map<String, Value>>) -> Result<Map<String, Value>> {
    let block = Block::find(reference, named)?;
    let (name, settings) = provider_in(block.map, &block.source)?;
    let settings = resolve_config_values(settings, &Environment::process())?;
    Ok(Map::from_iter([(name.to_owned(), settings)]))
}

/// The one provider of a block.
pub(super) fn provider_in<'a>(block: &'a Map<String, Value>, source: &str) -> Result<(&'a str, &'a Value)> {
    let providers: Vec<&String> = provider_keys(block).collect();
    match providers[..] {
        [name] => Ok((name, &block[name])),
        _ => Err(SandboxError::invalid_input(
            "provider",
            format!("{source} must name exactly one provider; it has {}", quoted(&providers)),
        )),
    }
}

/// The labels that a block gives to every sandbox, as a new map; those of a spec win over them. Empty when there are
/// none. The block need not name a provider.
///
/// # Errors
/// As [`resolve_provider_config`] for the reference; `InvalidInput` for labels that are no object, or whose values are
/// not text, numbers or booleans.
pub fn resolve_provider_metadata(
    reference: &Value,
    named: Option<&Map<String, Value>>,
) -> Result<BTreeMap<String, String>> {
    let block = Block::find(reference, named)?;
    metadata_in(block.map, &block.source, &Environment::process())
}

/// The labels of a block.
pub(super) fn metadata_in(
    block: &Map<String, Value>,
    source: &str,
    environment: &Environment,
) -> Result<BTreeMap<String, String>> {
    let field = |key: &str| format!("default_metadata.{key}");
    match block.get("default_metadata") {
        None => Ok(BTreeMap::new()),
        Some(value) if is_empty(value) => Ok(BTreeMap::new()),
        Some(Value::Object(labels)) => labels
            .iter()
            .map(|(key, value)| match resolve_config_values(value, environment)? {
                Value::String(text) => Ok((key.clone(), text)),
                value @ (Value::Number(_) | Value::Bool(_)) => Ok((key.clone(), value.to_string())),
                _ => Err(SandboxError::invalid_input(field(key), format!("must be text, not {}", type_name(value)))),
            })
            .collect(),
        Some(other) => Err(SandboxError::invalid_input(
            "default_metadata",
            format!("of {source} must be an object, not {}", type_name(other)),
        )),
    }
}

/// Whether a top-level value could be a provider block.
pub(super) fn is_candidate(value: &Value) -> bool {
    value.as_object().is_some_and(|block| provider_keys(block).count() == 1)
}

/// A provider block and how to call it in errors.
struct Block<'a> {
    map: &'a Map<String, Value>,
    source: String,
}

impl<'a> Block<'a> {
    fn find(reference: &'a Value, named: Option<&'a Map<String, Value>>) -> Result<Self> {
        let invalid = |message: String| Err(SandboxError::invalid_input("provider", message));
        let name = match reference {
            Value::Object(map) => return Ok(Self { map, source: "the inline provider block".to_owned() }),
            Value::String(name) => name,
            other => {
                return invalid(format!("must be the name of a block or a block itself, not {}", type_name(other)));
            }
        };
        if name.trim().is_empty() {
            return invalid("the name of a block must not be blank".to_owned());
        }
        match named.and_then(|named| named.get(name)) {
            Some(Value::Object(map)) => Ok(Self { map, source: format!("provider block {name:?}") }),
            None | Some(Value::Null) => {
                let candidates = candidates(named);
                Err(SandboxError::invalid_input(
                    "provider",
                    format!("there is no block {name:?}; blocks: {candidates}"),
                )
                .with_help(format!("define a top-level block {name:?} with one provider in it and its settings")))
            }
            Some(other) => invalid(format!("block {name:?} must be an object, not {}", type_name(other))),
        }
    }
}

fn provider_keys(block: &Map<String, Value>) -> impl Iterator<Item = &String> {
    block.keys().filter(|key| !RESERVED_KEYS.contains(&key.as_str()))
}

/// The top-level keys that could be provider blocks.
fn candidates(named: Option<&Map<String, Value>>) -> String {
    let mut keys: Vec<&String> =
        named.into_iter().flatten().filter(|(_, value)| is_candidate(value)).map(|(key, _)| key).collect();
    keys.sort();
    quoted(&keys)
}

fn quoted(keys: &[&String]) -> String {
    if keys.is_empty() {
        return "none".to_owned();
    }
    keys.iter().map(|key| format!("{key:?}")).collect::<Vec<_>>().join(", ")
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{resolve_provider_config, resolve_provider_metadata};

    fn named() -> Value {
        json!({
            "box": {"docker": {"image": "x"}, "default_metadata": {"a": "b", "n": 1}},
            "alone": {"local": null},
            "two": {"docker": {}, "local": {}},
            "none_in_it": {"default_metadata": {}},
            "gone": null,
            "text": "docker",
            "number": 3,
        })
    }

    #[test]
    fn a_name_and_an_inline_block_give_one_provider_without_reserved_keys() {
        let named = named();
        let named = named.as_object();
        let cases = [
            (json!("box"), json!({"docker": {"image": "x"}})),
            (json!("alone"), json!({"local": null})),
            (json!({"fargate": {"k": 1}, "default_metadata": 7}), json!({"fargate": {"k": 1}})),
        ];
        for (reference, expected) in cases {
            assert_eq!(Value::Object(resolve_provider_config(&reference, named).unwrap()), expected);
        }
    }

    #[test]
    fn every_wrong_reference_is_refused_and_says_why() {
        let named = named();
        let cases = [
            (json!(""), "blank"),
            (json!("  "), "blank"),
            (json!("missing"), "there is no block \"missing\"; blocks: \"alone\", \"box\""),
            (json!("gone"), "there is no block \"gone\""),
            (json!("text"), "must be an object, not text"),
            (json!("number"), "must be an object, not a number"),
            (json!("two"), "provider block \"two\" must name exactly one provider; it has \"docker\", \"local\""),
            (json!("none_in_it"), "it has none"),
            (json!({}), "the inline provider block"),
            (json!(7), "not a number"),
            (json!(["box"]), "not a list"),
            (json!(null), "not null"),
        ];
        for (reference, text) in cases {
            let error = resolve_provider_config(&reference, named.as_object()).unwrap_err();
            assert!(error.to_string().contains(text), "{reference}: {error}");
        }
        let error = resolve_provider_config(&json!("box"), None).unwrap_err();
        assert!(error.to_string().contains("blocks: none"), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("\"box\"")));
    }

    #[test]
    fn labels_are_copied_and_anything_empty_is_none() {
        let named = named();
        let labels = resolve_provider_metadata(&json!("box"), named.as_object()).unwrap();
        assert_eq!(labels.into_iter().collect::<Vec<_>>(), [("a".into(), "b".into()), ("n".into(), "1".into())]);
        for empty in [json!(null), json!({}), json!([]), json!(""), json!(0), json!(false)] {
            let block = json!({"default_metadata": empty});
            assert!(resolve_provider_metadata(&block, None).unwrap().is_empty(), "{block}");
        }
        for bad in [json!("x"), json!([1]), json!(1), json!({"a": null}), json!({"a": {}})] {
            let block = json!({"default_metadata": bad});
            assert!(resolve_provider_metadata(&block, None).is_err(), "{block}");
        }
        assert!(resolve_provider_metadata(&json!("two"), named.as_object()).unwrap().is_empty());
        assert!(resolve_provider_metadata(&json!("missing"), named.as_object()).is_err());
    }
}
