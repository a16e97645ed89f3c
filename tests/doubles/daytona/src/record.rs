//! What was asked for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How many requests are kept; the oldest go first.
pub(crate) const KEPT: usize = 20_000;

/// A request as it came.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recorded {
    /// GET, POST, ….
    pub method: String,
    /// The path, with `{sandboxId}` in the place of an id of a sandbox.
    pub path: String,
    /// Names and values of the query, in order, decoded.
    pub query: Vec<(String, String)>,
    /// Headers, with names in lower case. The credential is replaced.
    pub headers: BTreeMap<String, String>,
    /// The body, if it is JSON.
    pub json: Option<Value>,
    /// The status of the answer; none when there was none.
    pub status: Option<u16>,
}
