//! What the official client does with websockets: it reads logs and terminals, and listens to events.

use futures_util::{SinkExt, StreamExt};
use reqwest::{Client, Response, Upgraded};
use serde_json::{Value, json};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use crate::support::LATE;

#[derive(Debug)]
pub(crate) struct Socket(WebSocketStream<Upgraded>);

/// The websocket that a connection has become.
pub(crate) async fn opened(response: Response) -> Socket {
    let connection = response.upgrade().await.expect("it is one");
    Socket(WebSocketStream::from_raw_socket(connection, Role::Client, None).await)
}

impl Socket {
    async fn next(&mut self) -> Option<Message> {
        let next = tokio::time::timeout(LATE, self.0.next()).await.expect("something comes");
        next.and_then(Result::ok).filter(|message| !message.is_close())
    }

    /// The next message, if it is text.
    pub(crate) async fn text(&mut self) -> String {
        match self.next().await {
            Some(Message::Text(text)) => text.as_str().to_owned(),
            other => format!("{other:?}"),
        }
    }

    /// The names of the events of a sandbox until it is started, without those that tell of a state in between.
    pub(crate) async fn until_started(&mut self, sandbox: &str) -> Vec<String> {
        let mut names = Vec::new();
        loop {
            let text = self.text().await;
            let event = text.strip_prefix("42").unwrap_or_else(|| panic!("no event: {text}"));
            let event: Value = serde_json::from_str(event).unwrap();
            let (name, what) = (event[0].as_str().unwrap(), &event[1]);
            let is_about_it = what["id"] == sandbox || what["sandbox"]["id"] == sandbox;
            let is_started = what["newState"] == "started" && what["sandbox"]["state"] == "started";
            if is_about_it && (is_started || name == "sandbox.created") {
                names.push(name.to_owned());
            }
            if is_about_it && is_started {
                return names;
            }
        }
    }
}

/// The two streams of a log until it ends, each as text.
pub(crate) async fn log_of(socket: &mut Socket) -> [String; 2] {
    let mut streams = [Vec::new(), Vec::new()];
    let (mut bytes, mut current) = (Vec::new(), None);
    while let Some(message) = socket.next().await {
        bytes.extend_from_slice(&message.into_data());
    }
    let mut rest = bytes.as_slice();
    while let Some(first) = rest.first() {
        // Three bytes say which stream the next ones are of.
        match rest {
            [1, 1, 1, ..] | [2, 2, 2, ..] => {
                current = Some(usize::from(*first) - 1);
                rest = &rest[3..];
            }
            _ => {
                streams[current.expect("it begins with a mark")].push(*first);
                rest = &rest[1..];
            }
        }
    }
    streams.map(|stream| String::from_utf8(stream).unwrap())
}

/// A connection for events, made as it was recorded, or what was said against the token.
pub(crate) async fn listen(client: &Client, url: &str, handshake: &Value, token: &str) -> Result<Socket, String> {
    let text = |key: &str| handshake[key].as_str().unwrap();
    let query = text("query").replace("{unix}", "1700000000");
    let mut request = client.get(format!("{url}{}?{query}", text("path")));
    for (name, value) in handshake["headers"].as_object().unwrap() {
        let name = name.trim_start_matches("HTTP_").to_ascii_lowercase().replace('_', "-");
        if name != "accept-encoding" {
            request = request.header(name, value.as_str().unwrap());
        }
    }
    let request = request.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let response = tokio::time::timeout(LATE, request.send()).await.expect("an answer comes").unwrap();
    assert_eq!(response.status(), 101);
    let mut socket = opened(response).await;
    let open = socket.text().await;
    assert!(open.starts_with("0{") && open.contains("pingInterval"), "{open}");
    let mut auth = handshake["auth"].clone();
    auth["token"] = json!(token);
    socket.0.send(Message::Text(format!("40{auth}").into())).await.unwrap();
    let answer = socket.text().await;
    if answer.starts_with("40{\"sid\"") { Ok(socket) } else { Err(answer) }
}
