//! Which region, and where its services are.

use sandbox_core::{Result, SandboxError};

use super::{environment::Environment, profile::Profile};
use crate::config::{FargateConfig, ServiceEndpoints};

/// A service that is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    Ecs,
    Ec2,
    Ssm,
    SecretsManager,
    Sts,
    S3,
    Sso,
    SsoOidc,
    Ecr,
    CodeBuild,
    Logs,
}

impl Service {
    /// In the order of their definition.
    pub(crate) const ALL: [Self; 11] = [
        Self::Ecs,
        Self::Ec2,
        Self::Ssm,
        Self::SecretsManager,
        Self::Sts,
        Self::S3,
        Self::Sso,
        Self::SsoOidc,
        Self::Ecr,
        Self::CodeBuild,
        Self::Logs,
    ];

    /// The first part of host names.
    const fn host(self) -> &'static str {
        match self {
            Self::Sso => "portal.sso",
            Self::SsoOidc => "oidc",
            Self::Ecr => "api.ecr",
            other => other.name(),
        }
    }

    /// The name in signatures.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ecs => "ecs",
            Self::Ec2 => "ec2",
            Self::Ssm => "ssm",
            Self::SecretsManager => "secretsmanager",
            Self::Sts => "sts",
            Self::S3 => "s3",
            Self::Sso => "awsssoportal",
            Self::SsoOidc => "sso-oauth",
            Self::Ecr => "ecr",
            Self::CodeBuild => "codebuild",
            Self::Logs => "logs",
        }
    }

    const fn variable(self) -> &'static str {
        match self {
            Self::Ecs => "AWS_ENDPOINT_URL_ECS",
            Self::Ec2 => "AWS_ENDPOINT_URL_EC2",
            Self::Ssm => "AWS_ENDPOINT_URL_SSM",
            Self::SecretsManager => "AWS_ENDPOINT_URL_SECRETS_MANAGER",
            Self::Sts => "AWS_ENDPOINT_URL_STS",
            Self::S3 => "AWS_ENDPOINT_URL_S3",
            Self::Sso => "AWS_ENDPOINT_URL_SSO",
            Self::SsoOidc => "AWS_ENDPOINT_URL_SSO_OIDC",
            Self::Ecr => "AWS_ENDPOINT_URL_ECR",
            Self::CodeBuild => "AWS_ENDPOINT_URL_CODEBUILD",
            Self::Logs => "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS",
        }
    }

    fn configured(self, endpoints: &ServiceEndpoints) -> Option<&String> {
        match self {
            Self::Ecs => endpoints.ecs.as_ref(),
            Self::Ec2 => endpoints.ec2.as_ref(),
            Self::Ssm => endpoints.ssm.as_ref(),
            Self::SecretsManager => endpoints.secretsmanager.as_ref(),
            Self::Sts => endpoints.sts.as_ref(),
            Self::S3 => endpoints.s3.as_ref(),
            Self::Sso => endpoints.sso.as_ref(),
            Self::SsoOidc => endpoints.sso_oidc.as_ref(),
            Self::Ecr => endpoints.ecr.as_ref(),
            Self::CodeBuild => endpoints.codebuild.as_ref(),
            Self::Logs => endpoints.logs.as_ref(),
        }
    }
}

/// The region of the settings, the environment or the profile.
///
/// # Errors
/// `InvalidInput` when nobody says which.
pub(crate) fn region(config: &FargateConfig, environment: &Environment, profile: &Profile) -> Result<String> {
    let named = config.region.as_deref().or_else(|| environment.first(&["AWS_REGION", "AWS_DEFAULT_REGION"]));
    let region = named.or_else(|| profile.get("region")).ok_or_else(|| {
        SandboxError::invalid_input("region", "is not set")
            .with_help("set region, AWS_REGION, or region in the profile")
    })?;
    match is_region(region) {
        true => Ok(region.to_owned()),
        false => Err(SandboxError::invalid_input("region", "must be letters, digits and -, such as eu-central-1")),
    }
}

/// Whether it can stand in the name of a host.
pub(crate) fn is_region(text: &str) -> bool {
    !text.is_empty() && text.len() <= 32 && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

/// The base URL that somebody says a service has, without a slash at its end.
fn named_endpoint(service: Service, config: &FargateConfig, environment: &Environment) -> Option<String> {
    let named = service
        .configured(&config.endpoints)
        .or(config.endpoint_url.as_ref())
        .map(String::as_str)
        .or_else(|| environment.first(&[service.variable(), "AWS_ENDPOINT_URL"]));
    named.map(|url| url.trim_end_matches('/').to_owned())
}

/// The base URL of a service, without a slash at its end.
pub(crate) fn endpoint(service: Service, region: &str, config: &FargateConfig, environment: &Environment) -> String {
    let own = || format!("https://{}.{region}.{}", service.host(), suffix(region));
    named_endpoint(service, config, environment).unwrap_or_else(own)
}

/// The base URL of the objects of a bucket. A stand-in has them below its own address, and so has a bucket whose name is no
/// single label of a host's.
pub(crate) fn bucket(name: &str, region: &str, config: &FargateConfig, environment: &Environment) -> String {
    match named_endpoint(Service::S3, config, environment) {
        Some(url) => format!("{url}/{name}"),
        None if name.contains('.') => format!("https://s3.{region}.{}/{name}", suffix(region)),
        None => format!("https://{name}.s3.{region}.{}", suffix(region)),
    }
}

/// The domain of a region's partition.
fn suffix(region: &str) -> &'static str {
    match region {
        region if region.starts_with("cn-") => "amazonaws.com.cn",
        region if region.starts_with("us-iso-") => "c2s.ic.gov",
        region if region.starts_with("us-isob-") => "sc2s.sgov.gov",
        region if region.starts_with("eusc-") => "amazonaws.eu",
        _ => "amazonaws.com",
    }
}

/// What ARNs of a region's partition begin with.
pub(crate) fn partition(region: &str) -> &'static str {
    match region {
        region if region.starts_with("cn-") => "aws-cn",
        region if region.starts_with("us-gov-") => "aws-us-gov",
        region if region.starts_with("us-iso-") => "aws-iso",
        region if region.starts_with("us-isob-") => "aws-iso-b",
        region if region.starts_with("eusc-") => "aws-eusc",
        _ => "aws",
    }
}

#[cfg(test)]
mod tests {
    use super::{Service, bucket, endpoint, region};
    use crate::{
        aws::{environment::Environment, profile::Profile},
        config::FargateConfig,
    };

    #[test]
    fn the_region_is_that_of_the_settings_the_environment_or_the_profile() {
        let profile = Profile::parse("[default]\nregion = c-1", "", "default");
        let environment = Environment::of(&[("AWS_DEFAULT_REGION", "b-1")]);
        let set = FargateConfig { region: Some("a-1".into()), ..FargateConfig::default() };
        let unset = FargateConfig::default();
        assert_eq!(region(&set, &environment, &profile).unwrap(), "a-1");
        assert_eq!(region(&unset, &environment, &profile).unwrap(), "b-1");
        assert_eq!(region(&unset, &Environment::default(), &profile).unwrap(), "c-1");
        let error = region(&unset, &Environment::default(), &Profile::default()).unwrap_err();
        assert_eq!(error.field(), Some("region"));
        let hostile = FargateConfig { region: Some("x.evil.example/".into()), ..FargateConfig::default() };
        assert!(region(&hostile, &environment, &profile).is_err());
    }

    #[test]
    fn each_service_is_where_its_partition_or_somebody_says() {
        let (none, plain) = (Environment::default(), FargateConfig::default());
        let at = |region, config: &FargateConfig, env: &Environment| endpoint(Service::Ecs, region, config, env);
        assert_eq!(at("eu-central-1", &plain, &none), "https://ecs.eu-central-1.amazonaws.com");
        assert_eq!(at("cn-north-1", &plain, &none), "https://ecs.cn-north-1.amazonaws.com.cn");
        let all = Environment::of(&[("AWS_ENDPOINT_URL", "http://all/")]);
        let own = Environment::of(&[("AWS_ENDPOINT_URL", "http://all"), ("AWS_ENDPOINT_URL_ECS", "http://own")]);
        assert_eq!(at("x", &plain, &all), "http://all");
        assert_eq!(at("x", &plain, &own), "http://own");
        let mut config = FargateConfig { endpoint_url: Some("http://set".into()), ..FargateConfig::default() };
        assert_eq!(at("x", &config, &own), "http://set");
        config.endpoints.ecs = Some("http://single".into());
        assert_eq!(at("x", &config, &own), "http://single");
        assert_eq!(endpoint(Service::Sts, "x", &config, &own), "http://set");
        for (name, config, url) in [
            ("b", &plain, "https://b.s3.eu-central-1.amazonaws.com"),
            ("b.c", &plain, "https://s3.eu-central-1.amazonaws.com/b.c"),
            ("b", &config, "http://set/b"),
        ] {
            assert_eq!(bucket(name, "eu-central-1", config, &none), url);
        }
    }
}
