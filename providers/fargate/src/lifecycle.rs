//! Finding again, the expiry, and what is measured.

use std::collections::BTreeMap;

use sandbox_agent_client::{metrics, renew};
use sandbox_core::{
    Connect, Metrics, Renew, Result, SandboxError, SandboxHandle, SandboxMetrics, async_trait,
    serde_json::{Value, json},
};
use tokio::time::Instant;

use crate::{
    aws::Cluster,
    error::NAME,
    provider::{CALL_LIMIT, FargateProvider},
    sandbox::GENERATION,
    tags::EXPIRES,
};

/// What a descriptor says it is.
const FORM: &str = "fargate/1";

#[async_trait]
impl Renew for FargateProvider {
    async fn renew(&self, handle: &SandboxHandle, ttl_s: f64) -> Result<u64> {
        let sandbox = self.shared.open(handle).await?;
        let at_ms = sandbox.ask(&self.shared, async |client| renew(&client, ttl_s).await).await?;
        sandbox.renew_until(at_ms);
        // For whoever sweeps.
        let deadline = Instant::now() + CALL_LIMIT;
        let cluster = Cluster { aws: &self.shared.aws, name: &self.shared.settings(deadline).await?.cluster };
        let tags = BTreeMap::from([(EXPIRES.to_owned(), at_ms.to_string())]);
        let tagged = cluster.tag(&sandbox.arn, &tags, deadline).await.map_err(SandboxError::from);
        tagged.map_err(|error| error.context("the sandbox lives on, but its tag does not say so"))?;
        Ok(at_ms)
    }
}

#[async_trait]
impl Connect for FargateProvider {
    async fn serialize_handle(&self, handle: &SandboxHandle, scope: Option<String>) -> Result<Value> {
        if let Some(scope) = scope {
            let message = format!("there is no scope {scope:?}: a descriptor holds wherever the same key is");
            return Err(SandboxError::invalid_input("scope", message).with_provider(NAME));
        }
        let sandbox = self.shared.open(handle).await?;
        Ok(json!({
            "form": FORM,
            "sandbox_id": sandbox.id,
            "region": self.shared.aws.region,
            "task_arn": sandbox.arn,
            "incarnation": sandbox.labels.incarnation,
            // Which secret the keys come from; not the secret.
            "key_id": sandbox.labels.key_id,
            "host_key": sandbox.link.host_key(),
        }))
    }

    async fn connect(&self, descriptor: Value) -> Result<SandboxHandle> {
        let text = |key: &str| {
            let value = descriptor.get(key).and_then(Value::as_str).filter(|value| !value.is_empty());
            value.map(str::to_owned).ok_or_else(|| {
                SandboxError::invalid_input("descriptor", format!("has no {key}: it is none of this provider"))
                    .with_provider(NAME)
            })
        };
        if text("form")? != FORM {
            return Err(SandboxError::invalid_input("descriptor", "is of another release").with_provider(NAME));
        }
        let (region, own) = (text("region")?, &self.shared.aws.region);
        if region != *own {
            let message = format!("is of region {region}, and this provider asks {own}");
            return Err(SandboxError::invalid_input("descriptor", message).with_provider(NAME));
        }
        let state = json!({
            "task_arn": text("task_arn")?,
            "incarnation": text("incarnation")?,
            "host_key": descriptor.get("host_key"),
        });
        let mut handle = SandboxHandle::new(text("sandbox_id")?, NAME).with_state(state);
        handle.generation = GENERATION;
        let sandbox = self.shared.open(&handle).await?;
        sandbox.ask(&self.shared, async |client| metrics(&client).await.map(drop)).await?;
        Ok(sandbox.handle())
    }
}

#[async_trait]
impl Metrics for FargateProvider {
    async fn metrics(&self, handle: &SandboxHandle) -> Result<SandboxMetrics> {
        self.shared.open(handle).await?.ask(&self.shared, async |client| metrics(&client).await).await
    }
}
