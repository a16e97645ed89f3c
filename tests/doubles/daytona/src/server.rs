//! The HTTP server, and what every request passes.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Result;
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::{
    Fault, Recorded,
    access::{self, Grants, is_signed},
    change, control, events,
    fault::Faults,
    files, ports, process, pty,
    record::KEPT,
    sandboxes::{ORGANIZATION, Sandboxes, now},
    search, sessions, settings,
};

/// The key that the double takes.
pub const KEY: &str = "dtn_test_key";

/// The token of a user that the double takes, together with the organization `org-1`.
pub const JWT: &str = "the-token-of-a-user";

/// The largest JSON body that is read.
const MAX_JSON_BYTES: usize = 64 << 20;

#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) base: String,
    pub(crate) sandboxes: Sandboxes,
    pub(crate) counter: AtomicU64,
    pub(crate) grants: Grants,
    faults: std::sync::Mutex<Faults>,
    recorded: std::sync::Mutex<VecDeque<Recorded>>,
}

impl Shared {
    /// A number that was not given before.
    pub(crate) fn unique(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }
}

/// A running double.
pub struct Double {
    shared: Arc<Shared>,
    server: JoinHandle<()>,
}

impl Double {
    /// Starts one on a free port of the loopback.
    ///
    /// # Errors
    /// When nothing can be listened on.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await?;
        let base = format!("http://{}", listener.local_addr()?);
        let shared = Arc::new(Shared { base, ..Shared::default() });
        let app = Router::new()
            .nest(
                "/api",
                control::routes()
                    .merge(access::routes())
                    .merge(change::routes())
                    .merge(events::routes())
                    .merge(settings::routes()),
            )
            .nest(
                "/toolbox/{id}",
                process::routes()
                    .merge(files::routes())
                    .merge(ports::routes())
                    .merge(search::routes())
                    .merge(pty::routes())
                    .merge(sessions::routes())
                    .merge(settings::toolbox_routes()),
            )
            .route("/__fault", post(script_fault))
            .route("/__requests", get(recorded))
            .route("/__preview/{port}/{id}/{*rest}", get(access::preview))
            .layer(middleware::from_fn_with_state(shared.clone(), pass))
            .with_state(shared.clone());
        let server = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { shared, server })
    }

    /// `http://127.0.0.1:PORT`. The control plane is below `/api`.
    pub fn url(&self) -> &str {
        &self.shared.base
    }

    /// Lets something go wrong.
    pub fn fault(&self, fault: Fault) {
        self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner).add(fault);
    }

    /// How many faults are still to come.
    pub fn faults_left(&self) -> usize {
        self.shared.faults.lock().unwrap_or_else(PoisonError::into_inner).left()
    }

    /// The requests so far, oldest first.
    pub fn requests(&self) -> Vec<Recorded> {
        self.shared.recorded.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Lets destroyed sandboxes be asked for so long. Counts when it is called for the first time.
    pub fn linger(&self, how_long: Duration) {
        self.shared.sandboxes.linger(how_long);
    }

    /// Ids and states of the sandboxes that are not destroyed.
    pub async fn sandboxes(&self) -> Vec<(String, String)> {
        let mut living = Vec::new();
        for sandbox in self.shared.sandboxes.all().await {
            let shown = sandbox.shown().await;
            let state = shown.get("state").and_then(Value::as_str).unwrap_or_default();
            if state != "destroyed" {
                living.push((sandbox.id.clone(), state.to_owned()));
            }
        }
        living
    }

    /// Ends every sandbox and the server.
    pub async fn stop(self) {
        for sandbox in self.shared.sandboxes.all().await {
            sandbox.end().await;
        }
        self.server.abort();
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn script_fault(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    match serde_json::from_slice(&body) {
        Ok(fault) => {
            shared.faults.lock().unwrap_or_else(PoisonError::into_inner).add(fault);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(error) => (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    }
}

async fn recorded(State(shared): State<Arc<Shared>>) -> Response {
    let all = shared.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone();
    axum::Json(all).into_response()
}

/// What the control plane says of a failure.
pub(crate) fn api_error(status: u16, message: &str) -> Response {
    let body = json!({"path": "/api", "timestamp": now(), "statusCode": status, "error": "Error", "message": message});
    (StatusCode::from_u16(status).unwrap_or_default(), axum::Json(body)).into_response()
}

/// What the toolbox says of a failure.
pub(crate) fn tool_error(status: u16, code: &str, message: &str) -> Response {
    let body = json!({"statusCode": status, "message": message, "code": code, "source": "DAYTONA_DAEMON", "timestamp": now(), "path": "/", "method": ""});
    (StatusCode::from_u16(status).unwrap_or_default(), axum::Json(body)).into_response()
}

/// Whether this lets its bearer in: a key is of one organization, a user says for which he comes.
pub(crate) fn is_credential(credential: &str, organization: Option<&str>) -> bool {
    credential == KEY || credential == JWT && organization == Some(ORGANIZATION)
}

/// Ends the connection without an answer.
fn hang_up() -> ! {
    std::panic::resume_unwind(Box::new("the connection was ended on purpose"))
}

async fn pass(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    if path.starts_with("/__") {
        return next.run(request).await;
    }
    let method = request.method().to_string();
    let is_json = header(request.headers(), "content-type").starts_with("application/json");
    let authorization = header(request.headers(), "authorization").to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let headers = headers(request.headers());
    let (request, json) = if is_json { with_json(request).await } else { (request, None) };
    let record = |status: Option<u16>| {
        let query = pairs(&query);
        let entry = Recorded {
            method: method.clone(),
            path: generic(&path),
            query,
            headers: headers.clone(),
            json: json.clone(),
            status,
        };
        let mut all = shared.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() == KEPT {
            all.pop_front();
        }
        all.push_back(entry);
    };
    let fault = shared.faults.lock().unwrap_or_else(PoisonError::into_inner).hit(&method, &path);
    if let Some(fault) = &fault {
        tokio::time::sleep(Duration::from_millis(fault.delay_ms)).await;
        if fault.drop_before {
            record(None);
            hang_up();
        }
        if let Some(status) = fault.status {
            record(Some(status));
            return scripted(fault, status);
        }
    }
    // Who listens to events says who he is when he is connected.
    let is_open = path.starts_with("/api/socket.io");
    let credential = authorization.strip_prefix("Bearer ").unwrap_or_default();
    let organization = headers.get("x-daytona-organization-id").map(String::as_str);
    let is_let_in =
        is_open || is_credential(credential, organization) || is_signed(&shared, &method, &path, &query).await;
    if !is_let_in {
        record(Some(401));
        return if path.starts_with("/api") {
            api_error(401, "Invalid credentials")
        } else {
            tool_error(401, "UNAUTHORIZED", "unauthorized: authentication failed: Bearer token is invalid")
        };
    }
    let response = next.run(request).await;
    match fault {
        Some(fault) if fault.drop_after => {
            record(None);
            hang_up()
        }
        Some(fault) if fault.truncate => {
            record(Some(response.status().as_u16()));
            broken_off(response).await
        }
        _ => {
            record(Some(response.status().as_u16()));
            response
        }
    }
}

fn scripted(fault: &Fault, status: u16) -> Response {
    let mut response =
        (StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY), fault.body.clone()).into_response();
    for (name, value) in &fault.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name.as_str()), HeaderValue::from_str(value)) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

/// The first half of the body, and then the end of the connection.
async fn broken_off(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    let bytes = to_bytes(body, MAX_JSON_BYTES).await.unwrap_or_default();
    parts.headers.remove("content-length");
    let half = bytes.slice(..bytes.len() / 2);
    let failing = stream::iter([Ok(half)]).chain(stream::iter([Err(std::io::Error::other("broken off"))]));
    Response::from_parts(parts, Body::from_stream(failing))
}

async fn with_json(request: Request) -> (Request, Option<Value>) {
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, MAX_JSON_BYTES).await.unwrap_or_default();
    let json = serde_json::from_slice(&bytes).ok();
    (Request::from_parts(parts, Body::from(bytes)), json)
}

pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn headers(headers: &HeaderMap) -> BTreeMap<String, String> {
    let text = |name: &HeaderName, value: &HeaderValue| match name.as_str() {
        "authorization" => "Bearer <redacted>".to_owned(),
        _ => value.to_str().unwrap_or_default().to_owned(),
    };
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(name, value))).collect()
}

/// The path with `{sandboxId}` in the place of the second part.
fn generic(path: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    let place = match parts.get(1) {
        Some(&"toolbox") => 2,
        Some(&"api") => 3,
        _ => return path.to_owned(),
    };
    if parts.get(place).is_some_and(|part| part.len() == 36) {
        parts[place] = "{sandboxId}";
    }
    parts.join("/")
}

pub(crate) fn pairs(query: &str) -> Vec<(String, String)> {
    let uri = format!("/?{query}").parse::<axum::http::Uri>().unwrap_or_default();
    axum::extract::Query::<Vec<(String, String)>>::try_from_uri(&uri).map(|query| query.0).unwrap_or_default()
}
