//! The daemon: what it holds, and which route does what.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hyper::{StatusCode, header::HeaderValue};
use sandbox_agent::LocalAgent;
use sandbox_core::ByteString;
use sandbox_protocol::Client;
use serde_json::json;

use crate::{
    command::Commands,
    environment, files, http,
    http::{Answer, Query, Refusal, Request, Response},
    native, proxy,
    pty::PtySession,
    session::Session,
};

/// The header by which this daemon says that it knows more than execd does: exact bytes, exact endings, whole trees.
const EXTENSIONS_HEADER: &str = "x-sandbox-execd";

/// What clients must show.
const TOKEN_HEADER: &str = "x-execd-access-token";

/// What the daemon is told.
pub(crate) struct Settings {
    /// Where it listens itself.
    pub(crate) port: u16,
    pub(crate) token: Option<String>,
    /// Variables for every command, read at its start.
    pub(crate) envs_file: PathBuf,
}

/// The daemon.
pub(crate) struct Execd {
    pub(crate) settings: Settings,
    pub(crate) agent: LocalAgent,
    /// To the agent, within this process.
    pub(crate) client: Client,
    pub(crate) commands: Commands,
    pub(crate) sessions: Mutex<HashMap<String, Arc<Session>>>,
    pub(crate) ptys: Mutex<HashMap<String, Arc<PtySession>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// 32 hexadecimal digits that nobody can guess.
pub(crate) fn new_id() -> String {
    use std::hash::{BuildHasher, RandomState};
    // Keyed by the system's random numbers, once for each.
    let random = |salt: u64| RandomState::new().hash_one(salt);
    format!("{:016x}{:016x}", random(1), random(2))
}

impl Execd {
    pub(crate) fn new(settings: Settings, agent: LocalAgent, client: Client) -> Arc<Self> {
        Arc::new(Self {
            settings,
            agent,
            client,
            commands: Commands::default(),
            sessions: Mutex::default(),
            ptys: Mutex::default(),
        })
    }

    pub(crate) async fn handle(self: Arc<Self>, request: Request) -> Response {
        let mut path = request.uri().path().to_owned();
        while let Some((port, rest)) = proxied(&path) {
            match port {
                // To itself it goes without a detour.
                Some(port) if port == self.settings.port => path = rest,
                Some(port) => return proxy::forward(request, port, &rest).await,
                None => return Refusal::bad("the port must be 1 to 65535").response(),
            }
        }
        self.own(request, &path).await
    }

    /// A request for this daemon itself.
    async fn own(self: Arc<Self>, request: Request, path: &str) -> Response {
        if !self.is_welcome(&request) {
            let refusal = json!({ "error": format!("Unauthorized: invalid or missing header {TOKEN_HEADER}") });
            return http::json(StatusCode::UNAUTHORIZED, &refusal);
        }
        self.route(request, path).await.unwrap_or_else(|refusal| refusal.response())
    }

    fn is_welcome(&self, request: &Request) -> bool {
        let Some(token) = &self.settings.token else { return true };
        let given = request.headers().get(TOKEN_HEADER).map(HeaderValue::as_bytes).unwrap_or_default();
        // Without telling by time where they differ.
        let differs = token.bytes().zip(given).fold(0, |differs, (a, b)| std::hint::black_box(differs | (a ^ b)));
        token.len() == given.len() && differs == 0
    }

    async fn route(self: &Arc<Self>, request: Request, path: &str) -> Answer {
        let method = request.method().clone();
        let parts: Vec<String> = path.trim_matches('/').split('/').map(|part| http::decode(part, false)).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match (method.as_str(), parts.as_slice()) {
            ("GET" | "HEAD", ["ping"]) => Ok(ping()),
            ("POST", ["command"]) => self.run_command(request).await,
            ("DELETE", ["command"]) => self.interrupt(&request).await,
            ("GET", ["command", "status", id]) => self.command_status(id).await,
            ("GET", ["command", id, "logs"]) => self.command_logs(id, &request).await,
            ("POST", ["session"]) => self.create_session(request).await,
            ("POST", ["session", id, "run"]) => self.run_in_session(id, request).await,
            ("DELETE", ["session", id]) => self.delete_session(id),
            ("GET", ["metrics"]) => self.metrics().await,
            ("GET", ["metrics", "watch"]) => Ok(self.watch_metrics()),
            ("POST", ["pty"]) => self.create_pty(request).await,
            ("GET", ["pty", id, "ws"]) => self.attach_pty(id, request).await,
            ("GET", ["pty", id]) => self.pty_status(id).await,
            ("DELETE", ["pty", id]) => self.delete_pty(id).await,
            ("GET", [native::ROUTE]) => self.native(request),
            (_, ["files" | "directories", ..]) => files::route(self, request, &method, &parts).await,
            (_, ["code", ..]) => Err(Refusal::new(
                StatusCode::NOT_IMPLEMENTED,
                "NOT_SUPPORTED",
                "this daemon has no code interpreter: run one as a command",
            )),
            _ => Ok(http::text(StatusCode::NOT_FOUND, "404 page not found")),
        }
    }
}

fn ping() -> Response {
    let mut response = http::ok();
    response.headers_mut().insert(EXTENSIONS_HEADER, HeaderValue::from_static("1"));
    response.headers_mut().insert(native::HEADER, HeaderValue::from_static(native::GENERATION));
    response
}

/// Port and path of a request that is for somebody else; no port where it is none.
fn proxied(path: &str) -> Option<(Option<u16>, String)> {
    let rest = path.strip_prefix("/proxy/")?;
    let (port, path) = rest.split_once('/').unwrap_or((rest, ""));
    Some((port.parse().ok().filter(|port| *port > 0), format!("/{path}")))
}

/// A path with `~` and variables in their place; that of a variable which is not set is none.
pub(crate) fn expand(path: &str) -> Result<ByteString, Refusal> {
    let mut text = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            format!("{}{rest}", environment::variable("HOME").unwrap_or_else(|| "/root".to_owned()))
        }
        _ => path.to_owned(),
    };
    let mut from = 0;
    while let Some(at) = text[from..].find('$').map(|at| from + at) {
        let rest = &text[at + 1..];
        let (name, length) = match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some((name, _)) => (name, name.len() + 2),
            None => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                (&rest[..end], end)
            }
        };
        let value = environment::variable(name)
            .ok_or_else(|| Refusal::bad(format!("undefined environment variable {name:?} in the path")))?;
        let after = text[at + 1 + length..].to_owned();
        text.truncate(at);
        text += &value;
        // A value is taken as it is.
        from = text.len();
        text += &after;
    }
    Ok(ByteString::from(text))
}

/// The path that a query must name.
pub(crate) fn path_of(query: &Query) -> Result<ByteString, Refusal> {
    expand(query.get("path").filter(|path| !path.is_empty()).ok_or_else(|| Refusal::missing_query("path"))?)
}

#[cfg(test)]
mod tests {
    use super::{expand, proxied};

    #[test]
    fn variables_of_a_path_are_put_in_their_place_once_and_unknown_ones_are_refused() {
        let home = std::env::var("PATH").unwrap();
        assert_eq!(expand("/x/$PATH/y").unwrap().to_string(), format!("/x/{home}/y"));
        assert_eq!(expand("/x/${PATH}y").unwrap().to_string(), format!("/x/{home}y"));
        assert_eq!(expand("/~/a").unwrap().to_string(), "/~/a");
        assert!(expand("/x/$NO_SUCH_VARIABLE_HERE").is_err());
        assert!(expand("/x/$").is_err());
    }

    #[test]
    fn ports_of_others_are_told_from_paths_of_this_daemon() {
        assert_eq!(proxied("/proxy/80/a/b"), Some((Some(80), "/a/b".to_owned())));
        assert_eq!(proxied("/proxy/80"), Some((Some(80), "/".to_owned())));
        assert_eq!(proxied("/proxy/0/a"), Some((None, "/a".to_owned())));
        assert_eq!(proxied("/ping"), None);
    }
}
