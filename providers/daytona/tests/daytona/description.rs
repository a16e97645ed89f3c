//! The descriptions that the service publishes, and what they say against an answer.

use std::collections::BTreeSet;

use serde_json::Value;

/// The parts of the published descriptions that the double answers.
pub(crate) const CONTROL_PLANE: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/doubles/daytona/description/control-plane.json");
const TOOLBOX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/doubles/daytona/description/toolbox.json");

pub(crate) struct Description(Value);

impl Description {
    pub(crate) fn control_plane() -> Self {
        Self::read(CONTROL_PLANE)
    }

    pub(crate) fn toolbox() -> Self {
        Self::read(TOOLBOX)
    }

    fn read(file: &str) -> Self {
        Self(serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap())
    }

    /// Method and path of everything that is described.
    pub(crate) fn operations(&self) -> BTreeSet<(String, String)> {
        let paths = self.0["paths"].as_object().unwrap();
        let operations = |(path, operations): (&String, &Value)| {
            let methods = operations.as_object().unwrap().keys().map(|method| method.to_ascii_uppercase());
            methods.map(|method| (method, path.clone())).collect::<Vec<_>>()
        };
        paths.iter().flat_map(operations).collect()
    }

    /// The described operation that a request is one of.
    pub(crate) fn operation(&self, method: &str, path: &str) -> Option<(String, String)> {
        self.operations().into_iter().find(|(described, at)| described == method && is_at(path, at))
    }

    /// What is wrong with the body of an answer that is a success.
    pub(crate) fn objection(&self, method: &str, path: &str, status: u16, body: &[u8]) -> Option<String> {
        let Some((_, at)) = self.operation(method, path) else { return Some("is not described".to_owned()) };
        let answer = &self.0["paths"][&at][method.to_ascii_lowercase()]["responses"][status.to_string()];
        if answer.is_null() {
            return Some(format!("{status} is not described"));
        }
        let schema = match &answer["schema"] {
            Value::Null => &answer["content"]["application/json"]["schema"],
            schema => schema,
        };
        if schema.is_null() || schema["type"] == "file" {
            return None;
        }
        match serde_json::from_slice(body) {
            Ok(body) => self.differs(schema, &body, "the answer"),
            Err(error) => Some(format!("the answer is no JSON: {error}")),
        }
    }

    /// Where a value is not what a schema says.
    fn differs(&self, schema: &Value, value: &Value, at: &str) -> Option<String> {
        if let Some(reference) = schema["$ref"].as_str() {
            let meant = self.0.pointer(reference.trim_start_matches('#')).expect("it refers to what is there");
            return self.differs(meant, value, at);
        }
        if value.is_null() && schema["nullable"] == true {
            return None;
        }
        if let Some(all) = schema["allOf"].as_array() {
            return all.iter().find_map(|part| self.differs(part, value, at));
        }
        if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
            return Some(format!("{at} is none of those that are described"));
        }
        let is_right = match schema["type"].as_str() {
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("boolean") => value.is_boolean(),
            Some("number") => value.is_number(),
            Some("integer") => value.as_f64().is_some_and(|number| number.fract() == 0.0),
            _ => true,
        };
        if !is_right {
            return Some(format!("{at} is no {}", schema["type"]));
        }
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if let Some(missing) = required.into_iter().find(|key| value.get(key).is_none()) {
            return Some(format!("{at} lacks {missing}"));
        }
        let items = value.as_array().into_iter().flatten().map(|item| (&schema["items"], item, format!("{at}[]")));
        let members = value.as_object().into_iter().flatten().map(|(key, member)| {
            let described = schema["properties"].get(key).unwrap_or(&schema["additionalProperties"]);
            (described, member, format!("{at}.{key}"))
        });
        items.chain(members).find_map(|(schema, value, at)| self.differs(schema, value, &at))
    }
}

fn is_at(path: &str, described: &str) -> bool {
    let (is, wanted): (Vec<_>, Vec<_>) = (path.split('/').collect(), described.split('/').collect());
    is.len() == wanted.len() && is.iter().zip(wanted).all(|(is, wanted)| wanted.starts_with('{') || *is == wanted)
}

#[test]
fn an_answer_that_is_not_as_described_is_told() {
    let (control, toolbox) = (Description::control_plane(), Description::toolbox());
    for (description, path, body, objection) in [
        (&control, "/sandbox/x/toolbox-proxy-url", r#"{"url":"u"}"#, None),
        (&control, "/sandbox/x/toolbox-proxy-url", r#"{"url":null}"#, Some("the answer.url is no \"string\"")),
        (&control, "/sandbox/x/toolbox-proxy-url", "{}", Some("the answer lacks url")),
        (&control, "/volumes/by-name/v", r#"{"state":"odd"}"#, Some("the answer lacks id")),
        (&control, "/nowhere", "{}", Some("is not described")),
        (&toolbox, "/port", r#"{"ports":[1,2]}"#, None),
        (&toolbox, "/port", r#"{"ports":[1,"2"]}"#, Some("the answer.ports[] is no \"integer\"")),
        (&toolbox, "/process/session", r#"[{"sessionId":"s"}]"#, Some("the answer[] lacks commands")),
    ] {
        assert_eq!(description.objection("GET", path, 200, body.as_bytes()).as_deref(), objection, "{path} {body}");
    }
    assert_eq!(toolbox.objection("GET", "/port", 201, b"{}").as_deref(), Some("201 is not described"));
}
