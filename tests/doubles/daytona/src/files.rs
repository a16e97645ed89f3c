//! The toolbox: files.

use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, FromRequest, Multipart, Path, Query, Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;

use crate::{
    control::label,
    process::running,
    sandboxes::{Sandbox, at},
    server::{Shared, header, tool_error},
};

type Service = State<Arc<Shared>>;
type Options = Query<BTreeMap<String, String>>;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/files/bulk-upload", post(upload))
        .route("/files/upload-v2", post(upload_one))
        .route("/files/bulk-download", post(bulk_download))
        .route("/files/download", get(download))
        .route("/files/info", get(info))
        .route("/files/folder", post(make_folder))
        .route("/files/move", post(rename))
        .route("/files", get(list).delete(remove))
        .layer(DefaultBodyLimit::disable())
}

/// Writes one file, streaming; gives its size.
async fn write<E: std::error::Error + Send + Sync + 'static>(
    sandbox: &Sandbox,
    path: &str,
    contents: impl Stream<Item = Result<Bytes, E>>,
) -> anyhow::Result<u64> {
    let script = "cd /home/daytona; mkdir -p -- \"$(dirname -- \"$1\")\" && exec cat > \"$1\"";
    let mut child = {
        let world = sandbox.world.read().await;
        let world = world.as_ref().ok_or_else(|| anyhow::anyhow!("the sandbox is gone"))?;
        world.command(&BTreeMap::new(), &["sh", "-c", script, "sh", path]).stdin(Stdio::piped()).spawn()?
    };
    let mut stdin = child.stdin.take();
    let mut size = 0;
    tokio::pin!(contents);
    while let Some(chunk) = contents.next().await {
        let chunk = chunk?;
        size += chunk.len() as u64;
        if let Some(pipe) = &mut stdin
            && pipe.write_all(&chunk).await.is_err()
        {
            stdin = None;
        }
    }
    drop(stdin);
    if !child.wait().await?.success() {
        anyhow::bail!("{path}: create: not a directory, or a folder");
    }
    Ok(size)
}

/// Writes one file.
pub(crate) async fn save(sandbox: &Sandbox, path: &str, contents: &[u8]) -> anyhow::Result<()> {
    let all = stream::iter([Ok::<_, std::io::Error>(Bytes::copy_from_slice(contents))]);
    write(sandbox, path, all).await.map(drop)
}

/// The body is the file, or a form with one.
async fn upload_one(
    State(shared): Service,
    Path(id): Path<String>,
    Query(options): Options,
    request: Request,
) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let path = option(&options, "path");
    if path.is_empty() {
        return tool_error(400, "INVALID_FILE_PATH", "path is required");
    }
    let written = if header(request.headers(), "content-type").starts_with("multipart/") {
        match Multipart::from_request(request, &()).await {
            Ok(mut form) => loop {
                match form.next_field().await {
                    Ok(Some(field)) if field.name() == Some("file") => break write(&sandbox, path, field).await,
                    Ok(Some(_)) => {}
                    Ok(None) => return tool_error(400, "BAD_REQUEST", "file is required"),
                    Err(error) => return tool_error(400, "INVALID_REQUEST_BODY", &error.to_string()),
                }
            },
            Err(error) => return tool_error(400, "INVALID_REQUEST_BODY", &error.to_string()),
        }
    } else {
        write(&sandbox, path, request.into_body().into_data_stream()).await
    };
    match written {
        Ok(_) => {
            let name = path.rsplit('/').next().unwrap_or_default();
            Json(json!({"name": name, "path": path, "type": "file"})).into_response()
        }
        Err(error) => tool_error(400, "BAD_REQUEST", &error.to_string()),
    }
}

async fn upload(State(shared): Service, Path(id): Path<String>, mut form: Multipart) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let (mut path, mut files, mut errors) = (String::new(), Vec::new(), Vec::new());
    loop {
        match form.next_field().await {
            Ok(None) => break,
            Ok(Some(field)) if field.name().is_some_and(|name| name.ends_with(".path")) => {
                path = field.text().await.unwrap_or_default();
            }
            Ok(Some(field)) => match write(&sandbox, &path, field).await {
                Ok(bytes) => files.push(json!({"path": path, "bytes": bytes})),
                Err(error) => errors.push(error.to_string()),
            },
            Err(error) => return tool_error(400, "INVALID_REQUEST_BODY", &error.to_string()),
        }
    }
    if errors.is_empty() {
        Json(json!({"files": files})).into_response()
    } else {
        (StatusCode::BAD_REQUEST, Json(json!({"errors": errors, "files": files}))).into_response()
    }
}

/// Exit codes: 0 a file, 3 a folder, 4 nothing.
async fn kind(sandbox: &Sandbox, path: &str) -> i32 {
    let script = "cd /home/daytona; [ -d \"$1\" ] && exit 3; [ -e \"$1\" ] || exit 4";
    let world = sandbox.world.read().await;
    let Some(world) = world.as_ref() else { return 4 };
    world.script(script, &[path]).await.map_or(4, |(code, _)| code)
}

async fn download(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let path = options.get("path").map(String::as_str).unwrap_or_default();
    match kind(&sandbox, path).await {
        3 => return tool_error(400, "INVALID_FILE_PATH", "path is a directory"),
        4 => return tool_error(404, "FILE_NOT_FOUND", "file not found"),
        _ => {}
    }
    let world = sandbox.world.read().await;
    let Some(inside) = world.as_ref() else { return tool_error(404, "NOT_FOUND", "gone") };
    let script = "cd /home/daytona; exec cat -- \"$1\"";
    match inside.command(&BTreeMap::new(), &["sh", "-c", script, "sh", path]).stdout(Stdio::piped()).spawn() {
        Ok(mut child) => {
            let stdout = child.stdout.take();
            // It ends by itself at the end of the file, or when nobody reads.
            tokio::spawn(async move { child.wait().await });
            stdout.map_or_else(
                || Body::empty().into_response(),
                |out| Body::from_stream(ReaderStream::with_capacity(out, 64 << 10)).into_response(),
            )
        }
        Err(error) => tool_error(500, "INTERNAL_SERVER_ERROR", &error.to_string()),
    }
}

async fn bulk_download(State(shared): Service, Path(id): Path<String>, Json(body): Json<Value>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    const BOUNDARY: &str = "DAYTONA-FILE-BOUNDARY";
    let mut answer = Vec::new();
    let paths = body.get("paths").and_then(Value::as_array).cloned().unwrap_or_default();
    for path in paths.iter().filter_map(Value::as_str) {
        let (name, kind_of, content) = match kind(&sandbox, path).await {
            0 => {
                let world = sandbox.world.read().await;
                let Some(world) = world.as_ref() else { continue };
                let read = world.script("cd /home/daytona; exec cat -- \"$1\"", &[path]).await;
                ("file", "application/octet-stream", read.map(|(_, bytes)| bytes).unwrap_or_default())
            }
            code => {
                let (status, code) = if code == 3 { (400, "INVALID_FILE_PATH") } else { (404, "FILE_NOT_FOUND") };
                let error = json!({"statusCode": status, "code": code, "message": format!("file not found: {path}")});
                ("error", "application/json", error.to_string().into_bytes())
            }
        };
        let exact: String = path.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"file\"; \
             filename*=utf-8''{exact}\r\nContent-Type: {kind_of}\r\nContent-Length: {}\r\n\r\n",
            content.len()
        );
        answer.extend_from_slice(head.as_bytes());
        answer.extend_from_slice(&content);
        answer.extend_from_slice(b"\r\n");
    }
    // Who reads must not take it for whole then.
    if sandbox.facts.lock().await.label(label::TRUNCATE).is_none() {
        answer.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    }
    ([("content-type", format!("multipart/form-data; boundary={BOUNDARY}"))], Bytes::from(answer)).into_response()
}

/// What `stat` says, as the service tells it.
fn described(line: &str) -> Option<Value> {
    let mut parts = line.splitn(7, ' ');
    let size: u64 = parts.next()?.parse().ok()?;
    let (bits, mode, owner, group) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let modified = at(UNIX_EPOCH + Duration::from_secs(parts.next()?.parse().ok()?));
    let path = parts.next()?;
    let name = path.rsplit('/').next()?;
    Some(json!({
        "name": name, "path": path, "size": size, "mode": mode, "permissions": format!("{bits:0>4}"), "owner": owner,
        "group": group, "isDir": mode.starts_with('d'), "modifiedAt": modified,
        "modTime": format!("{} +0000 UTC", modified.replace('T', " ").trim_end_matches(".000Z")),
    }))
}

const STAT: &str = "cd /home/daytona; for f do stat -c '%s %a %A %U %G %Y %n' -- \"$f\"; done";

/// What a script inside says. Its exit codes: 4 nothing is there, 5 a folder, 6 something is there, 7 a bad value.
pub(crate) async fn answer(
    shared: &Shared,
    id: &str,
    script: &str,
    arguments: &[&str],
) -> Result<Vec<u8>, Box<Response>> {
    let sandbox = running(shared, id).await?;
    let world = sandbox.world.read().await;
    let missing = || Box::new(tool_error(404, "FILE_NOT_FOUND", "no such file or directory"));
    let Some(world) = world.as_ref() else { return Err(missing()) };
    match world.script(script, arguments).await {
        Ok((0, output)) => Ok(output),
        Ok((5, _)) => Err(Box::new(tool_error(400, "BAD_REQUEST", "cannot delete directory without recursive flag"))),
        Ok((6, _)) => Err(Box::new(tool_error(409, "CONFLICT", "destination exists"))),
        Ok((7, _)) => Err(Box::new(tool_error(400, "BAD_REQUEST", "invalid owner, group or mode"))),
        _ => Err(missing()),
    }
}

pub(crate) fn option<'a>(options: &'a BTreeMap<String, String>, name: &str) -> &'a str {
    options.get(name).map(String::as_str).unwrap_or_default()
}

async fn info(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    match answer(&shared, &id, STAT, &[option(&options, "path")]).await {
        Ok(output) => match described(String::from_utf8_lossy(&output).trim_end()) {
            Some(info) => Json(info).into_response(),
            None => tool_error(404, "FILE_NOT_FOUND", "no such file or directory"),
        },
        Err(response) => *response,
    }
}

async fn list(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    let script = format!(
        "cd /home/daytona; cd -- \"$1\" || exit 4; here=${{PWD%/}}; set -- \"$here\"/*; [ -e \"$1\" ] || exit 0; {}",
        STAT.replacen("cd /home/daytona; ", "", 1)
    );
    match answer(&shared, &id, &script, &[option(&options, "path")]).await {
        Ok(output) => {
            let all: Vec<Value> = String::from_utf8_lossy(&output).lines().filter_map(described).collect();
            Json(all).into_response()
        }
        Err(response) => *response,
    }
}

async fn make_folder(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    let script = "cd /home/daytona; mkdir -p -- \"$1\" && chmod \"$2\" -- \"$1\"";
    match answer(&shared, &id, script, &[option(&options, "path"), option(&options, "mode")]).await {
        Ok(_) => StatusCode::CREATED.into_response(),
        Err(response) => *response,
    }
}

async fn rename(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    let script = "cd /home/daytona; [ -e \"$1\" ] || exit 4; [ -e \"$2\" ] && exit 6; mv -- \"$1\" \"$2\"";
    match answer(&shared, &id, script, &[option(&options, "source"), option(&options, "destination")]).await {
        Ok(_) => StatusCode::OK.into_response(),
        Err(response) => *response,
    }
}

async fn remove(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    let script =
        "cd /home/daytona; [ -e \"$1\" ] || exit 4; [ ! -d \"$1\" ] || [ \"$2\" = true ] || exit 5; rm -rf -- \"$1\"";
    match answer(&shared, &id, script, &[option(&options, "path"), option(&options, "recursive")]).await {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(response) => *response,
    }
}
