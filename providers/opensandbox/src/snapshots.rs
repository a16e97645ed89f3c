//! Snapshots, and egress rules: what the server does beside sandboxes.

use std::time::Duration;

use reqwest::Method;
use sandbox_core::{
    ErrorKind, NetworkPolicies, NetworkPolicy, PolicyRule, Result, SandboxError, SandboxHandle, Snapshot, Snapshots,
    async_trait,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    config::seconds, daemon::segment, error::NAME, lifecycle::read_time, provider::OpenSandboxProvider,
    retry::Operation, shared::check_provider,
};

/// In front of the id of a snapshot, where it stands for an image.
pub(crate) const IMAGE_PREFIX: &str = "snapshot:";

const PAGE_SIZE: usize = 100;

/// So many pages are read.
const PAGES: usize = 1000;

fn read(value: &Value) -> Option<Snapshot> {
    Some(Snapshot {
        id: format!("{IMAGE_PREFIX}{}", value["id"].as_str()?),
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        created_at_ms: read_time(&value["createdAt"]),
        size_bytes: None,
    })
}

fn state(value: &Value) -> String {
    value["status"]["state"].as_str().unwrap_or_default().to_ascii_lowercase()
}

#[async_trait]
impl Snapshots for OpenSandboxProvider {
    async fn create_snapshot(&self, handle: &SandboxHandle, name: String) -> Result<Snapshot> {
        const WHAT: &str = "making a snapshot";
        self.shared.open(handle)?;
        let path = format!("/sandboxes/{}/snapshots", segment(&handle.sandbox_id));
        let mut call = self.shared.control_call(Method::POST, &path).json(&json!({ "name": name }));
        call.timeout = self.shared.config.create.request_timeout();
        let answer = self.shared.control(&call, Operation::Once).await.map_err(|failure| failure.error(WHAT))?;
        let mut value = answer.json(WHAT)?;
        let id = value["id"].as_str().unwrap_or_default().to_owned();
        let end = Instant::now() + seconds(self.shared.config.operations.pause_resume_timeout_s);
        let longest = seconds(self.shared.config.create.connect_poll_s);
        let mut pause = Duration::from_millis(20);
        // It is good for something only when it is ready.
        while state(&value) == "creating" {
            if Instant::now() + pause >= end {
                // Some servers keep it until it is ready: then it is listed.
                let _ = self.remove_snapshot(id.clone()).await;
                let text = format!("snapshot {id} was not ready in time");
                return Err(SandboxError::timed_out(text).with_provider(NAME));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
            let call = self.shared.control_call(Method::GET, &format!("/snapshots/{}", segment(&id)));
            let answer = self.shared.control(&call, Operation::Poll).await.map_err(|failure| failure.error(WHAT))?;
            value = answer.json(WHAT)?;
        }
        if state(&value) == "failed" {
            // Nothing of it is left behind.
            let _ = self.remove_snapshot(id.clone()).await;
            let why = crate::error::short(value["status"]["message"].as_str().unwrap_or_default());
            let text = format!("{WHAT}: the server failed: {why}");
            return Err(SandboxError::internal(text).with_provider(NAME));
        }
        let mut made = read(&value).ok_or_else(|| {
            SandboxError::internal(format!("{WHAT}: the answer names no snapshot")).with_provider(NAME)
        })?;
        if made.name.is_empty() {
            made.name = name;
        }
        Ok(made)
    }

    async fn list_snapshots(&self) -> Result<Vec<Snapshot>> {
        const WHAT: &str = "listing snapshots";
        let mut found = Vec::new();
        for page in 1..=PAGES {
            let path = format!("/snapshots?page={page}&pageSize={PAGE_SIZE}");
            let call = self.shared.control_call(Method::GET, &path);
            let answer = self.shared.control(&call, Operation::Poll).await.map_err(|failure| failure.error(WHAT))?;
            let value = answer.json(WHAT)?;
            let items = value["items"].as_array().cloned().unwrap_or_default();
            found.extend(items.iter().filter(|item| state(item) != "deleting").filter_map(read));
            if items.is_empty() || !value["pagination"]["hasNextPage"].as_bool().unwrap_or(false) {
                break;
            }
        }
        Ok(found)
    }

    async fn remove_snapshot(&self, id: String) -> Result<()> {
        let id = id.strip_prefix(IMAGE_PREFIX).unwrap_or(&id);
        let call = self.shared.control_call(Method::DELETE, &format!("/snapshots/{}", segment(id)));
        match self.shared.control(&call, Operation::Idempotent).await {
            Err(failure) if failure.status() != 404 => Err(failure.error(&format!("removing snapshot {id}"))),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl NetworkPolicies for OpenSandboxProvider {
    async fn set_network_policy(&self, handle: &SandboxHandle, policy: NetworkPolicy) -> Result<()> {
        check_provider(handle)?;
        let word = |allow: bool| if allow { "allow" } else { "deny" };
        if let Some(index) = policy.rules.iter().position(|rule| !rule.ports.is_empty()) {
            let why = "the server has rules for whole hosts only";
            return Err(SandboxError::invalid_input(format!("rules[{index}].ports"), why).with_provider(NAME));
        }
        let rules = policy.rules.iter().map(|rule| json!({ "action": word(rule.allow), "target": rule.target }));
        let body = json!({ "defaultAction": word(policy.default_allow), "egress": rules.collect::<Vec<_>>() });
        let call = self.policy_call(Method::PUT, handle).json(&body);
        let answer = self.shared.control(&call, Operation::Idempotent).await;
        answer.map(drop).map_err(|failure| without_sidecar(failure.error("setting egress rules")))
    }

    async fn network_policy(&self, handle: &SandboxHandle) -> Result<NetworkPolicy> {
        const WHAT: &str = "reading egress rules";
        check_provider(handle)?;
        let answer = self.shared.control(&self.policy_call(Method::GET, handle), Operation::Idempotent).await;
        let value = answer.map_err(|failure| without_sidecar(failure.error(WHAT)))?.json(WHAT)?;
        let policy = if value["policy"].is_object() { &value["policy"] } else { &value };
        let rules = policy["egress"].as_array().into_iter().flatten().filter_map(|rule| {
            let target = rule["target"].as_str()?.to_owned();
            Some(PolicyRule { allow: rule["action"] == "allow", target, ports: Vec::new() })
        });
        Ok(NetworkPolicy { default_allow: policy["defaultAction"] == "allow", rules: rules.collect() })
    }
}

impl OpenSandboxProvider {
    fn policy_call(&self, method: Method, handle: &SandboxHandle) -> crate::http::Call {
        let path = format!("/sandboxes/{}/networkpolicy", segment(&handle.sandbox_id));
        self.shared.control_call(method, &path)
    }
}

/// A sandbox that was made without rules has nobody who keeps any.
fn without_sidecar(error: SandboxError) -> SandboxError {
    if error.kind() == ErrorKind::Unavailable && error.message().contains("BACKEND_CONNECTION_FAILED") {
        let text = "the sandbox was made without egress rules, so that there is nothing that keeps any";
        return SandboxError::invalid_state(text)
            .with_help("make it with provider_options.network_policy")
            .with_source(error)
            .with_provider(NAME);
    }
    error
}
