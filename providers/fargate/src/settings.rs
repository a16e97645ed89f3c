//! The settings that are needed, from the configuration or from a parameter of Systems Manager.

use sandbox_core::{Result, SandboxError, from_json};
use serde::Deserialize;
use tokio::time::Instant;

use crate::{
    aws::Aws,
    config::{FargateConfig, TransportKind, is_bucket},
};

/// Where and as what tasks run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) cluster: String,
    pub(crate) subnets: Vec<String>,
    pub(crate) security_groups: Vec<String>,
    pub(crate) assign_public_ip: bool,
    pub(crate) execution_role_arn: String,
    pub(crate) task_role_arn: Option<String>,
    pub(crate) log_group: Option<String>,
    pub(crate) s3_bucket: Option<String>,
    /// None: images fetch the agent by themselves.
    pub(crate) sidecar_image: Option<String>,
}

/// What the parameter may hold.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Shared {
    cluster: Option<String>,
    subnets: Vec<String>,
    security_groups: Vec<String>,
    assign_public_ip: Option<bool>,
    execution_role_arn: Option<String>,
    task_role_arn: Option<String>,
    log_group: Option<String>,
    s3_bucket: Option<String>,
    sidecar: SharedSidecar,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct SharedSidecar {
    image: Option<String>,
}

impl Settings {
    /// Asks for the parameter, where one is named.
    ///
    /// # Errors
    /// `InvalidInput`, naming what is missing or wrong; what AWS refuses with.
    pub(crate) async fn load(config: &FargateConfig, aws: &Aws, deadline: Instant) -> Result<Self> {
        let shared = match &config.settings_parameter {
            None => Shared::default(),
            Some(name) => {
                let text = aws.parameter(name, deadline).await.map_err(SandboxError::from)?;
                let wrong = || SandboxError::invalid_input("settings_parameter", format!("{name} holds no JSON"));
                from_json(serde_json::from_str(&text).map_err(|_| wrong())?, "the settings parameter")?
            }
        };
        Self::merge(config, shared)
    }

    fn merge(config: &FargateConfig, shared: Shared) -> Result<Self> {
        let missing = |field: &str| {
            let error = SandboxError::invalid_input(field, "is needed, and not set");
            error.with_help("set it, or name a settings_parameter that has it; see the provider's README")
        };
        let list = |own: &Vec<String>, shared: Vec<String>| if own.is_empty() { shared } else { own.clone() };
        let settings = Self {
            cluster: config.cluster.clone().or(shared.cluster).ok_or_else(|| missing("cluster"))?,
            subnets: list(&config.subnets, shared.subnets),
            security_groups: list(&config.security_groups, shared.security_groups),
            assign_public_ip: config.assign_public_ip.or(shared.assign_public_ip).unwrap_or(false),
            execution_role_arn: config
                .execution_role_arn
                .clone()
                .or(shared.execution_role_arn)
                .ok_or_else(|| missing("execution_role_arn"))?,
            task_role_arn: config.task_role_arn.clone().or(shared.task_role_arn),
            log_group: config.log_group.clone().or(shared.log_group),
            s3_bucket: config.s3_bucket.clone().or(shared.s3_bucket),
            sidecar_image: config.sidecar.image.clone().or(shared.sidecar.image),
        };
        if let Some(bucket) = &settings.s3_bucket {
            is_bucket("s3_bucket", bucket)?;
        }
        let fetches = config.transport == TransportKind::Direct && settings.s3_bucket.is_some();
        if settings.sidecar_image.is_none() && !fetches {
            let other = "set it; or, for images with curl or wget, transport = \"direct\" and s3_bucket";
            return Err(missing("sidecar.image").with_help(other));
        }
        match settings.subnets.is_empty() {
            true => Err(missing("subnets")),
            false => Ok(settings),
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::from_json;
    use serde_json::json;

    use super::{Settings, Shared};
    use crate::config::{FargateConfig, TransportKind};

    #[test]
    fn what_is_given_goes_before_the_parameter_and_what_nobody_gives_is_named() {
        let shared = || -> Shared {
            from_json(
                json!({"cluster": "p", "subnets": ["p"], "execution_role_arn": "r", "sidecar": {"image": "i"}}),
                "x",
            )
            .unwrap()
        };
        let own = FargateConfig { cluster: Some("own".into()), ..FargateConfig::default() };
        let merged = Settings::merge(&own, shared()).unwrap();
        assert_eq!((merged.cluster.as_str(), merged.subnets.as_slice()), ("own", &["p".to_owned()][..]));
        for (field, without) in [
            ("cluster", Shared { cluster: None, ..shared() }),
            ("subnets", Shared { subnets: Vec::new(), ..shared() }),
            ("execution_role_arn", Shared { execution_role_arn: None, ..shared() }),
            ("sidecar.image", Shared { sidecar: Default::default(), ..shared() }),
        ] {
            let error = Settings::merge(&FargateConfig::default(), without).unwrap_err();
            assert_eq!(error.field(), Some(field));
        }
        let fetching = FargateConfig {
            transport: TransportKind::Direct,
            s3_bucket: Some("b-1".into()),
            ..FargateConfig::default()
        };
        let without = Shared { sidecar: Default::default(), ..shared() };
        assert_eq!(Settings::merge(&fetching, without).unwrap().sidecar_image, None, "images fetch the agent");
        let error = from_json::<Shared>(json!({"clusters": "x"}), "the settings parameter").unwrap_err();
        assert_eq!(error.help(), Some("did you mean \"cluster\"?"));
    }
}
