//! File operations by bytes.

use std::path::Path;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use sandbox_core::{
    ByteString, DirEntry, FileKind, FileStat, Files, ReadRange, Result, SandboxError, SandboxHandle, WriteOptions,
    async_trait,
};

use crate::{
    error::NAME,
    folders,
    provider::{DaytonaProvider, Shared},
    script::quote,
    toolbox::check,
};

/// The largest file that is read into memory.
const MAX_READ_BYTES: u64 = 2 << 30;

/// Describes `$f` on a line: facts, name and target of a link, the last two in base64.
const DESCRIBE: &str = "describe() { printf 'entry %s ' \"$(stat -c '%f %s %u %g %Y' -- \"$f\")\"; printf %s \"$f\" | base64 | tr -d '\\n'\n\
    printf ' '; [ -L \"$f\" ] && readlink -n -- \"$f\" | base64 | tr -d '\\n'; echo; }\n";

/// Reads lines of `describe`.
fn entries(said: &str) -> Option<Vec<DirEntry>> {
    let bytes = |text: &str| STANDARD.decode(text).ok();
    said.lines()
        .filter_map(|line| line.strip_prefix("entry "))
        .map(|line| {
            let mut words = line.split(' ');
            let raw_mode = u32::from_str_radix(words.next()?, 16).ok()?;
            let stat = FileStat {
                kind: match raw_mode & 0o170_000 {
                    0o100_000 => FileKind::File,
                    0o040_000 => FileKind::Directory,
                    0o120_000 => FileKind::Symlink,
                    _ => FileKind::Other,
                },
                size: words.next()?.parse().ok()?,
                mode: raw_mode & 0o7777,
                uid: words.next()?.parse().ok()?,
                gid: words.next()?.parse().ok()?,
                modified_ms: words.next()?.parse::<i64>().ok()?.saturating_mul(1000),
                link_target: None,
            };
            let name = ByteString::new(bytes(words.next()?)?);
            let target = words.next().filter(|word| !word.is_empty()).and_then(bytes).map(ByteString::new);
            Some(DirEntry { name, stat: FileStat { link_target: target, ..stat } })
        })
        .collect()
}

fn unreadable() -> SandboxError {
    SandboxError::internal("what the sandbox says of a folder is unreadable").with_provider(NAME)
}

/// Reads a whole file, or a part of it.
async fn read(shared: &Shared, handle: &SandboxHandle, path: &ByteString, range: ReadRange) -> Result<Bytes> {
    let is_part = range.offset > 0 || range.length.is_some();
    let mut found = shared.find(handle, path).await?;
    let scratch = shared.scratch()?;
    if is_part {
        let head = range.length.map_or_else(String::new, |length| format!(" | head -c {length}"));
        let from = range.offset.saturating_add(1);
        let text = format!("tail -c +{from} -- \"$p\"{head} > '{scratch}' || exit 23\n");
        shared.step(handle, path, &text).await?;
        found = shared.find(handle, &ByteString::from(scratch.as_str())).await?;
    }
    if found.size > MAX_READ_BYTES {
        let text = format!("has {} bytes; at most {MAX_READ_BYTES} are read at once", found.size);
        return Err(SandboxError::invalid_input("path", text).with_help("download it, or read it in parts"));
    }
    let mut attempt = 0;
    let fetched = loop {
        let mut bytes = Vec::new();
        let failure = match shared.fetch(handle, &found, &mut bytes).await {
            Ok(_) => break Ok(Bytes::from(bytes)),
            Err(failure) => failure,
        };
        attempt += 1;
        match found.wait_before_next(shared, &failure, attempt) {
            Some(wait) => tokio::time::sleep(wait).await,
            None => break Err(shared.explain(handle, "reading a file", failure).await),
        }
        if !is_part {
            // A name that is no text is found by a link, and the attempt has removed it.
            let deadline = found.deadline;
            found = shared.find(handle, path).await?;
            found.deadline = deadline;
        }
    };
    if is_part {
        let _ = shared.step(handle, &ByteString::from("."), &format!("rm -f '{scratch}'\n")).await;
    }
    fetched
}

async fn write(
    shared: &Shared,
    handle: &SandboxHandle,
    path: &ByteString,
    data: Bytes,
    options: WriteOptions,
) -> Result<()> {
    let mut rights = match options.mode {
        Some(mode) => format!("chmod {:o} \"$n\"\n", mode & 0o7777),
        None => "m=$(stat -L -c %a -- \"$p\" 2>/dev/null) || m=644; chmod \"$m\" \"$n\"\n".to_owned(),
    };
    if let Some(owner) = &options.owner {
        rights += &format!("chown {} \"$n\" 2>/dev/null || bad 23\n", quote(owner));
    }
    let scratch = shared.scratch()?;
    shared.put(handle, &scratch, data).await?;
    shared.place(handle, &scratch, path, &rights).await
}

#[async_trait]
impl Files for DaytonaProvider {
    async fn read_file(&self, handle: &SandboxHandle, path: ByteString, range: ReadRange) -> Result<Bytes> {
        check(handle)?;
        read(&self.shared, handle, &path, range).await
    }

    async fn write_file(
        &self,
        handle: &SandboxHandle,
        path: ByteString,
        data: Bytes,
        options: WriteOptions,
    ) -> Result<()> {
        check(handle)?;
        write(&self.shared, handle, &path, data, options).await
    }

    async fn list_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<Vec<DirEntry>> {
        check(handle)?;
        let text = format!(
            "{DESCRIBE}[ -d \"$p\" ] || exit 24\ncd -- \"$p\" 2>/dev/null || exit 23\n[ -r . ] || exit 23\n\
             for f in .[!.]* ..?* *; do [ -e \"$f\" ] || [ -L \"$f\" ] || continue; describe; done\nexit 0\n"
        );
        let said = self.shared.step(handle, &path, &text).await?;
        let mut all = entries(&said).ok_or_else(unreadable)?;
        all.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(all)
    }

    async fn stat(&self, handle: &SandboxHandle, path: ByteString) -> Result<FileStat> {
        check(handle)?;
        let text = format!("{DESCRIBE}f=$p; [ -e \"$f\" ] || [ -L \"$f\" ] || exit 24\ndescribe\n");
        let said = self.shared.step(handle, &path, &text).await?;
        entries(&said).and_then(|mut all| all.pop()).map(|entry| entry.stat).ok_or_else(unreadable)
    }

    async fn remove(&self, handle: &SandboxHandle, path: ByteString, recursive: bool) -> Result<()> {
        check(handle)?;
        let folder = if recursive { "rm -rf -- \"$p\" 2>/dev/null" } else { "rmdir -- \"$p\" 2>/dev/null || exit 27" };
        let text = format!(
            "[ -e \"$p\" ] || [ -L \"$p\" ] || exit 24\n\
             if [ -d \"$p\" ] && [ ! -L \"$p\" ]; then {folder}; else rm -f -- \"$p\" 2>/dev/null; fi\n\
             [ ! -e \"$p\" ] && [ ! -L \"$p\" ] || exit 23\n"
        );
        self.shared.step(handle, &path, &text).await.map(drop)
    }

    async fn make_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<()> {
        check(handle)?;
        let text = "[ -e \"$p\" ] && [ ! -d \"$p\" ] && exit 28\n[ -L \"$p\" ] && [ ! -e \"$p\" ] && exit 28\n\
                    mkdir -p -- \"$p\" 2>/dev/null || { q=$p; while [ ! -e \"$q\" ] && [ \"$q\" != \"${q%/*}\" ]; do q=${q%/*}; done\n\
                    [ -e \"$q\" ] && [ ! -d \"$q\" ] && exit 28; exit 23; }\n";
        self.shared.step(handle, &path, text).await.map(drop)
    }

    async fn upload_dir(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        check(handle)?;
        folders::upload(&self.shared, handle, local, remote).await
    }

    async fn download_dir(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        check(handle)?;
        folders::download(&self.shared, handle, remote, local).await
    }
}
