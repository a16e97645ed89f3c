//! Files and folders.

use std::{
    fs,
    io::{BufRead, ErrorKind, Read, Seek, SeekFrom, Write},
    path::Path,
};

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{
    Execd,
    metadata::{apply, expand, file_info},
    search::{replace, search},
};
use crate::http::{self, Request, Response, empty, failure, query, streamed, value_of};

fn missing() -> Response {
    failure(404, "FILE_NOT_FOUND", "no such file")
}

fn failed(error: &std::io::Error) -> Response {
    if error.kind() == ErrorKind::NotFound {
        return missing();
    }
    failure(500, "RUNTIME_ERROR", error.to_string())
}

impl Execd {
    pub(super) async fn file_request(&self, request: Request, method: &str, parts: &[&str]) -> Response {
        let query = query(&request);
        let mut paths = Vec::new();
        for (_, path) in query.iter().filter(|(name, _)| name == "path") {
            match expand(path) {
                Ok(path) => paths.push(path),
                Err(why) => return failure(400, "INVALID_REQUEST_BODY", why),
            }
        }
        let first = paths.first().cloned().unwrap_or_default();
        let result = match (method, parts) {
            ("POST", ["files", "upload"]) => return upload(request).await,
            ("GET", ["files", "download"]) if has_lines(&query) => return lines(&request, &query, &first),
            ("GET", ["files", "download"]) => return download(&request, &first),
            ("GET", ["files", "info"]) => infos(&paths),
            ("GET", ["files", "search"]) => search(&first, value_of(&query, "pattern").unwrap_or("**")),
            ("POST", ["files", "replace"]) => {
                let is_verbose = value_of(&query, "verbose") == Some("true");
                replace(&body(request).await, is_verbose)
            }
            ("DELETE", ["files"]) => remove(&paths),
            ("GET", ["directories", "list"]) => {
                let depth = value_of(&query, "depth").and_then(|depth| depth.parse().ok()).unwrap_or(1);
                list(&first, depth)
            }
            ("POST", ["files", "mv"]) => rename(&body(request).await),
            ("POST", ["files", "permissions"]) => each(&body(request).await, apply),
            ("POST", ["directories"]) => each(&body(request).await, |path, wanted| {
                fs::create_dir_all(path)?;
                apply(path, wanted)
            }),
            ("DELETE", ["directories"]) => remove_folders(&paths),
            _ => return http::full(404, Some("text/plain"), "404 page not found"),
        };
        result.unwrap_or_else(|error| failed(&error))
    }
}

async fn body(request: Request) -> Value {
    let bytes = http::read_all(request.into_body()).await.unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

fn infos(paths: &[String]) -> std::io::Result<Response> {
    let mut all = Map::new();
    for path in paths {
        all.insert(path.clone(), file_info(path, &fs::symlink_metadata(path)?));
    }
    Ok(http::json(200, &Value::Object(all)))
}

fn remove(paths: &[String]) -> std::io::Result<Response> {
    for path in paths {
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(empty(200))
}

fn remove_folders(paths: &[String]) -> std::io::Result<Response> {
    for path in paths {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(empty(200))
}

fn list(path: &str, depth: usize) -> std::io::Result<Response> {
    let root = fs::symlink_metadata(path)?;
    if !root.is_dir() {
        return Ok(failure(400, "INVALID_REQUEST_BODY", "not a folder"));
    }
    let mut found = Vec::new();
    let mut folders = vec![(path.trim_end_matches('/').to_owned(), 1)];
    while let Some((folder, level)) = folders.pop() {
        let start = if folder.is_empty() { "/" } else { folder.as_str() };
        for entry in fs::read_dir(start)? {
            let entry = entry?;
            let child = format!("{folder}/{}", entry.file_name().to_string_lossy());
            let data = fs::symlink_metadata(entry.path())?;
            found.push(file_info(&child, &data));
            if data.is_dir() && level < depth {
                folders.push((child, level + 1));
            }
        }
    }
    found.sort_by(|a, b| a["path"].as_str().cmp(&b["path"].as_str()));
    Ok(http::json(200, &Value::Array(found)))
}

fn rename(moves: &Value) -> std::io::Result<Response> {
    for one in moves.as_array().into_iter().flatten() {
        let (src, dest) = (one["src"].as_str().unwrap_or_default(), one["dest"].as_str().unwrap_or_default());
        fs::symlink_metadata(src)?;
        if fs::symlink_metadata(dest).is_ok() {
            return Ok(failure(500, "RUNTIME_ERROR", "the target exists"));
        }
        if let Some(parent) = Path::new(dest).parent() {
            fs::create_dir_all(parent)?;
        }
        fs::rename(src, dest)?;
    }
    Ok(empty(200))
}

fn each(map: &Value, work: impl Fn(&Path, &Value) -> std::io::Result<()>) -> std::io::Result<Response> {
    for (path, wanted) in map.as_object().into_iter().flatten() {
        let path = expand(path).map_err(std::io::Error::other)?;
        work(Path::new(&path), wanted)?;
    }
    Ok(empty(200))
}

fn open(path: &str) -> std::io::Result<fs::File> {
    if fs::metadata(path)?.is_dir() { Err(std::io::Error::other("is a directory")) } else { fs::File::open(path) }
}

fn has_lines(query: &[(String, String)]) -> bool {
    ["offset", "limit"].iter().any(|name| value_of(query, name).is_some())
}

/// Some lines of a file: from the one with this number on (1 is the first), so many.
fn lines(request: &Request, query: &[(String, String)], path: &str) -> Response {
    let number = |name: &str, default: usize| match value_of(query, name) {
        None => Some(default),
        Some(text) => text.parse().ok().filter(|number| *number > 0),
    };
    let (Some(offset), Some(limit)) = (number("offset", 1), number("limit", usize::MAX)) else {
        return failure(400, "INVALID_REQUEST_BODY", "offset and limit must be numbers above 0");
    };
    if request.headers().contains_key("range") {
        return failure(400, "INVALID_REQUEST_BODY", "either a range, or offset and limit");
    }
    let mut file = match open(path) {
        Ok(file) => std::io::BufReader::new(file),
        Err(error) => return failed(&error),
    };
    let (mut found, mut line) = (Vec::new(), Vec::new());
    for number in 1..offset.saturating_add(limit) {
        line.clear();
        match file.read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) if number >= offset => found.extend_from_slice(&line),
            Ok(_) => {}
            Err(error) => return failed(&error),
        }
    }
    http::full(200, Some("text/plain"), found)
}

fn download(request: &Request, path: &str) -> Response {
    let mut file = match open(path) {
        Ok(file) => file,
        Err(error) => return failed(&error),
    };
    let size = file.metadata().map_or(0, |data| data.len());
    let range = request.headers().get("range").and_then(|range| range.to_str().ok()?.strip_prefix("bytes="));
    let range = range.and_then(|range| range.split_once('-'));
    let (from, to) = match range {
        Some((from, to)) => {
            let from = from.parse().unwrap_or(0u64);
            if from >= size {
                return http::full(416, Some("text/plain"), "unsatisfiable");
            }
            (from, to.parse().map_or(size, |to: u64| (to + 1).min(size)))
        }
        None => (0, size),
    };
    if let Err(error) = file.seek(SeekFrom::Start(from)) {
        return failed(&error);
    }
    let (sender, mut response) = streamed("application/octet-stream");
    if range.is_some() {
        *response.status_mut() = hyper::StatusCode::PARTIAL_CONTENT;
    }
    response.headers_mut().insert("content-length", (to - from).into());
    tokio::task::spawn_blocking(move || {
        let mut left = to - from;
        while left > 0 {
            let mut piece = vec![0; usize::try_from(left.min(256 * 1024)).unwrap_or_default()];
            match file.read(&mut piece) {
                Ok(read) if read > 0 => {
                    piece.truncate(read);
                    left -= read as u64;
                    if sender.blocking_send(Ok(piece.into())).is_err() {
                        return;
                    }
                }
                _ => {
                    let _ = sender.blocking_send(Err(std::io::Error::other("the file ended early")));
                    return;
                }
            }
        }
    });
    response
}

async fn upload(request: Request) -> Response {
    let kind = request.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let Some(boundary) = kind.split("boundary=").nth(1).map(|text| text.trim_matches('"').to_owned()) else {
        return failure(400, "INVALID_FILE", "no boundary");
    };
    let Some(body) = http::read_all(request.into_body()).await else {
        return failure(400, "INVALID_FILE", "the body broke off");
    };
    let written = tokio::task::spawn_blocking(move || store(&body, &boundary)).await;
    written.unwrap_or_else(|_| failure(500, "RUNTIME_ERROR", "the upload broke"))
}

fn store(body: &Bytes, boundary: &str) -> Response {
    let (mut metadata, mut contents) = (Vec::new(), Vec::new());
    for (head, data) in parts(body, boundary) {
        let is_part = |name: &str| head.contains(&format!("; name=\"{name}\""));
        if is_part("metadata") && head.contains("; filename=") {
            match serde_json::from_slice::<Value>(data) {
                Ok(value) => metadata.push(value),
                Err(_) => return failure(400, "INVALID_FILE_METADATA", "the metadata is no JSON"),
            }
        } else if is_part("file") {
            contents.push(data);
        }
    }
    if metadata.is_empty() || metadata.len() != contents.len() {
        return failure(400, "INVALID_FILE", "as many files as metadata are needed");
    }
    for (wanted, data) in metadata.iter().zip(contents) {
        let path = match expand(wanted["path"].as_str().unwrap_or_default()) {
            Ok(path) if path.starts_with('/') => path,
            Ok(_) => return failure(400, "INVALID_FILE_METADATA", "the path is not absolute"),
            Err(why) => return failure(400, "INVALID_FILE_METADATA", why),
        };
        let path = Path::new(&path);
        let parent = path.parent().map_or(Ok(()), fs::create_dir_all);
        let done = parent.and_then(|()| fs::File::create(path)).and_then(|mut file| file.write_all(data));
        if let Err(error) = done.and_then(|()| apply(path, wanted)) {
            return failure(500, "RUNTIME_ERROR", error.to_string());
        }
    }
    empty(200)
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    // The first byte finds candidates quickly.
    let mut at = 0;
    while let Some(step) = bytes.get(at..)?.iter().position(|byte| *byte == needle[0]) {
        at += step;
        if bytes[at..].starts_with(needle) {
            return Some(at);
        }
        at += 1;
    }
    None
}

/// Head and contents of each part.
fn parts<'a>(body: &'a Bytes, boundary: &str) -> Vec<(String, &'a [u8])> {
    let (open, between) = (format!("--{boundary}\r\n"), format!("\r\n--{boundary}"));
    let mut found = Vec::new();
    let Some(start) = find(body, open.as_bytes()) else { return found };
    let mut rest = &body[start + open.len()..];
    while let Some(end_of_head) = find(rest, b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&rest[..end_of_head]).into_owned();
        let data = &rest[end_of_head + 4..];
        let Some(end) = find(data, between.as_bytes()) else { return found };
        found.push((head, &data[..end]));
        rest = &data[end + between.len()..];
        match rest.strip_prefix(b"\r\n") {
            Some(next) => rest = next,
            None => break,
        }
    }
    found
}
