//! Every recording of the official client against the double, in the order of the recordings: each request is sent as it
//! was, and answered with the status that the client was answered with, in the shape that the service describes, and with
//! what the request must come to.
//!
//! A recording of an answer that failed (`fault`) is played with the same failure, and the failure is looked for on this
//! side. The one recording of a handshake is played as one, and so is what the client does beside requests: it listens to
//! events, it reads sockets, and it makes signed addresses.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use reqwest::{Client, Method, Response};
use sandbox_daytona_double::{Double, Fault, JWT, KEY};
use serde_json::{Value, json};

use crate::{
    description::Description,
    played::{ENDS, downloaded, holds, said},
    sockets::{Socket, listen, log_of, opened},
    support::{LATE, Service},
};

/// The sandbox that a recording means, where it is not the one that its client has made last.
const CAST: [(&str, &str); 4] = [
    ("90-delete", "golden-a"),
    ("91-delete-wait", "golden-c"),
    ("92-delete-missing", "golden-c"),
    ("93-sandbox-delete-ephemeral", "golden-b"),
];

/// How long the double still tells of what is destroyed: long enough to be asked in time.
const LINGERS: Duration = Duration::from_secs(1);

/// What is in a sandbox before the client writes anything.
const PREPARE: &str = "mkdir -p /work/m && : > /work/empty && printf a > /work/m/a.txt";

/// A delay that no client waits for.
const FOR_EVER_S: &str = "30";

struct Recording {
    file: String,
    client: String,
    requests: Vec<Value>,
    handshakes: Vec<Value>,
}

/// All of them, in order; those that delete the sandboxes of the others come last.
fn recordings() -> Vec<Recording> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/doubles/daytona/golden");
    let files = std::fs::read_dir(folder).expect("the recordings are there").map(|entry| entry.unwrap().path());
    let read = |file: std::path::PathBuf| {
        let recording: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let list = |key: &str| recording[key].as_array().cloned().unwrap_or_default();
        Recording {
            file: file.file_stem().unwrap().to_string_lossy().into_owned(),
            client: recording["client"].as_str().unwrap_or_default().to_owned(),
            requests: list("requests"),
            handshakes: list("handshakes"),
        }
    };
    let mut all: Vec<_> = files.map(read).collect();
    all.sort_by_key(|recording| (recording.file.starts_with('9'), recording.file.clone()));
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

/// The failure that was scripted when this was recorded.
fn fault(recorded: &Value) -> Option<Fault> {
    let fault = recorded.get("fault")?;
    let text = |key: &str| fault[key].as_str().unwrap_or_default();
    let mut headers: BTreeMap<String, String> =
        fault.get("headers").map(|headers| serde_json::from_value(headers.clone()).unwrap()).unwrap_or_default();
    let mut body = text("raw").to_owned();
    if let Some(message) = fault["message"].as_str() {
        body = json!({"statusCode": fault["status"], "message": message}).to_string();
        headers.insert("content-type".to_owned(), "application/json".to_owned());
    }
    Some(Fault {
        method: text("method").to_owned(),
        path: text("path").trim_end_matches('$').to_owned(),
        status: fault["status"].as_u64().map(|status| u16::try_from(status).unwrap()),
        body,
        headers,
        delay_ms: fault["delay"].as_u64().unwrap_or_default() * 1000,
        drop_before: fault["drop"] == true,
        ..Fault::default()
    })
}

struct Replay {
    double: Double,
    client: Client,
    control_plane: Description,
    toolbox: Description,
    credential: &'static str,
    /// The sandboxes that were made: by whom, their names and ids.
    made: Vec<(String, String, String)>,
    /// The sandbox that is meant, and whether it is new.
    sandbox: String,
    is_new: bool,
    /// What an answer has given to be used later.
    token: String,
    command: String,
    counter: u64,
    /// Terminals stay open.
    open: Vec<Socket>,
}

impl Replay {
    /// A recorded request with the values of this run.
    fn fill(&mut self, recorded: &Value) -> Value {
        self.counter += 1;
        let values = [
            ("{sandboxId}", self.sandbox.clone()),
            ("{previewToken}", self.token.clone()),
            ("sshtok", self.token.clone()),
            ("{cmdId}", self.command.clone()),
            ("{uuidhex}", format!("{:032x}", self.counter)),
        ];
        let text = values.iter().fold(recorded.to_string(), |text, (name, value)| text.replace(name, value));
        serde_json::from_str(&text).expect("values of this run are plain")
    }

    async fn send(&self, recorded: &Value) -> reqwest::Result<Response> {
        let text = |key: &str| recorded[key].as_str().unwrap_or_default();
        let method: Method = text("method").parse().unwrap();
        let request = self.client.request(method, format!("{}{}", self.double.url(), text("path")));
        let query: Vec<(String, String)> = serde_json::from_value(recorded["query"].clone()).unwrap();
        let mut request = request.bearer_auth(self.credential).query(&query);
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
        tokio::time::timeout(LATE, request.send()).await.expect("an answer comes")
    }

    async fn ask(&self, method: &str, path: &str, json: Value) -> Value {
        let asked = json!({"method": method, "path": path, "query": [], "headers": {}, "json": json});
        self.send(&asked).await.unwrap().json().await.unwrap_or_default()
    }

    async fn state(&self) -> String {
        let answer = self.ask("GET", &format!("/api/sandbox/{}", self.sandbox), Value::Null).await;
        answer["state"].as_str().unwrap_or("gone").to_owned()
    }

    /// Waits until the sandbox is where it was going: the client asked as often as that took.
    async fn settle(&mut self) -> String {
        let deadline = Instant::now() + LATE;
        let state = loop {
            let state = self.state().await;
            // What is gone has none; it can still be looked at for a moment.
            if !state.ends_with("ing") && !["pending_build", "destroyed"].contains(&state.as_str()) {
                break state;
            }
            assert!(Instant::now() < deadline, "it stays {state}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        if std::mem::take(&mut self.is_new) && state == "started" {
            let path = format!("/toolbox/{}/process/execute", self.sandbox);
            let prepared = self.ask("POST", &path, json!({"command": PREPARE})).await;
            assert_eq!(prepared["exitCode"], 0, "{prepared}");
        }
        state
    }

    /// The sandbox of a recording that makes none itself.
    fn meant(&self, recording: &Recording) -> String {
        let name = CAST.iter().find(|(file, _)| *file == recording.file).map(|(_, name)| *name);
        let by_name = self.made.iter().find(|(_, made, _)| Some(made.as_str()) == name);
        let own = self.made.iter().rfind(|(client, ..)| *client == recording.client);
        // All the recordings of the first client are about its first sandbox.
        let first = self.made.first().filter(|(client, ..)| *client == recording.client || own.is_none());
        by_name.or(first).or(own).map(|(_, _, id)| id.clone()).unwrap_or_default()
    }

    /// Plays one recording; gives what was not as it was.
    async fn play(&mut self, recording: &Recording) -> Vec<String> {
        let mut wrong = Vec::new();
        self.sandbox = self.meant(recording);
        self.credential = match recording.file.as_str() {
            "60-bad-key" => "not-the-key",
            "61-jwt-org" => JWT,
            _ => KEY,
        };
        for handshake in &recording.handshakes {
            let organization = handshake["query"].as_str().unwrap().contains("organizationId=");
            let token = if organization { JWT } else { KEY };
            drop(listen(&self.client, self.double.url(), handshake, token).await.expect("it is taken"));
            let refused = listen(&self.client, self.double.url(), handshake, "not-the-key").await;
            assert!(refused.unwrap_err().contains("Unauthorized"));
        }
        let mut events = match recording.file.as_str() {
            "70-event-stream-state" => Some(self.events().await),
            _ => None,
        };
        for (index, recorded) in recording.requests.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &recording.requests[before]);
            let is_same = |key: &str| before.is_some_and(|before| before[key] == recorded[key]);
            let is_look = recorded["method"] == "GET" && recorded["path"] == "/api/sandbox/{sandboxId}";
            if !is_look && !self.sandbox.is_empty() && self.credential == KEY {
                self.settle().await;
            }
            // It was asked again until the answer was another one, of a command until its end; other requests were made
            // as often as is said.
            let is_of_command = recorded["path"].as_str().is_some_and(|path| path.ends_with("/command/{cmdId}"));
            let is_again = is_of_command || is_look && is_same("method") && is_same("path");
            let times = if is_look { 1 } else { recorded["repeated"].as_u64().unwrap_or(1) };
            let deadline = Instant::now() + LATE;
            for _ in 0..times {
                let mut objection = self.request(recording, index).await;
                while is_again && objection.is_some() && Instant::now() < deadline {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    objection = self.request(recording, index).await;
                }
                let call = format!("{}: {} {}", recording.file, recorded["method"], recorded["path"]);
                wrong.extend(objection.map(|objection| format!("{call}: {objection}")));
            }
        }
        self.credential = KEY;
        let end = match recording.requests.iter().any(is_abandoned) {
            true => self.state().await,
            false if self.sandbox.is_empty() => String::new(),
            false => self.settle().await,
        };
        if let Some((file, wanted)) = ENDS.iter().find(|(file, wanted)| *file == recording.file && *wanted != end) {
            wrong.push(format!("{file}: it is {end} in the end, not {wanted}"));
        }
        if recording.file == "36-signed-urls" {
            self.use_signed_addresses().await;
        }
        if let Some(events) = &mut events {
            let names = events.until_started(&self.sandbox).await;
            assert_eq!(names, ["sandbox.created", "sandbox.state.updated"]);
        }
        wrong
    }

    /// Listens as the client did whose handshakes were recorded.
    async fn events(&self) -> Socket {
        let all = recordings();
        let handshake = all.iter().find_map(|recording| recording.handshakes.first()).expect("there is one");
        listen(&self.client, self.double.url(), handshake, KEY).await.expect("it is taken")
    }

    /// Sends one request; gives what is wrong with the answer.
    async fn request(&mut self, recording: &Recording, index: usize) -> Option<String> {
        let recorded = self.fill(&recording.requests[index]);
        let fault = fault(&recorded);
        fault.iter().for_each(|fault| self.double.fault(fault.clone()));
        let started = Instant::now();
        let answered = self.send(&recorded).await;
        if self.double.faults_left() > 0 {
            return Some("the failure did not happen".to_owned());
        }
        let (response, wanted) = match (answered, recorded["double_answered"].as_u64()) {
            (Err(_), None) => return None,
            (Err(error), Some(wanted)) => return Some(format!("{error}, not {wanted}")),
            (Ok(response), None) => return Some(format!("{}, not a broken connection", response.status())),
            (Ok(response), Some(wanted)) => (response, wanted),
        };
        let status = response.status().as_u16();
        if u64::from(status) != wanted {
            let said = response.text().await.unwrap_or_default();
            return Some(format!("{status}, not {wanted}: {said}"));
        }
        if let Some(fault) = fault {
            let has = |(name, value): (&String, &String)| {
                response.headers().get(name).and_then(|has| has.to_str().ok()) == Some(value)
            };
            let is_whole = fault.headers.iter().all(has) && started.elapsed() >= Duration::from_millis(fault.delay_ms);
            let said = response.text().await.unwrap();
            return (!is_whole || said != fault.body).then(|| format!("another failure: {said}"));
        }
        if status == 101 {
            return self.upgraded(&recording.file, response).await;
        }
        let body = response.bytes().await.unwrap();
        self.keep(recording, &recorded, &body);
        self.objection(recording, index, &recorded, status, &body)
    }

    /// Keeps what later requests use.
    fn keep(&mut self, recording: &Recording, recorded: &Value, body: &[u8]) {
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        for (key, kept) in [("token", &mut self.token), ("cmdId", &mut self.command)] {
            if let Some(value) = answer[key].as_str() {
                value.clone_into(kept);
            }
        }
        if let (true, Some(id)) = (recorded["path"] == "/api/sandbox", answer["id"].as_str()) {
            if !is_abandoned(recorded) {
                let name = answer["name"].as_str().unwrap_or_default();
                self.made.push((recording.client.clone(), name.to_owned(), id.to_owned()));
            }
            (self.sandbox, self.is_new) = (id.to_owned(), true);
        }
    }

    fn objection(
        &self,
        recording: &Recording,
        index: usize,
        recorded: &Value,
        status: u16,
        body: &[u8],
    ) -> Option<String> {
        let (method, path) = (recorded["method"].as_str().unwrap(), recorded["path"].as_str().unwrap());
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        let tool = path.strip_prefix("/toolbox/").and_then(|path| path.find('/').map(|start| &path[start..]));
        let (description, path) = match tool {
            Some(path) => (&self.toolbox, path),
            None => (&self.control_plane, path.trim_start_matches("/api")),
        };
        if status < 400 {
            let is_form = path == "/files/bulk-download";
            let objection = (!is_form).then(|| description.objection(method, path, status, body)).flatten();
            if objection.is_some() {
                return objection;
            }
        } else if answer["errors"].is_null() && (answer["statusCode"] != status || !answer["message"].is_string()) {
            return Some(format!("no error of the service: {answer}"));
        }
        if let Some(wanted) = said(&recording.file, index, recorded).filter(|wanted| !holds(&answer, wanted)) {
            return Some(format!("{answer}, not {wanted}"));
        }
        let is_whole = match (path, recording.file.as_str()) {
            ("/files/bulk-download", file) => is_form(body) == (file != "59-truncated-download"),
            _ => true,
        };
        let Some(parts) = downloaded(&recording.file, index) else {
            return (!is_whole).then(|| "another end of the form".to_owned());
        };
        let text = String::from_utf8_lossy(body);
        let has_as_many = path != "/files/bulk-download" || text.matches("; name=\"file\"").count() == parts.len();
        let holds_all = parts.iter().all(|part| body.windows(part.len().max(1)).any(|bytes| bytes.starts_with(part)));
        (!is_whole || !has_as_many || !holds_all).then(|| format!("other files: {text}"))
    }

    /// What comes over a connection that has become a websocket.
    async fn upgraded(&mut self, file: &str, response: Response) -> Option<String> {
        let mut socket = opened(response).await;
        if file == "19-session-logs-ws" {
            let told = log_of(&mut socket).await;
            return (told != ["o1\no2\no3\n", "e1\ne2\ne3\n"]).then(|| format!("another log: {told:?}"));
        }
        let wanted = if file == "23-pty-connect-missing" { "error" } else { "connected" };
        let hello: Value = serde_json::from_str(&socket.text().await).unwrap_or_default();
        self.open.push(socket);
        (hello["type"] != "control" || hello["status"] != wanted).then(|| format!("{hello}, not {wanted}"))
    }

    /// Addresses are signed by the client itself: no request of it was recorded but the one for the key.
    async fn use_signed_addresses(&self) {
        let key = self.ask("GET", &format!("/api/sandbox/{}/signing-key", self.sandbox), Value::Null).await;
        let key = key.as_str().expect("it is text");
        let address = |method: &str, what: &str, expires: u64, signed: &str| {
            let signature = sandbox_daytona_double::sign_file(key, method, signed, expires);
            let address = format!("{}/toolbox/{}/files/{what}", self.double.url(), self.sandbox);
            let query =
                [("path", "/work/signed".to_owned()), ("expires", expires.to_string()), ("signature", signature)];
            self.client.request(method.parse().unwrap(), address).query(&query)
        };
        let written = address("POST", "upload-v2", 0, "/work/signed").body("signed").send().await.unwrap();
        assert_eq!(written.status(), 200);
        let read = address("GET", "download", 4_000_000_000, "/work/signed").send().await.unwrap();
        assert_eq!(read.text().await.unwrap(), "signed");
        for (method, what, expires, signed) in [
            ("GET", "download", 1_700_000_000, "/work/signed"),
            ("GET", "download", 0, "/work/other"),
            ("GET", "info", 0, "/work/signed"),
        ] {
            let refused = address(method, what, expires, signed).send().await.unwrap();
            assert_eq!(refused.status(), 401, "{what} until {expires}");
        }
    }
}

/// Whether this makes a sandbox that nobody waits for in the end.
fn is_abandoned(recorded: &Value) -> bool {
    recorded["json"]["labels"]["x-delay"] == FOR_EVER_S
}

/// Whether a form came to its end.
fn is_form(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let boundary = text.lines().next().unwrap_or_default();
    text.trim_end().ends_with(&format!("{boundary}--"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_double_answers_every_recorded_request_as_it_was_answered() {
    // A provider also sets up what TLS is made with.
    let Service { double, .. } = Service::new().await;
    double.linger(LINGERS);
    let client = Client::builder().http1_only().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let mut replay = Replay {
        double,
        client,
        control_plane: Description::control_plane(),
        toolbox: Description::toolbox(),
        credential: KEY,
        made: Vec::new(),
        sandbox: String::new(),
        is_new: false,
        token: String::new(),
        command: String::new(),
        counter: 0,
        open: Vec::new(),
    };
    let (mut wrong, all) = (Vec::new(), recordings());
    for recording in &all {
        wrong.extend(replay.play(recording).await);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let requests: usize = all.iter().map(|recording| recording.requests.len()).sum();
    let handshakes: usize = all.iter().map(|recording| recording.handshakes.len()).sum();
    assert_eq!((all.len(), requests, handshakes), (91, 182, 2), "every recording is there and was played");
    let empty = all.iter().find(|recording| recording.requests.is_empty() && recording.handshakes.is_empty());
    assert_eq!(empty.map(|recording| &recording.file), None, "a recording that holds nothing proves nothing");
    replay.open.clear();
    replay.double.stop().await;
}
