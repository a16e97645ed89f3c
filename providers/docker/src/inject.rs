//! The agent's file and what it is told, as an archive for a container that does not run yet.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use sandbox_core::{Result, SandboxError};
use tar::{Builder, EntryType, Header};

use crate::{
    error::NAME,
    plan::{CONFIG, FOLDER, TOKEN},
};

/// The largest file that is taken for the agent, in bytes.
const AGENT_MAX_BYTES: u64 = 64 << 20;

/// The archive, to be unpacked at the root, or where that takes nothing in our folder, which is a volume then.
pub(crate) async fn archive(agent: PathBuf, config: Vec<u8>, token: String, has_folder: bool) -> Result<Bytes> {
    let task = tokio::task::spawn_blocking(move || pack(&agent, &config, &token, has_folder));
    task.await.unwrap_or_else(|_| Err(SandboxError::internal("packing the agent panicked")))
}

fn pack(agent: &Path, config: &[u8], token: &str, has_folder: bool) -> Result<Bytes> {
    let failed = |error| SandboxError::io(agent.display(), error).with_provider(NAME).with_field("agent_path");
    let found = std::fs::metadata(agent).map_err(failed)?;
    if found.len() > AGENT_MAX_BYTES {
        let message = format!("{} is too large to be the agent", agent.display());
        return Err(SandboxError::invalid_input("agent_path", message).with_provider(NAME));
    }
    let program = std::fs::read(agent).map_err(failed)?;
    let mut builder = Builder::new(Vec::with_capacity(program.len() + 8192));
    let packed = [
        ("", &[][..], 0o700),
        ("/agent", program.as_slice(), 0o700),
        (&format!("/{CONFIG}"), config, 0o600),
        (&format!("/{TOKEN}"), token.as_bytes(), 0o600),
    ]
    .into_iter()
    .filter(|(name, ..)| !(has_folder && name.is_empty()))
    .try_for_each(|(name, contents, mode)| {
        let mut header = Header::new_gnu();
        header.set_entry_type(if name.is_empty() { EntryType::Directory } else { EntryType::Regular });
        header.set_mode(mode);
        header.set_size(contents.len() as u64);
        let path = if has_folder { name[1..].to_owned() } else { format!("{}{name}", &FOLDER[1..]) };
        builder.append_data(&mut header, path, contents)
    });
    packed.and_then(|()| builder.into_inner()).map(Bytes::from).map_err(failed)
}
