//! The daemon inside a sandbox: where it is, and what it is asked.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use reqwest::{
    Method, Response,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use sandbox_core::{Admitted, ErrorKind, Result, SandboxEndpoint, SandboxError, SandboxStatus};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    error::{Failure, NAME},
    http::{Answer, Call},
    retry::{Backoff, Operation},
    shared::{Shared, paused},
};

/// Where the daemon listens inside.
pub(crate) const PORT: u16 = 44772;

/// The header by which a daemon of ours says that it knows more than execd does.
const EXTENSIONS_HEADER: &str = "x-sandbox-execd";

/// The header by which it says that it speaks the agent's own protocol.
const NATIVE_HEADER: &str = "x-sandbox-agent";

/// What a daemon that cannot be reached is looked into with.
pub(crate) const DIAGNOSIS_WITHIN: Duration = Duration::from_secs(5);

/// An address inside a sandbox, and the headers that it wants.
#[derive(Debug)]
pub(crate) struct Target {
    /// Without a slash at the end.
    pub(crate) base: String,
    pub(crate) headers: HeaderMap,
}

/// How output comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// One event a line, without its end.
    Lines,
    /// As it was written.
    Exact,
}

/// What a daemon is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Ours: exact bytes, exact endings.
    pub(crate) extensions: bool,
    /// Ours: the agent's own protocol.
    pub(crate) native: bool,
    /// Whether it takes `argv`.
    pub(crate) argv: bool,
    pub(crate) dialect: Dialect,
}

/// What a daemon says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pong {
    /// It knows more than execd does.
    pub(crate) extensions: bool,
    /// It speaks the agent's own protocol.
    pub(crate) native: bool,
}

/// The daemon of one sandbox.
#[derive(Debug)]
pub(crate) struct Daemon<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) id: String,
    target: Arc<Target>,
}

impl Shared {
    /// Where a port of a sandbox is.
    pub(crate) async fn resolve(&self, id: &str, port: u16) -> Result<Target> {
        let through_server = self.config.connection.use_server_proxy;
        let described = self.endpoint_of(id, port, through_server).await?;
        let mut headers = HeaderMap::new();
        for (name, value) in &described.headers {
            let bad = |_| SandboxError::internal(format!("the server gave a header {name:?} that is none"));
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad(()))?;
            let value = HeaderValue::from_str(value).map_err(|_| bad(()))?;
            headers.insert(name, value);
        }
        // The server's key goes to the server only: what is inside is not trusted.
        if through_server {
            headers.extend(self.key_headers());
        }
        if let Some(token) = self.config.connection.execd_access_token.as_ref().filter(|_| port == PORT)
            && let Ok(mut value) = HeaderValue::from_str(token.expose())
        {
            value.set_sensitive(true);
            headers.insert("X-EXECD-ACCESS-TOKEN", value);
        }
        Ok(Target { base: described.endpoint.trim_end_matches('/').to_owned(), headers })
    }

    /// What the server says of a port: an absolute URL, and headers of the sandbox's own.
    pub(crate) async fn endpoint_of(&self, id: &str, port: u16, through_server: bool) -> Result<SandboxEndpoint> {
        let what = format!("the address of port {port} of sandbox {id}");
        let path = format!("/sandboxes/{}/endpoints/{port}?use_server_proxy={through_server}", segment(id));
        let answer = self.control(&self.control_call(Method::GET, &path), Operation::Idempotent).await;
        let value = answer.map_err(|failure| failure.error(&what))?.json(&what)?;
        let text = value["endpoint"].as_str().unwrap_or_default().trim();
        if text.is_empty() {
            return Err(SandboxError::internal(format!("{what}: the server gave none")).with_provider(NAME));
        }
        let url = match text.contains("://") {
            true => text.to_owned(),
            false => format!("{}://{text}", self.config.connection.origin()?.protocol.as_str()),
        };
        let given = value["headers"].as_object().into_iter().flatten();
        let headers: BTreeMap<String, String> =
            given.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
        SandboxEndpoint::new(url, headers)
    }
}

/// A part of a path.
pub(crate) fn segment(text: &str) -> String {
    encode(text, b"-_.~")
}

/// A value of a query.
pub(crate) fn query(text: &str) -> String {
    encode(text, b"-_.~/")
}

fn encode(text: &str, plain: &[u8]) -> String {
    use std::fmt::Write;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || plain.contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

impl<'a> Daemon<'a> {
    pub(crate) fn new(shared: &'a Shared, id: &str, target: Arc<Target>) -> Self {
        Self { shared, id: id.to_owned(), target }
    }

    pub(crate) fn call(&self, method: Method, path: &str) -> Call {
        let timeout = self.shared.config.connection.request_timeout();
        Call::new(method, format!("{}{path}", self.target.base), self.target.headers.clone(), timeout)
    }

    /// A call with its repetitions. A failure is as the daemon, or what is in front of it, said it.
    pub(crate) async fn ask(&self, call: &Call, operation: Operation) -> Result<Answer, Failure> {
        let backoff = match operation {
            Operation::Once => self.shared.once_backoff(),
            _ => self.shared.operation_backoff(),
        };
        self.ask_with(call, operation, backoff, None).await
    }

    pub(crate) async fn ask_with(
        &self,
        call: &Call,
        operation: Operation,
        backoff: Backoff,
        deadline: Option<Instant>,
    ) -> Result<Answer, Failure> {
        self.shared.http.call(call, operation, backoff, deadline).await
    }

    /// Why something did not work: where the daemon cannot be reached, the server is asked what became of the sandbox.
    pub(crate) async fn explain(&self, failure: Failure, what: &str) -> SandboxError {
        let is_silent = match &failure {
            Failure::Refused(refusal) => refusal.status >= 500 || refusal.is_gone() || refusal.code.is_empty(),
            _ => true,
        };
        let error = failure.error(what);
        if !is_silent || error.kind() == ErrorKind::Unauthorized {
            return error;
        }
        self.shared.forget_target(&self.id);
        let fate = tokio::time::timeout(DIAGNOSIS_WITHIN, self.shared.look(&self.id)).await;
        match fate {
            Ok(Ok(seen)) => seen.explain(&self.id, error),
            _ => error,
        }
    }

    /// Whether the daemon answers, and whether it is one of ours. Asked once.
    pub(crate) async fn ping(&self, timeout: Duration) -> Result<Pong, Failure> {
        let none = Backoff { retries: 0, delay: Duration::ZERO, max: Duration::ZERO };
        self.ping_with(timeout, none).await
    }

    /// The same, asked again while it is not there yet.
    pub(crate) async fn ping_with(&self, timeout: Duration, backoff: Backoff) -> Result<Pong, Failure> {
        let mut call = self.call(Method::GET, "/ping");
        call.timeout = timeout;
        let answer = self.ask_with(&call, Operation::Idempotent, backoff, None).await?;
        let has = |name| answer.headers.contains_key(name);
        Ok(Pong { extensions: has(EXTENSIONS_HEADER), native: has(NATIVE_HEADER) })
    }

    /// Starts a command; its events are in the answer's body. Repeated only when it has surely not arrived.
    pub(crate) async fn start_command(&self, order: &Value, deadline: Duration) -> Result<Response, Failure> {
        let mut call = self.call(Method::POST, "/command").json(order);
        call.timeout = deadline;
        let operations = &self.shared.config.operations;
        let backoff = Backoff {
            retries: operations.command_retries,
            delay: Duration::from_millis(250),
            max: Duration::from_secs(2),
        };
        let end = Instant::now() + deadline;
        let mut attempt = 0;
        loop {
            self.shared.http.turn(Some(end)).await?;
            let failure = match self.shared.http.start_in_turn(&call).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            let pause = backoff.pause(attempt);
            if attempt >= backoff.retries || !Operation::Once.repeats(&failure) || Instant::now() + pause >= end {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    /// Ends a command: at once where the daemon can, else as it does it.
    pub(crate) async fn interrupt(&self, command_id: &str, at_once: bool) -> Result<(), Failure> {
        let now = if at_once { "&now=1" } else { "" };
        let mut call = self.call(Method::DELETE, &format!("/command?id={}{now}", query(command_id)));
        call.timeout = call.timeout.min(Duration::from_secs(20));
        match self.ask(&call, Operation::Idempotent).await {
            // It is over already.
            Err(Failure::Refused(refusal)) if refusal.code == "RUNTIME_ERROR" => Ok(()),
            other => other.map(drop),
        }
    }

    /// A whole small file.
    pub(crate) async fn read_small(&self, path: &str) -> Result<Bytes, Failure> {
        let call = self.call(Method::GET, &format!("/files/download?path={}", query(path)));
        self.ask(&call, Operation::Idempotent).await.map(|answer| answer.body)
    }

    /// What a path is; none when there is nothing.
    pub(crate) async fn info(&self, path: &str) -> Result<Option<Value>, Failure> {
        let call = self.call(Method::GET, &format!("/files/info?path={}", query(path)));
        match self.ask(&call, Operation::Idempotent).await {
            Ok(answer) => {
                let all: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
                Ok(all.as_object().and_then(|all| all.values().next()).cloned())
            }
            Err(failure) if failure.status() == 404 && !failure.refusal().is_some_and(|one| one.is_gone()) => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

/// What the server says of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) status: SandboxStatus,
    /// The server's own word.
    pub(crate) state: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// All of it; null when it is gone.
    pub(crate) described: Value,
}

impl Seen {
    /// The error of a call, in the light of what became of the sandbox.
    pub(crate) fn explain(&self, id: &str, error: SandboxError) -> SandboxError {
        let why = [&self.reason, &self.message];
        let why: Vec<&str> = why.into_iter().map(String::as_str).filter(|text| !text.is_empty()).collect();
        let why = if why.is_empty() { String::new() } else { format!(": {}", crate::error::short(&why.join(": "))) };
        let is_oom = ["OOMKilled", "out of memory", "OutOfMemory"].iter().any(|word| why.contains(word));
        let lost = error.kind() == ErrorKind::Lost;
        let admitted = error.admitted().unwrap_or(Admitted::Unknown);
        let dead = |text: String| match lost {
            true => SandboxError::lost(text, admitted),
            false => SandboxError::not_found(text),
        };
        let told = match self.status {
            SandboxStatus::Stopped if self.described.is_null() => {
                dead(format!("sandbox {id} is gone: it was closed, or has expired"))
            }
            SandboxStatus::Stopped | SandboxStatus::Error if is_oom => {
                dead(format!("sandbox {id} was killed for memory{why}"))
                    .with_help("give it more with resources.memory_mib")
            }
            SandboxStatus::Stopped | SandboxStatus::Error => dead(format!("sandbox {id} has ended{why}")),
            SandboxStatus::Paused => paused(id),
            _ => return error,
        };
        told.with_provider(NAME).with_source(error)
    }
}
