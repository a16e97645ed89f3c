//! Folders in and out, as one archive that the sandbox's own `tar` packs and unpacks.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use sandbox_core::{ByteString, CaptureLimits, ExecOutcome, ExecRequest, Result, SandboxError, SandboxHandle};

use crate::{
    error::NAME,
    exec::exec,
    provider::Shared,
    transfer::{self, path_error},
    unpack::unpack,
};

/// The most entries of a folder on its way.
pub(crate) const MAX_ENTRIES: usize = 1_000_000;

/// Runs a script about a path as a command, however long it takes.
async fn long_step(shared: &Arc<Shared>, handle: &SandboxHandle, path: &ByteString, text: &str) -> Result<()> {
    let text = format!("{}{text}", shared.at(handle, path));
    let stream = exec(shared, handle, ExecRequest::shell(text)).await?;
    let result = stream.collect(CaptureLimits::each(64 << 10)).await?;
    match result.outcome() {
        ExecOutcome::Exited(0) => Ok(()),
        ExecOutcome::Exited(29) => {
            Err(SandboxError::unsupported_field(NAME, "files", "the sandbox has no tar")
                .with_help("use an image with tar"))
        }
        ExecOutcome::Exited(code) => Err(path_error(path, *code)),
        _ => Err(SandboxError::internal("packing a folder in the sandbox was ended").with_provider(NAME)),
    }
}

fn blocking(error: tokio::task::JoinError) -> SandboxError {
    SandboxError::internal(format!("work on an archive ended: {error}"))
}

/// Copies the contents of a folder of this host into the sandbox.
pub(crate) async fn upload(
    shared: &Arc<Shared>,
    handle: &SandboxHandle,
    local: &Path,
    remote: &ByteString,
) -> Result<()> {
    let archive = tempfile::NamedTempFile::new().map_err(|error| SandboxError::io("a temporary file", error))?;
    let (from, to) = (local.to_owned(), archive.path().to_owned());
    tokio::task::spawn_blocking(move || pack(&from, &to)).await.map_err(blocking)??;
    let scratch = shared.scratch()?;
    transfer::upload(shared, handle, archive.path(), &ByteString::from(scratch.as_str())).await?;
    let text = format!(
        "s='{scratch}'\ntrap 'rm -f \"$s\"' EXIT\ncommand -v tar >/dev/null || exit 29\n\
         if [ -e \"$p\" ] && [ ! -d \"$p\" ]; then exit 28; fi\n\
         mkdir -p -- \"$p\" 2>/dev/null || exit 22\ntar -xof \"$s\" -C \"$p\" >/dev/null 2>&1 || exit 23\n"
    );
    let unpacked = long_step(shared, handle, remote, &text).await;
    if unpacked.is_err() {
        let _ = shared.step(handle, &ByteString::from("."), &format!("rm -f '{scratch}'\n")).await;
    }
    unpacked
}

/// Copies the contents of a folder of the sandbox onto this host.
pub(crate) async fn download(
    shared: &Arc<Shared>,
    handle: &SandboxHandle,
    remote: &ByteString,
    local: &Path,
) -> Result<()> {
    let scratch = shared.scratch()?;
    let text = format!(
        "command -v tar >/dev/null || exit 29\n[ -e \"$p\" ] || exit 24\n[ -d \"$p\" ] || exit 24\n\
         o=$(find \"$p\" ! -type f ! -type d ! -type l 2>/dev/null | head -n 1)\n[ -z \"$o\" ] || exit 25\n\
         umask 077\ntar -cf '{scratch}' -C \"$p\" . 2>/dev/null || {{ rm -f '{scratch}'; exit 23; }}\n"
    );
    long_step(shared, handle, remote, &text).await?;
    let archive = tempfile::NamedTempFile::new().map_err(|error| SandboxError::io("a temporary file", error))?;
    let fetched = transfer::download(shared, handle, &ByteString::from(scratch.as_str()), archive.path()).await;
    let _ = shared.step(handle, &ByteString::from("."), &format!("rm -f '{scratch}'\n")).await;
    fetched?;
    let (from, to) = (archive.path().to_owned(), local.to_owned());
    tokio::task::spawn_blocking(move || unpack(&from, &to)).await.map_err(blocking)?
}

/// Writes the contents of a folder as an archive. Links are kept as links; special files are refused.
fn pack(folder: &Path, archive: &Path) -> Result<()> {
    let about = |path: &Path| {
        let path = path.display().to_string();
        move |error| SandboxError::io(path, error)
    };
    if !fs::metadata(folder).map_err(about(folder))?.is_dir() {
        return Err(SandboxError::invalid_input("local", format!("{} is not a folder", folder.display())));
    }
    let file = fs::File::create(archive).map_err(about(archive))?;
    let mut builder = tar::Builder::new(std::io::BufWriter::new(file));
    builder.follow_symlinks(false);
    let mut left: Vec<PathBuf> = vec![PathBuf::new()];
    let mut count = 0;
    while let Some(below) = left.pop() {
        for entry in fs::read_dir(folder.join(&below)).map_err(about(&below))? {
            let entry = entry.map_err(about(&below))?;
            let name = below.join(entry.file_name());
            let kind = entry.file_type().map_err(about(&name))?;
            count += 1;
            if count > MAX_ENTRIES {
                return Err(SandboxError::invalid_input("local", format!("has more than {MAX_ENTRIES} entries")));
            }
            if kind.is_dir() {
                left.push(name.clone());
            } else if !kind.is_file() && !kind.is_symlink() {
                let text = format!("{} is neither a file, a folder nor a link", entry.path().display());
                return Err(SandboxError::invalid_input("local", text));
            }
            builder.append_path_with_name(entry.path(), &name).map_err(about(&entry.path()))?;
        }
    }
    builder.into_inner().and_then(|mut file| std::io::Write::flush(&mut file)).map_err(about(archive))
}
