//! What the official client can change or ask beside the life of a sandbox.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{control::found, process::running, server::Shared};

type Service = State<Arc<Shared>>;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/sandbox/{id}/network-settings", post(network))
        .route("/sandbox/{id}/public/{is_public}", post(public))
        .route("/sandbox/{id}/build-logs-url", get(build_logs_url))
        .route("/sandbox/{id}/build-logs", get(build_logs))
        .route("/sandbox/{id}/ports/{port}/signed-preview-url", get(signed_url))
        .route("/sandbox/{id}/ports/{port}/signed-preview-url/{token}/expire", post(expire))
}

pub(crate) fn toolbox_routes() -> Router<Arc<Shared>> {
    Router::new().route("/env", post(variables))
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

async fn build_logs_url(State(shared): Service, Path(id): Path<String>) -> Response {
    match found(&shared, &id).await {
        Ok(_) => Json(json!({"url": format!("{}/api/sandbox/{id}/build-logs", shared.base)})).into_response(),
        Err(response) => *response,
    }
}

async fn build_logs(State(shared): Service, Path(id): Path<String>) -> Response {
    match found(&shared, &id).await {
        Ok(_) => "the double builds nothing\n".into_response(),
        Err(response) => *response,
    }
}

/// The token opens nothing: nobody asks for it here.
async fn signed_url(State(shared): Service, Path((id, port)): Path<(String, u16)>) -> Response {
    match found(&shared, &id).await {
        Ok(sandbox) => {
            let token = format!("signed{}", shared.unique());
            let url = format!("{}/__preview/{port}/{token}/", shared.base);
            Json(json!({"sandboxId": sandbox.id, "port": port, "token": token, "url": url})).into_response()
        }
        Err(response) => *response,
    }
}

async fn expire(State(shared): Service, Path((id, _, _)): Path<(String, u16, String)>) -> Response {
    found(&shared, &id).await.map_or_else(|response| *response, |_| StatusCode::OK.into_response())
}

#[derive(Deserialize)]
struct Variables {
    #[serde(default)]
    set: BTreeMap<String, String>,
    #[serde(default)]
    unset: Vec<String>,
}

/// Of processes that are started from now on.
async fn variables(State(shared): Service, Path(id): Path<String>, Json(body): Json<Variables>) -> Response {
    match running(&shared, &id).await {
        Ok(sandbox) => {
            let mut env = sandbox.env.lock().await;
            env.retain(|name, _| !body.unset.contains(name));
            env.extend(body.set);
            Json(json!({})).into_response()
        }
        Err(response) => *response,
    }
}
