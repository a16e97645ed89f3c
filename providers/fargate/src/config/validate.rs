//! Which settings cannot be meant.

use sandbox_core::{Result, SandboxError};

use super::{Address, FargateConfig, KeySource, TransportKind};
use crate::{error::NAME, size, tags};

/// The longest time that a setting may name, in seconds: ten years.
const LONGEST_S: f64 = 315_360_000.0;
/// Most subnets and security groups of a task, as ECS has it.
const SUBNETS_MAX: usize = 16;
const SECURITY_GROUPS_MAX: usize = 5;

impl FargateConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// `InvalidInput`, naming the setting and its range.
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(|error| error.with_provider(NAME))
    }

    fn check(&self) -> Result<()> {
        let invalid = |field: &str, text: String| Err(SandboxError::invalid_input(field, text));
        for (field, value) in [("ready_timeout_s", Some(self.ready_timeout_s)), ("ttl_s", self.ttl_s)] {
            if let Some(value) = value.filter(|value| !(*value > 0.0 && *value <= LONGEST_S)) {
                return invalid(field, format!("must be above 0 and at most {LONGEST_S} seconds, not {value}"));
            }
        }
        size::Size::new(self.cpu, self.memory_mib, "cpu", "memory_mib")?;
        if self.concurrency == Some(0) {
            return invalid("concurrency", "must be at least 1".to_owned());
        }
        if self.subnets.len() > SUBNETS_MAX {
            return invalid("subnets", format!("at most {SUBNETS_MAX}, not {}", self.subnets.len()));
        }
        if self.security_groups.len() > SECURITY_GROUPS_MAX {
            let text = format!("at most {SECURITY_GROUPS_MAX}, not {}", self.security_groups.len());
            return invalid("security_groups", text);
        }
        is_word("family_prefix", &self.family_prefix, 64, "-_")?;
        is_word("started_by", &self.started_by, 36, "-_/")?;
        is_word("s3_prefix", &self.s3_prefix, 200, "._-/")?;
        if self.s3_prefix.starts_with('/') || self.s3_prefix.ends_with('/') || self.s3_prefix.contains("..") {
            return invalid("s3_prefix", "must not begin or end with a slash, nor have two dots in it".to_owned());
        }
        if self.s3_threshold_bytes == 0 {
            return invalid("s3_threshold_bytes", "must be at least 1".to_owned());
        }
        self.check_images()?;
        for (name, system) in &self.volumes {
            is_word(&format!("volumes.{name}"), name, 63, "-_.")?;
            system.check(&format!("volumes.{name}"))?;
        }
        if let Some(storage) = &self.shared_storage {
            storage.check("shared_storage")?;
        }
        let mounts_nothing = matches!(self.platform_version.as_str(), "1.0.0" | "1.1.0" | "1.2.0" | "1.3.0");
        if mounts_nothing && (self.shared_storage.is_some() || !self.volumes.is_empty()) {
            return invalid("platform_version", "must be 1.4.0 or LATEST for file systems of EFS".to_owned());
        }
        if let Some(bucket) = &self.s3_bucket {
            is_bucket("s3_bucket", bucket)?;
        }
        if let Some(region) = &self.region {
            is_word("region", region, 32, "-")?;
        }
        if self.address == Address::Public && self.assign_public_ip == Some(false) {
            return invalid("address", "public needs assign_public_ip".to_owned());
        }
        let (agent, ssh) = (self.agent_port, self.sidecar.ssh_port);
        if agent == 0 || ssh == 0 {
            let field = if agent == 0 { "agent_port" } else { "sidecar.ssh_port" };
            return invalid(field, "must be 1 to 65535".to_owned());
        }
        let path = &self.sidecar.agent_path;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if !path.starts_with('/') || !path.chars().all(is_plain) {
            let text = "must be an absolute path of letters, digits and . _ - /".to_owned();
            return invalid("sidecar.agent_path", text);
        }
        if self.sidecar.agent_file.as_ref().is_some_and(|path| !path.is_absolute()) {
            return invalid("sidecar.agent_file", "must be an absolute path".to_owned());
        }
        if let KeySource::File(path) = &self.key
            && !path.is_absolute()
        {
            return invalid("key.file", "must be an absolute path".to_owned());
        }
        let endpoints = &self.endpoints;
        for (field, url) in [
            ("endpoint_url", &self.endpoint_url),
            ("endpoints.ecs", &endpoints.ecs),
            ("endpoints.ec2", &endpoints.ec2),
            ("endpoints.ssm", &endpoints.ssm),
            ("endpoints.secretsmanager", &endpoints.secretsmanager),
            ("endpoints.sts", &endpoints.sts),
            ("endpoints.s3", &endpoints.s3),
            ("endpoints.ecr", &endpoints.ecr),
            ("endpoints.codebuild", &endpoints.codebuild),
            ("endpoints.logs", &endpoints.logs),
            ("endpoints.sso", &endpoints.sso),
            ("endpoints.sso_oidc", &endpoints.sso_oidc),
        ] {
            if let Some(url) = url {
                check_url(field, url)?;
            }
        }
        if let Some(credentials) = &self.credentials
            && (credentials.access_key_id.is_empty() || credentials.secret_access_key.expose().is_empty())
        {
            return invalid("credentials", "access_key_id and secret_access_key must not be empty".to_owned());
        }
        tags::check("tags", &self.tags)
    }

    fn check_images(&self) -> Result<()> {
        let invalid = |field: &str, why: &str| Err(SandboxError::invalid_input(field, why));
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "._-/".contains(c);
        if self.ecr_repository.as_deref().is_some_and(|name| name.is_empty() || !name.chars().all(fits)) {
            return invalid("ecr_repository", "must be the name or address of a repository, without a tag");
        }
        if self.auto_mirror && (self.ecr_repository.is_none() || self.build.project.is_none()) {
            return invalid("auto_mirror", "needs ecr_repository and build.project");
        }
        if let Some(project) = &self.build.project {
            is_word("build.project", project, 255, "-_")?;
        }
        match (300.0..=129_600.0).contains(&self.build.timeout_s) {
            true => Ok(()),
            false => invalid("build.timeout_s", "must be 300 to 129600 seconds"),
        }
    }

    /// The port inside a task at which sandboxes are entered.
    pub(crate) fn door(&self) -> u16 {
        match self.transport {
            TransportKind::Ssh => self.sidecar.ssh_port,
            TransportKind::Direct => self.agent_port,
        }
    }
}

fn is_word(field: &str, text: &str, longest: usize, others: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_alphanumeric() || others.contains(c);
    if !text.is_empty() && text.len() <= longest && text.chars().all(fits) {
        return Ok(());
    }
    let others: Vec<_> = others.chars().map(String::from).collect();
    Err(SandboxError::invalid_input(field, format!("must be 1 to {longest} of a-z A-Z 0-9 {}", others.join(" "))))
}

/// Checks the name of a bucket.
///
/// # Errors
/// `InvalidInput`, naming the field.
pub(crate) fn is_bucket(field: &str, name: &str) -> Result<()> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let is_name = (3..=63).contains(&name.len()) && name.chars().all(fits) && !name.contains("..");
    match is_name && is_end(name.chars().next()) && is_end(name.chars().last()) {
        true => Ok(()),
        false => Err(SandboxError::invalid_input(field, "must be 3 to 63 of a-z 0-9 . - as a bucket is named")),
    }
}

/// Checks a base URL of a service.
///
/// # Errors
/// `InvalidInput`, naming the field.
pub(crate) fn check_url(field: &str, url: &str) -> Result<()> {
    let parsed = reqwest::Url::parse(url).ok().filter(|url| url.has_host());
    match parsed.as_ref().map(|url| (url.scheme(), url.query())) {
        Some(("https" | "http", None)) => Ok(()),
        _ => Err(SandboxError::invalid_input(field, "must be an absolute http or https URL")),
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, from_json};
    use serde_json::{Value, json};

    use super::FargateConfig;

    fn refused(value: Value) -> (Option<String>, Option<String>) {
        let read = from_json::<FargateConfig>(value.clone(), "config").and_then(|config| config.validate());
        let error = read.expect_err(&value.to_string());
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        (error.field().map(str::to_owned), error.help().map(str::to_owned))
    }

    #[test]
    fn what_cannot_be_meant_is_refused_by_its_key() {
        for (value, field) in [
            (json!({"ready_timeout_s": 0}), "ready_timeout_s"),
            (json!({"ttl_s": -1}), "ttl_s"),
            (json!({"cpu": 17}), "cpu"),
            (json!({"cpu": 1, "memory_mib": 9000}), "memory_mib"),
            (json!({"concurrency": 0}), "concurrency"),
            (json!({"subnets": vec!["s"; 17]}), "subnets"),
            (json!({"security_groups": vec!["s"; 6]}), "security_groups"),
            (json!({"family_prefix": "a b"}), "family_prefix"),
            (json!({"s3_bucket": "Not_A_Bucket"}), "s3_bucket"),
            (json!({"s3_bucket": "evil.example/"}), "s3_bucket"),
            (json!({"s3_prefix": "a/../b"}), "s3_prefix"),
            (json!({"s3_prefix": "a?b"}), "s3_prefix"),
            (json!({"s3_threshold_bytes": 0}), "s3_threshold_bytes"),
            (json!({"ecr_repository": "a:1"}), "ecr_repository"),
            (json!({"ecr_repository": "a", "auto_mirror": true}), "auto_mirror"),
            (json!({"build": {"project": "a b"}}), "build.project"),
            (json!({"build": {"timeout_s": 5}}), "build.timeout_s"),
            (json!({"shared_storage": {"file_system_id": "x"}}), "shared_storage.file_system_id"),
            (
                json!({"shared_storage": {"file_system_id": "fs-1", "root_directory": "x"}}),
                "shared_storage.root_directory",
            ),
            (
                json!({"shared_storage": {"file_system_id": "fs-1", "access_point_id": "fsap-1", "root_directory": "/x"}}),
                "shared_storage.root_directory",
            ),
            (
                json!({"volumes": {"a": {"file_system_id": "fs-1", "access_point_id": "1"}}}),
                "volumes.a.access_point_id",
            ),
            (json!({"platform_version": "1.3.0", "volumes": {"a": {"file_system_id": "fs-1"}}}), "platform_version"),
            (json!({"started_by": "x".repeat(37)}), "started_by"),
            (json!({"address": "public", "assign_public_ip": false}), "address"),
            (json!({"sidecar": {"agent_path": "/a b"}}), "sidecar.agent_path"),
            (json!({"sidecar": {"ssh_port": 0}}), "sidecar.ssh_port"),
            (json!({"key": {"file": "key"}}), "key.file"),
            (json!({"endpoints": {"ecs": "ftp://x"}}), "endpoints.ecs"),
            (json!({"tags": {"sandbox.x": "y"}}), "tags"),
            (json!({"credentials": {"access_key_id": "", "secret_access_key": "x"}}), "credentials"),
        ] {
            assert_eq!(refused(value.clone()).0.as_deref(), Some(field), "{value}");
        }
        assert!(FargateConfig::default().validate().is_ok());
    }

    #[test]
    fn a_key_that_is_nearly_right_is_told_with_the_right_one() {
        for (value, field, near) in [
            (json!({"clusters": "x"}), "clusters", "cluster"),
            (json!({"sidecar": {"imag": "x"}}), "sidecar.imag", "image"),
            (json!({"capacity": "spots"}), "capacity", "spot"),
        ] {
            let (found, help) = refused(value);
            assert!(found.as_deref().is_some_and(|found| found.starts_with(field)), "{found:?}");
            assert_eq!(help, Some(format!("did you mean {near:?}?")));
        }
    }

    #[test]
    fn credentials_are_in_no_debug_text() {
        let credentials = json!({"access_key_id": "AK", "secret_access_key": "canary", "session_token": "canary"});
        let config: FargateConfig = from_json(json!({ "credentials": credentials }), "config").unwrap();
        assert!(!format!("{config:?}").contains("canary"));
    }
}
