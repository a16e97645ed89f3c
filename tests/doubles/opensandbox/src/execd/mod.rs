//! The API of execd, for the machine that this runs on.

mod command;
mod env_file;
mod files;
mod metadata;
mod output;
mod pty;
mod pty_session;
mod search;
mod sessions;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hyper::Method;
use sandbox_process::ProcessSet;
use serde_json::{Value, json};

use crate::{
    Faults,
    http::{self, Answer, Request, Response, empty, failure},
    proxy,
};

pub(crate) use command::{parse_rfc3339, rfc3339};

/// The header by which this daemon says that it knows more than execd does.
pub(crate) const EXTENSIONS_HEADER: &str = "x-sandbox-execd";

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
    /// Whether it says and does what only this daemon can: exact bytes, exact endings, whole trees.
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
    pub(crate) options: ExecdOptions,
    pub(crate) set: ProcessSet,
    commands: Mutex<HashMap<String, Arc<command::Running>>>,
    sessions: Mutex<HashMap<String, sessions::Session>>,
    ptys: Mutex<HashMap<String, Arc<pty_session::PtySession>>>,
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
        sync::atomic::{AtomicU64, Ordering},
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

impl Execd {
    /// A daemon. Needs a tokio runtime.
    pub fn new(options: ExecdOptions) -> Arc<Self> {
        Arc::new(Self {
            options,
            set: ProcessSet::new(),
            commands: Mutex::default(),
            sessions: Mutex::default(),
            ptys: Mutex::default(),
            faults: Faults::default(),
            started: Mutex::default(),
        })
    }

    /// The bodies of every request that started a command, in order.
    pub fn started(&self) -> Vec<Value> {
        lock(&self.started).clone()
    }

    /// How many terminal sessions there are.
    pub fn pty_count(&self) -> usize {
        lock(&self.ptys).len()
    }

    pub(crate) async fn handle(self: Arc<Self>, request: Request) -> Answer {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let fault = self.faults.take(method.as_str(), &path);
        if let Some(answer) = fault.as_ref().and_then(crate::Fault::answer) {
            return answer;
        }
        match fault {
            Some(crate::Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(crate::Fault::DropAfter) => {
                drop(self.route(request, method, &path).await);
                return Err(http::Dropped);
            }
            Some(crate::Fault::Cut(bytes, broken)) => {
                return self
                    .route(request, method, &path)
                    .await
                    .map(|response| crate::control::cut(response, bytes, broken));
            }
            _ => {}
        }
        self.route(request, method, &path).await
    }

    async fn route(self: &Arc<Self>, request: Request, method: Method, path: &str) -> Answer {
        if let Some(rest) = path.strip_prefix("/proxy/") {
            return Ok(proxied(request, rest).await);
        }
        if let Some(token) = &self.options.token {
            let given = request.headers().get("x-execd-access-token").and_then(|value| value.to_str().ok());
            if given != Some(token) {
                return Ok(http::json(401, &json!({ "error": "Unauthorized: bad token" })));
            }
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let method = method.as_str();
        let response = match (method, parts.as_slice()) {
            ("GET", ["ping"]) => {
                let mut response = empty(200);
                if self.options.extensions {
                    response.headers_mut().insert(EXTENSIONS_HEADER, "1".parse().expect("a digit"));
                }
                response
            }
            ("POST", ["command"]) => return self.run_command(request).await,
            ("DELETE", ["command"]) => self.interrupt(&request).await,
            ("GET", ["command", "status", id]) => self.command_status(id),
            ("GET", ["command", id, "logs"]) => self.command_logs(id, &request),
            ("POST", ["session"]) => self.create_session(request).await,
            ("POST", ["session", id, "run"]) => return self.run_in_session(id, request).await,
            ("DELETE", ["session", id]) => self.delete_session(id),
            ("GET", ["metrics"]) => metrics().await,
            ("POST", ["pty"]) => self.create_pty(request).await,
            ("GET", ["pty", id, "ws"]) => self.attach_pty(id, request).await,
            ("GET", ["pty", id]) => self.pty_status(id),
            ("DELETE", ["pty", id]) => self.delete_pty(id),
            (_, ["files" | "directories", ..]) => self.file_request(request, method, &parts).await,
            _ => http::full(404, Some("text/plain"), "404 page not found"),
        };
        Ok(response)
    }

    pub(crate) fn note_start(&self, body: &Value) {
        lock(&self.started).push(body.clone());
    }
}

async fn proxied(request: Request, rest: &str) -> Response {
    let (port, path) = rest.split_once('/').unwrap_or((rest, ""));
    let Ok(port) = port.parse() else { return failure(400, "INVALID_REQUEST_BODY", "no port") };
    match proxy::forward(request, port, &format!("/{path}"), &[]).await {
        Ok(Ok(response)) => response,
        _ => failure(502, "UNKNOWN", "the port cannot be reached"),
    }
}

/// So long the processors are watched.
const WATCHED: std::time::Duration = std::time::Duration::from_millis(250);

/// What all processors have done so far: ticks at work, and all ticks.
fn ticks() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = first.take(8).map(|number| number.parse().unwrap_or_default()).collect();
    // The fourth and fifth are those of idleness, and of waiting for disks.
    let all: u64 = ticks.iter().sum();
    (all - ticks.iter().skip(3).take(2).sum::<u64>(), all)
}

/// Figures of the whole machine, as those of the real one are.
async fn metrics() -> Response {
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| -> f64 {
        let line = memory.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    };
    let (total, free) = (kib("MemTotal:") / 1024.0, kib("MemAvailable:") / 1024.0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let before = ticks();
    tokio::time::sleep(WATCHED).await;
    let after = ticks();
    let (busy, all) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1).max(1));
    let used = (100.0 * busy as f64 / all as f64).min(100.0);
    http::json(
        200,
        &json!({ "cpu_count": cores, "cpu_used_pct": used, "mem_total_mib": total, "mem_used_mib": total - free,
                 "timestamp": now_ms() }),
    )
}
