//! The schema of the Compose Specification, as it is published: `compose-spec.json` is data of that project, under the
//! Apache License 2.0, unchanged.

use serde_json::Value;

const SCHEMA: &str = include_str!("compose-spec.json");

pub(crate) struct Schema(jsonschema::Validator);

impl Schema {
    pub(crate) fn new() -> Self {
        let schema = serde_json::from_str(SCHEMA).unwrap();
        Self(jsonschema::draft7::new(&schema).unwrap())
    }

    /// What is wrong, each with its place.
    pub(crate) fn errors(&self, document: &Value) -> Vec<String> {
        self.0.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect()
    }
}

/// YAML 1.2 as JSON.
pub(crate) fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}
