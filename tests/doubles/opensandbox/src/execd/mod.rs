//! A daemon of a test: the product's own (`sandbox-execd`) in a process, and in front of it what makes it fail, and what
//! makes it like an execd of others.

mod events;

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    process::Stdio,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, header::CONTENT_LENGTH};
use serde_json::Value;
use tokio::process::{Child, Command};

use crate::{
    Faults,
    http::{self, Answer, Request, Response, failure},
    program::execd_program,
    proxy,
};
use events::Adapter;

/// The headers by which the daemon says that it knows more than execd does.
const OWN_HEADERS: [&str; 2] = ["x-sandbox-execd", "x-sandbox-agent"];

/// How long the daemon may take to say where it listens, and to end.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// In which form output travels in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputDialect {
    /// As in June 2026: one event a line, without its end; an empty line is `"\n"`.
    Lines,
    /// As in 1.1: as it was written.
    Exact,
}

/// How the daemon behaves.
#[derive(Clone, Debug)]
pub struct ExecdOptions {
    /// What `X-EXECD-ACCESS-TOKEN` must hold.
    pub token: Option<String>,
    /// In which form output travels.
    pub dialect: OutputDialect,
    /// Whether `argv` is known (1.1).
    pub argv: bool,
    /// Whether events are wrapped as standard ones (`data: …`).
    pub standard_events: bool,
    /// Whether it says and does what only this daemon can: exact bytes, exact endings, whole trees, the agent's protocol.
    pub extensions: bool,
    /// Environment of every command.
    pub env: BTreeMap<String, String>,
}

impl Default for ExecdOptions {
    fn default() -> Self {
        Self {
            token: None,
            dialect: OutputDialect::Exact,
            argv: true,
            standard_events: false,
            extensions: true,
            env: BTreeMap::new(),
        }
    }
}

/// The daemon.
pub struct Execd {
    options: ExecdOptions,
    child: tokio::sync::Mutex<Child>,
    /// Where the process listens.
    port: u16,
    ptys: AtomicUsize,
    /// What goes wrong next.
    pub faults: Faults,
    /// Every command that was started, as the request had it.
    started: Mutex<Vec<Value>>,
}

impl std::fmt::Debug for Execd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Execd").field("options", &self.options).finish_non_exhaustive()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 32 hexadecimal digits that nobody else has.
pub(crate) fn new_id() -> String {
    use std::{
        hash::{BuildHasher, RandomState},
        sync::atomic::AtomicU64,
    };
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    let random = |salt: u64| RandomState::new().hash_one((count, salt, std::process::id()));
    format!("{:016x}{:016x}", random(1), random(2))
}

pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

/// The number that the daemon writes into a file when it listens.
pub(crate) async fn wait_for_port(file: &Path, child: &mut Child) -> io::Result<u16> {
    let end = Instant::now() + STARTS_WITHIN;
    loop {
        if let Some(port) = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()) {
            return Ok(port);
        }
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("the daemon ended at once: {status}")));
        }
        if Instant::now() > end {
            return Err(io::Error::other("the daemon did not start"));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

impl Execd {
    /// Starts a daemon whose commands are this machine's own.
    ///
    /// # Errors
    /// What the system says.
    pub async fn start(options: ExecdOptions) -> io::Result<Arc<Self>> {
        let folder = tempfile::Builder::new().prefix("opensandbox-double-").tempdir()?;
        let file = folder.path().join("port");
        let mut command = Command::new(execd_program());
        command.args(["--listen", "127.0.0.1:0", "--port-file"]).arg(&file).env_clear().envs(&options.env);
        if let Some(token) = &options.token {
            command.args(["--access-token", token]);
        }
        let mut child =
            command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true).spawn()?;
        let port = wait_for_port(&file, &mut child).await?;
        Ok(Arc::new(Self {
            options,
            child: tokio::sync::Mutex::new(child),
            port,
            ptys: AtomicUsize::new(0),
            faults: Faults::default(),
            started: Mutex::default(),
        }))
    }

    /// Ends it with all that it runs.
    pub(crate) async fn end(&self) {
        let mut child = self.child.lock().await;
        if let Some(pid) = child.id() {
            let _ = std::process::Command::new("kill").arg(pid.to_string()).stderr(Stdio::null()).status();
        }
        if tokio::time::timeout(ENDS_WITHIN, child.wait()).await.is_err() {
            let _ = child.start_kill();
        }
    }

    /// The bodies of every request that started a command, in order.
    pub fn started(&self) -> Vec<Value> {
        lock(&self.started).clone()
    }

    /// How many terminal sessions there are.
    pub fn pty_count(&self) -> usize {
        self.ptys.load(Ordering::Relaxed)
    }

    /// `own`: where this front listens.
    pub(crate) async fn handle(self: Arc<Self>, request: Request, own: u16) -> Answer {
        let path = request.uri().path();
        let itself = format!("/proxy/{own}");
        let path = path.strip_prefix(itself.as_str()).filter(|rest| rest.starts_with('/')).unwrap_or(path).to_owned();
        let fault = self.faults.take(request.method().as_str(), &path);
        if let Some(answer) = fault.as_ref().and_then(crate::Fault::answer) {
            return answer;
        }
        match fault {
            Some(crate::Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(crate::Fault::DropAfter) => {
                drop(self.pass_on(request, &path).await);
                return Err(http::Dropped);
            }
            Some(crate::Fault::Cut(bytes, broken)) => {
                return self.pass_on(request, &path).await.map(|response| crate::control::cut(response, bytes, broken));
            }
            _ => {}
        }
        self.pass_on(request, &path).await
    }

    async fn forward<B>(&self, request: hyper::Request<B>, path: &str) -> Answer
    where
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        match proxy::forward(request, self.port, path, &[]).await {
            Ok(answer) => answer,
            Err(error) => Ok(error.response()),
        }
    }

    async fn pass_on(&self, request: Request, path: &str) -> Answer {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        match (request.method(), parts.as_slice()) {
            (&Method::POST, ["command"] | ["session", _, "run"]) => self.run(request, path).await,
            (&Method::GET, ["sandbox-agent"]) if !self.options.extensions => {
                Ok(http::full(404, Some("text/plain"), "404 page not found"))
            }
            (&Method::GET, ["ping"]) => {
                let mut response = self.forward(request, path).await?;
                if !self.options.extensions {
                    OWN_HEADERS.iter().for_each(|name| drop(response.headers_mut().remove(*name)));
                }
                Ok(response)
            }
            (&Method::GET, ["command", "status", _]) if !self.options.extensions => {
                let (parts, body) = self.forward(request, path).await?.into_parts();
                let bytes = body.collect().await.map_err(|_| http::Dropped)?.to_bytes();
                let mut status: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                if let Some(status) = status.as_object_mut() {
                    status.remove("exit");
                }
                Ok(http::json(parts.status.as_u16(), &status))
            }
            (&Method::DELETE, ["command"]) if !self.options.extensions => {
                let mut request = request;
                let without = request.uri().to_string().replace("&now=1", "");
                *request.uri_mut() = without.parse().expect("it was a part of a URI");
                self.forward(request, path).await
            }
            (&Method::POST, ["pty"]) => {
                let response = self.forward(request, path).await?;
                self.ptys.fetch_add(usize::from(response.status() == 201), Ordering::Relaxed);
                Ok(response)
            }
            (&Method::DELETE, ["pty", _]) => {
                let response = self.forward(request, path).await?;
                self.ptys.fetch_sub(usize::from(response.status() == 200), Ordering::Relaxed);
                Ok(response)
            }
            _ => self.forward(request, path).await,
        }
    }

    /// A command, as this daemon knows it.
    async fn run(&self, request: Request, path: &str) -> Answer {
        let (mut head, body) = request.into_parts();
        let Some(bytes) = http::read_all(body).await else { return Err(http::Dropped) };
        let mut sent = bytes.clone();
        if let Ok(mut order) = serde_json::from_slice::<Value>(&bytes) {
            if !self.options.argv && order.get("argv").is_some() {
                let message = "Key: 'RunCommandRequest.Command' Error:Field validation for 'Command' failed";
                return Ok(failure(400, "INVALID_REQUEST_BODY", message));
            }
            lock(&self.started).push(order.clone());
            if let Some(order) = order.as_object_mut().filter(|_| !self.options.extensions) {
                ["bytes", "stdin_path", "gather_ms"].iter().for_each(|name| drop(order.remove(*name)));
                sent = serde_json::to_vec(order).expect("it was JSON").into();
            }
        }
        head.headers.insert(CONTENT_LENGTH, sent.len().into());
        let response = self.forward(hyper::Request::from_parts(head, Full::new(sent)), path).await?;
        Ok(self.adapt(response))
    }

    /// Events in the form of this daemon.
    fn adapt(&self, response: Response) -> Response {
        let is_own = self.options.dialect == OutputDialect::Exact && !self.options.standard_events;
        if response.status() != 200 || is_own && self.options.extensions {
            return response;
        }
        let (parts, mut body) = response.into_parts();
        let (sender, receiver) = tokio::sync::mpsc::channel(4);
        let mut adapter = Adapter::new(&self.options);
        tokio::spawn(async move {
            while let Some(frame) = body.frame().await {
                let piece = match frame {
                    Ok(frame) => Ok(adapter.push(&frame.into_data().unwrap_or_default())),
                    Err(error) => Err(error),
                };
                let is_broken = piece.is_err();
                if sender.send(piece).await.is_err() || is_broken {
                    return;
                }
            }
        });
        Response::from_parts(parts, http::body_of(receiver))
    }
}
