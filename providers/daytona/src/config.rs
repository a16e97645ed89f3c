//! The settings, and everything that is read from this process's environment.

use std::{path::PathBuf, time::Duration};

use sandbox_core::{Result, SandboxError, Secret};
use serde::Deserialize;

/// Where the service is when nothing else is said.
const API_URL: &str = "https://app.daytona.io/api";

/// The longest time that a setting may name, in seconds: a year.
const LONGEST_S: f64 = 31_536_000.0;

/// The settings of the Daytona provider. Every key has a default.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct DaytonaConfig {
    /// Which service, and who asks.
    pub connection: ConnectionConfig,
    /// What sandboxes are made with, unless a spec's `provider_options` say otherwise.
    pub create: CreateConfig,
    /// How it is found out that commands run in a new sandbox.
    pub probe: ProbeConfig,
    /// Time limits and retries of everything else.
    pub operations: OperationsConfig,
    /// Many at once.
    pub batch: BatchConfig,
}

/// A credential: the text itself, or where it is.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Credential {
    /// The text.
    Text(Secret),
    /// What a variable of this process holds: `{"env": "NAME"}`.
    Env {
        /// The variable.
        env: String,
    },
    /// What a file holds, without the line end: `{"file": "/path"}`.
    File {
        /// Absolute.
        file: PathBuf,
    },
}

/// Which service, and who asks.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionConfig {
    /// The API key. Default: the variable `DAYTONA_API_KEY`.
    pub api_key: Option<Credential>,
    /// A JWT, instead of a key; needs `organization_id`. Default: the variable `DAYTONA_JWT_TOKEN`.
    pub jwt_token: Option<Credential>,
    /// The organization of the JWT. Default: the variable `DAYTONA_ORGANIZATION_ID`.
    pub organization_id: Option<String>,
    /// Base of the control plane. Default: the variable `DAYTONA_API_URL`, `DAYTONA_SERVER_URL`, or
    /// `https://app.daytona.io/api`.
    pub api_url: Option<String>,
    /// The older name of `api_url`.
    pub server_url: Option<String>,
    /// Base of the toolbox's proxy, where its host is not that of `api_url` or below it. The credential goes there.
    /// Default: what the service says, if it is on the same domain.
    pub toolbox_url: Option<String>,
    /// The region of new sandboxes. Default: the variable `DAYTONA_TARGET`, or the service's choice.
    pub target: Option<String>,
    /// Connections that are kept, at least 1. Default: no limit.
    pub connection_pool_maxsize: Option<usize>,
}

/// What sandboxes are made with. Times of the service are in minutes.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreateConfig {
    /// How long a sandbox may take to start, in seconds, when its spec has no `ready_timeout_s`. Default 300.
    pub timeout_s: f64,
    /// Further attempts after one that failed in passing; 0 to 20, default 2.
    pub retries: u32,
    /// The first wait between attempts, in seconds; default 1. Each further one is at most twice as long.
    pub retry_delay_s: f64,
    /// The longest wait between attempts, in seconds; default 30.
    pub retry_max_delay_s: f64,
    /// The label by which the official client knows the language: `python`, `typescript` or `javascript`. Default `python`.
    pub language: String,
    /// The user that everything in the sandbox runs as. Default: the image's.
    pub os_user: Option<String>,
    /// Whether previews need no token. Default: false.
    pub public: bool,
    /// Minutes of idleness until the service stops the sandbox; 0, the default: never.
    pub auto_stop_interval: u32,
    /// Minutes in which it is stopped until it is archived. Default: the service's.
    pub auto_archive_interval: Option<u32>,
    /// Minutes in which it is stopped until it is deleted; negative: never. Default: the service's.
    pub auto_delete_interval: Option<i64>,
    /// Whether it is deleted when it stops. Default: false.
    pub ephemeral: bool,
    /// Whether nothing outside can be reached. Default: false.
    pub network_block_all: bool,
    /// IPv4 ranges that alone can be reached, such as `10.0.0.0/8`; at most 10. Default: none.
    pub network_allow_list: Vec<String>,
    /// The snapshot that sandboxes without an image are made from. Default: the organization's.
    pub snapshot: Option<String>,
}

/// How it is found out that commands run.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbeConfig {
    /// How long one try may take, in seconds; default 30.
    pub timeout_s: f64,
    /// How long tries go on, in seconds; default 60.
    pub deadline_s: f64,
}

/// How commands run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecMode {
    /// By a job folder inside: exact, separate streams, repeatable, ends by its own clock.
    #[default]
    Job,
    /// By the service's own call: one stream of text, and nothing of it after a time limit.
    Direct,
}

/// Time limits and retries.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OperationsConfig {
    /// Further attempts of what may be repeated; 0 to 20, default 3.
    pub retries: u32,
    /// The first wait between attempts, in seconds; default 0.5.
    pub retry_delay_s: f64,
    /// The longest wait between attempts, in seconds; default 15.
    pub retry_max_delay_s: f64,
    /// How commands run: `job` or `direct`. Default `job`.
    pub exec_mode: ExecMode,
    /// How long one request may take beyond what it waits for inside, in seconds; default 60.
    pub command_timeout_margin_s: f64,
    /// How long a file may take, in seconds; default 1800.
    pub file_timeout_s: f64,
    /// How long closing may take, in seconds; default 60.
    pub close_timeout_s: f64,
    /// Where commands keep their state inside; absolute. Default `/tmp/.sandbox-jobs`.
    pub job_folder: String,
    /// The file of the agent, which is placed in a sandbox to forward ports; absolute. Default: what `SANDBOX_AGENT` names,
    /// else the one that was installed with the program.
    pub agent_path: Option<PathBuf>,
}

/// Many at once.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BatchConfig {
    /// How many sandboxes are made at once by this provider, at least 1; default 16.
    pub concurrency: usize,
}

impl Default for CreateConfig {
    fn default() -> Self {
        Self {
            timeout_s: 300.0,
            retries: 2,
            retry_delay_s: 1.0,
            retry_max_delay_s: 30.0,
            language: "python".to_owned(),
            os_user: None,
            public: false,
            auto_stop_interval: 0,
            auto_archive_interval: None,
            auto_delete_interval: None,
            ephemeral: false,
            network_block_all: false,
            network_allow_list: Vec::new(),
            snapshot: None,
        }
    }
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self { timeout_s: 30.0, deadline_s: 60.0 }
    }
}

impl Default for OperationsConfig {
    fn default() -> Self {
        Self {
            retries: 3,
            retry_delay_s: 0.5,
            retry_max_delay_s: 15.0,
            exec_mode: ExecMode::Job,
            command_timeout_margin_s: 60.0,
            file_timeout_s: 1800.0,
            close_timeout_s: 60.0,
            job_folder: "/tmp/.sandbox-jobs".to_owned(),
            agent_path: None,
        }
    }
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self { concurrency: 16 }
    }
}

/// Checks a list of ranges as the service does.
///
/// # Errors
/// `InvalidInput`, naming the field.
pub(crate) fn check_allow_list(field: &str, list: &[String]) -> Result<()> {
    if list.len() > 10 {
        return Err(SandboxError::invalid_input(field, format!("at most 10 ranges, not {}", list.len())));
    }
    for range in list {
        let parts = range.split_once('/').map(|(address, prefix)| {
            (address.parse::<std::net::Ipv4Addr>().is_ok(), prefix.parse::<u8>().is_ok_and(|prefix| prefix <= 32))
        });
        if parts != Some((true, true)) {
            let text = format!("{range:?} is not an IPv4 range such as 10.0.0.0/8");
            return Err(SandboxError::invalid_input(field, text).with_help("host names go into domain_allow_list"));
        }
    }
    Ok(())
}

/// Checks the label by which the official client knows the language.
///
/// # Errors
/// `InvalidInput`, naming the field.
pub(crate) fn check_language(field: &str, language: &str) -> Result<()> {
    if ["python", "typescript", "javascript"].contains(&language) {
        return Ok(());
    }
    Err(SandboxError::invalid_input(field, "must be python, typescript or javascript"))
}

impl DaytonaConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// `InvalidInput`, naming the setting and its range.
    pub fn validate(&self) -> Result<()> {
        for (field, value) in [
            ("create.timeout_s", self.create.timeout_s),
            ("create.retry_delay_s", self.create.retry_delay_s),
            ("create.retry_max_delay_s", self.create.retry_max_delay_s),
            ("probe.timeout_s", self.probe.timeout_s),
            ("probe.deadline_s", self.probe.deadline_s),
            ("operations.retry_delay_s", self.operations.retry_delay_s),
            ("operations.retry_max_delay_s", self.operations.retry_max_delay_s),
            ("operations.command_timeout_margin_s", self.operations.command_timeout_margin_s),
            ("operations.file_timeout_s", self.operations.file_timeout_s),
            ("operations.close_timeout_s", self.operations.close_timeout_s),
        ] {
            if !(value > 0.0 && value <= LONGEST_S) {
                let text = format!("must be above 0 and at most {LONGEST_S} seconds, not {value}");
                return Err(SandboxError::invalid_input(field, text));
            }
        }
        for (field, value) in [("create.retries", self.create.retries), ("operations.retries", self.operations.retries)]
        {
            if value > 20 {
                return Err(SandboxError::invalid_input(field, format!("must be 0 to 20, not {value}")));
            }
        }
        if self.batch.concurrency == 0 {
            return Err(SandboxError::invalid_input("batch.concurrency", "must be at least 1"));
        }
        if self.connection.connection_pool_maxsize == Some(0) {
            return Err(SandboxError::invalid_input("connection.connection_pool_maxsize", "must be at least 1"));
        }
        check_language("create.language", &self.create.language)?;
        check_allow_list("create.network_allow_list", &self.create.network_allow_list)?;
        let folder = &self.operations.job_folder;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
        if !folder.starts_with('/') || folder.len() < 2 || !folder.chars().all(is_plain) {
            let text = "must be an absolute path of letters, digits and . _ - /";
            return Err(SandboxError::invalid_input("operations.job_folder", text));
        }
        if self.operations.agent_path.as_deref().is_some_and(|path| !path.is_absolute()) {
            return Err(SandboxError::invalid_input("operations.agent_path", "must be an absolute path"));
        }
        for (field, url) in [
            ("connection.api_url", &self.connection.api_url),
            ("connection.server_url", &self.connection.server_url),
            ("connection.toolbox_url", &self.connection.toolbox_url),
        ] {
            if let Some(url) = url {
                check_url(field, url)?;
            }
        }
        Ok(())
    }
}

fn check_url(field: &str, url: &str) -> Result<()> {
    let parsed = reqwest::Url::parse(url).ok().filter(|url| url.has_host());
    match parsed.as_ref().map(|url| url.scheme()) {
        Some("https" | "http") => Ok(()),
        _ => Err(SandboxError::invalid_input(field, "must be an absolute http or https URL")),
    }
}

/// Who asks, and where: the settings with what the environment adds.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) api_url: String,
    pub(crate) token: Secret,
    /// Sent with a JWT only.
    pub(crate) organization: Option<String>,
    pub(crate) target: Option<String>,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn resolve(field: &str, credential: &Credential) -> Result<Secret> {
    let missing = |text: String| SandboxError::unauthorized(format!("{field}: {text}"));
    let secret = match credential {
        Credential::Text(secret) => secret.clone(),
        Credential::Env { env } => Secret::new(variable(env).ok_or_else(|| missing(format!("{env} is not set")))?),
        Credential::File { file } => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| SandboxError::io(file.display(), error).context(field))?;
            Secret::new(text.trim_end())
        }
    };
    let is_header = |text: &str| !text.is_empty() && text.bytes().all(|byte| (0x21..0x7f).contains(&byte));
    if is_header(secret.expose()) { Ok(secret) } else { Err(missing("is empty or not printable".to_owned())) }
}

impl ConnectionConfig {
    /// Adds what the environment says. The URL is never taken from a file of the working folder.
    pub(crate) fn access(&self) -> Result<Access> {
        let api_url = self.api_url.clone().or_else(|| self.server_url.clone());
        let api_url = api_url
            .or_else(|| variable("DAYTONA_API_URL"))
            .or_else(|| variable("DAYTONA_SERVER_URL"))
            .unwrap_or_else(|| API_URL.to_owned());
        check_url("connection.api_url", &api_url)?;
        let organization = self.organization_id.clone().or_else(|| variable("DAYTONA_ORGANIZATION_ID"));
        let key = self.api_key.as_ref().map(|key| resolve("connection.api_key", key)).transpose()?;
        let jwt = self.jwt_token.as_ref().map(|jwt| resolve("connection.jwt_token", jwt)).transpose()?;
        // What is set goes before what the environment has.
        let (token, is_jwt) = match (key, jwt) {
            (Some(key), _) => (key, false),
            (None, Some(jwt)) => (jwt, true),
            (None, None) => match (variable("DAYTONA_API_KEY"), variable("DAYTONA_JWT_TOKEN")) {
                (Some(key), _) => (Secret::new(key), false),
                (None, Some(jwt)) => (Secret::new(jwt), true),
                (None, None) => {
                    return Err(SandboxError::unauthorized("no credential for the Daytona service")
                        .with_help("set connection.api_key, or the variable DAYTONA_API_KEY"));
                }
            },
        };
        if is_jwt && organization.is_none() {
            return Err(SandboxError::invalid_input("connection.organization_id", "is needed with a JWT"));
        }
        Ok(Access {
            api_url: api_url.trim_end_matches('/').to_owned(),
            token,
            organization: organization.filter(|_| is_jwt),
            target: self.target.clone().or_else(|| variable("DAYTONA_TARGET")),
        })
    }
}

/// Seconds of a setting that was validated.
pub(crate) fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use sandbox_core::{ErrorKind, from_json};
    use serde_json::json;

    use super::DaytonaConfig;

    #[test]
    fn every_bad_setting_is_refused_with_its_key() {
        for (value, key) in [
            (json!({"conection": {}}), "conection"),
            (json!({"connection": {"apikey": "x"}}), "connection.apikey"),
            (json!({"connection": {"api_url": "app.daytona.io"}}), "connection.api_url"),
            (json!({"connection": {"toolbox_url": "ftp://x"}}), "connection.toolbox_url"),
            (json!({"connection": {"connection_pool_maxsize": 0}}), "connection.connection_pool_maxsize"),
            (json!({"create": {"timeout_s": 0}}), "create.timeout_s"),
            (json!({"create": {"retries": 21}}), "create.retries"),
            (json!({"create": {"language": "go"}}), "create.language"),
            (json!({"create": {"network_allow_list": ["github.com"]}}), "create.network_allow_list"),
            (json!({"create": {"auto_stop_interval": -1}}), "create.auto_stop_interval"),
            (json!({"probe": {"deadline_s": -1.0}}), "probe.deadline_s"),
            (json!({"operations": {"job_folder": "/a b"}}), "operations.job_folder"),
            (json!({"operations": {"agent_path": "rel"}}), "operations.agent_path"),
            (json!({"operations": {"exec_mode": "ssh"}}), "operations.exec_mode.ssh"),
            (json!({"batch": {"concurrency": 0}}), "batch.concurrency"),
        ] {
            let error =
                from_json::<DaytonaConfig>(value, "config").and_then(|config| config.validate()).expect_err(key);
            assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(key)), "{error}");
        }
        from_json::<DaytonaConfig>(json!(null), "config").unwrap().validate().unwrap();
    }

    #[test]
    fn credentials_come_from_text_or_a_file_and_are_never_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "dtn_canary\n").unwrap();
        for key in [json!("dtn_canary"), json!({"file": file.path()})] {
            let config: DaytonaConfig = from_json(json!({"connection": {"api_key": key}}), "config").unwrap();
            let access = config.connection.access().unwrap();
            assert_eq!(access.token.expose(), "dtn_canary");
            assert!(!format!("{config:?} {access:?}").contains("canary"));
        }
        let jwt: DaytonaConfig = from_json(json!({"connection": {"jwt_token": "x"}}), "config").unwrap();
        assert_eq!(jwt.connection.access().unwrap_err().field(), Some("connection.organization_id"));
    }
}
