//! The toolbox: which ports are listened on inside.

use std::{collections::BTreeSet, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;

use crate::{
    process::running,
    server::{Shared, tool_error},
};

type Service = State<Arc<Shared>>;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new().route("/port", get(list)).route("/port/{port}/in-use", get(is_in_use))
}

/// The ports in the kernel's tables of TCP sockets that listen: state `0A`.
fn listening(tables: &str) -> BTreeSet<u16> {
    let port = |line: &str| {
        let mut fields = line.split_whitespace();
        let local = fields.nth(1)?;
        let is_listening = fields.nth(1)? == "0A";
        let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        is_listening.then_some(port)
    };
    tables.lines().filter_map(port).collect()
}

async fn ports(shared: &Shared, id: &str) -> Result<BTreeSet<u16>, Box<Response>> {
    let sandbox = running(shared, id).await?;
    let world = sandbox.world.read().await;
    let gone = || Box::new(tool_error(404, "NOT_FOUND", "gone"));
    let world = world.as_ref().ok_or_else(gone)?;
    let read = world.script("cat /proc/net/tcp /proc/net/tcp6 2>/dev/null; exit 0", &[]).await;
    Ok(listening(&String::from_utf8_lossy(&read.map_err(|_| gone())?.1)))
}

async fn list(State(shared): Service, Path(id): Path<String>) -> Response {
    match ports(&shared, &id).await {
        Ok(ports) => Json(json!({"ports": ports})).into_response(),
        Err(response) => *response,
    }
}

async fn is_in_use(State(shared): Service, Path((id, port)): Path<(String, u16)>) -> Response {
    match ports(&shared, &id).await {
        Ok(ports) => Json(json!({"isInUse": ports.contains(&port)})).into_response(),
        Err(response) => *response,
    }
}
