//! Requests to the service: one place for credentials, time limits, retries and rates.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use reqwest::{Method, RequestBuilder, Response};
use sandbox_core::{Result, SandboxError, Secret, is_loopback_host, tracing};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    config::{Access, DaytonaConfig, seconds},
    error::{Failure, NAME, Refusal},
    gate::{Gate, Throttle, retry_after},
    random::jitter,
};

/// Connections that were idle for longer are not used again: the service may be closing them at that very moment.
const IDLE: Duration = Duration::from_millis(1500);

const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// The largest answer that is read whole.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// The version that the service is told: from 0.167.0 on it separates the streams of sessions.
const SDK_VERSION: &str = "0.226.1";

/// What may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// The same request again does the same: all that passes is tried again.
    Repeatable,
    /// Only what was never sent.
    Unsent,
}

/// One request to make.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) query: Vec<(&'static str, String)>,
    pub(crate) body: Option<Value>,
    pub(crate) retry: Retry,
    pub(crate) throttle: Throttle,
    /// How long one attempt may take.
    pub(crate) attempt: Duration,
    /// When all of them must be over.
    pub(crate) deadline: Instant,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
}

impl Answer {
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.bytes).map_err(|_| Failure::Broken("the answer is not what was expected".into()))
    }
}

/// How often and how far apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) retries: u32,
    pub(crate) first: Duration,
    pub(crate) longest: Duration,
}

impl Backoff {
    /// A random wait before the attempt of this number, from 0 on.
    pub(crate) fn wait(&self, attempt: u32) -> Duration {
        let most = self.first.saturating_mul(1 << attempt.min(16)).min(self.longest);
        most / 4 + jitter(most.mul_f64(0.75))
    }
}

pub(crate) struct Client {
    http: reqwest::Client,
    pub(crate) api: String,
    token: Secret,
    organization: Option<String>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) backoff: Backoff,
}

impl Client {
    pub(crate) fn new(config: &DaytonaConfig, access: &Access) -> Result<Self> {
        // Of this library's own copy; a second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut builder = reqwest::Client::builder();
        let api = reqwest::Url::parse(&access.api_url).ok();
        if api.as_ref().and_then(|url| url.host_str()).is_some_and(is_loopback_host) {
            // A proxy of the environment's would hear the credential, and has nothing to reach here.
            builder = builder.no_proxy();
        }
        let http = builder
            .connect_timeout(CONNECT_WITHIN)
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(config.connection.connection_pool_maxsize.unwrap_or(usize::MAX))
            // A redirect would take the credential elsewhere, to a login page at best.
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("sandbox-provider-daytona/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| SandboxError::internal(format!("no HTTP client: {}", error.without_url())))?;
        let operations = &config.operations;
        Ok(Self {
            http,
            api: access.api_url.clone(),
            token: access.token.clone(),
            organization: access.organization.clone(),
            gate: Arc::default(),
            backoff: Backoff {
                retries: operations.retries,
                first: seconds(operations.retry_delay_s),
                longest: seconds(operations.retry_max_delay_s),
            },
        })
    }

    /// A call to the control plane that may be repeated.
    pub(crate) fn api(&self, method: Method, path: &str, within: Duration) -> Call {
        let throttle = if method == Method::GET { Throttle::Other } else { Throttle::Lifecycle };
        Call {
            method,
            url: format!("{}{path}", self.api),
            query: Vec::new(),
            body: None,
            retry: Retry::Repeatable,
            throttle,
            attempt: within.min(Duration::from_secs(30)),
            deadline: Instant::now() + within,
        }
    }

    /// A request with what every request carries.
    pub(crate) fn request(&self, method: Method, url: &str) -> RequestBuilder {
        let request = self
            .http
            .request(method, url)
            .bearer_auth(self.token.expose())
            .header("X-Daytona-Source", "sandbox-rs")
            .header("X-Daytona-SDK-Version", SDK_VERSION);
        match &self.organization {
            Some(organization) => request.header("X-Daytona-Organization-ID", organization),
            None => request,
        }
    }

    /// Makes a request, again where that is right, and reads its answer.
    pub(crate) async fn call(&self, call: &Call) -> Result<Answer, Failure> {
        let mut attempt = 0;
        loop {
            let failure = match self.once(call).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let wait = match self.wait_before_next(call, &failure, attempt) {
                Some(wait) => wait,
                None => return Err(failure),
            };
            tracing::debug!(attempt, status = failure.status(), "a request is made again");
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    /// How long to wait before the request is made again; none where it is not.
    fn wait_before_next(&self, call: &Call, failure: &Failure, attempt: u32) -> Option<Duration> {
        let left = call.deadline.saturating_duration_since(Instant::now());
        // A refusal for the rate did nothing: it is made again as often as there is time, and the gate does the waiting.
        if failure.status() == Some(429) {
            return (!left.is_zero()).then_some(Duration::ZERO);
        }
        let may = match call.retry {
            Retry::Repeatable => failure.is_transient(),
            Retry::Unsent => matches!(failure, Failure::NotSent(_)),
        };
        let wait = self.backoff.wait(attempt);
        (may && attempt < self.backoff.retries && wait < left).then_some(wait)
    }

    async fn once(&self, call: &Call) -> Result<Answer, Failure> {
        self.gate.pass(call.throttle, call.deadline).await.map_err(Failure::Throttled)?;
        let within = call.attempt.min(call.deadline.saturating_duration_since(Instant::now()));
        let mut request = self.request(call.method.clone(), &call.url);
        if !call.query.is_empty() {
            request = request.query(&call.query);
        }
        if let Some(body) = &call.body {
            request = request.json(body);
        }
        let whole = async {
            let response = self.send(request, call.throttle).await?;
            Ok(Answer { bytes: read(response, MAX_ANSWER_BYTES).await? })
        };
        tokio::time::timeout(within, whole).await.map_err(|_| Failure::TimedOut)?
    }

    /// Sends a request and gives its answer unread, if it is a good one.
    pub(crate) async fn send(&self, request: RequestBuilder, throttle: Throttle) -> Result<Response, Failure> {
        let response = request.send().await.map_err(broken)?;
        let status = response.status().as_u16();
        self.gate.observe(throttle, status, response.headers(), self.backoff.first.max(Duration::from_secs(1)));
        if response.status().is_success() || status == 101 {
            return Ok(response);
        }
        let is_api = response.url().as_str().starts_with(&self.api);
        let after = retry_after(response.headers(), throttle);
        let bytes = read(response, 64 << 10).await.unwrap_or_default();
        let refusal = refusal(status, &bytes, is_api);
        match after.filter(|after| status == 429 && *after > Duration::from_secs(24 * 3600)) {
            Some(after) => Err(Failure::Throttled(after)),
            None => Err(Failure::Refused(refusal)),
        }
    }
}

/// Reads a body to its end, which must come.
async fn read(mut response: Response, limit: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(broken)? {
        if bytes.len() + chunk.len() > limit {
            return Err(Failure::Broken(format!("the answer has more than {limit} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// What a failure below HTTP is.
pub(crate) fn broken(error: reqwest::Error) -> Failure {
    let is_connect = error.is_connect();
    let is_timeout = error.is_timeout();
    // Without the URL: it may hold names of files.
    let text = innermost(&error.without_url());
    match (is_connect, is_timeout) {
        (true, _) => Failure::NotSent(text),
        (false, true) => Failure::TimedOut,
        (false, false) => Failure::Broken(text),
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

fn refusal(status: u16, body: &[u8], is_api: bool) -> Refusal {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |key: &str| match json.get(key) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => Some(parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("; ")),
        _ => None,
    };
    let code = text("code").or_else(|| text("error_code")).unwrap_or_default();
    // A body that is no JSON comes from something on the way.
    let message = text("message").or_else(|| text("error"));
    let message = message.or_else(|| json.is_null().then(|| "not from the service itself".to_owned()));
    Refusal { status, code, message: message.filter(|_| is_api || json.is_null()) }
}

/// Checks that the credential may go to the proxy that the service names.
///
/// # Errors
/// `Unauthorized`, naming the setting that allows it.
pub(crate) fn check_proxy(api: &str, proxy: &str) -> Result<String> {
    let refused = |why: &str| {
        SandboxError::unauthorized(format!("the toolbox's proxy is not trusted: {why}"))
            .with_provider(NAME)
            .with_help("name it in connection.toolbox_url")
    };
    let parse = |url: &str| reqwest::Url::parse(url).ok().filter(|url| url.has_host());
    let (Some(api), Some(url)) = (parse(api), parse(proxy)) else { return Err(refused("its address is no URL")) };
    if url.scheme() != api.scheme() && url.scheme() != "https" {
        return Err(refused("it is not encrypted"));
    }
    let (ours, theirs) = (api.host_str().unwrap_or_default(), url.host_str().unwrap_or_default());
    let service = "daytona.io";
    let is_below = |host: &str, parent: &str| host == parent || host.ends_with(&format!(".{parent}"));
    if is_below(theirs, ours) || is_below(ours, service) && is_below(theirs, service) {
        return Ok(proxy.trim_end_matches('/').to_owned());
    }
    Err(refused("it is on another domain than connection.api_url"))
}

#[cfg(test)]
mod tests {
    use super::{check_proxy, refusal};

    #[test]
    fn the_credential_goes_to_the_services_own_domain_only() {
        let good = [
            ("https://app.daytona.io/api", "https://proxy.app.daytona.io/toolbox"),
            ("https://app.daytona.io/api", "https://eu.daytona.io/toolbox/"),
            ("http://127.0.0.1:3000/api", "http://127.0.0.1:4000/toolbox"),
            ("https://box.example.com/api", "https://proxy.box.example.com"),
        ];
        for (api, proxy) in good {
            assert_eq!(check_proxy(api, proxy).unwrap(), proxy.trim_end_matches('/'));
        }
        for (api, proxy) in [
            ("https://app.daytona.io/api", "https://evil.io/toolbox"),
            ("https://app.daytona.io/api", "https://daytona.io.evil.io/toolbox"),
            ("https://app.daytona.io/api", "https://xdaytona.io/toolbox"),
            ("https://app.daytona.io/api", "http://proxy.app.daytona.io/toolbox"),
            ("https://box.example.com/api", "https://other.example.com"),
            ("https://app.daytona.io/api", ""),
        ] {
            assert!(check_proxy(api, proxy).is_err(), "{proxy}");
        }
    }

    #[test]
    fn messages_of_the_toolbox_are_not_repeated_and_those_of_the_control_plane_are() {
        let body = br#"{"statusCode":400,"message":["a","b"],"code":"BAD_REQUEST"}"#;
        assert_eq!(refusal(400, body, true).message.as_deref(), Some("a; b"));
        assert_eq!(refusal(400, body, false).message, None);
        assert_eq!(refusal(400, body, false).code, "BAD_REQUEST");
        assert!(refusal(502, b"<html>", false).message.is_some());
        assert_eq!(refusal(400, br#"{"error":"x"}"#, true).message.as_deref(), Some("x"));
    }

    #[test]
    fn defect_16_both_names_of_the_code_are_read_and_none_is_no_matter() {
        assert_eq!(refusal(404, br#"{"code":"FILE_NOT_FOUND"}"#, false).code, "FILE_NOT_FOUND");
        assert_eq!(refusal(404, br#"{"error_code":"OLD"}"#, false).code, "OLD");
        assert_eq!(refusal(404, b"{}", false).code, "");
    }
}
