//! What happens to sandboxes, told as it happens: engine.io 4 and socket.io 5 over one websocket.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{
        Query, State, WebSocketUpgrade,
        ws::{Message, WebSocket},
    },
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};

use crate::server::{Shared, is_credential};

type Service = State<Arc<Shared>>;

/// How long a client may be silent before it says who it is.
const HELLO: Duration = Duration::from_secs(10);

/// How often is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(20);

/// How often the client is asked whether it is still there.
const PING: Duration = Duration::from_secs(25);

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/socket.io/", get(events))
}

async fn events(
    State(shared): Service,
    Query(options): Query<BTreeMap<String, String>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let is = |key: &str, value: &str| options.get(key).is_some_and(|given| given == value);
    if !is("EIO", "4") || !is("transport", "websocket") {
        let error = json!({"code": 5, "message": "Unsupported protocol version"});
        return (axum::http::StatusCode::BAD_REQUEST, axum::Json(error)).into_response();
    }
    let organization = options.get("organizationId").cloned();
    upgrade.on_upgrade(move |socket| async move {
        let _ = talk(&shared, socket, organization.as_deref()).await;
    })
}

/// Packets of engine.io and socket.io are text that begins with a digit for each.
async fn say(socket: &mut WebSocket, kind: &str, what: &Value) -> Result<(), axum::Error> {
    socket.send(Message::Text(format!("{kind}{what}").into())).await
}

/// Until the client goes: then this ends with an error, too.
async fn talk(shared: &Shared, mut socket: WebSocket, organization: Option<&str>) -> Result<(), axum::Error> {
    let id = shared.unique();
    let open = json!({
        "sid": format!("engine-{id}"), "upgrades": [], "pingInterval": PING.as_millis(), "pingTimeout": 20_000,
        "maxPayload": 1_000_000,
    });
    say(&mut socket, "0", &open).await?;
    let hello = match tokio::time::timeout(HELLO, socket.recv()).await {
        Ok(Some(Ok(Message::Text(hello)))) => hello,
        _ => return Ok(()),
    };
    let said: Value = hello.strip_prefix("40").and_then(|said| serde_json::from_str(said).ok()).unwrap_or_default();
    if !is_credential(said["token"].as_str().unwrap_or_default(), organization) {
        return say(&mut socket, "44", &json!({"message": "Unauthorized"})).await;
    }
    // What there is by then is no news.
    let mut seen = HashMap::new();
    news(shared, &mut seen).await;
    say(&mut socket, "40", &json!({"sid": format!("socket-{id}")})).await?;
    let mut pinged = Instant::now();
    loop {
        match tokio::time::timeout(LOOK, socket.recv()).await {
            Ok(Some(Ok(Message::Text(said)))) if said.starts_with("41") || said.starts_with('1') => return Ok(()),
            Ok(Some(Ok(Message::Close(_))) | Some(Err(_)) | None) => return Ok(()),
            Ok(Some(Ok(_))) | Err(_) => {}
        }
        for (name, what) in news(shared, &mut seen).await {
            say(&mut socket, "42", &json!([name, what])).await?;
        }
        if pinged.elapsed() > PING {
            pinged = Instant::now();
            socket.send(Message::Text("2".into())).await?;
        }
    }
}

/// What has changed since this was asked last. `seen` holds the states by then.
async fn news(shared: &Shared, seen: &mut HashMap<String, String>) -> Vec<(&'static str, Value)> {
    let mut news = Vec::new();
    for sandbox in shared.sandboxes.all().await {
        let shown = sandbox.shown().await;
        let state = shown.get("state").and_then(Value::as_str).unwrap_or_default().to_owned();
        match seen.insert(sandbox.id.clone(), state.clone()) {
            None => news.push(("sandbox.created", Value::Object(shown))),
            Some(before) if before != state => {
                let what = json!({"sandbox": shown, "oldState": before, "newState": state});
                news.push(("sandbox.state.updated", what));
            }
            Some(_) => {}
        }
    }
    news
}
