//! Whole folders on their way in and out, as archives. They are read and made here entry by entry: what comes out of a
//! sandbox is hostile.

use std::path::PathBuf;

use sandbox_core::{Result, SandboxError};
use sandbox_protocol::{Body, BodySender};
use tokio::runtime::Handle;

use crate::{
    arrival::Arrival,
    files::Cancel,
    folder::host_folder,
    host_file::blocking,
    pack::{Outgoing, Packer},
    unpack::{Incoming, unpack},
};

/// What is sent or written at once.
pub(crate) const CHUNK_BYTES: usize = 256 * 1024;

/// Packs the contents of a folder of this host into a body, without the folder itself. Links stay links.
///
/// # Errors
/// `NotFound` for the folder itself; what is wrong within it breaks the body off.
pub async fn send_folder(local: PathBuf, sender: BodySender) -> Result<()> {
    let shown = local.display().to_string();
    let source = blocking(move || host_folder(&local)).await?;
    let runtime = Handle::current();
    blocking(move || {
        let mut packer = Packer::new(Outgoing::new(sender, runtime.clone()), shown);
        let packed = packer.pack(&source);
        match (packed, packer.into_output()) {
            (Ok(()), Ok(output)) => runtime.block_on(output.finish()),
            (Err(error), Ok(output)) => runtime.block_on(output.fail(error)),
            // Nobody reads any more.
            _ => {}
        }
        Ok(())
    })
    .await
}

/// Unpacks an archive from a sandbox into a folder of this host, which is made if absent. The first `strip` names of
/// each entry do not count. Nothing is written outside of it. `shown` names the source in errors.
///
/// # Errors
/// `InvalidInput` for a link that leads out, or a special file; what the archive broke off with.
pub async fn receive_folder(body: Body, local: PathBuf, shown: String, strip: usize) -> Result<()> {
    let runtime = Handle::current();
    let cancel = Cancel::default();
    let _on_drop = cancel.on_drop();
    blocking(move || {
        std::fs::create_dir_all(&local).map_err(|error| SandboxError::io(local.display(), error))?;
        let arrival = Arrival::from_sandbox(host_folder(&local)?, shown, strip);
        unpack(Incoming::new(body, runtime, cancel), &arrival)
    })
    .await
}
