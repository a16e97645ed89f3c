//! What the official client can change or ask beside the life of a sandbox.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::json;

use crate::{control::found, process::running, server::Shared};

type Service = State<Arc<Shared>>;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/sandbox/{id}/build-logs-url", get(build_logs_url))
        .route("/sandbox/{id}/build-logs", get(build_logs))
}

pub(crate) fn toolbox_routes() -> Router<Arc<Shared>> {
    Router::new().route("/env", post(variables))
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
