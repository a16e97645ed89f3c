//! The routes of the lifecycle API.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Inner,
    boxes::{Box, Snapshot, new_box_id},
};
use crate::{
    execd::{lock, now_ms},
    http::{Answer, Request, Response, decode, empty, failure, json as answer, query, value_of},
    proxy,
    time::{parse_rfc3339, rfc3339},
};

/// What the server takes from a request before the sandbox sees it.
const STRIPPED: [&str; 4] = ["authorization", "cookie", "open-sandbox-api-key", "x-forwarded-for"];

fn not_found() -> Response {
    failure(404, "DOCKER::SANDBOX_NOT_FOUND", "the sandbox does not exist")
}

impl Inner {
    pub(super) async fn route(self: &Arc<Self>, request: Request, method: &str, path: &str) -> Answer {
        let path = path.strip_prefix("/v1").unwrap_or(path).to_owned();
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        if let ("GET", ["health"]) = (method, parts.as_slice()) {
            return Ok(answer(200, &json!({ "status": "healthy" })));
        }
        if let ["sandboxes", id, "proxy", port, rest @ ..] = parts.as_slice() {
            self.note(&request, Value::Null);
            return self.proxied(request, id, port, &rest.join("/")).await;
        }
        let given = request.headers().get("open-sandbox-api-key").map(|key| key.as_bytes().to_vec());
        match (&self.options.api_key, given) {
            (Some(_), None) => return Ok(failure(401, "MISSING_API_KEY", "no key")),
            (Some(key), Some(given)) if key.as_bytes() != given => {
                return Ok(failure(401, "INVALID_API_KEY", "wrong key"));
            }
            _ => {}
        }
        let asked = query(&request);
        let mut noted = request;
        let body = read_json(&mut noted).await;
        self.note(&noted, body.clone());
        let id = parts.get(1).copied().unwrap_or_default();
        Ok(match (method, parts.as_slice()) {
            ("POST", ["sandboxes"]) => self.create(body).await,
            ("GET", ["sandboxes"]) => self.list(&asked),
            ("GET", ["sandboxes", _]) => self.with(id, |one| {
                let described = answer(200, &one.describe(id));
                one.next_state();
                described
            }),
            ("DELETE", ["sandboxes", _]) => self.delete(id).await,
            ("POST", ["sandboxes", _, "pause"]) => self.freeze(id, true).await,
            ("POST", ["sandboxes", _, "resume"]) => self.freeze(id, false).await,
            ("POST", ["sandboxes", _, "renew-expiration"]) => self.renew(id, &body),
            ("GET", ["sandboxes", _, "endpoints", port]) => self.endpoint(id, port, &asked),
            ("POST", ["sandboxes", _, "snapshots"]) => self.snapshot(id, &body).await,
            ("GET", ["snapshots"]) => self.snapshots(&asked),
            ("GET", ["snapshots", _]) => {
                lock(&self.snapshots).get_mut(id).map_or_else(no_snapshot, |one| answer(200, &one.tell(id)))
            }
            ("DELETE", ["snapshots", _]) => self.delete_snapshot(id),
            ("GET" | "PUT", ["sandboxes", _, "networkpolicy"]) => self.policy(id, method, body),
            _ => answer(404, &json!({ "detail": "Not Found" })),
        })
    }

    fn with(&self, id: &str, work: impl FnOnce(&mut Box) -> Response) -> Response {
        lock(&self.boxes).get_mut(id).map_or_else(not_found, work)
    }

    async fn create(self: &Arc<Self>, body: Value) -> Response {
        let invalid = |field: &str, message: &str| {
            answer(
                422,
                &json!({ "detail": [{ "type": "value_error", "loc": ["body", field], "msg": message, "input": body }] }),
            )
        };
        if body["image"].is_null() == body["snapshotId"].is_null() {
            return invalid("image", "exactly one of image and snapshotId");
        }
        if !body["image"].is_null() && !body["entrypoint"].is_array() {
            return invalid("entrypoint", "is required with image");
        }
        if body["timeout"].as_u64().is_some_and(|timeout| timeout < 60) {
            return invalid("timeout", "must be at least 60");
        }
        for (key, value) in body["metadata"].as_object().into_iter().flatten() {
            let value = value.as_str().unwrap_or_default();
            let good = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            let ends = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
            let name = key.rsplit('/').next().unwrap_or_default();
            let is_bad = value.len() > 63
                || name.is_empty()
                || name.len() > 63
                || !value.chars().all(good)
                || !name.chars().all(good)
                || !ends(value.chars().next())
                || !ends(value.chars().next_back())
                || key.starts_with("opensandbox.io/");
            if is_bad {
                return failure(400, "SANDBOX::INVALID_METADATA_LABEL", format!("the label {key} is not valid"));
            }
        }
        let files = match body["snapshotId"].as_str() {
            Some(id) => match lock(&self.snapshots).get(id) {
                Some(found) => found.files.as_ref().map(|folder| folder.path().to_owned()),
                None => return failure(404, "SNAPSHOT::NOT_FOUND", "no such snapshot"),
            },
            None => None,
        };
        // A client that goes away does not stop it, as with the real one.
        let inner = self.clone();
        let made = tokio::spawn(async move {
            let id = new_box_id();
            let one = Box::start(&inner, body, files.as_deref()).await?;
            let mut described = one.describe(&id);
            lock(&inner.boxes).insert(id.clone(), one);
            described.as_object_mut().expect("it is an object").remove("image");
            Ok::<Value, std::io::Error>(described)
        });
        match made.await {
            Ok(Ok(described)) => answer(202, &described),
            Ok(Err(error)) => failure(500, "DOCKER::SANDBOX_START_FAILED", error.to_string()),
            Err(_) => failure(500, "GENERAL::UNKNOWN_ERROR", "the double broke"),
        }
    }

    fn list(&self, asked: &[(String, String)]) -> Response {
        let size = value_of(asked, "pageSize").map_or(Some(20), |text| text.parse().ok());
        if !size.is_some_and(|size: usize| (1..=200).contains(&size)) {
            return answer(
                422,
                &json!({ "detail": [{ "loc": ["query", "pageSize"], "msg": "1 to 200", "type": "x" }] }),
            );
        }
        let wanted: Vec<(String, String)> = value_of(asked, "metadata")
            .map(|text| {
                text.split('&').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (decode(k), decode(v))).collect()
            })
            .unwrap_or_default();
        let states: Vec<String> =
            asked.iter().filter(|(name, _)| name == "state").map(|(_, state)| state.to_lowercase()).collect();
        let boxes = lock(&self.boxes);
        let all: Vec<Value> = boxes
            .iter()
            .filter(|(_, one)| wanted.iter().all(|(key, value)| one.metadata.get(key) == Some(value)))
            .filter(|(_, one)| states.is_empty() || states.contains(&one.state().to_lowercase()))
            .map(|(id, one)| one.describe(id))
            .collect();
        answer(200, &page_of(all, asked))
    }

    async fn delete(&self, id: &str) -> Response {
        let removed = lock(&self.boxes).remove(id);
        match removed {
            Some(one) => {
                one.end().await;
                empty(204)
            }
            None => not_found(),
        }
    }

    async fn freeze(&self, id: &str, stop: bool) -> Response {
        let response = self.with(id, |one| match (stop, one.state()) {
            (true, "Running") | (false, "Paused") => {
                one.freeze(stop);
                empty(202)
            }
            (true, _) => failure(409, "DOCKER::SANDBOX_NOT_RUNNING", "it does not run"),
            (false, _) => failure(409, "DOCKER::SANDBOX_NOT_PAUSED", "it is not paused"),
        });
        if !stop && response.status() == 202 && self.options.new_daemon_on_resume {
            let taken = lock(&self.boxes).remove(id);
            if let Some(mut one) = taken {
                if one.start_daemon(&self.options).await.is_err() {
                    return failure(500, "GENERAL::UNKNOWN_ERROR", "no daemon");
                }
                lock(&self.boxes).insert(id.to_owned(), one);
            }
        }
        response
    }

    fn renew(&self, id: &str, body: &Value) -> Response {
        let Some(at) = body["expiresAt"].as_str().and_then(parse_rfc3339) else {
            return answer(
                422,
                &json!({ "detail": [{ "loc": ["body", "expiresAt"], "msg": "no time", "type": "x" }] }),
            );
        };
        let only_extends = self.options.only_extends;
        self.with(id, |one| {
            let Some(now) = one.expires_at_ms else {
                return failure(409, "DOCKER::NO_EXPIRATION", "it has no expiry");
            };
            if at <= now_ms() || only_extends && at <= now {
                return failure(400, "DOCKER::INVALID_EXPIRATION", "the time must be later");
            }
            one.expires_at_ms = Some(at);
            answer(200, &json!({ "expiresAt": rfc3339(at) }))
        })
    }

    fn endpoint(&self, id: &str, port: &str, asked: &[(String, String)]) -> Response {
        let address = lock(&self.address).expect("it listens");
        let through_server = value_of(asked, "use_server_proxy") == Some("true");
        self.with(id, |one| {
            if one.state() == "Allocated" || one.state() == "Pending" {
                return failure(404, "KUBERNETES::POD_IP_NOT_AVAILABLE", "pod ip is not yet available");
            }
            let endpoint = match (through_server, one.port()) {
                (true, _) => format!("{address}/v1/sandboxes/{id}/proxy/{port}"),
                (false, Some(own)) => {
                    format!("127.0.0.1:{own}/proxy/{}", if port == "44772" { own.to_string() } else { port.to_owned() })
                }
                (false, None) => return failure(500, "DOCKER::NETWORK_MODE_ENDPOINT_UNAVAILABLE", "it has ended"),
            };
            answer(200, &json!({ "endpoint": endpoint }))
        })
    }

    async fn proxied(self: &Arc<Self>, mut request: Request, id: &str, port: &str, rest: &str) -> Answer {
        let found = lock(&self.boxes).get(id).map(|one| (one.port(), one.is_reachable(), one.state().to_owned()));
        let Some((own, is_reachable, state)) = found else { return Ok(not_found()) };
        if !is_reachable && state != "Paused" {
            return Ok(match state.as_str() {
                "Terminated" | "Failed" => failure(500, "DOCKER::NETWORK_MODE_ENDPOINT_UNAVAILABLE", "it has ended"),
                _ => failure(502, "BACKEND_CONNECTION_FAILED", "the sandbox cannot be reached"),
            });
        }
        let port = if port == "44772" { own.unwrap_or_default() } else { port.parse().unwrap_or_default() };
        let socket = proxy::ClientSocket::of(&mut request);
        let inner = self.clone();
        let broken = async move { inner.breaks.notified().await };
        match proxy::forward_until(request, port, &format!("/{rest}"), &STRIPPED, broken).await {
            Ok(Ok(refusal)) if refusal.status() != 101 && socket.is_some() => {
                Ok(socket.map_or(refusal, proxy::ClientSocket::refuse))
            }
            Ok(answer) => answer,
            Err(error) => Ok(error.response()),
        }
    }

    fn delete_snapshot(&self, id: &str) -> Response {
        if lock(&self.boxes).values().any(|one| one.request["snapshotId"] == json!(id)) {
            return failure(409, "SNAPSHOT::IN_USE", "a sandbox was made of it");
        }
        lock(&self.snapshots).remove(id).map_or_else(no_snapshot, |_| empty(204))
    }

    async fn snapshot(&self, id: &str, body: &Value) -> Response {
        let taken = lock(&self.boxes).remove(id);
        let Some(one) = taken else { return not_found() };
        let files = one.copy_files().await;
        lock(&self.boxes).insert(id.to_owned(), one);
        let Ok(files) = files else { return failure(500, "SNAPSHOT::CREATE_FAILED", "the files cannot be copied") };
        let mut made = Snapshot {
            sandbox_id: id.to_owned(),
            name: body["name"].as_str().map(str::to_owned),
            created_at_ms: now_ms(),
            files,
            before: self.options.states_before_ready.iter().rev().cloned().collect(),
        };
        let snapshot_id = new_box_id();
        let described = made.tell(&snapshot_id);
        lock(&self.snapshots).insert(snapshot_id, made);
        answer(202, &described)
    }

    fn snapshots(&self, asked: &[(String, String)]) -> Response {
        let snapshots = lock(&self.snapshots);
        let of = value_of(asked, "sandboxId");
        let items: Vec<Value> = snapshots
            .iter()
            .filter(|(_, one)| of.is_none_or(|of| of == one.sandbox_id))
            .map(|(id, one)| one.describe(id))
            .collect();
        answer(200, &page_of(items, asked))
    }

    fn policy(&self, id: &str, method: &str, body: Value) -> Response {
        self.with(id, |one| {
            if one.policy.is_none() {
                return failure(502, "BACKEND_CONNECTION_FAILED", "there is no sidecar");
            }
            if method == "PUT" {
                one.policy = Some(body);
            }
            answer(200, &json!({ "status": "ok", "mode": "dns", "policy": one.policy }))
        })
    }
}

fn no_snapshot() -> Response {
    failure(404, "SNAPSHOT::NOT_FOUND", "no such snapshot")
}

/// One page of a list, as it is asked for.
fn page_of(all: Vec<Value>, asked: &[(String, String)]) -> Value {
    let number =
        |name: &str, default: usize| value_of(asked, name).and_then(|text| text.parse().ok()).unwrap_or(default).max(1);
    let (page, size) = (number("page", 1), number("pageSize", 20));
    let (total, pages) = (all.len(), all.len().div_ceil(size));
    let items: Vec<Value> = all.into_iter().skip((page - 1) * size).take(size).collect();
    json!({ "items": items, "pagination": { "page": page, "pageSize": size, "totalItems": total,
            "totalPages": pages, "hasNextPage": page < pages } })
}

impl Snapshot {
    /// Describes it; each state before it is ready is told once.
    fn tell(&mut self, id: &str) -> Value {
        let described = self.describe(id);
        self.before.pop();
        described
    }

    fn describe(&self, id: &str) -> Value {
        let state = self.before.last().map_or("Ready", String::as_str);
        let mut all = json!({ "id": id, "sandboxId": self.sandbox_id, "createdAt": rfc3339(self.created_at_ms),
                              "status": { "state": state, "lastTransitionAt": rfc3339(self.created_at_ms) } });
        if let Some(name) = &self.name {
            all["name"] = json!(name);
        }
        all
    }
}

async fn read_json(request: &mut Request) -> Value {
    use http_body_util::BodyExt;
    let bytes = request.body_mut().collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}
