//! A daemon for a test, and a client of it.

use std::{
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

/// How long anything may take on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

pub(crate) type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

/// A running daemon. Dropping it ends it, and everything in it.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) port: u16,
    token: Option<String>,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{} {:?}", self.status, self.body))
    }

    /// Status and code of a refusal.
    pub(crate) fn refusal(&self) -> (u16, String) {
        (self.status, self.json()["code"].as_str().unwrap_or_default().to_owned())
    }

    /// The events of a command.
    pub(crate) fn events(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.body).unwrap();
        text.split_terminator("\n\n").map(|frame| serde_json::from_str(frame).unwrap()).collect()
    }
}

/// What events of a kind say, put together.
pub(crate) fn text(events: &[Value], kind: &str) -> String {
    events
        .iter()
        .filter(|event| event["type"] == kind)
        .map(|event| event["text"].as_str().unwrap_or_default())
        .collect()
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::start_with(&[], &[])
    }

    pub(crate) fn start_with(arguments: &[&str], env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("port");
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox-execd"));
        command.arg0("execd").args(["--listen", "127.0.0.1:0", "--port-file"]).arg(&file).args(arguments);
        command.env("EXECD_ENVS", folder.path().join("envs")).envs(env.iter().copied());
        let child = command.current_dir(folder.path()).stdin(Stdio::null()).spawn().unwrap();
        let token = arguments.iter().position(|word| *word == "--access-token").map(|at| arguments[at + 1].to_owned());
        let port = wait_for(|| std::fs::read_to_string(&file).ok()?.parse().ok());
        Self { child, folder, port, token }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: impl Into<Bytes>) -> Answer {
        self.call_with(method, path, &[], body).await
    }

    pub(crate) async fn call_with(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path).header(header::HOST, "execd");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = &self.token {
            request = request.header("X-EXECD-ACCESS-TOKEN", token);
        }
        let response = soon(self.send(request.body(Full::new(body.into())).unwrap())).await;
        let (parts, body) = response.into_parts();
        let body = soon(body.collect()).await.unwrap().to_bytes();
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, body.to_string()).await
    }

    /// The answer, whose body is still to come.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Response<hyper::body::Incoming> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        sender.send_request(request).await.unwrap()
    }

    /// A WebSocket, or the status of the refusal.
    pub(crate) async fn socket(&self, path: &str) -> Result<Socket, u16> {
        let request = Request::builder()
            .uri(path)
            .header(header::HOST, "execd")
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let mut response = soon(self.send(request.body(Full::default()).unwrap())).await;
        if response.status() != 101 {
            return Err(response.status().as_u16());
        }
        // That of RFC 6455 for this key.
        assert_eq!(response.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
        Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("it did not end in time")
}

/// Looks until there is something.
pub(crate) fn wait_for<T>(look: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "it did not come in time");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The same, for what is asked of a daemon.
pub(crate) async fn eventually<T>(look: impl AsyncFn() -> Option<T>) -> T {
    soon(async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

/// Whether a process of this machine lives.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// The next message that is no ping.
pub(crate) async fn message(socket: &mut Socket) -> Message {
    soon(async {
        loop {
            match socket.next().await.expect("the socket is open").expect("a message") {
                Message::Ping(_) | Message::Pong(_) => {}
                message => return message,
            }
        }
    })
    .await
}
