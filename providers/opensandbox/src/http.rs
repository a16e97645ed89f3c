//! The HTTP client: one request, or one with repetitions.

use std::{error::Error, time::Duration};

use bytes::Bytes;
use reqwest::{
    Client, Method, Response,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER},
    redirect::Policy,
};
use sandbox_core::{Result, SandboxError};
use serde_json::Value;
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    config::{ConnectionConfig, OnUnverified, Protocol, seconds},
    error::{Failure, NAME, Refusal},
    retry::{Backoff, Limiter, Operation, retry_after},
    starts::Starts,
};

/// So much of an answer that should be small is read.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;

/// Longest time for a connection to be made.
const CONNECT_WITHIN: Duration = Duration::from_secs(15);

/// The first pause where a server says 429 and not for how long.
const LIMITED_PAUSE: Duration = Duration::from_secs(1);

/// The client of one server and its sandboxes.
#[derive(Debug)]
pub(crate) struct Http {
    client: Client,
    permits: Semaphore,
    /// None where commands go to the sandboxes directly.
    starts: Option<Starts>,
    limiter: Limiter,
}

/// One call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
    /// For the answer, its body included.
    pub(crate) timeout: Duration,
}

impl Call {
    pub(crate) fn new(method: Method, url: impl Into<String>, headers: HeaderMap, timeout: Duration) -> Self {
        Self { method, url: url.into(), headers, body: None, timeout }
    }

    pub(crate) fn json(mut self, body: &Value) -> Self {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.body = Some(body.to_string().into());
        self
    }
}

/// The body of an answer, and its headers.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self, what: &str) -> Result<Value> {
        serde_json::from_slice(&self.body).map_err(|_| {
            SandboxError::internal(format!("{what}: the server answered something that is no JSON")).with_provider(NAME)
        })
    }
}

/// What went wrong, sorted by whether anything can have arrived.
pub(crate) fn sort(error: &reqwest::Error, time: Duration) -> Failure {
    // The innermost cause says most, and none of them holds a URL with secrets.
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let text = if error.source().is_some() { cause.to_string() } else { "the request failed".to_owned() };
    if error.is_connect() {
        Failure::NeverReached(text)
    } else if error.is_timeout() {
        Failure::TimedOut(time)
    } else if error.is_builder() {
        Failure::Refused(Refusal { status: 400, message: text, ..Refusal::default() })
    } else {
        Failure::Broke(text)
    }
}

impl Http {
    pub(crate) fn new(config: &ConnectionConfig) -> Result<Self> {
        // Another client of this process may have chosen already; both are good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let keep = seconds(config.keepalive_expiry_s);
        let pool = match config.disable_connection_pooling || keep.is_zero() {
            true => 0,
            false => config.max_keepalive_connections as usize,
        };
        let mut builder = Client::builder()
            .http1_only()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_WITHIN)
            .tcp_nodelay(true)
            .pool_idle_timeout(keep)
            .pool_max_idle_per_host(pool)
            .user_agent(concat!("sandbox-provider-opensandbox/", env!("CARGO_PKG_VERSION")));
        let failed = |error: reqwest::Error| {
            SandboxError::internal("the HTTP client cannot be made").with_source(error).with_provider(NAME)
        };
        let certificates = match &config.ca_file {
            None => Vec::new(),
            Some(file) => {
                let text = std::fs::read(file).map_err(|error| {
                    SandboxError::io(file, error).with_field("connection.ca_file").with_provider(NAME)
                })?;
                let none = || SandboxError::invalid_input("connection.ca_file", "holds no certificates (PEM)");
                let found = reqwest::Certificate::from_pem_bundle(&text).map_err(|error| none().with_source(error))?;
                if found.is_empty() {
                    return Err(none());
                }
                found
            }
        };
        let origin = config.origin()?;
        if origin.is_this_machine() {
            // A proxy of the environment's would hear the key, and has nothing to reach here.
            builder = builder.no_proxy();
        }
        builder = match (origin.protocol, config.on_unverified()) {
            // In the clear nothing of the system is asked for.
            (Protocol::Http, _) => builder.tls_certs_only(certificates),
            (Protocol::Https, OnUnverified::GoOn) => builder.tls_danger_accept_invalid_certs(true),
            (Protocol::Https, OnUnverified::Refuse) => builder.tls_certs_merge(certificates),
        };
        Ok(Self {
            client: builder.build().map_err(failed)?,
            permits: Semaphore::new(config.max_connections as usize),
            starts: config.use_server_proxy.then(Starts::new),
            limiter: Limiter::default(),
        })
    }

    /// The start of a command, which waits for its turn where it goes through the server.
    pub(crate) async fn start_in_turn(&self, call: &Call) -> Result<Response, Failure> {
        match &self.starts {
            Some(starts) => starts.turn(self.start(call, None)).await,
            None => self.start(call, None).await,
        }
    }

    /// One request; the answer says yes, and its body is still to come.
    pub(crate) async fn start(&self, call: &Call, body: Option<reqwest::Body>) -> Result<Response, Failure> {
        let mut request = self.client.request(call.method.clone(), &call.url).headers(call.headers.clone());
        if let Some(body) = body.or_else(|| call.body.clone().map(Into::into)) {
            request = request.body(body);
        }
        let response = tokio::time::timeout(call.timeout, request.send())
            .await
            .map_err(|_| Failure::TimedOut(call.timeout))?
            .map_err(|error| sort(&error, call.timeout))?;
        self.check(response, call.timeout).await
    }

    /// Turns an answer that says no into what it says.
    pub(crate) async fn check(&self, response: Response, timeout: Duration) -> Result<Response, Failure> {
        let status = response.status();
        if status.is_success() || status.as_u16() == 101 {
            return Ok(response);
        }
        let asked = response.headers().get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?));
        // A body that cannot be read makes the answer no other one.
        let body = tokio::time::timeout(timeout, read(response)).await.ok().and_then(Result::ok).unwrap_or_default();
        let refusal = Refusal::read(status.as_u16(), &body, asked);
        if refusal.status == 429 {
            self.limiter.hold(asked.unwrap_or(LIMITED_PAUSE));
        }
        Err(Failure::Refused(refusal))
    }

    /// One call, its answer read.
    async fn once(&self, call: &Call) -> Result<Answer, Failure> {
        let _permit = self.permits.acquire().await;
        let all = async {
            let response = self.start(call, None).await?;
            let headers = response.headers().clone();
            let body = read(response).await.map_err(|error| sort(&error, call.timeout))?;
            Ok(Answer { headers, body })
        };
        tokio::time::timeout(call.timeout, all).await.unwrap_or(Err(Failure::TimedOut(call.timeout)))
    }

    /// A call with repetitions, as far as its kind allows, until the deadline.
    pub(crate) async fn call(
        &self,
        call: &Call,
        operation: Operation,
        backoff: Backoff,
        deadline: Option<Instant>,
    ) -> Result<Answer, Failure> {
        let mut attempt = 0;
        loop {
            self.turn(deadline).await?;
            let mut this = call.clone();
            if let Some(deadline) = deadline {
                this.timeout = this.timeout.min(deadline.saturating_duration_since(Instant::now()));
            }
            let failure = match self.once(&this).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if attempt >= backoff.retries || !operation.repeats(&failure) {
                return Err(failure);
            }
            let asked = failure.refusal().and_then(|refusal| refusal.retry_after).unwrap_or_default();
            let pause = backoff.pause(attempt).max(asked);
            if deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
                return Err(failure);
            }
            tracing::debug!(attempt, status = failure.status(), "a call to the server is repeated");
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    /// Waits while the server has asked for a pause. Holds no permit meanwhile.
    pub(crate) async fn turn(&self, deadline: Option<Instant>) -> Result<(), Failure> {
        let Some(wait) = self.limiter.wait() else { return Ok(()) };
        if deadline.is_some_and(|deadline| Instant::now() + wait > deadline) {
            let message = "the server has asked for a pause that is longer than the time that is left".to_owned();
            let refusal = Refusal { status: 429, message, retry_after: Some(wait), ..Refusal::default() };
            return Err(Failure::Refused(refusal));
        }
        tokio::time::sleep(wait).await;
        Ok(())
    }
}

async fn read(mut response: Response) -> Result<Bytes, reqwest::Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > ANSWER_BYTES {
            body.extend_from_slice(&chunk[..ANSWER_BYTES - body.len()]);
            break;
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}
