//! Standard output and standard error.

use std::time::Duration;

use sandbox_core::{CaptureLimits, ExecEvent, ExecOutcome, ExecRequest, TextDecoder};
use tokio::task::JoinSet;

use super::cases;
use crate::{
    check::{Check, Stop, ensure_bytes, show},
    context::Context,
    host::within,
    sandbox::RUN_WITHIN,
};

cases! { "output":
    stdout_and_stderr_are_separate, "contract: Exec, separate byte streams";
    nul_and_non_utf8_bytes_are_unchanged, "A15, contract: Exec, never decoded";
    last_bytes_without_newline_arrive, "A17";
    character_split_over_time_stays_whole, "A16";
    three_million_lines_are_counted, "A13, contract: Exec, capture is bounded";
    all_bytes_arrive_without_a_limit, "A13, contract: Exec, streaming is not bounded";
    slow_reader_loses_nothing, "A13";
    output_arrives_while_the_command_runs, "A31, contract: Exec";
    nothing_becomes_a_terminal, "D03";
}

async fn stdout_and_stderr_are_separate(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let result = sandbox.sh("echo out; echo err >&2; echo out2; echo err2 >&2; exit 9").await?;
    ensure_bytes(&result.stdout, b"out\nout2\n", "stdout")?;
    ensure_bytes(&result.stderr, b"err\nerr2\n", "stderr")?;
    ensure_eq!((result.stdout_bytes, result.stderr_bytes), (9, 9), "counts");
    Ok(())
}

async fn nul_and_non_utf8_bytes_are_unchanged(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let result = sandbox.sh("printf 'a\\000b\\377c\\r\\n'; printf '\\200\\000' >&2").await?;
    ensure_bytes(&result.stdout, b"a\0b\xffc\r\n", "stdout")?;
    ensure_bytes(&result.stderr, b"\x80\0", "stderr")
}

async fn last_bytes_without_newline_arrive(cx: Context) -> Check {
    const RUNS: usize = 200;
    const AT_ONCE: usize = 16;
    let sandbox = cx.sandbox().await?;
    let mut workers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let sandbox = sandbox.clone();
        workers.spawn(async move {
            for _ in 0..RUNS.div_ceil(AT_ONCE) {
                let result = sandbox.sh("printf last; printf err >&2; exit 1").await?;
                ensure_eq!(*result.outcome(), ExecOutcome::Exited(1), "outcome");
                ensure_bytes(&result.stdout, b"last", "stdout")?;
                ensure_bytes(&result.stderr, b"err", "stderr")?;
            }
            Ok(())
        });
    }
    while let Some(end) = workers.join_next().await {
        end.map_err(|error| Stop::failed(format!("a task of the suite ended: {error}")))??;
    }
    Ok(())
}

async fn character_split_over_time_stays_whole(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut stream = sandbox.start(ExecRequest::shell("printf '\\342'; sleep 0.4; printf '\\202\\254'")).await?;
    let (mut bytes, mut text, mut decoder) = (Vec::new(), String::new(), TextDecoder::default());
    while let Some(event) = within(RUN_WITHIN, "the next event", stream.next()).await?? {
        if let ExecEvent::Stdout(chunk) = event {
            bytes.extend_from_slice(&chunk);
            text += &decoder.push(&chunk);
        }
    }
    text += &decoder.finish();
    ensure_bytes(&bytes, "€".as_bytes(), "stdout")?;
    ensure_eq!(text, "€", "stdout as text");
    Ok(())
}

async fn three_million_lines_are_counted(cx: Context) -> Check {
    const LIMIT: usize = 1024 * 1024;
    // The sizes of the numbers 1 to 3,000,000 with their line ends.
    const TOTAL: u64 = 22_888_896;
    let sandbox = cx.sandbox().await?;
    let stream = sandbox.start(ExecRequest::shell("seq 1 3000000")).await?;
    let result = within(RUN_WITHIN, "the command", stream.collect(CaptureLimits::each(LIMIT))).await??;
    ensure_eq!(*result.outcome(), ExecOutcome::Exited(0), "outcome");
    ensure_eq!(result.stdout_bytes, TOTAL, "bytes counted");
    ensure!(result.stdout_truncated && !result.stderr_truncated, "the wrong stream is marked as truncated, or none");
    ensure_eq!(result.stdout.len(), LIMIT, "bytes kept");
    ensure!(result.stdout.starts_with(b"1\n2\n3\n"), "the head was not kept: {}", show(&result.stdout));
    ensure!(result.stdout.ends_with(b"\n2999999\n3000000\n"), "the tail was not kept");
    Ok(())
}

async fn all_bytes_arrive_without_a_limit(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut stream = sandbox.start(ExecRequest::shell("seq 1 1000000; seq 1 300000 >&2")).await?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(event) = within(RUN_WITHIN, "the next event", stream.next()).await?? {
        match event {
            ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
            _ => {}
        }
    }
    for (name, bytes, last) in [("stdout", stdout, 1_000_000), ("stderr", stderr, 300_000)] {
        let mut expected = String::new();
        (1..=last).for_each(|number| expected += &format!("{number}\n"));
        ensure_bytes(&bytes, expected.as_bytes(), name)?;
    }
    Ok(())
}

async fn slow_reader_loses_nothing(cx: Context) -> Check {
    const SIZE: usize = 12 * 1024 * 1024;
    let sandbox = cx.sandbox().await?;
    let mut stream = sandbox.start(ExecRequest::shell(format!("head -c {SIZE} /dev/zero; printf end"))).await?;
    let (mut total, mut last, mut outcome) = (0, Vec::new(), None);
    let mut pause = true;
    while let Some(event) = within(RUN_WITHIN, "the next event", stream.next()).await?? {
        match event {
            ExecEvent::Stdout(bytes) => {
                total += bytes.len();
                last.extend_from_slice(&bytes[bytes.len().saturating_sub(3)..]);
                last.drain(..last.len().saturating_sub(3));
                // A reader that stops for longer than any drain is what is tested.
                if std::mem::take(&mut pause) || (total > SIZE - 100_000 && total < SIZE) {
                    tokio::time::sleep(Duration::from_millis(1500)).await;
                }
            }
            ExecEvent::Exit(exit) => outcome = Some(exit.outcome),
            _ => {}
        }
    }
    ensure_eq!(total, SIZE + 3, "bytes read");
    ensure_bytes(&last, b"end", "the last bytes")?;
    ensure_eq!(outcome, Some(ExecOutcome::Exited(0)), "outcome");
    Ok(())
}

async fn output_arrives_while_the_command_runs(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut stream = sandbox.start(ExecRequest::shell("echo first; sleep 20")).await?;
    let event = within(Duration::from_secs(5), "the first output", stream.next()).await??;
    ensure!(matches!(&event, Some(ExecEvent::Stdout(_))), "expected output, got {event:?}");
    Ok(())
}

async fn nothing_becomes_a_terminal(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "for fd in 0 1 2; do test -t $fd && echo terminal; done; printf 'a\\nb\\r\\n'";
    ensure_bytes(&sandbox.bytes(script).await?, b"a\nb\r\n", "stdout")
}
