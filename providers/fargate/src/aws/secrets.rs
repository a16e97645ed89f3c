//! Parameters of Systems Manager, and secrets of Secrets Manager.

use sandbox_core::{SandboxError, Secret};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::{Aws, Called, Service};

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Parameters {
    parameter: Parameter,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Parameter {
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct SecretValue {
    #[serde(default)]
    secret_string: Option<Secret>,
}

impl Aws {
    /// The text of a parameter.
    pub(crate) async fn parameter(&self, name: &str, deadline: Instant) -> Called<String> {
        let input = json!({ "Name": name, "WithDecryption": true });
        let found: Parameters = self.json(Service::Ssm, ("AmazonSSM", "GetParameter"), &input, deadline).await?;
        Ok(found.parameter.value)
    }

    /// The text of a secret.
    pub(crate) async fn secret(&self, arn: &str, deadline: Instant) -> Called<Secret> {
        let input = json!({ "SecretId": arn });
        let target = ("secretsmanager", "GetSecretValue");
        let found: SecretValue = self.json(Service::SecretsManager, target, &input, deadline).await?;
        Ok(found
            .secret_string
            .ok_or_else(|| SandboxError::invalid_input("key.secret_arn", "is a secret without text"))?)
    }
}
