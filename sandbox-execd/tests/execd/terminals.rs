//! Terminal sessions.

use futures_util::SinkExt;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Daemon, Socket, eventually, message};

async fn create(daemon: &Daemon, wish: Value) -> String {
    let answer = daemon.post("/pty", wish).await;
    assert_eq!(answer.status, 201);
    answer.json()["session_id"].as_str().unwrap().to_owned()
}

fn words(message: &Message) -> Value {
    message.to_text().ok().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// What comes on a channel until it holds some text.
async fn read_until(socket: &mut Socket, channel: u8, wanted: &str) -> String {
    let mut read = String::new();
    while !read.contains(wanted) {
        match message(socket).await {
            Message::Binary(data) if data[0] == channel => read += &String::from_utf8_lossy(&data[1..]),
            Message::Binary(_) | Message::Text(_) => {}
            other => panic!("{other:?} after {read:?}"),
        }
    }
    read
}

async fn say(socket: &mut Socket, text: &str) {
    socket.send(Message::binary([&[0], text.as_bytes()].concat())).await.unwrap();
}

async fn order(socket: &mut Socket, order: Value) {
    socket.send(Message::text(order.to_string())).await.unwrap();
}

#[tokio::test]
async fn a_terminal_takes_input_sizes_and_signals_and_tells_its_end() {
    let daemon = Daemon::start();
    let folder = daemon.path("made");
    let script =
        "read go; stty size; pwd; trap 'echo caught' INT; sleep 1000 & echo ready; wait; read code; exit $code";
    let id = create(&daemon, json!({ "cwd": folder, "command": script })).await;
    assert_eq!(daemon.get(&format!("/pty/{id}")).await.json()["running"], false);
    let mut socket = daemon.socket(&format!("/pty/{id}/ws")).await.unwrap();
    let connected = words(&message(&mut socket).await);
    assert_eq!(
        (&connected["type"], &connected["mode"], &connected["session_id"]),
        (&json!("connected"), &json!("pty"), &json!(id))
    );
    order(&mut socket, json!({ "type": "resize", "cols": 101, "rows": 33 })).await;
    say(&mut socket, "go\n").await;
    read_until(&mut socket, 1, &format!("33 101\r\n{folder}\r\nready")).await;
    order(&mut socket, json!({ "type": "signal", "signal": "SIGINT" })).await;
    read_until(&mut socket, 1, "caught").await;
    order(&mut socket, json!({ "type": "ping" })).await;
    order(&mut socket, json!({ "type": "what" })).await;
    say(&mut socket, "9\n").await;
    let mut told = Vec::new();
    loop {
        match message(&mut socket).await {
            Message::Text(text) => told.push(serde_json::from_str::<Value>(&text).unwrap()),
            Message::Close(Some(frame)) => {
                assert_eq!((u16::from(frame.code), frame.reason.as_str()), (1000, "process exited"));
                break;
            }
            _ => {}
        }
    }
    let kinds: Vec<&str> = told.iter().map(|one| one["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["pong", "error", "exit"]);
    assert_eq!((&told[1]["code"], &told[2]["exit_code"]), (&json!("INVALID_FRAME"), &json!(9)));
    let status = daemon.get(&format!("/pty/{id}")).await.json();
    assert!(status["running"] == false && status["output_offset"].as_u64() > Some(0), "{status}");
    // As with execd, one that has ended begins again.
    let mut again = daemon.socket(&format!("/pty/{id}/ws")).await.unwrap();
    say(&mut again, "go\n").await;
    read_until(&mut again, 1, "ready").await;
    assert_eq!(daemon.call("DELETE", &format!("/pty/{id}"), "").await.status, 200);
    assert_eq!(daemon.get(&format!("/pty/{id}")).await.refusal(), (404, "CONTEXT_NOT_FOUND".to_owned()));
    assert_eq!(daemon.socket(&format!("/pty/{id}/ws")).await.err(), Some(404));
    assert_eq!(daemon.get("/pty/none/ws").await.refusal().0, 400);
}

#[tokio::test]
async fn a_session_is_one_clients_and_what_was_shown_is_replayed_to_the_next() {
    let daemon = Daemon::start();
    let id = create(&daemon, json!({ "command": "printf abcdefghi; cat" })).await;
    let path = format!("/pty/{id}/ws?pty=0");
    let mut first = daemon.socket(&path).await.unwrap();
    read_until(&mut first, 1, "abcdefghi").await;
    assert_eq!(daemon.get(&format!("/pty/{id}")).await.json()["output_offset"], 9);
    assert_eq!(daemon.socket(&path).await.err(), Some(409));
    let mut second = daemon.socket(&format!("{path}&since=4&takeover=1")).await.unwrap();
    let Message::Binary(replay) = message(&mut second).await else { panic!("no replay") };
    assert_eq!((replay[0], u64::from_be_bytes(replay[1..9].try_into().unwrap()), &replay[9..]), (3, 4, &b"efghi"[..]));
    let connected = words(&message(&mut second).await);
    assert_eq!((&connected["type"], &connected["mode"]), (&json!("connected"), &json!("pipe")));
    let code = loop {
        if let Message::Close(frame) = message(&mut first).await {
            break frame.map(|frame| u16::from(frame.code));
        }
    };
    assert_eq!(code, Some(4001));
    say(&mut second, "more\n").await;
    read_until(&mut second, 1, "more").await;
    drop(second);
    // Without a client it goes on, and the next one goes on where it likes.
    let mut third = eventually(async || daemon.socket(&format!("{path}&since=14")).await.ok()).await;
    assert_eq!(words(&message(&mut third).await)["type"], "connected");
    say(&mut third, "again\n").await;
    read_until(&mut third, 1, "again").await;
}

#[tokio::test]
async fn pipes_keep_the_two_streams_apart() {
    let daemon = Daemon::start();
    let id = create(&daemon, json!({ "command": "echo out; echo err >&2; exit 4" })).await;
    let mut socket = daemon.socket(&format!("/pty/{id}/ws?pty=0")).await.unwrap();
    let (mut out, mut err) = (String::new(), String::new());
    let code = loop {
        match message(&mut socket).await {
            Message::Binary(data) if data[0] == 1 => out += std::str::from_utf8(&data[1..]).unwrap(),
            Message::Binary(data) if data[0] == 2 => err += std::str::from_utf8(&data[1..]).unwrap(),
            Message::Text(text) if text.contains("exit_code") => {
                break words(&Message::Text(text))["exit_code"].clone();
            }
            Message::Text(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((out.as_str(), err.as_str(), code), ("out\n", "err\n", json!(4)));
}
