//! The toolbox: looking through many files, and changing what is found.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    files::{answer, option, save},
    process::running,
    sandboxes::Sandbox,
    server::Shared,
};

type Service = State<Arc<Shared>>;
type Options = Query<BTreeMap<String, String>>;

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/files/find", get(find))
        .route("/files/search", get(search))
        .route("/files/replace", post(replace))
        .route("/files/permissions", post(permissions))
}

/// Lines that hold a text.
async fn find(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    let script = "cd /home/daytona; [ -e \"$1\" ] || exit 4; grep -rnIFZ -e \"$2\" -- \"$1\" || [ $? = 1 ]";
    match answer(&shared, &id, script, &[option(&options, "path"), option(&options, "pattern")]).await {
        Ok(output) => {
            let output = String::from_utf8_lossy(&output);
            let found = |line: &str| {
                let (file, rest) = line.split_once('\0')?;
                let (number, content) = rest.split_once(':')?;
                Some((file.to_owned(), number.parse::<u64>().ok()?, content.to_owned()))
            };
            let mut all: Vec<_> = output.lines().filter_map(found).collect();
            all.sort();
            let shown = all.iter().map(|(file, line, content)| json!({"file": file, "line": line, "content": content}));
            Json(shown.collect::<Vec<_>>()).into_response()
        }
        Err(response) => *response,
    }
}

/// Files whose names match a pattern of a shell.
async fn search(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    let script = "cd /home/daytona; [ -e \"$1\" ] || exit 4; find \"$1\" -name \"$2\" -print0";
    match answer(&shared, &id, script, &[option(&options, "path"), option(&options, "pattern")]).await {
        Ok(output) => {
            let output = String::from_utf8_lossy(&output);
            let mut files: Vec<&str> = output.split('\0').filter(|file| !file.is_empty()).collect();
            files.sort_unstable();
            Json(json!({"files": files})).into_response()
        }
        Err(response) => *response,
    }
}

#[derive(Deserialize)]
struct Replace {
    files: Vec<String>,
    pattern: String,
    #[serde(rename = "newValue")]
    new_value: String,
}

/// Each file tells for itself whether it was changed.
async fn replace(State(shared): Service, Path(id): Path<String>, Json(body): Json<Replace>) -> Response {
    let sandbox = match running(&shared, &id).await {
        Ok(sandbox) => sandbox,
        Err(response) => return *response,
    };
    let mut results: Vec<Value> = Vec::new();
    for file in &body.files {
        results.push(match replace_in(&shared, &sandbox, file, &body).await {
            Ok(()) => json!({"file": file, "success": true}),
            Err(error) => json!({"file": file, "success": false, "error": error}),
        });
    }
    Json(results).into_response()
}

async fn replace_in(shared: &Shared, sandbox: &Sandbox, file: &str, body: &Replace) -> Result<(), String> {
    let script = "cd /home/daytona; exec cat -- \"$1\"";
    let read = answer(shared, &sandbox.id, script, &[file]).await;
    let text = read.map_err(|_| format!("open {file}: no such file or directory"))?;
    let text = String::from_utf8(text).map_err(|_| format!("{file} is no text"))?;
    let replaced = text.replace(&body.pattern, &body.new_value);
    save(sandbox, file, replaced.as_bytes()).await.map_err(|error| error.to_string())?;
    let mode = answer(shared, &sandbox.id, "cd /home/daytona; chmod 644 -- \"$1\"", &[file]).await;
    mode.map(drop).map_err(|_| format!("{file}: its mode could not be set"))
}

async fn permissions(State(shared): Service, Path(id): Path<String>, Query(options): Options) -> Response {
    let script = "cd /home/daytona; [ -e \"$1\" ] || exit 4; [ -z \"$2\" ] || chown -- \"$2\" \"$1\" || exit 7
        [ -z \"$3\" ] || chgrp -- \"$3\" \"$1\" || exit 7; [ -z \"$4\" ] || chmod -- \"$4\" \"$1\" || exit 7";
    let [path, owner, group, mode] = ["path", "owner", "group", "mode"].map(|name| option(&options, name));
    match answer(&shared, &id, script, &[path, owner, group, mode]).await {
        Ok(_) => StatusCode::OK.into_response(),
        Err(response) => *response,
    }
}
