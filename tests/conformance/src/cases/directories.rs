//! The `files` capability: whole folders.

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};

use sandbox_core::ErrorKind;

use super::{cases, files::ability};
use crate::{
    check::{Check, ensure_bytes, ensure_refused},
    context::Context,
};

cases! { "directories":
    uploaded_folder_arrives_as_it_is, "B06, B07, contract: Files, directory upload", capability Files;
    uploaded_links_are_never_followed, "B06, contract: Files, directory upload", capability Files;
    downloaded_folder_comes_as_it_is, "B07, contract: Files, directory download", capability Files;
    hostile_links_are_refused, "B04, contract: Files, no path escapes", capability Files;
    special_files_are_refused, "B04, contract: Files, no special files", capability Files;
    local_link_is_not_written_through, "B04, B05, contract: Files, no path escapes", capability Files;
}

async fn uploaded_folder_arrives_as_it_is(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let tree = cx.local("tree");
    std::fs::create_dir_all(tree.join("sub/empty"))?;
    std::fs::write(tree.join("run"), b"#!/bin/sh\necho ran\n")?;
    std::fs::set_permissions(tree.join("run"), std::fs::Permissions::from_mode(0o755))?;
    std::fs::write(tree.join("sub/a b"), b"deep")?;
    for remote in ["d", "parent/d"] {
        // Twice: into a folder that is absent, and into one that is there. The contents, never a folder in a folder.
        for _ in 0..2 {
            ability(&cx)?.upload_dir(sandbox.handle(), &tree, &remote.into()).await?;
            let seen = sandbox.text(format!("cd {remote} && ./run && cat 'sub/a b' && echo && find . | sort")).await?;
            ensure_eq!(seen, "ran\ndeep\n.\n./run\n./sub\n./sub/a b\n./sub/empty", "the folder inside");
        }
    }
    Ok(())
}

async fn uploaded_links_are_never_followed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let tree = cx.local("tree");
    std::fs::create_dir_all(&tree)?;
    std::fs::write(cx.local("secret"), b"host secret")?;
    std::fs::write(tree.join("f"), b"f")?;
    let secret = cx.local("secret").to_string_lossy().into_owned();
    let links = [("in", "f"), ("out", secret.as_str()), ("dangling", "nope"), ("dir", "."), ("a", "b"), ("b", "a")];
    for (name, target) in links {
        symlink(target, tree.join(name))?;
    }
    ability(&cx)?.upload_dir(sandbox.handle(), &tree, &"d".into()).await?;
    for (name, target) in links {
        ensure_eq!(sandbox.text(format!("readlink d/{name}")).await?, target, "target of the link {name}");
    }
    Ok(())
}

async fn downloaded_folder_comes_as_it_is(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox
        .bytes("mkdir -p d/sub/empty && cd d && printf deep > 'sub/a b' && ln -s 'sub/a b' link && ln -s ../sub sub/up")
        .await?;
    for _ in 0..2 {
        ability(&cx)?.download_dir(sandbox.handle(), &"d".into(), &cx.local("out/d")).await?;
        ensure_bytes(&std::fs::read(cx.local("out/d/sub/a b"))?, b"deep", "a file")?;
        ensure!(cx.local("out/d/sub/empty").is_dir(), "an empty folder did not come");
        ensure_eq!(std::fs::read_link(cx.local("out/d/link"))?, Path::new("sub/a b"), "a link within the folder");
    }
    let missing = ability(&cx)?.download_dir(sandbox.handle(), &"missing".into(), &cx.local("missing")).await;
    ensure_refused(missing, &[ErrorKind::NotFound], "the download of a missing folder")?;
    ensure!(!cx.local("missing").exists(), "a folder was made for nothing");
    Ok(())
}

async fn hostile_links_are_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let outside = cx.local("outside");
    std::fs::create_dir(&outside)?;
    std::fs::write(outside.join("f"), b"mine")?;
    let absolute = outside.to_string_lossy().into_owned();
    let kinds = [ErrorKind::InvalidInput, ErrorKind::PermissionDenied];
    for (index, target) in [absolute.as_str(), "../outside", "sub/../../outside", "/etc/passwd"].into_iter().enumerate()
    {
        sandbox
            .bytes(format!("mkdir -p h{index}/sub && echo f > h{index}/f && ln -s '{target}' h{index}/link"))
            .await?;
        let local = cx.local(&format!("h{index}"));
        let end = ability(&cx)?.download_dir(sandbox.handle(), &format!("h{index}").into(), &local).await;
        ensure_refused(end, &kinds, &format!("a folder with the link {index} that leads out"))?;
        let made = std::fs::symlink_metadata(local.join("link"));
        ensure!(made.is_err(), "the link {index} that leads out was made on the host");
    }
    ensure_bytes(&std::fs::read(outside.join("f"))?, b"mine", "a file outside")
}

async fn special_files_are_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("mkfifo").await?;
    sandbox.bytes("mkdir -p d && echo f > d/f && mkfifo d/pipe").await?;
    let (remote, local) = ("d".into(), cx.local("d"));
    let end = ability(&cx)?.download_dir(sandbox.handle(), &remote, &local);
    let end = crate::host::within(std::time::Duration::from_secs(10), "the download of a fifo", end).await?;
    ensure_refused(end, &[ErrorKind::InvalidInput, ErrorKind::PermissionDenied], "a folder with a fifo")?;
    ensure!(std::fs::symlink_metadata(cx.local("d/pipe")).is_err(), "a special file was made on the host");
    Ok(())
}

async fn local_link_is_not_written_through(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("mkdir -p d/sub && echo evil > d/sub/f").await?;
    // The local folder has a link where the sandbox has a folder: left by an earlier, hostile download.
    std::fs::create_dir_all(cx.local("outside"))?;
    std::fs::create_dir_all(cx.local("out"))?;
    symlink(cx.local("outside"), cx.local("out/sub"))?;
    let _ = ability(&cx)?.download_dir(sandbox.handle(), &"d".into(), &cx.local("out")).await;
    ensure!(!cx.local("outside/f").exists(), "a file was written through a link of the local folder");
    Ok(())
}
