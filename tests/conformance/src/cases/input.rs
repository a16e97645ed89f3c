//! Standard input.

use std::time::Duration;

use sandbox_core::{CaptureLimits, ControlRequest, ErrorKind, ExecRequest, StdinSource};

use super::cases;
use crate::{
    bytes::{cksum, noise},
    check::{Check, ensure_bytes, ensure_refused},
    context::Context,
    host::within,
    sandbox::RUN_WITHIN,
};

cases! { "stdin":
    it_is_at_its_end_by_default, "A04, contract: Exec, stdin";
    empty_bytes_are_an_end, "A04", field ExecStdinBytes;
    three_bytes_and_then_the_end, "A04", field ExecStdinBytes;
    bytes_arrive_unchanged, "A15", field ExecStdinBytes;
    eight_mib_through_cat_come_back, "A04, contract: Exec, stdin is streamed", field ExecStdinBytes;
    command_that_does_not_read_it_still_ends, "A04", field ExecStdinBytes;
    streamed_input_arrives_before_it_is_closed, "A04, contract: Exec, stdin is streamed", field ExecStdinStream;
    writing_after_the_close_is_refused, "contract: Exec, stdin", field ExecStdinStream;
}

/// A command that waits for input that never comes would hang; a short limit shows it.
const AT_ONCE: Duration = Duration::from_secs(5);

async fn it_is_at_its_end_by_default(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for request in [ExecRequest::argv(["cat"]), ExecRequest::shell("cat; read line || echo end")] {
        let result = sandbox.run_within(AT_ONCE, request).await?;
        ensure!(result.stdout.is_empty() || result.stdout == b"end\n", "there was input that nobody gave");
        ensure!(result.outcome().is_success(), "outcome {:?}", result.outcome());
    }
    Ok(())
}

async fn empty_bytes_are_an_end(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let result = sandbox.run_within(AT_ONCE, ExecRequest::argv(["wc", "-c"]).with_stdin_bytes("")).await?;
    ensure_eq!(result.stdout_text().trim(), "0", "bytes read");
    Ok(())
}

async fn three_bytes_and_then_the_end(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let result = sandbox.run_within(AT_ONCE, ExecRequest::argv(["wc", "-c"]).with_stdin_bytes("abc")).await?;
    ensure_eq!(result.stdout_text().trim(), "3", "bytes read");
    Ok(())
}

async fn bytes_arrive_unchanged(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let all: Vec<u8> = (0..=255).collect();
    let result = sandbox.run(ExecRequest::argv(["cat"]).with_stdin_bytes(all.clone())).await?;
    ensure_bytes(&result.stdout, &all, "every byte once")
}

async fn eight_mib_through_cat_come_back(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.needs_program("cksum").await?;
    let data = noise(8 * 1024 * 1024);
    let result = sandbox.run(ExecRequest::argv(["cat"]).with_stdin_bytes(data.clone())).await?;
    ensure_eq!(result.stdout_bytes, data.len() as u64, "bytes that came back");
    ensure!(result.stdout == data, "the bytes that came back are others");
    let result = sandbox.run(ExecRequest::argv(["cksum"]).with_stdin_bytes(data.clone())).await?;
    let expected = format!("{} {}", cksum(&data), data.len());
    ensure_eq!(result.stdout_text().trim(), expected, "checksum and size inside");
    Ok(())
}

async fn command_that_does_not_read_it_still_ends(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let request = ExecRequest::shell("exit 5").with_stdin_bytes(noise(1024 * 1024));
    sandbox.expect_exit(request, 5).await?;
    Ok(())
}

async fn streamed_input_arrives_before_it_is_closed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let request = ExecRequest::shell("read a; echo \"got $a\"; cat; echo end").with_stdin(StdinSource::Stream);
    let mut stream = sandbox.start(request).await?;
    stream.control().write("first\n".into()).await?;
    let event = within(AT_ONCE, "the answer to the first line", stream.next()).await??;
    ensure!(
        matches!(&event, Some(sandbox_core::ExecEvent::Stdout(bytes)) if bytes.starts_with(b"got")),
        "expected the answer to the first line, got {event:?}"
    );
    stream.control().write("second\n".into()).await?;
    stream.control().control(ControlRequest::CloseInput).await?;
    let result = within(RUN_WITHIN, "the command", stream.collect(CaptureLimits::default())).await??;
    ensure!(result.outcome().is_success(), "outcome {:?}", result.outcome());
    ensure!(
        result.stdout.ends_with(b"second\nend\n"),
        "the rest of the input did not arrive: {}",
        crate::check::show(&result.stdout)
    );
    Ok(())
}

async fn writing_after_the_close_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let stream = sandbox.start(ExecRequest::argv(["cat"]).with_stdin(StdinSource::Stream)).await?;
    stream.control().control(ControlRequest::CloseInput).await?;
    ensure_refused(stream.control().write("late".into()).await, &[ErrorKind::InvalidState], "a write after the close")?;
    let result = within(RUN_WITHIN, "the command", stream.collect(CaptureLimits::default())).await??;
    ensure_bytes(&result.stdout, b"", "stdout")
}
