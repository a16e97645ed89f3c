//! Files through the engine's archives.

use std::path::Path;

use bollard::query_parameters::{DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use sandbox_agent_client::{feed, open_source, receive_folder, send_folder};
use sandbox_core::{ByteString, Result, SandboxError};
use sandbox_protocol::Body;
use tar::{Builder, EntryType, Header};

use crate::{
    bare::Target,
    error::{self, NAME},
};

/// The size of a block of an archive, in bytes.
const BLOCK: u64 = 512;

fn absolute(target: &Target, path: &ByteString) -> Result<String> {
    let text = std::str::from_utf8(path.as_bytes())
        .map_err(|_| SandboxError::invalid_input("path", "must be UTF-8 without our agent"))?;
    Ok(match text.starts_with('/') {
        true => text.to_owned(),
        false => format!("{}/{text}", target.workdir.trim_end_matches('/')),
    })
}

/// Copies a file of this host into the container; parent folders are made.
pub(crate) async fn upload_file(target: &Target, local: &Path, remote: &ByteString) -> Result<()> {
    let remote = absolute(target, remote)?;
    if remote.ends_with('/') {
        return Err(SandboxError::invalid_input("path", format!("{remote} does not name a file")));
    }
    let source = open_source(local).await?;
    let (mode, size) = (source.mode, source.size);
    let (sender, mut body) = Body::channel();
    tokio::spawn(feed(source, sender));
    let head = header(remote.trim_start_matches('/'), EntryType::Regular, mode, size)?;
    let (tar_sender, tar) = Body::channel();
    let packing = async move {
        tar_sender.send(head).await;
        let mut left = size;
        loop {
            match body.next().await {
                Err(error) => return tar_sender.fail(error).await,
                Ok(Some(bytes)) if left > 0 => {
                    let take = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    left -= take as u64;
                    tar_sender.send(bytes.slice(..take)).await;
                }
                Ok(_) if left > 0 => {
                    let error = SandboxError::invalid_state("the file became shorter while it was sent");
                    return tar_sender.fail(error).await;
                }
                Ok(_) => break,
            }
        }
        let padding = (BLOCK - size % BLOCK) % BLOCK + 2 * BLOCK;
        tar_sender.send(vec![0; padding as usize]).await;
        tar_sender.finish().await;
    };
    tokio::join!(send(target, "/", tar), packing).0
}

/// Copies the contents of a folder of this host into a folder of the container, which is made.
pub(crate) async fn upload_dir(target: &Target, local: &Path, remote: &ByteString) -> Result<()> {
    let remote = absolute(target, remote)?;
    let mut head = header(&format!("{}/", remote.trim_matches('/')), EntryType::Directory, 0o755, 0)?.to_vec();
    head.resize(head.len() + 2 * BLOCK as usize, 0);
    if !remote.trim_matches('/').is_empty() {
        send(target, "/", Body::from_bytes(head)).await?;
    }
    let (sender, body) = Body::channel();
    let (sent, packed) = tokio::join!(send(target, &remote, body), send_folder(local.to_owned(), sender));
    packed.and(sent)
}

/// Copies a regular file out of the container.
pub(crate) async fn download_file(target: &Target, remote: &ByteString, local: &Path) -> Result<()> {
    let path = absolute(target, remote)?;
    let options = bollard::query_parameters::ContainerArchiveInfoOptionsBuilder::default().path(&path).build();
    let docker = target.engine.docker().await?;
    let info = docker.get_container_archive_info(&target.container, Some(options)).await;
    let info = info.map_err(|error| missing(remote, error))?;
    // Go's mode: every bit of a kind is above the permissions.
    let kind = info.file_mode & !0o7777;
    if kind != 0 {
        return Err(SandboxError::invalid_input("path", format!("{remote} is not a regular file")).with_provider(NAME));
    }
    let folder = tempfile_beside(local)?;
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    receive_folder(download(target, path).await?, folder.path().to_owned(), remote.to_string(), 0).await?;
    let taken = folder.path().join(name);
    let task = {
        let local = local.to_owned();
        tokio::task::spawn_blocking(move || {
            std::fs::rename(&taken, &local).map_err(|error| SandboxError::io(local.display(), error))
        })
    };
    task.await.unwrap_or_else(|_| Err(SandboxError::internal("file work panicked")))
}

/// Copies the contents of a folder of the container into a folder of this host.
pub(crate) async fn download_dir(target: &Target, remote: &ByteString, local: &Path) -> Result<()> {
    let path = format!("{}/.", absolute(target, remote)?.trim_end_matches('/'));
    receive_folder(download(target, path).await?, local.to_owned(), remote.to_string(), 1).await
}

/// A folder beside a file of this host: what arrives there is renamed, not copied.
fn tempfile_beside(local: &Path) -> Result<tempfile::TempDir> {
    let parent = local.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if local.is_dir() || local.file_name().is_none() {
        let message = format!("{} is there and is not a regular file", local.display());
        return Err(SandboxError::invalid_input("path", message));
    }
    std::fs::create_dir_all(parent).map_err(|error| SandboxError::io(parent.display(), error))?;
    let made = tempfile::Builder::new().prefix(".sandbox-").tempdir_in(parent);
    made.map_err(|error| SandboxError::io(parent.display(), error))
}

fn header(path: &str, kind: EntryType, mode: u32, size: u64) -> Result<Bytes> {
    let failed = |error| SandboxError::io(path, error);
    let mut head = Header::new_gnu();
    head.set_entry_type(kind);
    head.set_mode(mode);
    head.set_size(0);
    let mut builder = Builder::new(Vec::new());
    // A long name takes entries of its own, which the builder knows; the size is put in afterwards.
    builder.append_data(&mut head, path, std::io::empty()).map_err(failed)?;
    let mut bytes = std::mem::take(builder.get_mut());
    let start = bytes.len() - BLOCK as usize;
    let mut last = Header::from_byte_slice(&bytes[start..]).clone();
    last.set_size(size);
    last.set_cksum();
    bytes[start..].copy_from_slice(last.as_bytes());
    Ok(bytes.into())
}

async fn send(target: &Target, folder: &str, body: Body) -> Result<()> {
    let options = UploadToContainerOptionsBuilder::default().path(folder).no_overwrite_dir_non_dir("true").build();
    let chunks = stream::unfold(body, |mut body| async move {
        let next = body.next().await.transpose()?;
        Some((next.map_err(|error| std::io::Error::other(error.to_string())), body))
    });
    let docker = target.engine.docker().await?;
    let sent = docker.upload_to_container(&target.container, Some(options), bollard::body_try_stream(chunks)).await;
    sent.map_err(|error| error::engine(&format!("writing to {folder}"), error))
}

async fn download(target: &Target, path: String) -> Result<Body> {
    let options = DownloadFromContainerOptionsBuilder::default().path(&path).build();
    let docker = target.engine.docker().await?.clone();
    let (container, shown) = (target.container.clone(), ByteString::from(path.as_str()));
    let (sender, body) = Body::channel();
    tokio::spawn(async move {
        let mut chunks = Box::pin(docker.download_from_container(&container, Some(options)));
        while let Some(chunk) = chunks.next().await {
            match chunk {
                Ok(bytes) => {
                    if !sender.send(bytes).await {
                        return;
                    }
                }
                Err(error) => return sender.fail(missing(&shown, error)).await,
            }
        }
        sender.finish().await;
    });
    Ok(body)
}

fn missing(path: &ByteString, error: bollard::errors::Error) -> SandboxError {
    error::engine(&format!("reading {path}"), error)
}
