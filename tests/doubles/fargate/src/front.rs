//! The front: every request passes it on its way to moto, as it was signed.

use std::sync::Arc;

use axum::{
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use hyper_util::{client::legacy, rt::TokioExecutor};
use serde_json::{Map, Value, json};

use crate::{builds, ecs, error::Refusal, fault::Kind, world::World};

/// The largest body: a staged transfer.
const MAX_BODY_BYTES: usize = 512 << 20;

/// How moto is called.
pub(crate) type Client = legacy::Client<legacy::connect::HttpConnector, Body>;

pub(crate) fn client() -> Client {
    legacy::Client::builder(TokioExecutor::new()).build_http()
}

/// A request, as far as the front reads it.
struct Call {
    service: String,
    operation: String,
    request: Value,
}

impl Call {
    fn of(parts: &Parts, body: &Bytes) -> Self {
        let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        // Credential=KEY/DATE/REGION/SERVICE/aws4_request
        let scope = text("authorization").split("Credential=").nth(1).unwrap_or_default();
        let service = scope.split('/').nth(3).unwrap_or_default().to_owned();
        if let Some(operation) = of_object(parts) {
            let request = json!({ "path": parts.uri.path() });
            return Self { service: "s3".to_owned(), operation: operation.to_owned(), request };
        }
        if let Some((_, operation)) = text("x-amz-target").rsplit_once('.') {
            let request = serde_json::from_slice(body).unwrap_or_default();
            return Self { service, operation: operation.to_owned(), request };
        }
        let form = if text("content-type").starts_with("application/x-www-form-urlencoded") {
            pairs(&String::from_utf8_lossy(body))
        } else {
            Map::new()
        };
        let operation = match form.get("Action").and_then(Value::as_str) {
            Some(action) => action.to_owned(),
            None => format!("{} {}", parts.method, parts.uri.path()),
        };
        Self { service, operation, request: Value::Object(form) }
    }

    /// A refusal in the words of its service.
    fn refused(&self, refusal: Refusal) -> Response {
        let status = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let (code, message) = (&refusal.code, &refusal.message);
        let text = match self.service.as_str() {
            "ec2" => format!(
                "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors></Response>"
            ),
            "s3" => format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"),
            "sts" => {
                format!("<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>")
            }
            _ => return refusal.into_response(),
        };
        (status, [(header::CONTENT_TYPE, "text/xml")], text).into_response()
    }
}

/// What is done with an object of S3, by whoever the query allows it.
fn of_object(parts: &Parts) -> Option<&'static str> {
    let is_signed = parts.uri.query().is_some_and(|query| query.contains("X-Amz-Signature="));
    match parts.method.as_str() {
        "PUT" if is_signed => Some("PutObject"),
        "GET" if is_signed => Some("GetObject"),
        "HEAD" if is_signed => Some("HeadObject"),
        "DELETE" if is_signed => Some("DeleteObject"),
        _ => None,
    }
}

fn pairs(query: &str) -> Map<String, Value> {
    // Values are only looked at by tests, for words without escapes.
    query
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), json!(value)))
        .collect()
}

/// Ends the connection without an answer.
fn hang_up() -> ! {
    std::panic::resume_unwind(Box::new("the connection was ended on purpose"))
}

/// Answers every request.
pub(crate) async fn pass(State(world): State<Arc<World>>, request: Request) -> Response {
    // A service goes on with what it was asked when nobody waits for its answer any more.
    match tokio::spawn(answer(world, request)).await {
        Ok(Some(response)) => response,
        Ok(None) => hang_up(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn answer(world: Arc<World>, request: Request) -> Option<Response> {
    let (parts, body) = request.into_parts();
    if parts.uri.path().starts_with("/moto-api") {
        return Some(StatusCode::NOT_FOUND.into_response());
    }
    let body = match to_bytes(body, MAX_BODY_BYTES).await {
        Ok(body) => body,
        Err(error) => return Some((StatusCode::BAD_REQUEST, error.to_string()).into_response()),
    };
    let call = Call::of(&parts, &body);
    world.journal().asked(&call.operation, &call.request);
    let fault = world.faults().hit(&call.operation, &call.request);
    let response = match &fault {
        Some(Kind::HangUp) => return None,
        Some(Kind::Refuse(refusal)) => call.refused(refusal.clone()),
        Some(Kind::Failures(reason)) => json_answer(&json!({ "tasks": [], "failures": [{ "reason": reason }] })),
        Some(Kind::Missing) => json_answer(&ecs::all_missing(&call.request)),
        other => {
            if let Some(Kind::Late(by)) = other {
                tokio::time::sleep(*by).await;
            }
            let done = match call.service.as_str() {
                "ecs" => ask_ecs(&world, &call, parts, body).await,
                "codebuild" | "ecr" | "logs" => ask_builds(&world, &call, parts, body).await,
                "s3" if call.operation.ends_with("Object") => ask_objects(&world, &call, parts, body).await,
                _ => forward(&world, parts, body).await,
            };
            done.unwrap_or_else(|refusal| call.refused(refusal))
        }
    };
    world.journal().answered(&call.operation, response.status().as_u16());
    (!matches!(fault, Some(Kind::LoseAnswer))).then_some(response)
}

fn json_answer(value: &Value) -> Response {
    (StatusCode::OK, [(header::CONTENT_TYPE, "application/x-amz-json-1.1")], value.to_string()).into_response()
}

/// Sends the request on, with every header that was signed.
async fn forward(world: &World, mut parts: Parts, body: Bytes) -> Result<Response, Refusal> {
    let broken = |error: String| Refusal { status: 502, code: "Double".to_owned(), message: format!("moto: {error}") };
    let is_json = parts.headers.contains_key("x-amz-target");
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let address = format!("http://{}{path}", world.account.address);
    parts.uri = address.parse::<Uri>().map_err(|error| broken(error.to_string()))?;
    // Those are of one connection; the length is that of the body that was read.
    for name in [header::CONNECTION, header::TRANSFER_ENCODING, header::EXPECT, header::CONTENT_LENGTH] {
        parts.headers.remove(name);
    }
    let request = Request::from_parts(parts, Body::from(body));
    let answer = world.client.request(request).await.map_err(|error| broken(error.to_string()))?;
    let (mut parts, body) = answer.into_parts();
    for name in [header::CONNECTION, header::TRANSFER_ENCODING] {
        parts.headers.remove(name);
    }
    if is_json && parts.status.is_client_error() {
        let bytes = to_bytes(Body::new(body), MAX_BODY_BYTES).await.map_err(|error| broken(error.to_string()))?;
        return match denied(&String::from_utf8_lossy(&bytes)) {
            Some(refusal) => Err(refusal),
            None => Ok((parts.status, without_length(parts.headers), bytes).into_response()),
        };
    }
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// moto denies access in the XML of IAM, whatever the service; those that speak JSON have their own words.
fn denied(text: &str) -> Option<Refusal> {
    let inner = |name: &str| {
        let rest = text.split_once(&format!("<{name}>"))?.1;
        Some(rest.split_once(&format!("</{name}>"))?.0)
    };
    let code = match inner("Code")? {
        "SignatureDoesNotMatch" => "InvalidSignatureException",
        "InvalidClientTokenId" => "UnrecognizedClientException",
        "AccessDenied" => "AccessDeniedException",
        other => other,
    };
    Some(Refusal::new(code, inner("Message").unwrap_or_default()))
}

async fn ask_ecs(world: &Arc<World>, call: &Call, parts: Parts, body: Bytes) -> Result<Response, Refusal> {
    let token = call.request["clientToken"].as_str().filter(|_| call.operation == "RunTask");
    let mut tokens = match token {
        Some(_) => Some(world.tokens.lock().await),
        None => None,
    };
    if let (Some(token), Some(tokens)) = (token, &tokens)
        && let Some((asked, tasks)) = tokens.get(token)
    {
        return ecs::replay(asked, &call.request, tasks).map(|answer| json_answer(&answer));
    }
    ecs::check(world, &call.operation, &call.request)?;
    let response = forward(world, parts, body).await?;
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, MAX_BODY_BYTES).await.unwrap_or_default();
    if parts.status != StatusCode::OK {
        return Ok((parts.status, without_length(parts.headers), bytes).into_response());
    }
    let record = serde_json::from_slice(&bytes).unwrap_or_default();
    let (answer, started) = ecs::rewrite(world, &call.operation, &call.request, record)?;
    if let (Some(token), Some(tokens)) = (token, &mut tokens) {
        tokens.insert(token.to_owned(), (call.request.clone(), started));
    }
    Ok(json_answer(&answer))
}

/// moto looks at who asks; builds are what is true of them.
async fn ask_builds(world: &Arc<World>, call: &Call, parts: Parts, body: Bytes) -> Result<Response, Refusal> {
    let (parts, body) = forward(world, parts, body).await?.into_parts();
    let bytes = to_bytes(body, MAX_BODY_BYTES).await.unwrap_or_default();
    // What moto does not know is there all the same, for whoever may ask.
    let known = match call.operation.as_str() {
        "GetLogEvents" => builds::log(world, &call.request),
        "DescribeImages" if parts.status == StatusCode::BAD_REQUEST => builds::image(world, &call.request),
        _ => None,
    };
    if let Some(known) = known {
        return Ok(json_answer(&known));
    }
    if parts.status != StatusCode::OK {
        return Ok((parts.status, without_length(parts.headers), bytes).into_response());
    }
    let record = serde_json::from_slice(&bytes).unwrap_or_default();
    Ok(json_answer(&builds::rewrite(world, &call.operation, &call.request, record)))
}

/// Remembers which objects there are.
async fn ask_objects(world: &Arc<World>, call: &Call, parts: Parts, body: Bytes) -> Result<Response, Refusal> {
    let path = parts.uri.path().to_owned();
    let contents = path.ends_with(".zip").then(|| body.clone());
    let response = forward(world, parts, body).await?;
    match call.operation.as_str() {
        "PutObject" if response.status().is_success() => drop(world.objects().insert(path, contents)),
        "DeleteObject" if response.status().is_success() => drop(world.objects().remove(&path)),
        _ => {}
    }
    Ok(response)
}

/// The length is set anew.
fn without_length(mut headers: HeaderMap) -> HeaderMap {
    headers.remove(header::CONTENT_LENGTH);
    headers
}
