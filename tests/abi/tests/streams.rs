//! Streams across the boundary.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use sandbox_abi_tests::{
    build::Fixture,
    hosting::{create, provider, run},
    measure::resident_kib,
    wait::{PATIENCE, eventually},
};
use sandbox_core::{
    ControlRequest, ErrorKind, ExecEvent, ExecRequest, ExecStream, SESSION_QUEUE_EVENTS, SandboxHandle, SandboxProvider,
};
use serde_json::Value;

async fn acme() -> (Arc<dyn SandboxProvider>, SandboxHandle) {
    let provider = provider(&Fixture::Good.path(), "acme", &Value::Null).unwrap();
    let handle = create(&*provider).await.unwrap();
    (provider, handle)
}

async fn start(provider: &Arc<dyn SandboxProvider>, handle: &SandboxHandle, argv: &[&str]) -> ExecStream {
    provider.exec(handle, ExecRequest::argv(argv.iter().copied())).await.unwrap()
}

/// What the fixture's `@flood` gives.
fn is_pattern(offset: usize, bytes: &[u8]) -> bool {
    bytes.iter().enumerate().all(|(index, byte)| *byte == ((offset + index) % 251) as u8)
}

#[tokio::test]
async fn sixty_four_mib_arrive_byte_for_byte_and_in_order() {
    const CHUNKS: usize = 1024;
    const CHUNK_BYTES: usize = 64 * 1024;
    let (provider, handle) = acme().await;
    let mut stream = start(&provider, &handle, &["@flood", &CHUNKS.to_string(), &CHUNK_BYTES.to_string()]).await;
    let mut offset = 0;
    while let Some(ExecEvent::Stdout(bytes)) = stream.next().await.unwrap() {
        assert_eq!(bytes.len(), CHUNK_BYTES);
        assert!(is_pattern(offset, &bytes), "at {offset}");
        offset += bytes.len();
    }
    assert_eq!(offset, CHUNKS * CHUNK_BYTES);
    assert!(stream.next().await.unwrap().is_none(), "nothing follows the exit");
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn sixty_four_mib_of_a_child_that_are_not_text_arrive_byte_for_byte() {
    const BYTES: usize = 64 * 1024 * 1024;
    let (provider, handle) = acme().await;
    let script = format!("yes '\u{fffd}\u{1}' | head -c {BYTES} | tr '\\1' '\\377'");
    let mut stream = provider.exec(&handle, ExecRequest::shell(script)).await.unwrap();
    let mut received = 0;
    let line = [0xef, 0xbf, 0xbd, 0xff, b'\n'];
    while let Some(event) = stream.next().await.unwrap() {
        let ExecEvent::Stdout(bytes) = event else { continue };
        assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == line[(received + index) % line.len()]));
        received += bytes.len();
    }
    assert_eq!(received, BYTES);
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn a_reader_that_stops_holds_its_producer_and_memory_stays_bounded() {
    const CHUNK_BYTES: usize = 1024 * 1024;
    let (provider, handle) = acme().await;
    let mut stream = start(&provider, &handle, &["@flood", "4096", &CHUNK_BYTES.to_string()]).await;
    stream.next().await.unwrap();
    let before = resident_kib();
    let sent = || provider.info().details["chunks_sent"].parse::<usize>().unwrap();
    assert!(eventually(PATIENCE, || sent() >= SESSION_QUEUE_EVENTS).await, "the producer runs ahead: {}", sent());
    // Held means: no further, however long one looks. A producer that is not held sends hundreds in this time.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        // One batch may have been taken, one queue may be full, one chunk may be waiting.
        assert!(sent() <= 2 * SESSION_QUEUE_EVENTS + 2, "{} chunks", sent());
        tokio::task::yield_now().await;
    }
    let grown_mib = resident_kib().saturating_sub(before) / 1024;
    assert!(grown_mib < 3 * SESSION_QUEUE_EVENTS as u64, "{grown_mib} MiB");
    // And it goes on when the reader does.
    let held_at = sent();
    for _ in 0..3 * SESSION_QUEUE_EVENTS {
        stream.next().await.unwrap();
    }
    assert!(eventually(PATIENCE, || sent() > held_at).await);
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn dropping_a_stream_half_way_kills_the_command() {
    let (provider, handle) = acme().await;
    let mut stream = provider.exec(&handle, ExecRequest::shell("echo $$; exec sleep 600")).await.unwrap();
    let Some(ExecEvent::Stdout(pid)) = stream.next().await.unwrap() else { panic!("a line with the pid") };
    let pid = String::from_utf8(pid.to_vec()).unwrap().trim().to_owned();
    let is_alive = || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
    };
    assert!(is_alive());
    drop(stream);
    assert!(eventually(PATIENCE, || !is_alive()).await, "{pid}");
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn a_next_that_is_dropped_half_way_loses_nothing() {
    const EVENTS: u64 = 10_000;
    let (provider, handle) = acme().await;
    let mut stream = start(&provider, &handle, &["@count", &EVENTS.to_string()]).await;
    let (mut expected, mut dropped) = (0, 0);
    while expected < EVENTS {
        // Dropped after its first poll, unless it is ready then: the hardest case there is.
        let polled = tokio::select! {
            biased;
            event = stream.next() => Some(event.unwrap()),
            () = tokio::task::yield_now() => None,
            () = std::future::ready(()), if expected % 3 == 0 => None,
        };
        match polled {
            Some(Some(ExecEvent::Stdout(bytes))) => {
                assert_eq!(bytes, format!("{expected}\n"));
                expected += 1;
            }
            Some(other) => panic!("{other:?} instead of event {expected}"),
            None => dropped += 1,
        }
    }
    assert!(dropped > 100, "it happened: {dropped}");
    assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Exit(_))));
    provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_works_while_another_task_reads() {
    let (provider, handle) = acme().await;
    let mut stream = start(&provider, &handle, &["@echo"]).await;
    let control = stream.control();
    let reader = tokio::spawn(async move {
        let mut received = Vec::new();
        while let Some(event) = stream.next().await.unwrap() {
            if let ExecEvent::Stdout(bytes) = event {
                received.extend_from_slice(&bytes);
            }
        }
        received
    });
    let mut sent = Vec::new();
    for number in 0..500_u32 {
        let bytes = number.to_le_bytes();
        sent.extend_from_slice(&bytes);
        control.write(Bytes::copy_from_slice(&bytes)).await.unwrap();
    }
    control.control(ControlRequest::CloseInput).await.unwrap();
    assert_eq!(reader.await.unwrap(), sent);
    // Whether it says so as "closed" or as "over" is its own business; it must not accept the bytes.
    assert_eq!(control.write("late".into()).await.unwrap_err().kind(), ErrorKind::InvalidState);
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn kill_ends_the_command_and_its_end_is_still_delivered() {
    let (provider, handle) = acme().await;
    let mut stream = provider.exec(&handle, ExecRequest::argv(["sleep", "600"])).await.unwrap();
    stream.kill().await.unwrap();
    let Some(ExecEvent::Exit(exit)) = stream.next().await.unwrap() else { panic!("an end") };
    assert_eq!(exit.outcome, sandbox_core::ExecOutcome::Signalled(9));
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn a_control_request_that_the_session_does_not_know_is_unsupported() {
    let (provider, handle) = acme().await;
    let stream = start(&provider, &handle, &["@echo"]).await;
    let error = stream.control().control(ControlRequest::Resize { rows: 1, cols: 1 }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn stdin_bytes_travel_beside_the_json_whatever_they_are() {
    let (provider, handle) = acme().await;
    let all: Vec<u8> = (0..=255).cycle().take(3 * 1024 * 1024 + 17).collect();
    for bytes in [Vec::new(), vec![0], all] {
        let result =
            run(&*provider, &handle, ExecRequest::argv(["cat"]).with_stdin_bytes(bytes.clone())).await.unwrap();
        assert!(result.stdout == bytes, "{} bytes became {}", bytes.len(), result.stdout.len());
    }
    provider.close(&handle).await.unwrap();
}

#[tokio::test]
async fn many_streams_at_once_do_not_mix() {
    let (provider, handle) = acme().await;
    let mut tasks = Vec::new();
    for number in 0..32_usize {
        let (provider, handle) = (provider.clone(), handle.clone());
        tasks.push(tokio::spawn(async move {
            let script = format!("for i in 1 2 3 4 5 6 7 8; do echo {number}; done");
            let result = run(&*provider, &handle, ExecRequest::shell(script)).await.unwrap();
            assert_eq!(result.stdout_text(), format!("{number}\n").repeat(8));
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    provider.close(&handle).await.unwrap();
}
