//! How sandboxes are made, and what a new one must answer.

use std::time::Duration;

use sandbox_core::Result;
use serde::Deserialize;

use super::{check_count, check_option, check_pause, check_time, invalid, seconds};

/// How sandboxes are made.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct CreateConfig {
    /// How often a create is tried again. 0 to 100; default 2.
    pub retries: u32,
    /// Seconds before the first repetition; they grow from there. Default: 5.
    pub retry_delay_s: f64,
    /// The longest pause between two, in seconds. Default: 60.
    pub retry_max_delay_s: f64,
    /// Longest time for one try, in seconds. Default: `request_timeout_s` of this section and 60 more.
    pub timeout_s: Option<f64>,
    /// Longest time for the answer of the server to the request itself, in seconds; some servers answer when the sandbox
    /// runs. Default: 300.
    pub request_timeout_s: Option<f64>,
    /// Seconds until a new sandbox must answer, where the spec has no `ready_timeout_s`. Default: 30.
    pub ready_timeout_s: f64,
    /// What the server shall do about the image: `IfNotPresent`, `Always`, `Never`; `null` says nothing. Kubernetes servers
    /// with an extension for it only; others ignore it. Default: `IfNotPresent`.
    pub image_pull_policy: Option<ImagePullPolicy>,
    /// Hand sandboxes out before their daemon answers. Default: false.
    pub skip_health_check: bool,
    /// Longest time for one try to reach a new sandbox, in seconds. Default: 30.
    pub connect_attempt_timeout_s: f64,
    /// Seconds between two such tries, and between two looks at a state. Default: 2.
    pub connect_poll_s: f64,
    /// Seconds between two renewals of the expiry of the sandboxes that this process made; below `ttl_s` of the spec,
    /// which must be given then. Default: none, nothing is renewed.
    pub renew_interval_s: Option<f64>,
    /// The image of specs that name none. Default: none, an image must be given.
    pub default_image: Option<String>,
}

/// What to do about an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum ImagePullPolicy {
    /// Pull it if it is not there.
    IfNotPresent,
    /// Always pull it.
    Always,
    /// Never pull it.
    Never,
}

impl ImagePullPolicy {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::IfNotPresent => "IfNotPresent",
            Self::Always => "Always",
            Self::Never => "Never",
        }
    }
}

impl Default for CreateConfig {
    fn default() -> Self {
        Self {
            retries: 2,
            retry_delay_s: 5.0,
            retry_max_delay_s: 60.0,
            timeout_s: None,
            request_timeout_s: None,
            ready_timeout_s: 30.0,
            image_pull_policy: Some(ImagePullPolicy::IfNotPresent),
            skip_health_check: false,
            connect_attempt_timeout_s: 30.0,
            connect_poll_s: 2.0,
            renew_interval_s: None,
            default_image: None,
        }
    }
}

impl CreateConfig {
    pub(crate) fn request_timeout(&self) -> Duration {
        seconds(self.request_timeout_s.unwrap_or(300.0))
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout_s.map_or_else(|| self.request_timeout() + Duration::from_secs(60), seconds)
    }

    pub(super) fn validate(&self) -> Result<()> {
        check_count("create.retries", self.retries, 0..=100)?;
        check_pause("create.retry_delay_s", self.retry_delay_s)?;
        check_pause("create.retry_max_delay_s", self.retry_max_delay_s)?;
        check_option("create.timeout_s", self.timeout_s)?;
        check_option("create.request_timeout_s", self.request_timeout_s)?;
        check_time("create.ready_timeout_s", self.ready_timeout_s)?;
        check_time("create.connect_attempt_timeout_s", self.connect_attempt_timeout_s)?;
        check_time("create.connect_poll_s", self.connect_poll_s)?;
        check_option("create.renew_interval_s", self.renew_interval_s)?;
        if self
            .default_image
            .as_deref()
            .is_some_and(|image| image.trim().is_empty() || image.contains(char::is_whitespace))
        {
            return Err(invalid("create.default_image", "must not be blank and must not contain blanks"));
        }
        Ok(())
    }
}

/// What a new sandbox must answer before it is handed out.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ProbeConfig {
    /// A script that must end with 0; `null`: nothing is tried. Default: `printf sandbox-ready`.
    pub command: Option<String>,
    /// What its output must hold. Default: `sandbox-ready`.
    pub expected_stdout: Option<String>,
    /// Longest time for one run, in seconds. Default: 30.
    pub timeout_s: f64,
    /// Longest time for all of it, in seconds. Default: `timeout_s`.
    pub deadline_s: Option<f64>,
    /// How often it must succeed in a row. 1 to 100; default 1.
    pub stable_count: u32,
    /// Seconds between two runs that succeed. Default: 0.
    pub stable_delay_s: f64,
    /// Who runs it. Default: whoever runs the commands of the sandbox.
    pub user: Option<String>,
}

impl Default for ProbeConfig {
    fn default() -> Self {
        Self {
            command: Some("printf sandbox-ready".to_owned()),
            expected_stdout: Some("sandbox-ready".to_owned()),
            timeout_s: 30.0,
            deadline_s: None,
            stable_count: 1,
            stable_delay_s: 0.0,
            user: None,
        }
    }
}

impl ProbeConfig {
    pub(super) fn validate(&self) -> Result<()> {
        if self.command.as_deref().is_some_and(|command| command.trim().is_empty() || command.contains('\0')) {
            return Err(invalid("probe.command", "must be a script, or null for no probe"));
        }
        check_time("probe.timeout_s", self.timeout_s)?;
        check_option("probe.deadline_s", self.deadline_s)?;
        check_count("probe.stable_count", self.stable_count, 1..=100)?;
        check_pause("probe.stable_delay_s", self.stable_delay_s)?;
        if self.user.as_deref().is_some_and(|user| user.trim().is_empty()) {
            return Err(invalid("probe.user", "must not be blank"));
        }
        Ok(())
    }
}
