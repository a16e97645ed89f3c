//! Files out of the sandbox. What comes out is hostile.

use std::{os::unix::fs::PermissionsExt, time::Duration};

use sandbox_core::{ErrorKind, ExecRequest};

use super::cases;
use crate::{
    check::{Check, Stop, ensure_bytes, ensure_refused},
    context::Context,
    host::within,
};

cases! { "download":
    missing_file_leaves_the_old_one, "B02, contract: Files, a failed download";
    folder_is_refused, "B07, contract: Files";
    special_file_is_refused_at_once, "B04, contract: Files, no special files";
    link_never_becomes_a_link_of_the_host, "B04, B06, contract: Files";
    local_link_is_replaced_and_not_followed, "B05, contract: Files";
    local_parents_are_made, "B07, contract: Files";
    no_temporary_file_is_left, "contract: Files, writes beside the target and renames";
    parent_steps_do_not_escape, "B05, contract: Files, no path escapes";
    bytes_are_exact, "A15, contract: Files";
}

fn entries(folder: &std::path::Path) -> Check<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

async fn missing_file_leaves_the_old_one(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    std::fs::create_dir(cx.local("in"))?;
    std::fs::write(cx.local("in/old"), b"old")?;
    ensure_refused(sandbox.try_get("no/such/file", "in/old").await?, &[ErrorKind::NotFound], "a missing file")?;
    ensure_bytes(&std::fs::read(cx.local("in/old"))?, b"old", "the old local file")?;
    ensure_refused(sandbox.try_get("nothing", "in/new").await?, &[ErrorKind::NotFound], "a missing file")?;
    ensure_eq!(entries(&cx.local("in"))?, ["old"], "what is in the local folder");
    Ok(())
}

async fn folder_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("mkdir folder; echo x > folder/f").await?;
    std::fs::write(cx.local("old"), b"old")?;
    ensure_refused(sandbox.try_get("folder", "old").await?, &[ErrorKind::InvalidInput], "the download of a folder")?;
    ensure_bytes(&std::fs::read(cx.local("old"))?, b"old", "the old local file")
}

async fn special_file_is_refused_at_once(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("mkfifo").await?;
    sandbox.bytes("mkfifo pipe; ln -s pipe link-to-pipe").await?;
    for name in ["pipe", "link-to-pipe", "/dev/zero"] {
        let get = within(Duration::from_secs(5), "the download of a special file", sandbox.try_get(name, "special"));
        let kinds = [ErrorKind::InvalidInput, ErrorKind::PermissionDenied, ErrorKind::Unsupported];
        ensure_refused(get.await??, &kinds, "the download of a special file")?;
        ensure!(std::fs::symlink_metadata(cx.local("special")).is_err(), "something was made for a special file");
    }
    Ok(())
}

async fn link_never_becomes_a_link_of_the_host(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    std::fs::write(cx.local("secret"), b"host secret")?;
    let secret = cx.local("secret");
    sandbox
        .bytes(format!("ln -s '{}' leak; ln -s /etc/passwd inner; echo f > f; ln -s f good", secret.display()))
        .await?;
    for name in ["leak", "inner", "good"] {
        let result = sandbox.try_get(name, name).await?;
        match (std::fs::symlink_metadata(cx.local(name)), &result) {
            (Ok(made), Ok(())) => ensure!(made.is_file(), "the link {name} did not become a regular file"),
            (Err(_), Err(_)) => {}
            (Ok(_), Err(_)) => return Err(Stop::failed("a refused download left something")),
            (Err(_), Ok(())) => return Err(Stop::failed("a download that succeeded left nothing")),
        }
        // Where host and sandbox are apart, a link to the host's file must find nothing.
        if name == "leak" && !cx.shares_the_host() {
            ensure!(result.is_err(), "a file of the host was read through a link of the sandbox");
        }
    }
    Ok(())
}

async fn local_link_is_replaced_and_not_followed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("f", b"new").await?;
    std::fs::write(cx.local("precious"), b"precious")?;
    std::os::unix::fs::symlink(cx.local("precious"), cx.local("target"))?;
    sandbox.try_get("f", "target").await??;
    ensure_bytes(&std::fs::read(cx.local("target"))?, b"new", "the downloaded file")?;
    ensure_bytes(&std::fs::read(cx.local("precious"))?, b"precious", "the file that a local link points to")
}

async fn local_parents_are_made(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("f", b"x").await?;
    sandbox.try_get("f", "p/q r/s").await??;
    ensure_bytes(&std::fs::read(cx.local("p/q r/s"))?, b"x", "the downloaded file")
}

async fn no_temporary_file_is_left(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("f", &crate::bytes::noise(300_000)).await?;
    std::fs::create_dir(cx.local("out"))?;
    let before = sandbox.names().await?;
    for _ in 0..3 {
        sandbox.try_get("f", "out/f").await??;
    }
    let _ = sandbox.try_get("missing", "out/missing").await?;
    ensure_eq!(entries(&cx.local("out"))?, ["f"], "what is in the local folder");
    ensure_eq!(sandbox.names().await?, before, "entries of the workdir");
    Ok(())
}

async fn parent_steps_do_not_escape(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    if !cx.shares_the_host() {
        // The sandbox's own root ends every climb, so the host's file of the same path is out of reach.
        let path = cx.local("host-only");
        std::fs::write(&path, b"host secret")?;
        let climbing = format!("../../../../../../../../..{}", path.display());
        ensure_refused(
            sandbox.try_get(climbing, "got").await?,
            &[ErrorKind::NotFound, ErrorKind::InvalidInput, ErrorKind::PermissionDenied],
            "a climb to a file of the host",
        )?;
        return Ok(());
    }
    let workdir = std::path::PathBuf::from(sandbox.pwd().await?);
    let name = format!("above-{}", cx.token());
    let above = workdir.parent().unwrap_or(&workdir).join(&name);
    std::fs::write(&above, b"host secret")?;
    let result = sandbox.try_get(format!("../{name}"), "got").await;
    std::fs::remove_file(&above)?;
    let kinds = [ErrorKind::NotFound, ErrorKind::InvalidInput, ErrorKind::PermissionDenied];
    ensure_refused(result?, &kinds, "a relative download that leaves the workdir")?;
    Ok(())
}

async fn bytes_are_exact(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let all: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    sandbox.put("all", &all).await?;
    let shown = sandbox.expect_exit(ExecRequest::argv(["cat", "all"]), 0).await?;
    ensure_bytes(&shown.stdout, &all, "the file inside")?;
    sandbox.try_get("all", "all").await??;
    ensure_bytes(&std::fs::read(cx.local("all"))?, &all, "the file outside")?;
    let mode = std::fs::metadata(cx.local("all"))?.permissions().mode();
    ensure!(mode & 0o400 != 0, "the downloaded file cannot be read by its owner");
    Ok(())
}
