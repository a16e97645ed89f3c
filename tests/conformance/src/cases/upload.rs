//! Files into the sandbox.

use std::os::unix::fs::PermissionsExt;

use sandbox_core::{ByteString, ErrorKind, ExecRequest};

use super::cases;
use crate::{
    bytes::{cksum, noise},
    check::{Check, ensure_bytes, ensure_refused},
    context::Context,
    host::within,
    sandbox::RUN_WITHIN,
};

cases! { "upload":
    every_size_arrives_whole_and_comes_back, "B02, contract: Files, any size";
    parents_are_made, "B07, contract: Files";
    mode_is_kept, "B08, contract: Files";
    odd_names_are_exact, "B10, contract: Files, any bytes in names";
    relative_path_is_below_the_workdir, "B11, contract: Files";
    existing_file_is_replaced_whole, "B02";
    folder_as_target_is_refused, "B07, contract: Files";
    missing_local_file_is_not_found, "contract: Files";
    parent_steps_do_not_escape, "B05, contract: Files, no path escapes";
    eight_at_once_arrive, "contract: Files";
}

async fn every_size_arrives_whole_and_comes_back(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("cksum").await?;
    for size in [0, 1, 16_383, 18_500, 65_536, 1_048_577, 32 * 1024 * 1024] {
        let data = noise(size);
        sandbox.put("data", &data).await?;
        let seen = sandbox.text("cksum < data").await?;
        ensure_eq!(seen, format!("{} {size}", cksum(&data)), "checksum and size inside, of {size} bytes");
        let back = sandbox.get("data").await?;
        ensure_eq!(back.len(), size, "size of what came back");
        ensure!(back == data, "{size} bytes came back changed");
    }
    Ok(())
}

async fn parents_are_made(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("a/b c/d/file", b"deep").await?;
    ensure_eq!(sandbox.text("cat 'a/b c/d/file'; touch 'a/b c/d/beside'").await?, "deep", "the file");
    let absolute = format!("{}/x/y/file", sandbox.pwd().await?.trim_end_matches('/'));
    sandbox.put(absolute.as_str(), b"absolute").await?;
    ensure_eq!(sandbox.text("cat x/y/file").await?, "absolute", "the file by its absolute path");
    Ok(())
}

async fn mode_is_kept(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for mode in [0o755, 0o640, 0o600, 0o444] {
        let local = cx.local("mode");
        let _ = std::fs::remove_file(&local);
        std::fs::write(&local, b"#!/bin/sh\necho ran\n")?;
        std::fs::set_permissions(&local, std::fs::Permissions::from_mode(mode))?;
        let remote = ByteString::from(format!("mode-{mode:o}"));
        within(RUN_WITHIN, "upload", sandbox.provider().upload_file(sandbox.handle(), &local, &remote)).await??;
        ensure_eq!(sandbox.text(format!("stat -c %a mode-{mode:o}")).await?, format!("{mode:o}"), "mode inside");
        let back = format!("back-{mode:o}");
        sandbox.try_get(remote, &back).await??;
        let got = std::fs::metadata(cx.local(&back))?.permissions().mode() & 0o777;
        ensure!(got == mode || got == mode & !0o022, "mode {mode:o} came back as {got:o}");
    }
    sandbox.expect_exit(ExecRequest::argv(["./mode-755"]), 0).await?;
    Ok(())
}

async fn odd_names_are_exact(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let long = "n".repeat(255);
    let names: [&[u8]; 13] = [
        b"a b",
        b"a\nb",
        b"-rf",
        b"q'\"",
        b"%2e%2e",
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        "日本".as_bytes(),
        long.as_bytes(),
        b"$HOME",
        b"back\\slash",
        b"~",
        b"*",
    ];
    let before = sandbox.names().await?.len();
    for name in names {
        sandbox.put(name, name).await?;
        let seen = sandbox.expect_exit(ExecRequest::argv([&b"cat"[..], b"--", name]), 0).await?;
        ensure_bytes(&seen.stdout, name, "a file read by its name")?;
        ensure_bytes(&sandbox.get(name).await?, name, "a file downloaded by its name")?;
    }
    // One name has a line end; some programs show it as one line.
    let lines = sandbox.names().await?.len() - before;
    ensure!(lines == 13 || lines == 14, "there are {lines} lines in the listing of 13 files");
    // A name that is no text is kept, or refused with a type.
    let result = sandbox.try_put(&b"x\xffy"[..], b"bytes").await?;
    if result.is_ok() {
        let seen = sandbox.expect_exit(ExecRequest::argv([&b"cat"[..], b"x\xffy"]), 0).await?;
        ensure_bytes(&seen.stdout, b"bytes", "a file whose name is not UTF-8")
    } else {
        ensure_refused(result, &[ErrorKind::InvalidInput, ErrorKind::Unsupported], "a name that is not UTF-8").map(drop)
    }
}

async fn relative_path_is_below_the_workdir(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("f", b"up").await?;
    ensure_eq!(sandbox.text("cat \"$(pwd)/f\"").await?, "up", "the uploaded file as commands see it");
    sandbox.bytes("mkdir sub; printf down > sub/g").await?;
    ensure_bytes(&sandbox.get("sub/g").await?, b"down", "a relative download")?;
    let absolute = format!("{}/sub/g", sandbox.pwd().await?.trim_end_matches('/'));
    ensure_bytes(&sandbox.get(absolute.as_str()).await?, b"down", "an absolute download")
}

async fn existing_file_is_replaced_whole(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("f", &noise(100_000)).await?;
    sandbox.put("f", b"short").await?;
    ensure_eq!(sandbox.text("cat f").await?, "short", "the file after a shorter upload");
    Ok(())
}

async fn folder_as_target_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("mkdir -p folder/sub && echo keep > folder/keep").await?;
    let before = sandbox.names().await?;
    let kinds = [ErrorKind::InvalidInput, ErrorKind::AlreadyExists];
    ensure_refused(sandbox.try_put("folder", b"x").await?, &kinds, "an upload onto a folder")?;
    let refused = [ErrorKind::InvalidInput, ErrorKind::AlreadyExists, ErrorKind::NotFound];
    ensure_refused(sandbox.try_put("folder/keep/below", b"x").await?, &refused, "an upload below a file")?;
    ensure_eq!(
        sandbox.text("find folder | sort").await?,
        "folder\nfolder/keep\nfolder/sub",
        "what is there afterwards"
    );
    ensure_eq!(sandbox.names().await?, before, "entries of the workdir");
    Ok(())
}

async fn missing_local_file_is_not_found(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let before = sandbox.names().await?;
    let (local, remote) = (cx.local("nowhere"), "f".into());
    let upload = sandbox.provider().upload_file(sandbox.handle(), &local, &remote);
    ensure_refused(upload.await, &[ErrorKind::NotFound], "the upload of a missing file")?;
    ensure_eq!(sandbox.names().await?, before, "entries of the workdir");
    Ok(())
}

async fn parent_steps_do_not_escape(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let name = format!("escaped-{}", cx.token());
    for remote in [format!("../{name}"), format!("sub/../../{name}"), format!("../../../../../../../../../tmp/{name}")]
    {
        let result = sandbox.try_put(remote.as_str(), b"x").await?;
        if result.is_err() {
            let kinds = [ErrorKind::InvalidInput, ErrorKind::PermissionDenied];
            ensure_refused(result, &kinds, "an upload that leaves the workdir")?;
        }
        let host = [std::path::PathBuf::from("/tmp").join(&name), std::path::PathBuf::from("/").join(&name)];
        let mut escaped: Vec<_> = host.iter().filter(|path| path.exists()).cloned().collect();
        if cx.shares_the_host() {
            let above = format!("{}/../{name}", sandbox.pwd().await?);
            escaped.extend(std::path::Path::new(&above).exists().then(|| above.into()));
        }
        escaped.iter().for_each(|path| drop(std::fs::remove_file(path)));
        ensure!(escaped.is_empty(), "an upload to {:?} left the sandbox", remote.replace(&name, "NAME"));
    }
    Ok(())
}

async fn eight_at_once_arrive(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("cksum").await?;
    let mut uploads = tokio::task::JoinSet::new();
    for number in 0..8 {
        let (provider, handle) = (sandbox.provider().clone(), sandbox.handle().clone());
        let local = cx.local(&format!("many-{number}"));
        std::fs::write(&local, noise(200_000 + number))?;
        uploads
            .spawn(async move { provider.upload_file(&handle, &local, &format!("same/folder/{number}").into()).await });
    }
    while let Some(end) = within(RUN_WITHIN, "the uploads", uploads.join_next()).await? {
        end.map_err(|error| crate::check::Stop::failed(error.to_string()))??;
    }
    for number in 0..8 {
        let expected = format!("{} {}", cksum(&noise(200_000 + number)), 200_000 + number);
        ensure_eq!(sandbox.text(format!("cksum < same/folder/{number}")).await?, expected, "file {number}");
    }
    Ok(())
}
