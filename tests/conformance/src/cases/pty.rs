//! Interactive sessions.

use std::time::Duration;

use sandbox_core::{ControlRequest, ErrorKind, ExecOutcome, PtyEvent, PtyStream, SandboxPtySpec};

use super::cases;
use crate::{
    check::{Check, Stop, ensure_refused, show},
    context::Context,
    host::within,
    sandbox::{RUN_WITHIN, TestSandbox},
};

cases! { "pty":
    session_opens_runs_and_gives_its_exit_code, "D03, contract: Capabilities, pty", capability Pty;
    size_is_there_from_the_start_and_changes, "D01, contract: Capabilities, pty", capability Pty;
    input_is_echoed_and_interrupts, "D05, contract: Capabilities, pty", capability Pty;
    pipe_mode_separates_the_streams, "D03, contract: Capabilities, pty", capability Pty;
    resize_after_the_end_is_refused, "D02, contract: Capabilities, pty", capability Pty;
    dropping_the_session_kills_it, "D05, contract: Capabilities, pty", capability Pty;
    resize_is_told_to_the_foreground_program, "D02, contract: Capabilities, pty", capability Pty;
    interrupt_key_reaches_the_foreground_job_only, "D05, contract: Capabilities, pty", capability Pty;
}

async fn open(cx: &Context, sandbox: &TestSandbox, spec: SandboxPtySpec) -> Check<PtyStream> {
    let pty = cx.provider().as_pty().ok_or_else(|| Stop::failed("pty is declared, but its accessor is empty"))?;
    spec.validate()?;
    let mut stream = within(RUN_WITHIN, "the start of a session", pty.create_pty(sandbox.handle(), spec)).await??;
    match within(RUN_WITHIN, "the first event", stream.next()).await?? {
        Some(PtyEvent::Opened { session_id }) if !session_id.is_empty() => Ok(stream),
        other => Err(Stop::failed(format!("the first event of a session was {other:?}"))),
    }
}

pub(super) fn script(text: &str) -> SandboxPtySpec {
    SandboxPtySpec { command: Some(text.into()), ..Default::default() }
}

/// Reads until the output holds a text.
pub(super) async fn read_until(stream: &mut PtyStream, text: &str) -> Check<String> {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        match within(Duration::from_secs(10), &format!("the output {text:?}"), stream.next()).await?? {
            Some(PtyEvent::Output(bytes)) => seen.extend_from_slice(&bytes),
            Some(PtyEvent::Exit(_)) | None => {
                return Err(Stop::failed(format!("the session ended before {text:?}; output {}", show(&seen))));
            }
            Some(_) => {}
        }
    }
    Ok(String::from_utf8_lossy(&seen).into_owned())
}

/// Reads to the end: output, standard error, outcome.
async fn read_all(stream: &mut PtyStream) -> Check<(Vec<u8>, Vec<u8>, ExecOutcome)> {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    loop {
        match within(RUN_WITHIN, "the next event", stream.next()).await?? {
            Some(PtyEvent::Output(bytes)) => output.extend_from_slice(&bytes),
            Some(PtyEvent::Stderr(bytes)) => errors.extend_from_slice(&bytes),
            Some(PtyEvent::Exit(exit)) => return Ok((output, errors, exit.outcome)),
            Some(_) => {}
            None => return Err(Stop::failed("the session ended without an exit")),
        }
    }
}

async fn session_opens_runs_and_gives_its_exit_code(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut stream =
        open(&cx, &sandbox, script("test -t 0 && test -t 1 && test -t 2 && echo terminal; echo e >&2; exit 7")).await?;
    let (output, errors, outcome) = read_all(&mut stream).await?;
    ensure!(output.starts_with(b"terminal\r\n"), "output {}", show(&output));
    ensure!(errors.is_empty(), "a terminal has one stream, but stderr came apart");
    ensure_eq!(outcome, ExecOutcome::Exited(7), "outcome");
    Ok(())
}

async fn size_is_there_from_the_start_and_changes(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("stty").await?;
    let spec = SandboxPtySpec { rows: 31, cols: 97, ..script("stty size; read x; stty size; exit 0") };
    let mut stream = open(&cx, &sandbox, spec).await?;
    read_until(&mut stream, "31 97").await?;
    stream.control().control(ControlRequest::Resize { rows: 40, cols: 120 }).await?;
    stream.control().write("go\n".into()).await?;
    read_until(&mut stream, "40 120").await?;
    Ok(())
}

async fn input_is_echoed_and_interrupts(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let text = "trap 'echo interrupted; exit 5' INT; echo ready; while :; do sleep 0.1; done";
    let mut stream = open(&cx, &sandbox, script(text)).await?;
    read_until(&mut stream, "ready").await?;
    stream.control().write("typed\n".into()).await?;
    read_until(&mut stream, "typed").await?;
    stream.control().write("\x03".into()).await?;
    read_until(&mut stream, "interrupted").await?;
    ensure_eq!(read_all(&mut stream).await?.2, ExecOutcome::Exited(5), "outcome");
    Ok(())
}

async fn pipe_mode_separates_the_streams(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let spec = SandboxPtySpec { pty: false, ..script("test -t 1 && echo terminal; echo out; echo err >&2; exit 3") };
    let mut stream = open(&cx, &sandbox, spec).await?;
    let (output, errors, outcome) = read_all(&mut stream).await?;
    ensure_eq!((output.as_slice(), errors.as_slice()), (&b"out\n"[..], &b"err\n"[..]), "stdout and stderr");
    ensure_eq!(outcome, ExecOutcome::Exited(3), "outcome");
    Ok(())
}

async fn resize_after_the_end_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut stream = open(&cx, &sandbox, script("exit 0")).await?;
    read_all(&mut stream).await?;
    ensure_refused(
        stream.control().control(ControlRequest::Resize { rows: 40, cols: 120 }).await,
        &[ErrorKind::InvalidState],
        "a resize after the end",
    )?;
    Ok(())
}

async fn dropping_the_session_kills_it(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut stream = open(&cx, &sandbox, script("echo ready; while :; do echo t >> ticks; sleep 0.05; done")).await?;
    read_until(&mut stream, "ready").await?;
    drop(stream);
    let is_still = "a=$(wc -c < ticks); sleep 0.3; test \"$a\" = \"$(wc -c < ticks)\"";
    ensure!(sandbox.eventually(Duration::from_secs(5), is_still).await?, "the session's process went on");
    Ok(())
}

async fn resize_is_told_to_the_foreground_program(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("stty").await?;
    let text = "trap 'stty size; exit 4' WINCH; echo ready; while :; do sleep 0.05; done";
    let mut stream = open(&cx, &sandbox, script(text)).await?;
    read_until(&mut stream, "ready").await?;
    stream.control().control(ControlRequest::Resize { rows: 50, cols: 101 }).await?;
    read_until(&mut stream, "50 101").await?;
    ensure_eq!(read_all(&mut stream).await?.2, ExecOutcome::Exited(4), "outcome");
    Ok(())
}

async fn interrupt_key_reaches_the_foreground_job_only(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut stream = open(&cx, &sandbox, SandboxPtySpec::default()).await?;
    // What is typed is echoed: what is waited for is not in it.
    stream.control().write("sleep 300 & sh -c 'echo in-$((40+2)); exec sleep 300'\n".into()).await?;
    read_until(&mut stream, "in-42").await?;
    stream.control().write("\x03".into()).await?;
    stream.control().write("echo code-$?-; kill -0 $! && echo alive-$((40+2))\n".into()).await?;
    let seen = read_until(&mut stream, "alive-42").await?;
    ensure!(seen.contains("code-130-"), "the foreground job did not end by the interrupt: {seen:?}");
    Ok(())
}
