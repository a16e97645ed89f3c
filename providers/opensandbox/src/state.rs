//! What a handle carries, and what the server keeps with a sandbox so that anybody can make such a handle. No secrets.

use std::collections::BTreeMap;

use sandbox_core::{Result, SandboxError, SandboxHandle, SandboxIdentity, SandboxSpec};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::NAME;

/// What a handle carries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    /// Which incarnation it belongs to; the same number is in the handle.
    #[serde(default)]
    pub(crate) generation: u64,
    /// Default working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workdir: Option<String>,
    /// Default user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    /// Ports that can be asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<u16>,
    /// Names of variables whose values are no text; they are decoded for each command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) encoded: Vec<String>,
    /// Names of variables of the spec that a shell would act upon before each command.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) blanked: Vec<String>,
    /// Whether the spec says what HOME is.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_home: bool,
}

/// Variables that make a shell run a file before a script.
const SHELL_FILES: [&str; 2] = ["BASH_ENV", "ENV"];

impl State {
    pub(crate) fn of(spec: &SandboxSpec) -> Self {
        let names = |test: &dyn Fn(&str, bool) -> bool| -> Vec<String> {
            let all = spec.env.iter().filter(|(name, value)| test(name, value.as_str().is_some()));
            all.map(|(name, _)| name.to_owned()).collect()
        };
        Self {
            generation: 0,
            workdir: spec.workdir.clone(),
            user: spec.user.clone(),
            ports: spec.ports.clone(),
            encoded: names(&|_, is_text| !is_text),
            blanked: names(&|name, _| SHELL_FILES.contains(&name)),
            has_home: spec.env.get("HOME").is_some(),
        }
    }

    pub(crate) fn handle(&self, id: &str) -> SandboxHandle {
        let mut handle = SandboxHandle::new(id, NAME).with_state(json!(self));
        handle.generation = self.generation;
        handle
    }

    pub(crate) fn read(handle: &SandboxHandle) -> Result<Self> {
        if handle.state.is_null() {
            return Ok(Self { generation: handle.generation, ..Self::default() });
        }
        serde_json::from_value(handle.state.clone()).map_err(|_| {
            SandboxError::invalid_input("handle.state", "was not written by this provider").with_provider(NAME)
        })
    }
}

/// What the server keeps with a sandbox, word for word.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    #[serde(default)]
    pub(crate) state: State,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The labels as they were given: the server's are sanitised.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) identity: Option<SandboxIdentity>,
}

/// Under which key it is kept. The prefix makes the server keep it and give it back.
pub(crate) const KEPT_KEY: &str = "opensandbox.extensions.sandbox-record";

impl Kept {
    pub(crate) fn of(spec: &SandboxSpec) -> Self {
        Self {
            state: State::of(spec),
            name: spec.name.clone(),
            metadata: spec.metadata.clone(),
            identity: spec.identity.clone(),
        }
    }

    /// What is kept with a sandbox, as the server describes it.
    pub(crate) fn read(described: &Value) -> Option<Self> {
        serde_json::from_str(described["extensions"][KEPT_KEY].as_str()?).ok()
    }
}
