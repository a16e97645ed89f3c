//! Files in and out, streaming.
//!
//! The service writes in place and takes names that are text only. So a file first goes under a name of ours, and a
//! script inside puts it where it belongs, at once and under any name.

use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use reqwest::{
    Body, Method,
    multipart::{Form, Part},
};
use sandbox_core::{ByteString, Result, SandboxError, SandboxHandle};
use tokio::{fs::File, io::AsyncWriteExt};
use tokio_util::io::ReaderStream;

use crate::{
    client::broken,
    config::seconds,
    error::{Failure, NAME},
    gate::Throttle,
    job::path_word,
    labels::state,
    provider::Shared,
    random::random_hex,
    script::quote,
    toolbox::{Said, Script},
};

/// How long a small step inside may take.
const STEP: Duration = Duration::from_secs(60);

/// What is uploaded.
enum Source<'a> {
    Bytes(&'a Bytes),
    File(&'a Path),
}

/// What a file inside is.
pub(crate) struct Found {
    pub(crate) size: u64,
    pub(crate) mode: u32,
    /// A name under which the service finds it.
    path: String,
    /// A link of ours, to be removed again.
    is_link: bool,
    /// When it must have come.
    pub(crate) deadline: Instant,
}

impl Found {
    /// How long to wait before it is fetched again, in attempt number `attempt` from 1 on; none where it is not.
    pub(crate) fn wait_before_next(&self, shared: &Shared, failure: &Failure, attempt: u32) -> Option<Duration> {
        let backoff = &shared.client.backoff;
        let wait = backoff.wait(attempt - 1);
        let may = failure.is_transient() && attempt <= backoff.retries;
        (may && Instant::now() + wait < self.deadline).then_some(wait)
    }
}

/// Codes by which scripts say what is wrong with a path.
pub(crate) fn path_error(path: &ByteString, code: i32) -> SandboxError {
    let path = path.to_text_lossy().escape_debug().to_string();
    let invalid = |why: &str| SandboxError::invalid_input("path", format!("{path} {why}"));
    let error = match code {
        20 => SandboxError::not_found("the sandbox's workdir is gone".to_owned()),
        21 => invalid("is a folder"),
        22 => invalid("is below something that is not a folder"),
        23 => SandboxError::permission_denied(format!("{path}: permission denied in the sandbox")),
        24 => SandboxError::not_found(format!("{path}: no such file or folder in the sandbox")),
        25 => invalid("is not a regular file"),
        26 => SandboxError::exhausted(format!("{path}: no space left in the sandbox")),
        27 => SandboxError::already_exists(format!("{path}: the folder is not empty")),
        28 => SandboxError::already_exists(format!("{path}: something else is there")),
        other => SandboxError::internal(format!("{path}: a step inside the sandbox ended with {other}")),
    };
    error.with_provider(NAME)
}

impl Shared {
    /// Lines that go to the working directory and set `p` to a path.
    pub(crate) fn at(&self, handle: &SandboxHandle, path: &ByteString) -> String {
        let mut text = String::new();
        if let Some(workdir) = state(handle).workdir {
            text += &format!("cd -- {} 2>/dev/null || exit 20\n", quote(&workdir));
        }
        let (before, word) = path_word(path);
        text + &format!("LC_ALL=C; export LC_ALL\n{before}p={word}\ncase $p in /*) ;; *) p=./$p;; esac\n")
    }

    /// Runs a script about a path; a code that is not 0 is an error.
    pub(crate) async fn step(&self, handle: &SandboxHandle, path: &ByteString, text: &str) -> Result<String> {
        let text = format!("{}{text}", self.at(handle, path));
        let script = Script { text: &text, within: STEP, deadline: Instant::now() + STEP * 3 };
        match self.script(handle, script).await {
            Ok(Said { code: 0, output }) => Ok(output),
            Ok(said) => Err(path_error(path, said.code)),
            Err(failure) => Err(self.explain(handle, "a step inside the sandbox", failure).await),
        }
    }

    /// Writes bytes under a name that is text.
    pub(crate) async fn put(&self, handle: &SandboxHandle, path: &str, bytes: Bytes) -> Result<()> {
        self.send_file(handle, path, Source::Bytes(&bytes)).await
    }

    /// A name of ours inside, for something on its way.
    pub(crate) fn scratch(&self) -> Result<String> {
        Ok(format!("{}/way-{}", self.config.operations.job_folder, random_hex(12)?))
    }

    async fn send_file(&self, handle: &SandboxHandle, path: &str, source: Source<'_>) -> Result<()> {
        let toolbox = self.toolbox(handle).await?;
        let deadline = Instant::now() + seconds(self.config.operations.file_timeout_s);
        let mut attempt = 0;
        loop {
            let part = match source {
                Source::Bytes(bytes) => Part::stream_with_length(bytes.clone(), bytes.len() as u64),
                // What is wrong on this side is told at once and never tried again.
                Source::File(local) => {
                    let file = File::open(local).await.map_err(|error| SandboxError::io(local.display(), error))?;
                    let size = file.metadata().await.map_err(|error| SandboxError::io(local.display(), error))?.len();
                    let reader = tokio::io::AsyncReadExt::take(file, size);
                    Part::stream_with_length(Body::wrap_stream(ReaderStream::with_capacity(reader, 64 << 10)), size)
                }
            };
            let form = Form::new().text("files[0].path", path.to_owned()).part("files[0].file", part.file_name("file"));
            let request = self.client.request(Method::POST, &format!("{toolbox}/files/bulk-upload")).multipart(form);
            let failure = match self.timed(deadline, self.client.send(request, Throttle::Other)).await {
                Ok(_) => return Ok(()),
                Err(failure) => failure,
            };
            let wait = self.client.backoff.wait(attempt);
            let may = failure.is_transient() || failure.status() == Some(429);
            if !may || attempt >= self.client.backoff.retries || Instant::now() + wait >= deadline {
                return Err(self.explain(handle, "an upload", failure).await);
            }
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    async fn timed<T>(&self, deadline: Instant, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        self.client.gate.pass(Throttle::Other, deadline).await.map_err(Failure::Throttled)?;
        tokio::time::timeout_at(deadline.into(), work).await.map_err(|_| Failure::TimedOut)?
    }

    /// Puts what is under `scratch` where it belongs. It may run twice.
    pub(crate) async fn place(
        &self,
        handle: &SandboxHandle,
        scratch: &str,
        remote: &ByteString,
        rights: &str,
    ) -> Result<()> {
        let name = scratch.rsplit('/').next().unwrap_or_default();
        let text = format!(
            "s='{scratch}'\nbad() {{ rm -f \"$s\" \"$n\"; exit $1; }}\nn=\n\
             case $p in */) bad 21;; esac\n[ -d \"$p\" ] && bad 21\n\
             d=${{p%/*}}; [ -n \"$d\" ] || d=/\n\
             if ! mkdir -p -- \"$d\" 2>/dev/null; then q=$d\n\
             while [ ! -e \"$q\" ] && [ \"$q\" != \"${{q%/*}}\" ]; do q=${{q%/*}}; done\n\
             [ -e \"$q\" ] && [ ! -d \"$q\" ] && bad 22; bad 23; fi\n\
             n=$d/.{name}\n\
             if [ -e \"$s\" ]; then mv -f -- \"$s\" \"$n\" 2>/dev/null || bad 23; fi\n\
             if [ -e \"$n\" ]; then {rights}\nmv -f -- \"$n\" \"$p\" 2>/dev/null || bad 23; fi\n"
        );
        let placed = self.step(handle, remote, &text).await;
        if placed.is_err() {
            // Whatever went wrong, nothing half-made stays.
            let text = format!("rm -f '{scratch}'\n");
            let _ = self.step(handle, &ByteString::from("."), &text).await;
        }
        placed.map(drop)
    }

    /// Looks at a regular file.
    pub(crate) async fn find(&self, handle: &SandboxHandle, remote: &ByteString) -> Result<Found> {
        let mut text = "[ -e \"$p\" ] || { [ -L \"$p\" ] && exit 24; q=${p%/*}; [ -n \"$q\" ] && [ -e \"$q\" ] && [ ! -x \"$q\" ] && exit 23; exit 24; }\n\
             [ -d \"$p\" ] && exit 21\n[ -f \"$p\" ] || exit 25\n[ -r \"$p\" ] || exit 23\n\
             stat -L -c 'found %s %a' -- \"$p\" || exit 23\n"
            .to_owned();
        let named = remote.as_str().map(str::to_owned);
        let link = self.scratch()?;
        match &named {
            Some(_) => text += "pwd\n",
            None => text += &format!("case $p in /*) ;; *) p=$(pwd)/$p;; esac\nln -s -- \"$p\" '{link}' || exit 23\n"),
        }
        let said = self.step(handle, remote, &text).await?;
        let unreadable = || SandboxError::internal("what the sandbox says of a file is unreadable").with_provider(NAME);
        let (_, said) = said.split_once("found ").ok_or_else(unreadable)?;
        let mut lines = said.lines();
        let (size, mode) = lines.next().and_then(|line| line.split_once(' ')).ok_or_else(unreadable)?;
        let path = match named {
            Some(path) if path.starts_with('/') => path,
            Some(path) => format!("{}/{path}", lines.next().ok_or_else(unreadable)?),
            None => link,
        };
        Ok(Found {
            size: size.trim().parse().map_err(|_| unreadable())?,
            mode: u32::from_str_radix(mode.trim(), 8).map_err(|_| unreadable())?,
            path,
            is_link: remote.as_str().is_none(),
            deadline: Instant::now() + seconds(self.config.operations.file_timeout_s),
        })
    }

    /// Streams a file into a writer; gives how many bytes came. The file must come whole.
    pub(crate) async fn fetch<W: tokio::io::AsyncWrite + Unpin>(
        &self,
        handle: &SandboxHandle,
        found: &Found,
        writer: &mut W,
    ) -> Result<u64, Failure> {
        let toolbox = self.toolbox(handle).await.map_err(|error| Failure::NotSent(error.message().to_owned()))?;
        let url = format!("{toolbox}/files/download");
        let request = self.client.request(Method::GET, &url).query(&[("path", &found.path)]);
        let work = async {
            let mut response = self.client.send(request, Throttle::Other).await?;
            let mut size = 0;
            while let Some(chunk) = response.chunk().await.map_err(broken)? {
                size += chunk.len() as u64;
                writer.write_all(&chunk).await.map_err(local)?;
            }
            writer.flush().await.map_err(local)?;
            // A body that ends early can look whole.
            if size < found.size {
                return Err(Failure::Broken(format!("{size} of {} bytes came", found.size)));
            }
            Ok(size)
        };
        let fetched = self.timed(found.deadline, work).await;
        if found.is_link {
            let text = format!("rm -f '{}'\n", found.path);
            let _ = self.step(handle, &ByteString::from("."), &text).await;
        }
        fetched
    }
}

/// A failure of this machine's disk, in the words of failures.
fn local(error: io::Error) -> Failure {
    Failure::Refused(crate::error::Refusal { status: 599, code: error.to_string(), message: None })
}

/// Copies a file of this host into the sandbox.
pub(crate) async fn upload(
    shared: &Arc<Shared>,
    handle: &SandboxHandle,
    local: &Path,
    remote: &ByteString,
) -> Result<()> {
    let about = |error| SandboxError::io(local.display(), error);
    let metadata = tokio::fs::metadata(local).await.map_err(about)?;
    if !metadata.is_file() {
        let text = format!("{} is not a regular file", local.display());
        return Err(SandboxError::invalid_input("local", text));
    }
    let mode = metadata.permissions().mode() & 0o777;
    let scratch = shared.scratch()?;
    shared.send_file(handle, &scratch, Source::File(local)).await?;
    shared.place(handle, &scratch, remote, &format!("chmod {mode:o} \"$n\"")).await
}

/// Copies a regular file out of the sandbox.
pub(crate) async fn download(
    shared: &Arc<Shared>,
    handle: &SandboxHandle,
    remote: &ByteString,
    local: &Path,
) -> Result<()> {
    let mut attempt = 0;
    let mut deadline = None;
    loop {
        let mut found = shared.find(handle, remote).await?;
        found.deadline = *deadline.get_or_insert(found.deadline);
        attempt += 1;
        let parent = match local.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let about = |error| SandboxError::io(local.display(), error);
        tokio::fs::create_dir_all(&parent).await.map_err(about)?;
        let temporary = tempfile::Builder::new().prefix(".sandbox-").tempfile_in(&parent).map_err(about)?;
        let mut file = File::from_std(temporary.reopen().map_err(about)?);
        let failure = match shared.fetch(handle, &found, &mut file).await {
            Ok(_) => {
                // What comes out is hostile: no bits beyond those of an ordinary file of one's own.
                let mode = found.mode & 0o777 & !0o022;
                let rights = std::fs::Permissions::from_mode(mode);
                tokio::fs::set_permissions(temporary.path(), rights).await.map_err(about)?;
                temporary.persist(local).map_err(|error| about(error.error))?;
                return Ok(());
            }
            Err(failure) => failure,
        };
        if let Failure::Refused(refusal) = &failure
            && refusal.status == 599
        {
            return Err(SandboxError::internal(format!("{}: {}", local.display(), refusal.code)));
        }
        match found.wait_before_next(shared, &failure, attempt) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => return Err(shared.explain(handle, "a download", failure).await),
        }
    }
}
