//! How commands, files and everything after the create are done.

use sandbox_core::Result;
use serde::Deserialize;

use super::{check_count, check_pause, check_time};

/// How commands, files and everything after the create are done.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct OperationsConfig {
    /// How often a call that does nothing twice is tried again. 0 to 100; default 3.
    pub retries: u32,
    /// Seconds before the first repetition; they grow from there. Default: 1.
    pub retry_delay_s: f64,
    /// The longest pause between two, in seconds. Default: 15.
    pub retry_max_delay_s: f64,
    /// How often the start of a command is tried again when it has surely not reached the sandbox. 0 to 100; default 3.
    pub command_retries: u32,
    /// Longest time for a close, in seconds. Default: 30.
    pub close_timeout_s: f64,
    /// Longest time for a pause or a resume, in seconds. Default: 600.
    pub pause_resume_timeout_s: f64,
    /// Run commands in the background of the daemon and fetch their output by polling: exact bytes from any daemon, and no
    /// connection that must hold, but output that comes late. Default: false.
    pub background_exec: bool,
    /// Seconds before the first look at a command in the background. Default: 0.25.
    pub background_poll_initial_s: f64,
    /// The longest pause between two looks, in seconds. Default: 2.
    pub background_poll_interval_s: f64,
    /// Longest time for one look, in seconds. Default: 10.
    pub status_poll_timeout_s: f64,
    /// How the daemons send output: `lines` (June 2026: without line ends), `exact` (1.1), or `auto`: one command is asked
    /// of each new sandbox. Default: `auto`.
    pub output_dialect: OutputDialectSetting,
    /// Whether the agent's own protocol is used: `auto`, where the daemon is ours; `required`, which offers more and refuses
    /// sandboxes with another daemon; or `off`. With `background_exec`, `auto` leaves commands to the daemon. Default:
    /// `auto`.
    pub native: NativeSetting,
}

/// Whether the agent's own protocol is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NativeSetting {
    /// Where the daemon is ours.
    #[default]
    Auto,
    /// Always: a sandbox with another daemon is refused.
    Required,
    /// Never.
    Off,
}

/// How the daemons send output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputDialectSetting {
    /// Found out.
    #[default]
    Auto,
    /// One event a line.
    Lines,
    /// As it was written.
    Exact,
}

impl NativeSetting {
    /// The word of the settings.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Required => "required",
            Self::Off => "off",
        }
    }
}

impl Default for OperationsConfig {
    fn default() -> Self {
        Self {
            retries: 3,
            retry_delay_s: 1.0,
            retry_max_delay_s: 15.0,
            command_retries: 3,
            close_timeout_s: 30.0,
            pause_resume_timeout_s: 600.0,
            background_exec: false,
            background_poll_initial_s: 0.25,
            background_poll_interval_s: 2.0,
            status_poll_timeout_s: 10.0,
            output_dialect: OutputDialectSetting::Auto,
            native: NativeSetting::Auto,
        }
    }
}

impl OperationsConfig {
    pub(super) fn validate(&self) -> Result<()> {
        check_count("operations.retries", self.retries, 0..=100)?;
        check_pause("operations.retry_delay_s", self.retry_delay_s)?;
        check_pause("operations.retry_max_delay_s", self.retry_max_delay_s)?;
        check_count("operations.command_retries", self.command_retries, 0..=100)?;
        for (key, value) in [
            ("operations.close_timeout_s", self.close_timeout_s),
            ("operations.pause_resume_timeout_s", self.pause_resume_timeout_s),
            ("operations.background_poll_initial_s", self.background_poll_initial_s),
            ("operations.background_poll_interval_s", self.background_poll_interval_s),
            ("operations.status_poll_timeout_s", self.status_poll_timeout_s),
        ] {
            check_time(key, value)?;
        }
        Ok(())
    }
}
