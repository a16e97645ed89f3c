//! Every recorded request of the official client against the double, in the order of the recordings: it answers with the
//! status that the client was answered with when it was recorded.

use std::{path::Path, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Client, Method, Response};
use sandbox_daytona_double::{Double, KEY};
use serde_json::{Value, json};

use crate::support::{LATE, Service};

struct Replay {
    double: Double,
    client: Client,
    /// The sandbox that is meant where a recording means one.
    sandbox: String,
    token: String,
    /// Terminals stay open.
    open: Vec<Response>,
}

/// Files and their requests, in order; what deletes the sandbox comes last.
fn recordings() -> Vec<(String, Vec<Value>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/doubles/daytona/golden");
    let files = std::fs::read_dir(folder).expect("the recordings are there").map(|entry| entry.unwrap().path());
    let read = |file: std::path::PathBuf| {
        let recording: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let requests = recording["requests"].as_array().expect("it has requests").clone();
        (file.file_name().unwrap().to_string_lossy().into_owned(), requests)
    };
    let mut all: Vec<_> = files.map(read).collect();
    all.sort_by_key(|(file, _)| (file.contains("-delete"), file.clone()));
    all
}

/// A body of several parts, with the headers that were recorded.
fn multipart(parts: &[Value], boundary: &str) -> Vec<u8> {
    let mut body = Vec::new();
    for part in parts {
        body.extend(format!("--{boundary}\r\n").bytes());
        for header in part["headers"].as_array().unwrap() {
            body.extend(format!("{}\r\n", header.as_str().unwrap()).bytes());
        }
        body.extend(b"\r\n");
        match part["base64"].as_str() {
            Some(text) => body.extend(STANDARD.decode(text).unwrap()),
            None => body.extend(part["text"].as_str().unwrap().bytes()),
        }
        body.extend(b"\r\n");
    }
    body.extend(format!("--{boundary}--\r\n").bytes());
    body
}

impl Replay {
    async fn send(&self, recorded: &Value) -> Response {
        let text = |key: &str| recorded[key].as_str().unwrap_or_default();
        let path = text("path").replace("{sandboxId}", &self.sandbox).replace("{previewToken}", &self.token);
        let method: Method = text("method").parse().unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.double.url())).bearer_auth(KEY);
        let query: Vec<(String, String)> = serde_json::from_value(recorded["query"].clone()).unwrap();
        request = request.query(&query);
        for (name, value) in recorded["headers"].as_object().unwrap() {
            let (name, value) = (name.to_ascii_lowercase(), value.as_str().unwrap());
            match name.as_str() {
                // What belongs to one connection or one body is made anew.
                "host" | "authorization" | "content-length" | "content-type" | "transfer-encoding" => {}
                "accept-encoding" => {}
                "sec-websocket-key" => request = request.header(name, "dGhlIHNhbXBsZSBub25jZQ=="),
                _ => request = request.header(name, value),
            }
        }
        if let Some(parts) = recorded["multipart"].as_array() {
            let body = multipart(parts, "recorded-boundary");
            request = request.header("content-type", "multipart/form-data; boundary=recorded-boundary").body(body);
        } else if !recorded["json"].is_null() {
            request = request.json(&recorded["json"]);
        }
        tokio::time::timeout(LATE, request.send()).await.expect("an answer comes").unwrap()
    }

    /// Waits until the sandbox is where it was going: the client asked as often as that took.
    async fn settled(&self) {
        let look = json!({"method": "GET", "path": "/api/sandbox/{sandboxId}", "query": [], "headers": {}});
        let deadline = std::time::Instant::now() + LATE;
        loop {
            let answer: Value = self.send(&look).await.json().await.unwrap_or_default();
            // What is gone has none; it can still be looked at for a moment.
            let state = answer["state"].as_str().unwrap_or("gone").to_owned();
            if !state.ends_with("ing") && !["pending_build", "destroyed"].contains(&state.as_str()) {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "it stays {state}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_double_answers_every_recorded_request_as_it_was_answered() {
    // A provider also sets up what TLS is made with.
    let Service { double, .. } = Service::new().await;
    let client = Client::builder().http1_only().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let mut replay = Replay { double, client, sandbox: String::new(), token: String::new(), open: Vec::new() };
    let (mut wrong, mut sent) = (Vec::new(), 0);
    for (file, requests) in recordings() {
        for recorded in requests {
            let response = replay.send(&recorded).await;
            let status = response.status().as_u16();
            sent += 1;
            if json!(status) != recorded["double_answered"] {
                let call = (&recorded["method"], &recorded["path"]);
                wrong.push(format!("{file}: {call:?}: {status}, not {}", recorded["double_answered"]));
            }
            if status == 101 {
                replay.open.push(response);
                continue;
            }
            let answer: Value = response.json().await.unwrap_or_default();
            if let Some(token) = answer["token"].as_str() {
                replay.token = token.to_owned();
            }
            if recorded["method"] == "POST" && recorded["path"] == "/api/sandbox" {
                // The first one is used by all recordings that make none.
                if let (true, Some(id)) = (replay.sandbox.is_empty(), answer["id"].as_str()) {
                    replay.sandbox = id.to_owned();
                    replay.settled().await;
                    let folder = json!({"method": "POST", "path": "/toolbox/{sandboxId}/process/execute", "query": [],
                        "headers": {}, "json": {"command": "mkdir /work && echo g > /work/g.txt"}});
                    let made: Value = replay.send(&folder).await.json().await.unwrap();
                    assert_eq!(made["exitCode"], 0, "{made}");
                }
            }
            replay.settled().await;
        }
    }
    assert!(sent > 65, "only {sent} requests were recorded");
    assert!(wrong.is_empty(), "{wrong:#?}");
    replay.open.clear();
    replay.double.stop().await;
}
