//! Files to and from a sandbox, streaming.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use reqwest::{
    Body, Method,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue},
};
use sandbox_core::{ByteString, ErrorKind, ExecOutcome, ExecRequest, Result, SandboxError, SandboxHandle};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    daemon::{Daemon, query},
    error::{Failure, NAME},
    exec::{Found, absolute, exec_as, token},
    http::{Call, sort},
    retry::Operation,
    shared::Shared,
    state::State,
};

/// Where links and files of ours are while they are needed.
const STAGED: &str = "/tmp/.sandbox-";

const CHUNK_BYTES: usize = 256 * 1024;

/// A transfer that is slower than this is given up.
const SLOWEST_BYTES_PER_S: u64 = 64 * 1024;

/// A download that gives nothing for so long is given up.
const STALLED_FOR: Duration = Duration::from_secs(60);

/// The path of a file inside, as text.
pub(crate) fn path_text(state: &State, path: &ByteString) -> Result<String> {
    let text = path.as_str().ok_or_else(|| {
        let why = format!("{path}: must be UTF-8: the daemon inside takes nothing else");
        SandboxError::invalid_input("path", why).with_provider(NAME)
    })?;
    if text.is_empty() || text.contains('\0') {
        return Err(SandboxError::invalid_input("path", "must not be empty and must not hold NUL").with_provider(NAME));
    }
    Ok(absolute(state, text))
}

/// The daemon puts variables in the place of `$NAME` in a path: such a path goes through another one.
pub(crate) fn needs_staging(path: &str) -> bool {
    path.contains('$')
}

/// An octal mode in the decimal digits that the daemon reads.
pub(crate) fn mode_digits(mode: u32) -> u32 {
    format!("{:o}", mode & 0o7777).parse().unwrap_or(644)
}

pub(crate) fn digits_mode(digits: u64) -> u32 {
    u32::from_str_radix(&digits.to_string(), 8).unwrap_or(0o644)
}

/// What surrounds the contents of a file in an upload.
fn form(boundary: &str, metadata: &Value) -> (String, String) {
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"metadata\"; filename=\"metadata\"\r\n\
         Content-Type: application/json\r\n\r\n{metadata}\r\n--{boundary}\r\n\
         Content-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    (head, format!("\r\n--{boundary}--\r\n"))
}

impl Daemon<'_> {
    fn upload_call(&self, metadata: &Value, size: u64) -> (Call, String, String) {
        let boundary = format!("sandbox-{}", token());
        let (head, tail) = form(&boundary, metadata);
        let mut call = self.call(Method::POST, "/files/upload");
        call.timeout += Duration::from_secs(size / SLOWEST_BYTES_PER_S);
        if let Ok(kind) = HeaderValue::from_str(&format!("multipart/form-data; boundary={boundary}")) {
            call.headers.insert(CONTENT_TYPE, kind);
        }
        call.headers.insert(CONTENT_LENGTH, HeaderValue::from(head.len() as u64 + size + tail.len() as u64));
        (call, head, tail)
    }

    /// Writes a small file.
    pub(crate) async fn put(&self, path: &str, contents: Bytes, mode: u32) -> Result<()> {
        let metadata = json!({ "path": path, "mode": mode_digits(mode) });
        let (mut call, head, tail) = self.upload_call(&metadata, contents.len() as u64);
        call.body = Some([head.as_bytes(), &contents, tail.as_bytes()].concat().into());
        match self.ask(&call, Operation::Idempotent).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(self.explain(failure, "writing a file into the sandbox").await),
        }
    }

    /// Sends an open file from its start.
    async fn send_file(&self, file: tokio::fs::File, size: u64, metadata: &Value) -> Result<(), Failure> {
        let (call, head, tail) = self.upload_call(metadata, size);
        let whole = stream::iter([Ok(Bytes::from(head))])
            .chain(contents(file, size))
            .chain(stream::iter([Ok(Bytes::from(tail))]));
        let response = self.shared.http.start(&call, Some(Body::wrap_stream(whole))).await?;
        drop(response);
        Ok(())
    }

    /// Runs a script of ours as the daemon's own user; it must succeed.
    pub(crate) async fn script(&self, shared: &Arc<Shared>, script: String, what: &str) -> Result<Vec<u8>> {
        let request = ExecRequest::shell(script).with_timeout_s(60.0);
        let result = exec_as(shared, &self.id, &State::default(), request).await?.collect(Default::default()).await?;
        match result.outcome() {
            ExecOutcome::Exited(0) => Ok(result.stdout),
            outcome => Err(refused(what, &String::from_utf8_lossy(&result.stderr), outcome)),
        }
    }
}

/// A failure of a script of ours, by what it says.
fn refused(what: &str, stderr: &str, outcome: &ExecOutcome) -> SandboxError {
    let kind = kind_of_text(stderr).unwrap_or(ErrorKind::Internal);
    SandboxError::new(kind, format!("{what} (code {})", outcome.return_code())).with_provider(NAME)
}

/// The kind of a failure, by the words of the C library or the Go runtime.
pub(crate) fn kind_of_text(text: &str) -> Option<ErrorKind> {
    let text = text.to_ascii_lowercase();
    let has = |part: &str| text.contains(part);
    Some(if has("no space left") || has("quota exceeded") {
        ErrorKind::Exhausted
    } else if has("permission denied") || has("read-only file system") || has("operation not permitted") {
        ErrorKind::PermissionDenied
    } else if has("is a directory") || has("not a directory") {
        ErrorKind::InvalidInput
    } else if has("no such file") {
        ErrorKind::NotFound
    } else {
        return None;
    })
}

/// Exactly `size` bytes of a file; one that has become shorter is an error.
fn contents(file: tokio::fs::File, size: u64) -> impl Stream<Item = std::io::Result<Bytes>> {
    stream::unfold(Some((file, size)), |state| async move {
        let (mut file, left) = state?;
        if left == 0 {
            return None;
        }
        let mut piece = vec![0; usize::try_from(left.min(CHUNK_BYTES as u64)).unwrap_or(CHUNK_BYTES)];
        match file.read(&mut piece).await {
            Ok(0) => Some((Err(std::io::Error::other("the file became shorter while it was sent")), None)),
            Ok(read) => {
                piece.truncate(read);
                Some((Ok(piece.into()), Some((file, left - read as u64))))
            }
            Err(error) => Some((Err(error), None)),
        }
    })
}

/// Copies a file of this host into a sandbox.
pub(crate) async fn upload(
    shared: &Arc<Shared>,
    handle: &SandboxHandle,
    local: &Path,
    remote: &ByteString,
) -> Result<()> {
    let state = shared.open(handle)?;
    let path = path_text(&state, remote)?;
    let data = tokio::fs::metadata(local).await.map_err(|error| SandboxError::io(local.display(), error))?;
    if !data.is_file() {
        let text = format!("{} is not a regular file", local.display());
        return Err(SandboxError::invalid_input("local", text).with_provider(NAME));
    }
    let source = Source { local, size: data.len(), mode: data.permissions().mode() & 0o7777 };
    upload_as(shared, &handle.sandbox_id, &state, &source, &path, state.user.as_deref()).await
}

/// A file of this host that is to be sent.
pub(crate) struct Source<'a> {
    pub(crate) local: &'a Path,
    pub(crate) size: u64,
    pub(crate) mode: u32,
}

/// The same with an owner.
pub(crate) async fn upload_as(
    shared: &Arc<Shared>,
    id: &str,
    state: &State,
    source: &Source<'_>,
    path: &str,
    owner: Option<&str>,
) -> Result<()> {
    let daemon = shared.daemon(id).await?;
    let what = format!("uploading to {}", path.escape_debug());
    let staged = needs_staging(path);
    let user = match owner {
        None => None,
        Some(spec) => match daemon.user(spec).await? {
            Found::User(user) => Some(user),
            Found::Unknown(why) => return Err(SandboxError::invalid_input("user", why).with_provider(NAME)),
        },
    };
    if path.ends_with('/') {
        return Err(SandboxError::invalid_input("path", "must name a file").with_provider(NAME));
    }
    let target = if staged { format!("/tmp/.sandbox-{}.up", token()) } else { path.to_owned() };
    if !staged {
        daemon.refuse_folder(path, &what).await?;
    }
    if user.is_some() {
        // Parents that are made belong to the user, where the user may make them.
        let parent = Path::new(path).parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
        let request = ExecRequest::argv(["mkdir", "-p", "--", &parent]).with_cwd("/").with_timeout_s(60.0);
        exec_as(shared, id, state, request).await?.collect(Default::default()).await?;
    }
    let metadata = json!({ "path": target, "mode": mode_digits(source.mode) });
    let backoff = shared.operation_backoff();
    let mut attempt = 0;
    loop {
        let file = tokio::fs::File::open(source.local)
            .await
            .map_err(|error| SandboxError::io(source.local.display(), error))?;
        let failure = match daemon.send_file(file, source.size, &metadata).await {
            Ok(()) => break,
            Err(failure) => failure,
        };
        if attempt >= backoff.retries || !Operation::Idempotent.repeats(&failure) {
            return Err(daemon.explain_path(failure, &target, &what).await);
        }
        tokio::time::sleep(backoff.pause(attempt)).await;
        attempt += 1;
    }
    let arrived = daemon.info(&target).await;
    let arrived = match arrived {
        Ok(info) => info.and_then(|info| (info["type"] == "file").then(|| info["size"].as_u64()).flatten()),
        Err(failure) => return Err(daemon.explain(failure, &what).await),
    };
    // A link is followed by the daemon, and described as itself.
    if let Some(size) = arrived.filter(|size| *size != source.size) {
        let text = format!("{what}: {size} of {} bytes arrived", source.size);
        return Err(SandboxError::lost(text, sandbox_core::Admitted::Yes).with_provider(NAME));
    }
    let mut script = String::new();
    let quoted = |text: &str| crate::exec::quote(text);
    if let Some(user) = &user {
        script += &format!("chown {}:{} -- {};", user.uid, user.gid, quoted(&target));
    }
    if source.mode == 0 {
        script += &format!("chmod 0 -- {};", quoted(&target));
    }
    if staged {
        let parent = Path::new(path).parent().unwrap_or(Path::new("/")).to_string_lossy().into_owned();
        script += &format!(
            "if [ -d {path} ]; then rm -f -- {target}; echo 'Is a directory' >&2; exit 1; fi;\
             mkdir -p -- {parent} && mv -f -- {target} {path} || {{ rm -f -- {target}; exit 1; }}",
            path = quoted(path),
            parent = quoted(&parent),
            target = quoted(&target)
        );
    }
    if !script.is_empty() {
        daemon.script(shared, script, &what).await?;
    }
    Ok(())
}

impl Daemon<'_> {
    /// Refuses a folder where a file is to go.
    async fn refuse_folder(&self, path: &str, what: &str) -> Result<()> {
        match self.info(path).await {
            Ok(Some(info)) if info["type"] == "directory" => {
                Err(SandboxError::invalid_input("path", format!("{what}: it is a folder")).with_provider(NAME))
            }
            Ok(_) => Ok(()),
            // A file on the way to it: the upload says so.
            Err(failure) if failure.status() == 500 && !failure.refusal().is_some_and(|one| one.is_gone()) => Ok(()),
            Err(failure) => Err(self.explain(failure, what).await),
        }
    }

    /// Why something with a path did not work; the path itself is looked at where the daemon only says 500.
    pub(crate) async fn explain_path(&self, failure: Failure, path: &str, what: &str) -> SandboxError {
        let refusal = failure.refusal().filter(|one| one.status == 500 && !one.is_gone() && !one.code.contains("::"));
        let Some(refusal) = refusal else { return self.explain(failure, what).await };
        if let Some(kind) = kind_of_text(&refusal.message) {
            return SandboxError::new(kind, format!("{what}: {}", words(kind))).with_provider(NAME);
        }
        for parent in Path::new(path).ancestors().skip(1) {
            if let Ok(Some(info)) = self.info(&parent.to_string_lossy()).await {
                if info["type"] == "file" || info["type"] == "other" {
                    let text = format!("{what}: {} is not a folder", parent.display());
                    return SandboxError::invalid_input("path", text).with_provider(NAME);
                }
                break;
            }
        }
        self.explain(failure, what).await
    }
}

fn words(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Exhausted => "no space is left",
        ErrorKind::PermissionDenied => "permission denied",
        ErrorKind::InvalidInput => "a folder is where a file should be, or the other way round",
        _ => "no such file or folder",
    }
}

/// A file that is removed unless it is kept.
struct Unfinished(Option<PathBuf>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Copies a regular file out of a sandbox.
pub(crate) async fn download(
    shared: &Arc<Shared>,
    handle: &SandboxHandle,
    remote: &ByteString,
    local: &Path,
) -> Result<()> {
    let state = shared.open(handle)?;
    let path = path_text(&state, remote)?;
    let daemon = shared.daemon(&handle.sandbox_id).await?;
    let what = format!("downloading {}", path.escape_debug());
    let (path, info) = daemon.regular(shared, &path, &what).await?;
    let done = download_to(&daemon, &path, &info, local, &what).await;
    if path.starts_with(STAGED) {
        let call = daemon.call(Method::DELETE, &format!("/files?path={}", query(&path)));
        // What cannot be removed goes with the sandbox.
        let _ = daemon.ask(&call, Operation::Idempotent).await;
    }
    done
}

/// The same for a file that was looked at.
pub(crate) async fn download_to(daemon: &Daemon<'_>, path: &str, info: &Value, local: &Path, what: &str) -> Result<()> {
    let folder = local.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let io = |error: std::io::Error| SandboxError::io(local.display(), error).with_provider(NAME);
    tokio::fs::create_dir_all(folder).await.map_err(io)?;
    let name = format!(".sandbox-{}.part", token());
    let unfinished = folder.join(name);
    let mut guard = Unfinished(Some(unfinished.clone()));
    let backoff = daemon.shared.operation_backoff();
    let mut attempt = 0;
    loop {
        let file = tokio::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)
            .await
            .map_err(io)?;
        let failure = match fetch(daemon, path, file).await {
            Ok(()) => break,
            Err(Fetch::Local(error)) => return Err(io(error)),
            Err(Fetch::Remote(failure)) => failure,
        };
        if attempt >= backoff.retries || !Operation::Poll.repeats(&failure) {
            return Err(daemon.explain_path(failure, path, what).await);
        }
        tokio::time::sleep(backoff.pause(attempt)).await;
        attempt += 1;
    }
    let mode = digits_mode(info["mode"].as_u64().unwrap_or(644)) & 0o777;
    let (from, to) = (unfinished.clone(), local.to_owned());
    let placed = tokio::task::spawn_blocking(move || {
        std::fs::set_permissions(&from, std::fs::Permissions::from_mode(mode))?;
        std::fs::rename(&from, &to)
    });
    placed.await.unwrap_or_else(|_| Err(std::io::Error::other("the work was given up"))).map_err(io)?;
    guard.0 = None;
    Ok(())
}

enum Fetch {
    Local(std::io::Error),
    Remote(Failure),
}

async fn fetch(daemon: &Daemon<'_>, path: &str, mut file: tokio::fs::File) -> Result<(), Fetch> {
    let call = daemon.call(Method::GET, &format!("/files/download?path={}", query(path)));
    let mut response = daemon.shared.http.start(&call, None).await.map_err(Fetch::Remote)?;
    let (expected, mut got) = (response.content_length(), 0);
    loop {
        let chunk = tokio::time::timeout(STALLED_FOR, response.chunk()).await;
        let chunk = chunk.map_err(|_| Fetch::Remote(Failure::TimedOut(STALLED_FOR)))?;
        let Some(chunk) = chunk.map_err(|error| Fetch::Remote(sort(&error, STALLED_FOR)))? else { break };
        got += chunk.len() as u64;
        file.write_all(&chunk).await.map_err(Fetch::Local)?;
    }
    file.flush().await.map_err(Fetch::Local)?;
    match expected {
        Some(expected) if expected != got => {
            Err(Fetch::Remote(Failure::Broke(format!("{got} of {expected} bytes arrived"))))
        }
        _ => Ok(()),
    }
}

impl Daemon<'_> {
    /// The path that can be read for a path that is meant, and what is there: a regular file, or a refusal.
    pub(crate) async fn regular(&self, shared: &Arc<Shared>, path: &str, what: &str) -> Result<(String, Value)> {
        let missing = || SandboxError::not_found(format!("{what}: no such file")).with_provider(NAME);
        let mut path = path.to_owned();
        let mut info = Value::Null;
        if !needs_staging(&path) {
            info = match self.info(&path).await {
                Ok(Some(info)) => info,
                Ok(None) => return Err(missing()),
                Err(failure) => return Err(self.explain_path(failure, &path, what).await),
            };
        }
        if info.is_null() || info["type"] == "symlink" {
            // Where it leads to is the sandbox's own business, but what is there must be a file.
            let copy = format!("/tmp/.sandbox-{}.down", token());
            let script = format!(
                "p={p};[ -e \"$p\" ] || {{ echo 'No such file' >&2;exit 1; }};[ -f \"$p\" ] || {{ echo 'Is a directory' >&2;exit 1; }};\
                 r=$(readlink -f -- \"$p\");case $r in *'$'*) ln -s -- \"$r\" {copy};;esac;printf %s \"$r\"",
                p = crate::exec::quote(&path)
            );
            let real = self.script(shared, script, what).await?;
            let real = String::from_utf8_lossy(&real).into_owned();
            path = if needs_staging(&real) { copy } else { real };
            info = match self.info(&path).await {
                Ok(Some(info)) => info,
                Ok(None) => return Err(missing()),
                Err(failure) => return Err(self.explain_path(failure, &path, what).await),
            };
            if info["type"] == "symlink" {
                info = json!({ "type": "file", "mode": 644 });
            }
        }
        match info["type"].as_str() {
            Some("file") => Ok((path, info)),
            Some("directory") => {
                Err(SandboxError::invalid_input("path", format!("{what}: it is a folder")).with_provider(NAME))
            }
            _ => Err(SandboxError::invalid_input("path", format!("{what}: it is no regular file")).with_provider(NAME)),
        }
    }
}
