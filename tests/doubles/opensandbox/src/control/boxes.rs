//! The sandboxes of the double.

use std::{collections::BTreeMap, io, sync::Arc};

use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{ControlOptions, Inner};
use crate::{
    Container, Execd,
    container::Mount,
    execd::{new_id, now_ms},
    http::{self, Server},
    time::rfc3339,
};

/// One sandbox.
pub(crate) struct Box {
    pub(crate) request: Value,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) expires_at_ms: Option<u64>,
    pub(crate) created_at_ms: u64,
    pub(crate) policy: Option<Value>,
    pub(crate) execd: Option<Arc<Execd>>,
    state: (String, String, String),
    before: Vec<String>,
    server: Option<Server>,
    container: Option<Container>,
}

/// One snapshot.
pub(crate) struct Snapshot {
    pub(crate) sandbox_id: String,
    pub(crate) name: Option<String>,
    pub(crate) created_at_ms: u64,
    pub(crate) files: Option<tempfile::TempDir>,
    /// States that are told before it is ready, the next one last.
    pub(crate) before: Vec<String>,
}

fn mounts(inner: &Inner, request: &Value) -> io::Result<Vec<Mount>> {
    let mut found = Vec::new();
    for volume in request["volumes"].as_array().into_iter().flatten() {
        let source = match (volume["host"]["path"].as_str(), volume["pvc"]["claimName"].as_str()) {
            (Some(path), _) => path.into(),
            (_, Some(name)) => {
                let folder = inner.volumes.path().join(name);
                std::fs::create_dir_all(&folder)?;
                folder
            }
            _ => return Err(io::Error::other("a volume without a source")),
        };
        let source = volume["subPath"].as_str().map_or_else(|| source.clone(), |sub| source.join(sub));
        let target = volume["mountPath"].as_str().unwrap_or_default().to_owned();
        found.push(Mount { source, target, read_only: volume["readOnly"] == json!(true) });
    }
    Ok(found)
}

fn environment(request: &Value) -> Vec<(String, String)> {
    let given = request["env"].as_object().into_iter().flatten();
    let mut env: Vec<_> = given.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    env.push(("OPENSANDBOX_ID".to_owned(), "double".to_owned()));
    if !env.iter().any(|(name, _)| name == "PATH") {
        env.push(("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()));
    }
    env
}

impl Box {
    pub(crate) async fn start(inner: &Inner, request: Value, from: Option<&std::path::Path>) -> io::Result<Self> {
        let metadata = request["metadata"].as_object().into_iter().flatten();
        let metadata = metadata.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
        let before = inner.options.states_before_running.iter().rev().cloned().collect();
        let mut made = Self {
            metadata,
            expires_at_ms: request["timeout"].as_u64().map(|seconds| now_ms() + seconds * 1000),
            created_at_ms: now_ms(),
            policy: request.get("networkPolicy").cloned(),
            execd: None,
            state: ("Running".to_owned(), "CONTAINER_RUNNING".to_owned(), String::new()),
            before,
            server: None,
            container: None,
            request,
        };
        if inner.options.containers {
            let (env, mounts) = (environment(&made.request), mounts(inner, &made.request)?);
            made.container = Some(Container::start(&env, &mounts, from).await?);
        } else {
            made.start_daemon(&inner.options).await?;
        }
        Ok(made)
    }

    pub(crate) async fn start_daemon(&mut self, options: &ControlOptions) -> io::Result<()> {
        let mut options = options.execd.clone();
        options.env.extend(environment(&self.request));
        let execd = Execd::start(options).await?;
        self.server = Some(http::serve(execd.clone(), TcpListener::bind("127.0.0.1:0").await?)?);
        self.execd = Some(execd);
        Ok(())
    }

    /// Where the daemon listens.
    pub(crate) fn port(&self) -> Option<u16> {
        let server = self.server.as_ref().map(|server| server.address.port());
        server.or(self.container.as_ref().map(|container| container.port))
    }

    pub(crate) fn set_state(&mut self, state: &str, reason: &str, message: &str) {
        self.before.clear();
        self.state = (state.to_owned(), reason.to_owned(), message.to_owned());
    }

    pub(crate) fn state(&self) -> &str {
        self.before.last().map_or(&self.state.0, String::as_str)
    }

    /// Whether requests reach it.
    pub(crate) fn is_reachable(&self) -> bool {
        self.state() == "Running"
    }

    pub(crate) fn freeze(&mut self, stop: bool) {
        let (state, reason) = if stop { ("Paused", "PAUSED") } else { ("Running", "CONTAINER_RUNNING") };
        self.set_state(state, reason, "");
        if let Some(container) = &self.container {
            container.freeze(stop);
        }
    }

    /// A state before running is told once.
    pub(crate) fn next_state(&mut self) {
        self.before.pop();
    }

    /// What the server says of it.
    pub(crate) fn describe(&self, id: &str) -> Value {
        let state = self.state();
        let mut status = json!({ "state": state, "lastTransitionAt": rfc3339(self.created_at_ms) });
        for (key, value) in [("reason", &self.state.1), ("message", &self.state.2)] {
            if !value.is_empty() {
                status[key] = json!(value);
            }
        }
        let mut all = json!({ "id": id, "status": status, "metadata": self.metadata,
                              "createdAt": rfc3339(self.created_at_ms) });
        for key in ["image", "entrypoint", "snapshotId"] {
            if let Some(value) = self.request.get(key) {
                all[key] = value.clone();
            }
        }
        // Only what has the prefix is kept.
        let kept: serde_json::Map<String, Value> = self.request["extensions"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| key.starts_with("opensandbox.extensions."))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        if !kept.is_empty() {
            all["extensions"] = Value::Object(kept);
        }
        if let Some(at) = self.expires_at_ms {
            all["expiresAt"] = json!(rfc3339(at));
        }
        all
    }

    /// A copy of its files.
    pub(crate) async fn copy_files(&self) -> io::Result<Option<tempfile::TempDir>> {
        let Some(container) = &self.container else { return Ok(None) };
        let folder = tempfile::Builder::new().prefix("opensandbox-double-").tempdir()?;
        // The system's folders are mounts of the container only: here they are empty.
        let mut tar = tokio::process::Command::new("sh");
        tar.args([
            "-c",
            "cd \"$1\" && tar --exclude=./proc --exclude=./dev --exclude=./opt -cf - . | tar -xf - -C \"$2\"",
            "sh",
        ]);
        let status = tar.arg(container.root()).arg(folder.path()).status().await?;
        if status.success() { Ok(Some(folder)) } else { Err(io::Error::other("the files could not be copied")) }
    }

    pub(crate) async fn end(self) {
        drop(self.server);
        if let Some(container) = self.container {
            container.end().await;
        }
        if let Some(execd) = self.execd {
            execd.end().await;
        }
    }
}

pub(crate) fn new_box_id() -> String {
    new_id()
}
