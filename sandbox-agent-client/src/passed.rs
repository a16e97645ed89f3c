//! Single files that the agent copies in the kernel, from and to a descriptor that is passed to it. It gets nothing but a
//! file that is open for the one direction: it opens nothing of this host.

use std::path::Path;

use sandbox_core::{ByteString, ErrorKind, FileStat, ReadRange, Result, SandboxError, WriteOptions};
use sandbox_protocol::{
    Client,
    methods::{self, FileRead},
};

use crate::host_file::{Source, begin_host_file, blocking, kept_traits};

/// Writes a file inside. None where no descriptor gets there, and nothing was done: the bytes are to be sent.
pub(crate) async fn upload(
    client: &Client,
    source: &Source,
    remote: &ByteString,
    options: &WriteOptions,
) -> Option<Result<()>> {
    if !client.passes_descriptors() {
        return None;
    }
    match client.write_file_from(remote.clone(), options.clone(), &source.file).await {
        Err(error) if is_not_passed(&error) => None,
        moved => Some(moved.map(drop)),
    }
}

/// Reads a file inside into one of this host that appears when it is whole. None as in [`upload`].
pub(crate) async fn download(client: &Client, remote: &ByteString, local: &Path) -> Option<Result<()>> {
    if !client.passes_descriptors() {
        return None;
    }
    match download_whole(client, remote, local).await {
        Err(error) if is_not_passed(&error) => None,
        moved => Some(moved),
    }
}

async fn download_whole(client: &Client, remote: &ByteString, local: &Path) -> Result<()> {
    if !has_folder(local).await? {
        // What cannot be read inside makes no folder here.
        let request = FileRead { path: remote.clone(), range: ReadRange { length: Some(0), ..ReadRange::default() } };
        client.call_for_body::<FileStat>(methods::FILE_READ, &request).await?;
    }
    let shown = local.display().to_string();
    let target = local.to_owned();
    let new = blocking(move || begin_host_file(&target)).await?;
    let done = client.read_file_into(remote.clone(), ReadRange::default(), new.file()).await?;
    let stat = done.stat.ok_or_else(|| SandboxError::internal("the agent tells nothing of the file that it read"))?;
    blocking(move || new.finish(kept_traits(stat.mode), &shown)).await
}

/// Whether the folder of a file is there.
async fn has_folder(local: &Path) -> Result<bool> {
    let parent = local.parent().map(Path::to_owned);
    blocking(move || Ok(parent.is_none_or(|parent| parent.as_os_str().is_empty() || parent.is_dir()))).await
}

/// Something between the two sides passes bytes only.
fn is_not_passed(error: &SandboxError) -> bool {
    error.kind() == ErrorKind::Unsupported && error.field() == Some("descriptor")
}
