//! The control plane: what can be changed of a sandbox that is there.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    response::{IntoResponse, Response},
    routing::{post, put},
};
use serde_json::{Map, Value, json};

use crate::{
    control::found,
    sandboxes::STEP,
    server::{Shared, api_error},
};

type Service = State<Arc<Shared>>;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/sandbox/{id}/{action}/{value}", post(set))
        .route("/sandbox/{id}/labels", put(labels))
        .route("/sandbox/{id}/network-settings", post(network))
        .route("/sandbox/{id}/public/{is_public}", post(public))
        .route("/sandbox/{id}/resize", post(resize))
        .route("/sandbox/{id}/recover", post(recover))
}

async fn set(State(shared): Service, Path((id, what, value)): Path<(String, String, String)>) -> Response {
    let sandbox = match found(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let key = match what.as_str() {
        "ttl" => "ttlMinutes",
        "autostop" => "autoStopInterval",
        "autopause" => "autoPauseInterval",
        "autoarchive" => "autoArchiveInterval",
        "autodelete" => "autoDeleteInterval",
        _ => return api_error(404, "Cannot POST"),
    };
    let Ok(number) = value.parse::<i64>() else { return api_error(400, "must be a number") };
    let mut facts = sandbox.facts.lock().await;
    if facts.state() == "destroyed" || facts.state() == "destroying" {
        return api_error(404, &format!("Sandbox with ID or name {id} not found"));
    }
    facts.dto.insert(key.to_owned(), number.into());
    Json(facts.dto.clone()).into_response()
}

async fn labels(State(shared): Service, Path(id): Path<String>, Json(body): Json<Value>) -> Response {
    match found(&shared, &id).await {
        Ok(sandbox) => {
            let labels = body.get("labels").cloned().unwrap_or_default();
            sandbox.facts.lock().await.dto.insert("labels".to_owned(), labels.clone());
            Json(json!({"labels": labels})).into_response()
        }
        Err(response) => *response,
    }
}

/// Changes what is known of a sandbox and tells it.
async fn changed(shared: &Shared, id: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Response {
    match found(shared, id).await {
        Ok(sandbox) => {
            let mut facts = sandbox.facts.lock().await;
            change(&mut facts.dto);
            Json(facts.dto.clone()).into_response()
        }
        Err(response) => *response,
    }
}

/// Kept, not enforced: the double's sandboxes get their network when they are made.
async fn network(State(shared): Service, Path(id): Path<String>, Json(mut body): Json<Map<String, Value>>) -> Response {
    body.retain(|key, _| ["networkBlockAll", "networkAllowList", "domainAllowList"].contains(&key.as_str()));
    changed(&shared, &id, |dto| dto.append(&mut body)).await
}

async fn public(State(shared): Service, Path((id, is_public)): Path<(String, bool)>) -> Response {
    changed(&shared, &id, |dto| drop(dto.insert("public".to_owned(), is_public.into()))).await
}

/// Grows or shrinks what a sandbox may use. Kept, not enforced.
async fn resize(State(shared): Service, Path(id): Path<String>, Json(body): Json<Value>) -> Response {
    let sandbox = match found(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let mut facts = sandbox.facts.lock().await;
    if facts.is_changing() {
        return api_error(409, "Sandbox state change in progress");
    }
    let state = match facts.state() {
        "started" => "started",
        "stopped" => "stopped",
        _ => return api_error(400, "Sandbox is not in a valid state"),
    };
    let mut sizes = Vec::new();
    for key in ["cpu", "memory", "disk"] {
        let Some(wanted) = body.get(key).filter(|wanted| !wanted.is_null()) else { continue };
        let has = facts.dto.get(key).and_then(Value::as_f64).unwrap_or_default();
        match wanted.as_u64() {
            None | Some(0) => return api_error(400, &format!("{key} must be an integer number not less than 1")),
            Some(wanted) if (wanted as f64) < has && (key == "disk" || state == "started") => {
                return api_error(400, &format!("{key} cannot be decreased"));
            }
            Some(wanted) if (wanted as f64) > has && key == "disk" && state == "started" => {
                return api_error(400, "disk can be resized in stopped sandboxes only");
            }
            Some(wanted) => sizes.push((key, wanted)),
        }
    }
    for (key, size) in sizes {
        facts.dto.insert(key.to_owned(), size.into());
    }
    facts.go("resizing", state, STEP, state);
    Json(facts.dto.clone()).into_response()
}

/// Out of an error that can be repaired.
async fn recover(
    State(shared): Service,
    Path(id): Path<String>,
    Query(options): Query<BTreeMap<String, String>>,
) -> Response {
    let sandbox = match found(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let mut facts = sandbox.facts.lock().await;
    if facts.state() != "error" || facts.dto.get("recoverable") != Some(&Value::Bool(true)) {
        return api_error(400, "Sandbox is not in a recoverable error state");
    }
    ["errorReason", "recoverable"].iter().for_each(|key| drop(facts.dto.remove(*key)));
    match options.get("skipStart").map(String::as_str) {
        Some("true") => facts.go("stopping", "stopped", STEP, "stopped"),
        _ => facts.go("starting", "started", STEP, "started"),
    }
    Json(facts.dto.clone()).into_response()
}
