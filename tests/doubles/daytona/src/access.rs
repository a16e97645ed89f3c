//! Ways into a sandbox without the key of its organization: links to ports, tokens for SSH, signed addresses of files.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    hmac,
    rand::{SecureRandom, SystemRandom},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    control::found,
    sandboxes::{at, now},
    server::{Shared, api_error, header, pairs},
};

type Service = State<Arc<Shared>>;
type Options = Query<BTreeMap<String, String>>;

/// How long a signed link lasts when nothing is said, and at most, in seconds.
const LINK_S: (u64, u64) = (60, 86_400);

/// How long access by SSH lasts when nothing is said, in minutes.
const SSH_MIN: f64 = 60.0;

/// What a token opens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    Port(u16),
    Ssh,
}

struct Grant {
    token: String,
    sandbox: String,
    door: Door,
    until: Instant,
}

/// The tokens that were given and have not expired.
#[derive(Default)]
pub(crate) struct Grants(Mutex<Vec<Grant>>);

impl Grants {
    fn give(&self, sandbox: &str, door: Door, lasts: Duration) -> String {
        let token = random();
        let (copy, sandbox, until) = (token.clone(), sandbox.to_owned(), Instant::now() + lasts);
        self.change(|all| all.push(Grant { token: copy, sandbox, door, until }));
        token
    }

    /// The sandbox that a token opens this door of.
    fn sandbox(&self, token: &str, door: Door) -> Option<String> {
        let is_it = |grant: &&Grant| grant.token == token && grant.door == door;
        self.change(|all| all.iter().find(is_it).map(|grant| grant.sandbox.clone()))
    }

    fn revoke(&self, is_meant: impl Fn(&Grant) -> bool) {
        self.change(|all| all.retain(|grant| !is_meant(grant)));
    }

    fn change<T>(&self, change: impl FnOnce(&mut Vec<Grant>) -> T) -> T {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|grant| grant.until > Instant::now());
        change(&mut all)
    }
}

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/sandbox/{id}/ports/{port}/preview-url", get(preview_url))
        .route("/sandbox/{id}/ports/{port}/signed-preview-url", get(signed_url))
        .route("/sandbox/{id}/ports/{port}/signed-preview-url/{token}/expire", post(expire))
        .route("/sandbox/{id}/ssh-access", post(give_ssh).delete(revoke_ssh))
        .route("/sandbox/ssh-access/validate", get(validate_ssh))
        .route("/sandbox/{id}/signing-key", get(signing_key))
        .route("/sandbox/{id}/signing-key/rotate", post(rotate))
}

fn random() -> String {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).expect("the system has random numbers");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What addresses of files of a sandbox are signed with.
pub(crate) fn new_key() -> String {
    format!("sgn_key_{}", random())
}

fn preview_token(id: &str) -> String {
    format!("preview-{id}")
}

async fn preview_url(State(shared): Service, Path((id, port)): Path<(String, u16)>) -> Response {
    match found(&shared, &id).await {
        Ok(sandbox) => {
            let id = &sandbox.id;
            let url = format!("{}/__preview/{port}/{id}/", shared.base);
            Json(json!({"sandboxId": id, "url": url, "token": preview_token(id)})).into_response()
        }
        Err(response) => *response,
    }
}

async fn signed_url(
    State(shared): Service,
    Path((id, port)): Path<(String, u16)>,
    Query(options): Options,
) -> Response {
    let sandbox = match found(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let seconds = options.get("expiresInSeconds").map_or(Some(LINK_S.0), |text| text.parse().ok());
    let Some(seconds) = seconds.filter(|seconds| (1..=LINK_S.1).contains(seconds)) else {
        return api_error(400, "expiresInSeconds must be between 1 second and 24 hours");
    };
    let token = shared.grants.give(&sandbox.id, Door::Port(port), Duration::from_secs(seconds));
    let url = format!("{}/__preview/{port}/{token}/", shared.base);
    Json(json!({"sandboxId": sandbox.id, "port": port, "token": token, "url": url})).into_response()
}

async fn expire(State(shared): Service, Path((id, port, token)): Path<(String, u16, String)>) -> Response {
    match found(&shared, &id).await {
        Ok(sandbox) => {
            let is_meant =
                |grant: &Grant| grant.token == token && grant.sandbox == sandbox.id && grant.door == Door::Port(port);
            shared.grants.revoke(is_meant);
            StatusCode::OK.into_response()
        }
        Err(response) => *response,
    }
}

/// What a browser asks of a port of a sandbox. `key` is its id, with a token beside it, or a token of a signed link.
pub(crate) async fn preview(
    State(shared): Service,
    Path((port, key, rest)): Path<(u16, String, String)>,
    headers: HeaderMap,
) -> Response {
    let has_token = header(&headers, "x-daytona-preview-token") == preview_token(&key);
    if !has_token && shared.grants.sandbox(&key, Door::Port(port)).is_none() {
        return Redirect::temporary("https://login.invalid/").into_response();
    }
    let answer = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.write_all(format!("GET /{rest} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    match answer.await {
        Ok(answer) => {
            let start = answer.windows(4).position(|part| part == b"\r\n\r\n").map_or(0, |index| index + 4);
            answer[start..].to_vec().into_response()
        }
        Err(_) => api_error(502, "nothing listens there"),
    }
}

/// A token is given and known; no server of SSH takes it here.
async fn give_ssh(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    let sandbox = match found(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let minutes = options.get("expiresInMinutes").map_or(Some(SSH_MIN), |text| text.parse().ok());
    let Some(minutes) = minutes.filter(|minutes| (1.0..=525_600.0).contains(minutes)) else {
        return api_error(400, "expiresInMinutes must be a number of minutes");
    };
    let lasts = Duration::from_secs_f64(minutes * 60.0);
    let token = shared.grants.give(&sandbox.id, Door::Ssh, lasts);
    Json(json!({
        "id": format!("ssh-{token}"), "sandboxId": sandbox.id, "token": token, "expiresAt": at(SystemTime::now() + lasts),
        "createdAt": now(), "updatedAt": now(), "sshCommand": format!("ssh {token}@ssh.invalid"),
    }))
    .into_response()
}

/// Of one token, or of all.
async fn revoke_ssh(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    match found(&shared, &id).await {
        Ok(sandbox) => {
            let token = options.get("token");
            shared.grants.revoke(|grant| {
                grant.sandbox == sandbox.id
                    && grant.door == Door::Ssh
                    && token.is_none_or(|token| *token == grant.token)
            });
            Json(sandbox.shown().await).into_response()
        }
        Err(response) => *response,
    }
}

async fn validate_ssh(State(shared): Service, Query(options): Options) -> Response {
    let Some(token) = options.get("token") else { return api_error(400, "token must be a string") };
    let sandbox = match shared.grants.sandbox(token, Door::Ssh) {
        Some(id) => shared.sandboxes.find(&id).await.map(|_| id),
        None => None,
    };
    Json(json!({"valid": sandbox.is_some(), "sandboxId": sandbox.unwrap_or_default()})).into_response()
}

async fn signing_key(State(shared): Service, Path(id): Path<String>) -> Response {
    match found(&shared, &id).await {
        Ok(sandbox) => Json(Value::from(sandbox.signing_key.lock().await.as_str())).into_response(),
        Err(response) => *response,
    }
}

/// What was signed before opens nothing from now on.
async fn rotate(State(shared): Service, Path(id): Path<String>) -> Response {
    match found(&shared, &id).await {
        Ok(sandbox) => {
            let key = new_key();
            sandbox.signing_key.lock().await.clone_from(&key);
            Json(Value::from(key)).into_response()
        }
        Err(response) => *response,
    }
}

/// What is signed, and how the signature is written.
const SIGNED: &str = "v1_";

fn signable(method: &str, path: &str, expires: u64) -> String {
    format!("v1:files:{method}:{path}:{expires}")
}

/// The signature that lets its bearer read (`GET`) or write (`POST`) one file, until a second since 1970; 0 is for ever.
pub fn sign_file(key: &str, method: &str, path: &str, expires: u64) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key.as_bytes());
    let tag = hmac::sign(&key, signable(method, path, expires).as_bytes());
    format!("{SIGNED}{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Whether this is a request for a file by an address that its sandbox's key has signed and that has not expired.
pub(crate) async fn is_signed(shared: &Shared, method: &str, path: &str, query: &str) -> bool {
    let mut parts = path.trim_start_matches("/toolbox/").splitn(2, '/');
    let (Some(id), Some(what)) = (parts.next(), parts.next()) else { return false };
    if !matches!((method, what), ("GET", "files/download") | ("POST", "files/upload-v2")) {
        return false;
    }
    let query: BTreeMap<String, String> = pairs(query).into_iter().collect();
    let (Some(file), Some(expires), Some(signature)) =
        (query.get("path"), query.get("expires").and_then(|text| text.parse().ok()), query.get("signature"))
    else {
        return false;
    };
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let tag = signature.strip_prefix(SIGNED).and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    let (Some(tag), true) = (tag, expires == 0 || expires > now_s) else { return false };
    let Some(sandbox) = shared.sandboxes.find(id).await else { return false };
    let key = hmac::Key::new(hmac::HMAC_SHA256, sandbox.signing_key.lock().await.as_bytes());
    hmac::verify(&key, signable(method, file, expires).as_bytes(), &tag).is_ok()
}

#[cfg(test)]
mod tests {
    use super::sign_file;

    #[test]
    fn a_signature_is_the_one_that_the_official_client_makes() {
        for (method, path, expires, signature) in [
            ("GET", "/work/a b.txt", 1_700_000_000, "v1_SJVQ9tm1Rcw8UQ3Mhvy2JaFHCzbv84jmCoEEQa9_45U"),
            ("POST", "/work/ü.bin", 0, "v1_snjz87YlMUjgjAOPU526N7VJYpp_U3dr7jbgaaM0FO8"),
        ] {
            assert_eq!(sign_file("sgn_key_1", method, path, expires), signature);
        }
    }
}
