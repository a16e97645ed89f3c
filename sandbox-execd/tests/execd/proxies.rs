//! Ports of the sandbox through the daemon, itself among them, and who may use it.

use futures_util::SinkExt;
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Daemon, message, text};

#[tokio::test]
async fn requests_and_sockets_for_other_ports_are_passed_on() {
    let (near, far) = (Daemon::start(), Daemon::start());
    for port in [near.port, far.port] {
        let ping = near.get(&format!("/proxy/{port}/ping")).await;
        assert_eq!((ping.status, &ping.headers["x-sandbox-execd"]), (200, &"1".parse().unwrap()));
        let events = near.post(&format!("/proxy/{port}/command"), json!({ "command": "pwd" })).await.events();
        let own = if port == near.port { &near } else { &far };
        assert_eq!(text(&events, "stdout").trim(), own.folder.path().canonicalize().unwrap().to_str().unwrap());
        let nested = near.get(&format!("/proxy/{port}/proxy/{port}/files/download?path=/etc/passwd")).await;
        assert!(nested.status == 200 && !nested.body.is_empty());
    }
    let id = far.post("/pty", json!({ "command": "cat" })).await.json()["session_id"].as_str().unwrap().to_owned();
    let mut socket = near.socket(&format!("/proxy/{}/pty/{id}/ws?pty=0", far.port)).await.unwrap();
    socket.send(Message::binary(&b"\0hello\n"[..])).await.unwrap();
    loop {
        if message(&mut socket).await == Message::binary(&b"\x01hello\n"[..]) {
            break;
        }
    }
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    assert_eq!(near.get(&format!("/proxy/{nobody}/")).await.status, 502);
    assert_eq!(near.get("/proxy/0/").await.status, 400);
}

#[tokio::test]
async fn with_a_token_nobody_else_comes_in_by_any_way() {
    let (open, closed) = (Daemon::start(), Daemon::start_with(&["--access-token", "secret"], &[]));
    assert_eq!(closed.get("/ping").await.status, 200);
    for path in ["/ping".to_owned(), format!("/proxy/{}/ping", closed.port)] {
        for token in ["", "secre", "secret2", "Secret"] {
            let given = [("X-EXECD-ACCESS-TOKEN", token)];
            let through = format!("/proxy/{}{path}", closed.port);
            assert_eq!(open.call_with("GET", &through, &given, "").await.status, 401, "{path} {token}");
        }
    }
    assert_eq!(closed.socket("/sandbox-agent").await.err(), Some(401));
    // What listens on other ports decides itself.
    assert_eq!(closed.get(&format!("/proxy/{}/ping", open.port)).await.status, 200);
    let events = closed.post("/command", json!({ "command": "env; cat /proc/self/environ" })).await.events();
    assert!(!text(&events, "stdout").contains("secret"));
}

#[tokio::test]
async fn figures_are_told_once_and_again() {
    use http_body_util::{BodyExt, Full};
    let daemon = Daemon::start();
    let figures = daemon.get("/metrics").await.json();
    for key in ["cpu_count", "mem_total_mib", "mem_used_mib", "timestamp"] {
        assert!(figures[key].as_f64() > Some(0.0), "{key}: {figures}");
    }
    assert!((0.0..=100.0).contains(&figures["cpu_used_pct"].as_f64().unwrap()), "{figures}");
    let request = hyper::Request::builder().uri("/metrics/watch").header("host", "x").body(Full::default()).unwrap();
    let mut watch = daemon.send(request).await.into_body();
    let line = crate::support::soon(watch.frame()).await.unwrap().unwrap().into_data().unwrap();
    assert!(line.ends_with(b"}\n") && serde_json::from_slice::<serde_json::Value>(&line).is_ok());
}
