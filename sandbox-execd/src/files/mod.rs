//! Files and folders. What they hold moves through the agent; what they are is looked at and changed here, on threads of
//! their own.

mod download;
mod glob;
mod metadata;
mod multipart;
mod upload;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use hyper::{Method, StatusCode};
use sandbox_core::{ByteString, ErrorKind, SandboxError, WriteOptions};
use sandbox_protocol::{
    Body,
    methods::{self, BytesMoved, FileWrite},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    execd::{Execd, expand, path_of},
    http::{self, Answer, Query, Refusal, Request},
};
use metadata::{Names, Permissions};

/// Files that are found or listed in one answer.
const ENTRIES_MAX: usize = 1_000_000;

/// The largest file in which text is replaced.
const REPLACE_BYTES: u64 = 256 * 1024 * 1024;

pub(crate) async fn route(execd: &Execd, request: Request, method: &Method, parts: &[&str]) -> Answer {
    let query = Query::of(&request);
    match (method.as_str(), parts) {
        ("POST", ["files", "upload"]) => upload::upload(execd, request).await,
        ("GET", ["files", "download"]) => download::download(execd, &request, &query).await,
        ("GET", ["files", "info"]) => {
            let paths = query.all("path").map(expand).collect::<Result<Vec<_>, _>>()?;
            work(move || infos(&paths)).await
        }
        ("DELETE", ["files"]) => {
            let paths = query.all("path").map(expand).collect::<Result<Vec<_>, _>>()?;
            work(move || each(&paths, |path| gone(fs::remove_file(path)))).await
        }
        ("POST", ["files", "mv"]) => rename(request).await,
        ("POST", ["files", "permissions"]) => change(request, |_| Ok(())).await,
        ("GET", ["files", "search"]) => {
            let root = path_of(&query)?;
            let pattern = query.get("pattern").filter(|pattern| !pattern.is_empty()).unwrap_or("**").to_owned();
            work(move || search(root.as_path(), &pattern)).await
        }
        ("POST", ["files", "replace"]) => replace(execd, request, query.get("verbose") == Some("true")).await,
        ("GET", ["directories", "list"]) => {
            let (root, depth) = (path_of(&query)?, query.number::<usize>("depth")?.unwrap_or(1));
            work(move || list(root.as_path(), depth.max(1))).await
        }
        ("POST", ["directories"]) => change(request, |path| fs::create_dir_all(path)).await,
        ("DELETE", ["directories"]) => {
            let paths = query.all("path").map(expand).collect::<Result<Vec<_>, _>>()?;
            work(move || each(&paths, |path| gone(fs::remove_dir_all(path)))).await
        }
        _ => Ok(http::text(StatusCode::NOT_FOUND, "404 page not found")),
    }
}

/// What failed, and where.
fn failed(path: &Path) -> impl Fn(io::Error) -> Refusal + '_ {
    |error| match error.kind() {
        io::ErrorKind::NotFound => missing(&path.display().to_string()),
        io::ErrorKind::InvalidInput => Refusal::bad(error.to_string()),
        _ => Refusal::failed(format!("{}: {error}", path.display())),
    }
}

fn missing(path: &str) -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "FILE_NOT_FOUND", format!("file not found: {path}"))
}

/// What the agent said of a file.
fn of_agent(error: &SandboxError) -> Refusal {
    match error.kind() {
        ErrorKind::NotFound => Refusal::new(StatusCode::NOT_FOUND, "FILE_NOT_FOUND", error.message()),
        _ => Refusal::failed(error.message()),
    }
}

/// Work that can hang in a file system.
async fn work(work: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(Refusal::failed("the work broke off")))
}

/// What is gone already is as good as removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn each(paths: &[ByteString], work: impl Fn(&Path) -> io::Result<()>) -> Answer {
    if paths.is_empty() {
        return Err(Refusal::missing_query("path"));
    }
    for path in paths {
        work(path.as_path()).map_err(failed(path.as_path()))?;
    }
    Ok(http::ok())
}

fn infos(paths: &[ByteString]) -> Answer {
    let (names, mut all) = (Names::read(), Map::new());
    if paths.is_empty() {
        return Err(Refusal::missing_query("path"));
    }
    for path in paths {
        let found = fs::symlink_metadata(path.as_path()).map_err(failed(path.as_path()))?;
        all.insert(path.to_string(), names.describe(&path.to_string(), &found));
    }
    Ok(http::json(StatusCode::OK, &Value::Object(all)))
}

/// Every entry below a folder, down to a depth; links are not followed.
fn walk(root: &Path, depth: usize, mut take: impl FnMut(&Path, &fs::Metadata)) -> Result<(), Refusal> {
    let (mut folders, mut count) = (vec![(root.to_owned(), 1)], 0);
    while let Some((folder, level)) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            // It was removed, or is somebody else's; only of the root that is an answer.
            Err(_) if level > 1 => continue,
            entries => entries.map_err(failed(&folder))?,
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(found) = fs::symlink_metadata(&path) else { continue };
            count += 1;
            if count > ENTRIES_MAX {
                return Err(Refusal::failed(format!("there are more than {ENTRIES_MAX} entries")));
            }
            take(&path, &found);
            if found.is_dir() && level < depth {
                folders.push((path, level + 1));
            }
        }
    }
    Ok(())
}

fn folder(root: &Path) -> Result<(), Refusal> {
    let found = fs::symlink_metadata(root).map_err(failed(root))?;
    if found.is_dir() { Ok(()) } else { Err(Refusal::bad(format!("{} is not a directory", root.display()))) }
}

fn entries(root: &Path, depth: usize, is_wanted: impl Fn(&Path, &fs::Metadata) -> bool) -> Answer {
    folder(root)?;
    let (names, mut found) = (Names::read(), BTreeMap::<PathBuf, Value>::new());
    walk(root, depth, |path, data| {
        if is_wanted(path, data) {
            found.insert(path.to_owned(), names.describe(&path.to_string_lossy(), data));
        }
    })?;
    Ok(http::json(StatusCode::OK, &Value::Array(found.into_values().collect())))
}

fn list(root: &Path, depth: usize) -> Answer {
    entries(root, depth, |_, _| true)
}

/// Files whose own name fits.
fn search(root: &Path, pattern: &str) -> Answer {
    entries(root, usize::MAX, |path, data| {
        data.is_file() && path.file_name().is_some_and(|name| glob::fits(pattern, &name.to_string_lossy()))
    })
}

#[derive(Deserialize)]
struct Move {
    src: String,
    dest: String,
}

async fn rename(request: Request) -> Answer {
    let moves: Vec<Move> = http::read_json(request.into_body()).await?;
    let moves: Vec<(ByteString, ByteString)> =
        moves.iter().map(|one| Ok((expand(&one.src)?, expand(&one.dest)?))).collect::<Result<_, Refusal>>()?;
    work(move || {
        for (src, dest) in &moves {
            let (src, dest) = (src.as_path(), dest.as_path());
            fs::symlink_metadata(src).map_err(failed(src))?;
            if fs::symlink_metadata(dest).is_ok() {
                return Err(Refusal::failed(format!("{} exists", dest.display())));
            }
            dest.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed(dest))?;
            fs::rename(src, dest).map_err(failed(src))?;
        }
        Ok(http::ok())
    })
    .await
}

/// Does something with each path that a request names, and then gives it mode and owner.
async fn change(request: Request, first: fn(&Path) -> io::Result<()>) -> Answer {
    let wanted: BTreeMap<String, Permissions> = http::read_json(request.into_body()).await?;
    let wanted: Vec<(ByteString, Permissions)> =
        wanted.into_iter().map(|(path, wanted)| Ok((expand(&path)?, wanted))).collect::<Result<_, Refusal>>()?;
    work(move || {
        let names = Names::read();
        for (path, wanted) in &wanted {
            let path = path.as_path();
            first(path).and_then(|()| names.apply(path, wanted)).map_err(failed(path))?;
        }
        Ok(http::ok())
    })
    .await
}

#[derive(Deserialize)]
struct Replacement {
    old: String,
    new: String,
}

async fn replace(execd: &Execd, request: Request, is_verbose: bool) -> Answer {
    let wanted: BTreeMap<String, Replacement> = http::read_json(request.into_body()).await?;
    if wanted.values().any(|one| one.old.is_empty()) {
        return Err(Refusal::bad("old must not be empty"));
    }
    let mut counts = Map::new();
    for (path, Replacement { old, new }) in wanted {
        let target = expand(&path)?;
        let source = target.clone();
        let replaced = tokio::task::spawn_blocking(move || {
            let path = source.as_path();
            let size = fs::metadata(path).map_err(failed(path))?.len();
            if size > REPLACE_BYTES {
                return Err(Refusal::failed(format!("{} has more than {REPLACE_BYTES} bytes", path.display())));
            }
            let bytes = fs::read(path).map_err(failed(path))?;
            Ok(replace_in(&bytes, old.as_bytes(), new.as_bytes()))
        });
        let (bytes, count) = replaced.await.unwrap_or_else(|_| Err(Refusal::failed("the work broke off")))?;
        if count > 0 {
            let owner = owner_of(&target).await?;
            let options = WriteOptions { owner: Some(owner), ..WriteOptions::default() };
            let request = FileWrite { path: target, options };
            let written =
                execd.client.call_with_body::<BytesMoved>(methods::FILE_WRITE, &request, Body::from_bytes(bytes));
            written.await.map_err(|error| of_agent(&error))?;
        }
        counts.insert(path, json!({ "replacedCount": count }));
    }
    Ok(if is_verbose { http::json(StatusCode::OK, &Value::Object(counts)) } else { http::ok() })
}

/// A file that is replaced stays whose it was.
async fn owner_of(path: &ByteString) -> Result<String, Refusal> {
    use std::os::unix::fs::MetadataExt;
    let path = path.clone();
    let found = tokio::task::spawn_blocking(move || fs::metadata(path.as_path()).map_err(failed(path.as_path())));
    let found = found.await.unwrap_or_else(|_| Err(Refusal::failed("the work broke off")))?;
    Ok(format!("{}:{}", found.uid(), found.gid()))
}

fn replace_in(bytes: &[u8], old: &[u8], new: &[u8]) -> (Vec<u8>, usize) {
    let (mut replaced, mut count, mut rest) = (Vec::with_capacity(bytes.len()), 0, bytes);
    while let Some(at) = multipart::find(rest, old) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(new);
        rest = &rest[at + old.len()..];
        count += 1;
    }
    replaced.extend_from_slice(rest);
    (replaced, count)
}

#[cfg(test)]
mod tests {
    use super::replace_in;

    #[test]
    fn every_occurrence_is_replaced_once() {
        assert_eq!(replace_in(b"aXbXX", b"X", b"XX"), (b"aXXbXXXX".to_vec(), 3));
        assert_eq!(replace_in(b"aaa", b"aa", b"b"), (b"ba".to_vec(), 1));
        assert_eq!(replace_in(b"\xff", b"a", b"b"), (b"\xff".to_vec(), 0));
    }
}
