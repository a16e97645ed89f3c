//! The lifecycle API.

mod boxes;
mod routes;

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc},
};

use crate::{
    Execd, ExecdOptions, Faults,
    execd::lock,
    http::{self, Answer, Request, Response, Server, serve_with},
};
use boxes::{Box, Snapshot};

/// How the server behaves.
#[derive(Clone, Debug, Default)]
pub struct ControlOptions {
    /// What `OPEN-SANDBOX-API-KEY` must hold.
    pub api_key: Option<String>,
    /// Whether sandboxes are containers; else their commands are this process's own, in an [`Execd`] each.
    pub containers: bool,
    /// How the daemons behave.
    pub execd: ExecdOptions,
    /// States that a new sandbox goes through before it runs, one for each time that it is asked for.
    pub states_before_running: Vec<String>,
    /// Whether sandboxes get a new daemon when they are resumed, as on Kubernetes.
    pub new_daemon_on_resume: bool,
    /// Whether an expiry may only be moved forward, as in June 2026.
    pub only_extends: bool,
    /// States that a new snapshot goes through before it is ready, one for each time that it is told.
    pub states_before_ready: Vec<String>,
}

/// A call that came in.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Method.
    pub method: String,
    /// Path and query.
    pub path: String,
    /// Headers, names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Body, of calls to the server itself.
    pub body: Value,
}

/// A running server of the double.
#[derive(Debug)]
pub struct Control {
    pub(crate) inner: Arc<Inner>,
    server: Server,
}

pub(crate) struct Inner {
    pub(crate) options: ControlOptions,
    pub(crate) address: Mutex<Option<SocketAddr>>,
    pub(crate) boxes: Mutex<BTreeMap<String, Box>>,
    pub(crate) snapshots: Mutex<BTreeMap<String, Snapshot>>,
    pub(crate) faults: Faults,
    pub(crate) seen: Mutex<Vec<Seen>>,
    /// Calls that are under way, and the most that ever were.
    under_way: Mutex<(usize, usize)>,
    /// Told when streams are to break.
    pub(crate) breaks: Notify,
    /// Folders of named volumes.
    pub(crate) volumes: tempfile::TempDir,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Inner")
    }
}

impl Control {
    /// Starts a server on a free port of the loopback.
    ///
    /// # Errors
    /// What the socket says.
    pub async fn start(options: ControlOptions) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let inner = Arc::new(Inner {
            options,
            address: Mutex::new(Some(listener.local_addr()?)),
            boxes: Mutex::default(),
            snapshots: Mutex::default(),
            faults: Faults::default(),
            seen: Mutex::default(),
            under_way: Mutex::default(),
            breaks: Notify::new(),
            volumes: tempfile::Builder::new().prefix("opensandbox-double-").tempdir()?,
        });
        let handler = inner.clone();
        let server = serve_with(listener, move |request| {
            let inner = handler.clone();
            async move { inner.handle(request).await }
        })?;
        tokio::spawn(expire(Arc::downgrade(&inner)));
        Ok(Self { inner, server })
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        self.server.address.to_string()
    }

    /// What goes wrong next.
    pub fn faults(&self) -> &Faults {
        &self.inner.faults
    }

    /// Every call so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.inner.seen).clone()
    }

    /// How many connections have come so far.
    pub fn connections(&self) -> usize {
        self.server.connections()
    }

    /// The most calls that ever were under way at once.
    pub fn most_at_once(&self) -> usize {
        lock(&self.inner.under_way).1
    }

    /// Says from now on that sandboxes are reached through this address, where something passes on to the server.
    pub fn is_known_as(&self, address: SocketAddr) {
        *lock(&self.inner.address) = Some(address);
    }

    /// Breaks every WebSocket and every stream of events that goes through the server.
    pub fn break_streams(&self) {
        self.inner.breaks.notify_waiters();
    }

    /// The daemon of a sandbox, where sandboxes are no containers.
    pub fn execd(&self, id: &str) -> Option<Arc<Execd>> {
        lock(&self.inner.boxes).get(id)?.execd.clone()
    }

    /// The ids of all sandboxes.
    pub fn ids(&self) -> Vec<String> {
        lock(&self.inner.boxes).keys().cloned().collect()
    }

    /// What a sandbox was created with.
    pub fn created_with(&self, id: &str) -> Option<Value> {
        lock(&self.inner.boxes).get(id).map(|one| one.request.clone())
    }

    /// Says from now on that a sandbox is in this state, for this reason. Its daemon is not reachable unless it runs.
    pub fn set_state(&self, id: &str, state: &str, reason: &str, message: &str) {
        if let Some(one) = lock(&self.inner.boxes).get_mut(id) {
            one.set_state(state, reason, message);
        }
    }

    /// Ends everything.
    pub async fn end(self) {
        drop(self.server);
        let boxes = std::mem::take(&mut *lock(&self.inner.boxes));
        for one in boxes.into_values() {
            one.end().await;
        }
    }
}

/// Removes what has expired.
async fn expire(inner: std::sync::Weak<Inner>) {
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let Some(inner) = inner.upgrade() else { return };
        let now = crate::execd::now_ms();
        let past: Vec<Box> = {
            let mut boxes = lock(&inner.boxes);
            let past = boxes.iter().filter(|(_, one)| one.expires_at_ms.is_some_and(|at| at <= now));
            let ids: Vec<String> = past.map(|(id, _)| id.clone()).collect();
            ids.iter().filter_map(|id| boxes.remove(id)).collect()
        };
        for one in past {
            one.end().await;
        }
    }
}

/// How a body that is cut ends.
#[derive(Clone, Copy)]
enum Tail {
    /// As if it were whole.
    Whole,
    /// The connection breaks.
    Broken,
    /// Never.
    Open,
}

/// A response whose body ends after so many bytes: broken, or as if it were whole.
pub(crate) fn cut(response: Response, bytes: usize, broken: bool) -> Response {
    cut_with(response, bytes, if broken { Tail::Broken } else { Tail::Whole })
}

fn cut_with(response: Response, bytes: usize, tail: Tail) -> Response {
    let (mut parts, mut body) = response.into_parts();
    parts.headers.remove("content-length");
    let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(4);
    tokio::spawn(async move {
        let mut left = bytes;
        while left > 0 {
            let Some(Ok(frame)) = body.frame().await else { break };
            let Ok(data) = frame.into_data() else { continue };
            let piece = data.slice(..left.min(data.len()));
            left -= piece.len();
            if sender.send(Ok(piece)).await.is_err() {
                return;
            }
        }
        match tail {
            // One that was shorter is not cut.
            Tail::Broken if left > 0 => {}
            Tail::Whole => {}
            Tail::Broken => drop(sender.send(Err(io::Error::other("cut on purpose"))).await),
            Tail::Open => sender.closed().await,
        }
    });
    Response::from_parts(parts, http::body_of(receiver))
}

/// A call that is under way.
struct UnderWay(Arc<Inner>);

impl UnderWay {
    fn new(inner: &Arc<Inner>) -> Self {
        let mut under_way = lock(&inner.under_way);
        under_way.0 += 1;
        under_way.1 = under_way.1.max(under_way.0);
        Self(inner.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        lock(&self.0.under_way).0 -= 1;
    }
}

impl Inner {
    async fn handle(self: Arc<Self>, request: Request) -> Answer {
        let _under_way = UnderWay::new(&self);
        let method = request.method().as_str().to_owned();
        let path = request.uri().path().to_owned();
        let fault = self.faults.take(&method, &path);
        if let Some(answer) = fault.as_ref().and_then(crate::Fault::answer) {
            self.note(&request, Value::Null);
            return answer;
        }
        match fault {
            Some(crate::Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(crate::Fault::DropAfter) => {
                drop(self.route(request, &method, &path).await);
                return Err(http::Dropped);
            }
            Some(crate::Fault::Cut(bytes, broken)) => {
                return self.route(request, &method, &path).await.map(|response| cut(response, bytes, broken));
            }
            Some(crate::Fault::Stall(bytes)) => {
                return self.route(request, &method, &path).await.map(|response| cut_with(response, bytes, Tail::Open));
            }
            _ => {}
        }
        self.route(request, &method, &path).await
    }

    pub(crate) fn note(&self, request: &Request, body: Value) {
        let headers = request.headers().iter();
        let headers =
            headers.map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        let seen = Seen {
            method: request.method().to_string(),
            path: request.uri().to_string(),
            headers: headers.collect(),
            body,
        };
        lock(&self.seen).push(seen);
    }
}
