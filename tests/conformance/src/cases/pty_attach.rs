//! Interactive sessions that outlive their client.

use std::time::Duration;

use sandbox_core::{AttachOptions, ErrorKind, ExecOutcome, PtyEvent, PtyStream, SandboxPtySpec};

use super::{
    cases,
    pty::{read_until, script},
};
use crate::{
    check::{Check, Stop, ensure_refused, show},
    context::Context,
    host::within,
    sandbox::{RUN_WITHIN, TestSandbox},
};

cases! { "pty":
    detached_session_goes_on_and_is_attached, "D06, contract: Capabilities, pty_attach", capability PtyAttach;
    attach_replays_from_an_offset, "D06, contract: Capabilities, pty_attach", capability PtyAttach;
    output_that_is_no_longer_kept_is_a_gap, "D06, contract: Capabilities, pty_attach", capability PtyAttach;
    takeover_evicts_the_holder, "D07, contract: Capabilities, pty_attach", capability PtyAttach;
    held_session_is_refused_without_takeover, "D07, contract: Capabilities, pty_attach", capability PtyAttach;
}

/// Opens a session and gives its id, too.
async fn open_named(cx: &Context, sandbox: &TestSandbox, spec: SandboxPtySpec) -> Check<(PtyStream, String)> {
    let pty = cx.provider().as_pty().ok_or_else(|| Stop::failed("sessions are attached, but none can be opened"))?;
    let mut stream = within(RUN_WITHIN, "the start of a session", pty.create_pty(sandbox.handle(), spec)).await??;
    let id = opened(&mut stream).await?;
    Ok((stream, id))
}

async fn opened(stream: &mut PtyStream) -> Check<String> {
    match within(RUN_WITHIN, "the first event", stream.next()).await?? {
        Some(PtyEvent::Opened { session_id }) if !session_id.is_empty() => Ok(session_id),
        other => Err(Stop::failed(format!("the first event of a session was {other:?}"))),
    }
}

async fn attach(cx: &Context, sandbox: &TestSandbox, id: &str, options: AttachOptions) -> Check<PtyStream> {
    let pty = cx.provider().as_pty_attach().ok_or_else(|| Stop::failed("it is declared, but its accessor is empty"))?;
    let attach = pty.attach_pty(sandbox.handle(), id.to_owned(), options);
    match within(RUN_WITHIN, "attaching to a session", attach).await? {
        Ok(mut stream) => {
            let attached = opened(&mut stream).await?;
            ensure_eq!(attached, id, "the id of the session that was attached to");
            Ok(stream)
        }
        // A backend that keeps no output of sessions says so, and does not know who holds one either.
        Err(error) if options.since.is_some() && error.field() == Some("since") => Err(Stop::skipped(error.message())),
        Err(error) => Err(error.into()),
    }
}

fn from(since: u64) -> AttachOptions {
    AttachOptions { since: Some(since), ..AttachOptions::default() }
}

/// Output, the bytes that were said to be missing, and the outcome.
async fn read_rest(stream: &mut PtyStream) -> Check<(Vec<u8>, u64, ExecOutcome)> {
    let (mut output, mut gap) = (Vec::new(), 0);
    loop {
        match within(RUN_WITHIN, "the next event", stream.next()).await?? {
            Some(PtyEvent::Output(bytes)) => output.extend_from_slice(&bytes),
            Some(PtyEvent::Gap(bytes)) => gap += bytes,
            Some(PtyEvent::Exit(exit)) => return Ok((output, gap, exit.outcome)),
            Some(_) => {}
            None => return Err(Stop::failed("the session ended without an exit")),
        }
    }
}

async fn detached_session_goes_on_and_is_attached(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let text = "echo ready; read line; echo got-$line; exit 6";
    let (mut stream, id) = open_named(&cx, &sandbox, script(text)).await?;
    read_until(&mut stream, "ready").await?;
    within(RUN_WITHIN, "detaching", stream.detach()).await??;
    let mut again = attach(&cx, &sandbox, &id, AttachOptions::default()).await?;
    again.control().write("later\n".into()).await?;
    read_until(&mut again, "got-later").await?;
    ensure_eq!(read_rest(&mut again).await?.2, ExecOutcome::Exited(6), "outcome");
    Ok(())
}

async fn attach_replays_from_an_offset(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("stty").await?;
    let text = "stty -echo; echo 0123456789; read line; echo end; exit 0";
    let (mut stream, id) = open_named(&cx, &sandbox, script(text)).await?;
    read_until(&mut stream, "9\r\n").await?;
    within(RUN_WITHIN, "detaching", stream.detach()).await??;
    let mut again = attach(&cx, &sandbox, &id, from(4)).await?;
    let seen = read_until(&mut again, "9\r\n").await?;
    ensure_eq!(seen, "456789\r\n", "the output from its fifth byte on");
    again.control().write("\n".into()).await?;
    let (output, gap, _) = read_rest(&mut again).await?;
    ensure_eq!((String::from_utf8_lossy(&output).trim(), gap), ("end", 0), "what came after the replay");
    Ok(())
}

async fn output_that_is_no_longer_kept_is_a_gap(cx: Context) -> Check {
    const BYTES: u64 = 6_000_000;
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("stty").await?;
    let text = "stty raw -echo; echo ready; read line; head -c 6000000 /dev/zero | tr '\\0' x; echo > flooded; \
                read line; exit 0";
    let (mut stream, id) = open_named(&cx, &sandbox, script(text)).await?;
    let ready = read_until(&mut stream, "ready\n").await?.len() as u64;
    stream.control().write("go\n".into()).await?;
    within(RUN_WITHIN, "detaching", stream.detach()).await??;
    let flooded = sandbox.eventually(Duration::from_secs(30), "test -e flooded").await?;
    ensure!(flooded, "a session stands still while nobody reads it");
    let mut again = attach(&cx, &sandbox, &id, from(ready)).await?;
    again.control().write("end\n".into()).await?;
    let (output, gap, _) = read_rest(&mut again).await?;
    ensure!(output.iter().all(|byte| *byte == b'x'), "other output than was written: {}", show(&output));
    ensure_eq!(output.len() as u64 + gap, BYTES, "bytes that came and bytes that were said to be missing");
    Ok(())
}

async fn takeover_evicts_the_holder(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let (mut first, id) = open_named(&cx, &sandbox, script("echo ready; read line; echo got-$line; exit 0")).await?;
    read_until(&mut first, "ready\r\n").await?;
    let mut second = attach(&cx, &sandbox, &id, from(0)).await?;
    read_until(&mut second, "ready\r\n").await?;
    let end = loop {
        match within(RUN_WITHIN, "the end of the client that was replaced", first.next()).await? {
            Ok(Some(PtyEvent::Output(_))) => {}
            end => break end,
        }
    };
    ensure_refused(end, &[ErrorKind::Pty, ErrorKind::InvalidState], "reading on after being replaced")?;
    drop(first);
    second.control().write("on\n".into()).await?;
    read_until(&mut second, "got-on").await?;
    Ok(())
}

async fn held_session_is_refused_without_takeover(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let (mut first, id) = open_named(&cx, &sandbox, script("echo ready; read line; echo got-$line; exit 0")).await?;
    read_until(&mut first, "ready\r\n").await?;
    let pty = cx.provider().as_pty_attach().ok_or_else(|| Stop::failed("it is declared, but its accessor is empty"))?;
    let keep = AttachOptions { takeover: false, since: Some(0) };
    let attach = |id: &str| pty.attach_pty(sandbox.handle(), id.to_owned(), keep);
    match within(RUN_WITHIN, "attaching to a held session", attach(&id)).await? {
        Err(error) if error.field() == Some("since") => return Err(Stop::skipped(error.message())),
        result => ensure_refused(result, &[ErrorKind::InvalidState], "attaching to a held session")?,
    };
    let missing = within(RUN_WITHIN, "attaching to no session", attach("no-such-session")).await?;
    ensure_refused(missing, &[ErrorKind::NotFound], "attaching to no session")?;
    // Its holder has noticed nothing.
    first.control().write("on\n".into()).await?;
    read_until(&mut first, "got-on").await?;
    Ok(())
}
