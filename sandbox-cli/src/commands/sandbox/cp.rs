//! `sandboxctl cp`: files and folders, into a sandbox or out of it.

use std::{
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

use clap::Args;
use sandbox_api::AsyncSandbox;
use sandbox_core::{ByteString, ErrorKind, FileKind};

use super::Finder;
use crate::{app::App, failure::Failure, runtime};

/// One of the two is SANDBOX:PATH. A folder that is there takes the source in; a path that is not there becomes the copy.
/// SRC/. copies what is in a folder, not the folder. Write ./a:b for a file of this machine with a colon in its name.
#[derive(Args)]
pub(crate) struct CpArgs {
    /// From where
    #[arg(value_name = "SRC")]
    source: OsString,
    /// To where
    #[arg(value_name = "DST")]
    target: OsString,
}

/// One end of a copy.
enum End {
    Here(PathBuf),
    Inside(String, Vec<u8>),
}

impl End {
    fn parse(text: &OsString) -> Self {
        let bytes = text.as_bytes();
        let Some(colon) = bytes.iter().position(|byte| *byte == b':') else { return Self::Here(text.into()) };
        let (name, path) = (&bytes[..colon], &bytes[colon + 1..]);
        match std::str::from_utf8(name) {
            Ok(name) if !name.is_empty() && !name.contains('/') => Self::Inside(name.to_owned(), path.to_vec()),
            _ => Self::Here(text.into()),
        }
    }
}

pub(crate) fn run(app: &App, args: &CpArgs) -> Result<u8, Failure> {
    let (source, target) = (End::parse(&args.source), End::parse(&args.target));
    let finder = Finder::new(app)?;
    runtime::block_on_until_signal(async {
        match (source, target) {
            (End::Here(local), End::Inside(word, remote)) => {
                let (_, sandbox) = finder.find(&word).await?;
                upload(&sandbox, &local, remote).await
            }
            (End::Inside(word, remote), End::Here(local)) => {
                let (_, sandbox) = finder.find(&word).await?;
                download(&sandbox, remote, &local).await
            }
            (End::Here(_), End::Here(_)) => Err(Failure::usage("neither path is in a sandbox")
                .with_help("write one of them as SANDBOX:PATH, such as eval-7:/work/out")),
            (End::Inside(..), End::Inside(..)) => Err(Failure::usage("both paths are in a sandbox")
                .with_help("copy to this machine first, then to the other sandbox")),
        }
    })?;
    Ok(0)
}

async fn upload(sandbox: &AsyncSandbox, local: &Path, remote: Vec<u8>) -> Result<(), Failure> {
    let meta = std::fs::metadata(local)
        .map_err(|error| Failure::usage(format!("cannot read {}", local.display())).because(error).with_field("SRC"))?;
    if let (true, Some(name)) = (is_folder_inside(sandbox, &remote).await?, name_of(local.as_os_str().as_bytes())) {
        let remote = join(&remote, name);
        return put(sandbox, local, remote, meta.is_dir()).await;
    }
    put(sandbox, local, remote, meta.is_dir()).await
}

async fn put(sandbox: &AsyncSandbox, local: &Path, remote: Vec<u8>, is_folder: bool) -> Result<(), Failure> {
    let remote = ByteString::new(remote);
    let done = match is_folder {
        true => sandbox.upload_dir(local, remote).await,
        false => sandbox.upload(local, remote).await,
    };
    done.map_err(|error| Failure::of_command(&error))
}

async fn download(sandbox: &AsyncSandbox, remote: Vec<u8>, local: &Path) -> Result<(), Failure> {
    let is_folder = is_folder_inside(sandbox, &remote).await?;
    let target = match (local.is_dir(), name_of(&remote)) {
        (true, Some(name)) => local.join(OsString::from_vec(name.to_vec())),
        _ => local.to_owned(),
    };
    let remote = ByteString::new(remote);
    let done = match is_folder {
        true => sandbox.download_dir(remote, &target).await,
        false => sandbox.download(remote, &target).await,
    };
    done.map_err(|error| Failure::of_command(&error))
}

/// The name that a copy gets in a folder; none for what is in a folder (`SRC/.`), for `/` and for `..`.
fn name_of(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    Some(&path[start..end]).filter(|name| *name != b"." && *name != b"..")
}

fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let mut whole = folder.to_vec();
    if !whole.is_empty() && !whole.ends_with(b"/") {
        whole.push(b'/');
    }
    whole.extend_from_slice(name);
    whole
}

async fn is_folder_inside(sandbox: &AsyncSandbox, path: &[u8]) -> Result<bool, Failure> {
    // A link to a folder is a folder here, as for any program inside.
    let followed = if path.is_empty() { b".".to_vec() } else { join(path, b".") };
    match sandbox.stat(ByteString::new(followed)).await {
        Ok(stat) => Ok(stat.kind == FileKind::Directory),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => Ok(false),
        // A provider that has files by their names alone.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
        Err(error) => Err(Failure::of_command(&error)),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{End, join, name_of};

    #[test]
    fn a_colon_behind_a_slash_is_no_sandbox() {
        let inside = |text: &str| matches!(End::parse(&OsString::from(text)), End::Inside(..));
        assert!(inside("box:/a") && inside("box:a:b") && inside("box:"));
        assert!(!inside("./a:b") && !inside("/a:b") && !inside("a") && !inside(":a"));
    }

    #[test]
    fn the_name_of_a_copy_is_the_last_part() {
        assert_eq!(name_of(b"/a/b/"), Some(&b"b"[..]));
        assert_eq!(name_of(b"b"), Some(&b"b"[..]));
        for contents in ["/a/.", ".", "..", "/", ""] {
            assert_eq!(name_of(contents.as_bytes()), None, "{contents}");
        }
        assert_eq!(join(b"/a", b"b"), b"/a/b");
        assert_eq!(join(b"/", b"b"), b"/b");
        assert_eq!(join(b"", b"b"), b"b");
    }
}
