//! The control plane: create, look, change, delete.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, Query, RawQuery, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{delete, get, post},
};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, RwLock};

use crate::{
    access::new_key,
    pty::Terminals,
    sandboxes::{Facts, ORGANIZATION, STEP, Sandbox, defaults, now},
    server::{Shared, api_error, pairs},
    sessions::Sessions,
    world::World,
};

type Service = State<Arc<Shared>>;

/// Labels that a sandbox is created with and that say what becomes of it. The recordings of the official client have them.
pub(crate) mod label {
    /// Ends as `error` or `build_failed`.
    pub(crate) const FAIL: &str = "x-fail";
    /// Such an error can be recovered from.
    pub(crate) const RECOVERABLE: &str = "x-recoverable";
    /// Takes so many seconds until it is there.
    pub(crate) const DELAY_S: &str = "x-delay";
    /// Does not tell where its toolbox is.
    pub(crate) const NO_PROXY_URL: &str = "x-no-proxy-url";
    /// Ends the download of several files too early.
    pub(crate) const TRUNCATE: &str = "x-truncate";
    /// `container`: cannot be frozen.
    pub(crate) const CLASS: &str = "x-class";
}

/// A stop asks every process to end, and ends those that do not. Files stay.
const STOP: &str = "kill -TERM -1; sleep 0.1; kill -9 -1";

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/sandbox", post(create).get(list))
        .route("/sandbox/{id}", get(look).delete(remove))
        .route("/sandbox/{id}/{action}", post(act).get(ask))
        .route("/volumes/by-name/{name}", get(volume))
        .route("/config", get(config))
        .route("/__none", delete(config))
}

async fn config(State(shared): Service) -> Response {
    let base = &shared.base;
    Json(json!({
        "version": "0.226.1", "proxyToolboxUrl": format!("{base}/toolbox"), "defaultSnapshot": "default",
        "proxyTemplateUrl": format!("{base}/__preview/{{{{PORT}}}}/{{{{sandboxId}}}}/"), "dashboardUrl": base,
        "oidc": {"issuer": base, "clientId": "double", "audience": "double"}, "announcements": {},
        "linkedAccountsEnabled": false, "maintananceMode": false, "environment": "test",
        "maxAutoArchiveInterval": 43_200,
    }))
    .into_response()
}

async fn volume(Path(name): Path<String>) -> Response {
    if name.starts_with("no-") {
        return api_error(404, &format!("Volume with name {name} not found"));
    }
    Json(json!({
        "id": format!("vol-{name}"), "name": name, "organizationId": ORGANIZATION, "state": "ready",
        "createdAt": now(), "updatedAt": now(), "errorReason": null,
    }))
    .into_response()
}

/// Whether a range of addresses is an IPv4 one with its prefix.
fn is_cidr(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else { return false };
    address.parse::<std::net::Ipv4Addr>().is_ok() && prefix.parse::<u8>().is_ok_and(|prefix| prefix <= 32)
}

fn refusal(body: &Map<String, Value>) -> Option<&'static str> {
    let is_set = |key: &str| body.get(key).is_some_and(|value| !value.is_null());
    let is_positive = |key: &str| body.get(key).and_then(Value::as_f64).is_some_and(|value| value > 0.0);
    if is_set("buildInfo") && is_set("snapshot") {
        return Some("Cannot specify a snapshot when using a build info entry");
    }
    if !is_set("buildInfo") && ["cpu", "gpu", "memory", "disk"].iter().any(|key| is_positive(key)) {
        return Some("Cannot specify Sandbox resources when using a snapshot");
    }
    let list = body.get("networkAllowList").and_then(Value::as_str).unwrap_or_default();
    if !list.is_empty() && (list.split(',').count() > 10 || !list.split(',').all(is_cidr)) {
        return Some("networkAllowList must be at most 10 IPv4 CIDR blocks");
    }
    ["cpu", "memory", "disk"]
        .iter()
        .any(|key| body.get(*key).is_some_and(|value| !value.is_u64()))
        .then_some("resources must be whole numbers")
}

async fn create(State(shared): Service, Json(mut body): Json<Map<String, Value>>) -> Response {
    if let Some(problem) = refusal(&body) {
        return api_error(400, problem);
    }
    let name = body.get("name").and_then(Value::as_str).map(str::to_owned);
    if let Some(name) = &name
        && let Some(other) = shared.sandboxes.find(name).await
        && other.facts.lock().await.state() != "destroyed"
    {
        return api_error(409, &format!("Sandbox with name {name} already exists"));
    }
    let id = format!("00000000-0000-4000-8000-{:012x}", shared.unique());
    let mut dto = defaults(&id, &shared.base);
    let is_built = body.contains_key("buildInfo");
    if !is_built && !body.contains_key("snapshot") {
        dto.insert("snapshot".to_owned(), "daytonaio/sandbox:default".into());
    }
    dto.insert("name".to_owned(), name.unwrap_or_else(|| id.clone()).into());
    let strings = |value: Option<&Value>| -> BTreeMap<String, String> {
        let map = value.and_then(Value::as_object).cloned().unwrap_or_default();
        map.into_iter().filter_map(|(name, value)| Some((name, value.as_str()?.to_owned()))).collect()
    };
    let env = strings(body.get("env"));
    dto.append(&mut body);
    if let Some(build) = dto.get_mut("buildInfo").and_then(Value::as_object_mut) {
        build.insert("createdAt".to_owned(), now().into());
        build.insert("updatedAt".to_owned(), now().into());
        build.insert("snapshotRef".to_owned(), format!("daytona-{id}").into());
    }
    // Of the kinds that would do it tells the one that it took.
    if let Some(kind) = dto.get("gpuType").and_then(|kinds| kinds.get(0)).cloned() {
        dto.insert("gpuType".to_owned(), kind);
    }
    let has_network = dto.get("networkBlockAll") != Some(&Value::Bool(true));
    let mut facts = Facts::new(dto);
    if facts.label(label::NO_PROXY_URL).is_some() {
        facts.dto.insert("toolboxProxyUrl".to_owned(), "".into());
    }
    let delay = facts.label(label::DELAY_S).and_then(|delay| delay.parse().ok()).map_or(STEP, Duration::from_secs_f64);
    let end = match facts.label(label::FAIL) {
        Some("error") => "error",
        Some("build_failed") => "build_failed",
        _ => "started",
    };
    if end != "started" {
        facts.dto.insert("errorReason".to_owned(), "image pull failed: not found".into());
        let is_recoverable = facts.label(label::RECOVERABLE).is_some();
        facts.dto.insert("recoverable".to_owned(), is_recoverable.into());
    }
    let world = match World::new(has_network).await {
        Ok(world) => world,
        Err(error) => return api_error(500, &error.to_string()),
    };
    // From now on: whoever listens sees each state.
    facts.go(if is_built { "pending_build" } else { "creating" }, end, delay, "started");
    let shown = facts.dto.clone();
    let sandbox = Sandbox {
        id,
        env: Mutex::new(env),
        facts: Mutex::new(facts),
        world: RwLock::new(Some(world)),
        terminals: Terminals::default(),
        sessions: Sessions::default(),
        signing_key: Mutex::new(new_key()),
    };
    shared.sandboxes.add(sandbox).await;
    Json(shown).into_response()
}

/// The sandbox of a request, or what is said when there is none.
pub(crate) async fn found(shared: &Shared, key: &str) -> Result<Arc<Sandbox>, Box<Response>> {
    shared.sandboxes.find(key).await.ok_or_else(|| nowhere(key))
}

fn nowhere(key: &str) -> Box<Response> {
    Box::new(api_error(404, &format!("Sandbox with ID or name {key} not found")))
}

async fn look(State(shared): Service, Path(id): Path<String>) -> Response {
    match found(&shared, &id).await {
        Ok(sandbox) => Json(sandbox.facts.lock().await.dto.clone()).into_response(),
        Err(response) => *response,
    }
}

async fn list(State(shared): Service, RawQuery(query): RawQuery) -> Response {
    let query = pairs(&query.unwrap_or_default());
    let value = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let limit: usize = value("limit").and_then(|limit| limit.parse().ok()).unwrap_or(100);
    let cursor: usize = value("cursor").and_then(|cursor| cursor.parse().ok()).unwrap_or(0);
    let wanted: BTreeMap<String, String> =
        value("labels").and_then(|labels| serde_json::from_str(labels).ok()).unwrap_or_default();
    let states: Vec<&str> = query.iter().filter(|(key, _)| key == "states").map(|(_, state)| state.as_str()).collect();
    let mut items = Vec::new();
    for sandbox in shared.sandboxes.all().await {
        let mut dto = sandbox.shown().await;
        let is = |key: &str| dto.get(key).and_then(Value::as_str).unwrap_or_default();
        let has = |name: &String, value: &String| dto.get("labels").is_some_and(|labels| labels[name] == *value);
        let is_wanted = wanted.iter().all(|(name, value)| has(name, value));
        if is("state") != "destroyed" && is_wanted && (states.is_empty() || states.contains(&is("state"))) {
            ["env", "kvm", "volumes", "buildInfo"].iter().for_each(|key| drop(dto.remove(*key)));
            items.push(Value::Object(dto));
        }
    }
    let by = value("sort").unwrap_or("id");
    // Ids are given in order: they part what is alike.
    let key = |item: &Value| (item[by].as_f64().unwrap_or_default(), item[by].to_string(), item["id"].to_string());
    items.sort_by(|left, right| {
        let (left, right) = (key(left), key(right));
        left.0.total_cmp(&right.0).then_with(|| (left.1, left.2).cmp(&(right.1, right.2)))
    });
    if value("order") == Some("desc") {
        items.reverse();
    }
    let next = (items.len() > cursor + limit).then(|| (cursor + limit).to_string());
    let page: Vec<Value> = items.into_iter().skip(cursor).take(limit).collect();
    Json(json!({"items": page, "nextCursor": next})).into_response()
}

async fn remove(State(shared): Service, Path(id): Path<String>) -> Response {
    let sandbox = match found(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let mut facts = sandbox.facts.lock().await;
    if facts.is_changing() && facts.state() != "pending_build" {
        return api_error(409, "Sandbox state change in progress");
    }
    if facts.state() == "destroyed" {
        return *nowhere(&id);
    }
    facts.go("destroying", "destroyed", STEP, "destroyed");
    Json(facts.dto.clone()).into_response()
}

async fn act(
    State(shared): Service,
    Path((id, action)): Path<(String, String)>,
    Query(options): Query<BTreeMap<String, String>>,
) -> Response {
    let sandbox = match found(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    if action == "last-activity" {
        return StatusCode::CREATED.into_response();
    }
    let is_frozen = action == "pause";
    {
        let mut facts = sandbox.facts.lock().await;
        if facts.is_changing() {
            return api_error(409, "Sandbox state change in progress");
        }
        let is_machine = facts.label(label::CLASS) != Some("container");
        let is_ephemeral = facts.dto.get("autoDeleteInterval") == Some(&json!(0));
        match (action.as_str(), facts.state()) {
            ("pause", "started") if is_machine => facts.go("pausing", "paused", STEP, "paused"),
            ("pause", "started") => return api_error(422, "Pausing is not supported for this sandbox class"),
            ("start", "paused") => facts.go("resuming", "started", STEP, "started"),
            ("start", "stopped") => facts.go("starting", "started", STEP, "started"),
            ("start", "archived") => facts.go("restoring", "started", STEP, "started"),
            ("stop", "started") => facts.go("stopping", "stopped", STEP, "stopped"),
            ("archive", "stopped") if is_ephemeral => {
                return api_error(400, "Ephemeral sandboxes cannot be archived");
            }
            ("archive", "stopped") => facts.go("archiving", "archived", STEP, "archived"),
            _ => return api_error(400, "Sandbox is not in a valid state"),
        }
    }
    let world = sandbox.world.read().await;
    let done = match (&*world, action.as_str()) {
        (Some(world), "pause" | "start") => world.freeze(is_frozen).await,
        (Some(world), "stop") => {
            let is_forced = options.get("force").is_some_and(|force| force == "true");
            world.script(if is_forced { "kill -9 -1" } else { STOP }, &[]).await.map(drop)
        }
        _ => Ok(()),
    };
    match done {
        Ok(()) => Json(sandbox.facts.lock().await.dto.clone()).into_response(),
        Err(error) => api_error(500, &error.to_string()),
    }
}

async fn ask(State(shared): Service, Path((id, question)): Path<(String, String)>) -> Response {
    match found(&shared, &id).await {
        Ok(_) if question == "toolbox-proxy-url" => {
            Json(json!({"url": format!("{}/toolbox", shared.base)})).into_response()
        }
        Ok(_) => api_error(404, "Cannot GET"),
        Err(response) => *response,
    }
}
