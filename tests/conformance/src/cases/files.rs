//! The `files` capability: operations by bytes.

use sandbox_core::{ErrorKind, FileKind, Files, ReadRange, WriteOptions};

use super::cases;
use crate::{
    bytes::noise,
    check::{Check, Stop, ensure_bytes, ensure_refused},
    context::Context,
};

cases! { "files":
    written_bytes_are_read_back, "contract: Files, read/write bytes", capability Files;
    part_of_a_file_is_read, "contract: Files, read/write bytes", capability Files;
    mode_of_a_written_file_is_set_or_kept, "B08, contract: Files", capability Files;
    list_is_sorted_and_typed, "B10, contract: Files, list", capability Files;
    stat_describes_a_link_itself, "B06, contract: Files, stat", capability Files;
    remove_takes_a_full_folder_only_if_asked, "contract: Files, remove", capability Files;
    remove_of_a_link_keeps_its_target, "B06, contract: Files, remove", capability Files;
    make_dir_is_repeatable_and_never_replaces, "contract: Files, make-dir", capability Files;
    wrong_kinds_are_refused, "contract: Files", capability Files;
}

pub(super) fn ability(cx: &Context) -> Check<&dyn Files> {
    cx.provider().as_files().ok_or_else(|| Stop::failed("files is declared, but its accessor is empty"))
}

async fn written_bytes_are_read_back(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for size in [0, 1, 70_000, 3_000_000] {
        let data = noise(size);
        let files = ability(&cx)?;
        files.write_file(sandbox.handle(), "new/dir/f".into(), data.clone().into(), WriteOptions::default()).await?;
        ensure_eq!(sandbox.text("wc -c < new/dir/f").await?.trim(), size.to_string(), "size inside");
        let back = files.read_file(sandbox.handle(), "new/dir/f".into(), ReadRange::default()).await?;
        ensure!(back == data, "{size} bytes came back changed");
    }
    Ok(())
}

async fn part_of_a_file_is_read(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("printf 0123456789 > f").await?;
    let parts: [(u64, Option<u64>, &[u8]); 6] = [
        (0, Some(3), b"012"),
        (4, Some(2), b"45"),
        (8, Some(100), b"89"),
        (7, None, b"789"),
        (10, Some(1), b""),
        (3, Some(0), b""),
    ];
    for (offset, length, expected) in parts {
        let part = ability(&cx)?.read_file(sandbox.handle(), "f".into(), ReadRange { offset, length }).await?;
        ensure_bytes(&part, expected, &format!("{length:?} bytes from {offset} on"))?;
    }
    Ok(())
}

async fn mode_of_a_written_file_is_set_or_kept(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let write = async |mode: Option<u32>| {
        let options = WriteOptions { mode, owner: None };
        ability(&cx)?.write_file(sandbox.handle(), "f".into(), "x".into(), options).await.map_err(Stop::from)
    };
    for (mode, expected) in [(None, "644"), (Some(0o700), "700"), (None, "700"), (Some(0o600), "600")] {
        write(mode).await?;
        ensure_eq!(sandbox.text("stat -c %a f").await?, expected, "mode after a write with {mode:?}");
    }
    Ok(())
}

async fn list_is_sorted_and_typed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox
        .bytes(
            "mkdir -p l/dir && cd l && printf abc > f && ln -s nowhere link && mkfifo pipe && : > 'a\nb' && : > .hid",
        )
        .await?;
    let entries = ability(&cx)?.list_dir(sandbox.handle(), "l".into()).await?;
    let got: Vec<_> = entries.iter().map(|entry| (entry.name.to_text_lossy().into_owned(), entry.stat.kind)).collect();
    let expected = [
        (".hid", FileKind::File),
        ("a\nb", FileKind::File),
        ("dir", FileKind::Directory),
        ("f", FileKind::File),
        ("link", FileKind::Symlink),
        ("pipe", FileKind::Other),
    ];
    ensure_eq!(got, expected.map(|(name, kind)| (name.to_owned(), kind)), "entries");
    ensure_eq!(entries[3].stat.size, 3, "size of f");
    Ok(())
}

async fn stat_describes_a_link_itself(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("printf abc > f; chmod 751 f; ln -s f link; ln -s nowhere dangling").await?;
    let stat = async |name: &str| ability(&cx)?.stat(sandbox.handle(), name.into()).await.map_err(Stop::from);
    let file = stat("f").await?;
    ensure_eq!((file.kind, file.size, file.mode & 0o7777), (FileKind::File, 3, 0o751), "kind, size and mode");
    ensure_eq!(sandbox.text("stat -c '%u %g' f").await?, format!("{} {}", file.uid, file.gid), "owner and group");
    for (name, target) in [("link", "f"), ("dangling", "nowhere")] {
        let link = stat(name).await?;
        ensure_eq!(link.kind, FileKind::Symlink, "kind of {name}");
        ensure_eq!(link.link_target, Some(target.into()), "target of {name}");
    }
    let missing = ability(&cx)?.stat(sandbox.handle(), "missing".into()).await;
    ensure_refused(missing, &[ErrorKind::NotFound], "the stat of nothing")?;
    Ok(())
}

async fn remove_takes_a_full_folder_only_if_asked(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("mkdir -p d/e; : > d/e/f; : > g").await?;
    let files = ability(&cx)?;
    files.remove(sandbox.handle(), "g".into(), false).await?;
    ensure_refused(
        files.remove(sandbox.handle(), "d".into(), false).await,
        &[ErrorKind::AlreadyExists],
        "the removal of a folder that is not empty",
    )?;
    ensure_eq!(sandbox.text("find d g 2>/dev/null | sort").await?, "d\nd/e\nd/e/f", "what is there");
    files.remove(sandbox.handle(), "d".into(), true).await?;
    ensure_eq!(sandbox.text("ls -d d 2>/dev/null || true").await?, "", "what is there");
    ensure_refused(files.remove(sandbox.handle(), "d".into(), true).await, &[ErrorKind::NotFound], "a second removal")?;
    Ok(())
}

async fn remove_of_a_link_keeps_its_target(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("mkdir -p d t; : > t/keep; ln -s ../t d/link; ln -s t link").await?;
    ability(&cx)?.remove(sandbox.handle(), "link".into(), true).await?;
    ability(&cx)?.remove(sandbox.handle(), "d".into(), true).await?;
    ensure_eq!(sandbox.text("find d t link 2>/dev/null | sort").await?, "t\nt/keep", "what is there");
    Ok(())
}

async fn make_dir_is_repeatable_and_never_replaces(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let files = ability(&cx)?;
    for _ in 0..2 {
        files.make_dir(sandbox.handle(), "a/b/c".into()).await?;
    }
    sandbox.bytes("test -d a/b/c && : > file").await?;
    let onto_file = files.make_dir(sandbox.handle(), "file".into()).await;
    ensure_refused(onto_file, &[ErrorKind::AlreadyExists], "a folder in the place of a file")?;
    ensure_eq!(sandbox.text("test -f file && echo kept").await?, "kept", "the file");
    Ok(())
}

async fn wrong_kinds_are_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("mkdir d; : > f").await?;
    let (files, handle) = (ability(&cx)?, sandbox.handle());
    let read = files.read_file(handle, "d".into(), ReadRange::default()).await;
    ensure_refused(read, &[ErrorKind::InvalidInput], "reading a folder")?;
    let missing = files.read_file(handle, "missing".into(), ReadRange::default()).await;
    ensure_refused(missing, &[ErrorKind::NotFound], "reading nothing")?;
    let write = files.write_file(handle, "d".into(), "x".into(), WriteOptions::default()).await;
    ensure_refused(write, &[ErrorKind::InvalidInput, ErrorKind::AlreadyExists], "writing onto a folder")?;
    ensure_refused(files.list_dir(handle, "f".into()).await, &[ErrorKind::NotFound], "the list of a file")?;
    ensure_refused(files.list_dir(handle, "missing".into()).await, &[ErrorKind::NotFound], "the list of nothing")?;
    Ok(())
}
