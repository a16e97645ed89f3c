use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use sandbox_core::{Result, SandboxError, Secret};

/// How long one request to the collector may take, as the protocol's specification has it.
pub(super) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where spans and metrics go, and what they say of the program. What is not given here comes from the variables of the
/// specification of OpenTelemetry (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, …), else from its defaults.
#[derive(Clone, Debug, Default)]
pub struct OtlpOptions {
    pub(super) endpoint: Option<String>,
    pub(super) headers: BTreeMap<String, Secret>,
    pub(super) service_name: Option<String>,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) interval: Option<Duration>,
    pub(super) timeout: Option<Duration>,
}

impl OtlpOptions {
    /// The collector's URL without the path of a signal. Default `http://localhost:4318`.
    #[must_use]
    pub fn with_endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoint = Some(endpoint.into());
        self
    }

    /// A header of every request, such as a token.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: Secret) -> Self {
        self.headers.insert(name.into(), value);
        self
    }

    /// The program's name, as it is shown with its spans.
    #[must_use]
    pub fn with_service_name(mut self, name: impl Into<String>) -> Self {
        self.service_name = Some(name.into());
        self
    }

    /// Something that holds for everything that is sent, such as a run's id.
    #[must_use]
    pub fn with_attribute(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.insert(key.into(), value.into());
        self
    }

    /// How often metrics are sent. Default 60 s.
    #[must_use]
    pub fn with_interval(mut self, interval: Duration) -> Self {
        self.interval = Some(interval);
        self
    }

    /// How long one request may take. Default 10 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    pub(super) fn validate(&self) -> Result<()> {
        if let Some(endpoint) = &self.endpoint {
            let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            let authority = rest.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default());
            let is_plain = authority.is_some_and(|authority| !authority.is_empty() && !authority.contains('@'));
            if !is_plain || endpoint.contains(['?', '#']) || endpoint.contains(char::is_whitespace) {
                let message = "must be a URL such as http://localhost:4318, without user, query and fragment";
                return Err(SandboxError::invalid_input("endpoint", message)
                    .with_help("credentials belong into a header: with_header()"));
            }
        }
        for (name, value) in &self.headers {
            let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            if !is_name || !value.expose().bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
                return Err(SandboxError::invalid_input("header", "must be a name and printable characters of ASCII"));
            }
        }
        for (field, time) in [("interval", self.interval), ("timeout", self.timeout)] {
            if time.is_some_and(|time| time.is_zero()) {
                return Err(SandboxError::invalid_input(field, "must be above 0"));
            }
        }
        Ok(())
    }

    pub(super) fn exposed_headers(&self) -> HashMap<String, String> {
        self.headers.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect()
    }
}
