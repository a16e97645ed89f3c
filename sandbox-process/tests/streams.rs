//! Standard input and output, byte for byte.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use std::time::Instant;

use bytes::Bytes;
use common::{collect, eventually, millis, run, seconds, sh, within};
use sandbox_process::{CHUNK_BYTES, Command, ControlErrorKind, Ending, Event, Limits, ProcessSet, Stdin};

fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491u32;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    })
    .take(length)
    .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stdin_is_at_its_end_unless_given() {
    let set = ProcessSet::new();
    for (stdin, count) in [
        (Stdin::Null, "0"),
        (Stdin::Bytes(Bytes::new()), "0"),
        (Stdin::Bytes(Bytes::from_static(b"abc")), "3"),
        (Stdin::Bytes(Bytes::from(vec![7; 1_000_000])), "1000000"),
    ] {
        let command = Command::new(["wc", "-c"]).stdin(stdin);
        let done = within(seconds(5), run(&set, command, Limits::new())).await.expect("starts");
        assert_eq!(String::from_utf8_lossy(&done.stdout).trim(), count);
        assert_eq!(done.ending(), Ending::Exited(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_mebibytes_go_through_cat_without_a_deadlock() {
    let set = ProcessSet::new();
    let input = pattern(8 << 20);
    let command = Command::new(["cat"]).stdin(Stdin::Bytes(input.clone().into()));
    let done = within(seconds(20), run(&set, command, Limits::new())).await.expect("starts");
    assert_eq!(done.ending(), Ending::Exited(0));
    assert!(done.stdout == input, "not the same bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_written_while_output_is_read() {
    let set = ProcessSet::new();
    let command = Command::new(["cat"]).stdin(Stdin::Stream);
    let mut process = set.spawn(command, Limits::new()).await.expect("starts");
    let controller = process.controller();
    controller.write_stdin(b"ping").await.expect("it reads");
    let Some(Event::Stdout(echo)) = process.next_event().await else { panic!("no echo") };
    assert_eq!(&echo[..], b"ping");
    let input = pattern(3 << 20);
    let sent = input.clone();
    let writer = tokio::spawn(async move {
        for piece in sent.chunks(100_001) {
            controller.write_stdin(piece).await.expect("it reads");
        }
        controller.close_stdin().await;
    });
    let done = within(seconds(20), collect(&mut process)).await;
    writer.await.expect("no panic");
    assert!(done.stdout == input, "not the same bytes");
    assert_eq!(done.ending(), Ending::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn input_that_nobody_reads_is_a_typed_error_and_does_not_fail_the_command() {
    let set = ProcessSet::new();
    let command = Command::new(["true"]).stdin(Stdin::Bytes(vec![1; 4 << 20].into()));
    let done = within(seconds(5), run(&set, command, Limits::new())).await.expect("starts");
    assert_eq!(done.ending(), Ending::Exited(0));
    let command = sh("exec 0<&-; echo closed; sleep 300").stdin(Stdin::Stream);
    let mut process = set.spawn(command, Limits::new()).await.expect("starts");
    assert!(matches!(process.next_event().await, Some(Event::Stdout(_))));
    let error = within(seconds(5), process.controller().write_stdin(&[1; 200_000])).await.expect_err("nobody reads");
    assert_eq!(error.kind(), ControlErrorKind::BrokenPipe);
    process.controller().kill_tree();
    assert_eq!(collect(&mut process).await.ending(), Ending::Killed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_waits_is_woken_when_the_command_ends() {
    let set = ProcessSet::new();
    let command = sh("sleep 300").stdin(Stdin::Stream);
    let mut process = set.spawn(command, Limits::new().timeout(millis(200))).await.expect("starts");
    let controller = process.controller();
    let writer = tokio::spawn(async move { controller.write_stdin(&[1; 1_000_000]).await });
    assert_eq!(collect(&mut process).await.ending(), Ending::TimedOut);
    let result = within(seconds(2), writer).await.expect("no panic");
    assert_eq!(result.map_err(|error| error.kind()), Err(ControlErrorKind::BrokenPipe));
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_neither_decoded_nor_split() {
    let set = ProcessSet::new();
    let done = run(&set, sh(r"printf 'a\000b\377c'"), Limits::new()).await.expect("starts");
    assert_eq!(done.stdout, b"a\0b\xffc");
    let done = run(&set, sh(r"printf '\342'; sleep 0.1; printf '\202\254'"), Limits::new()).await.expect("starts");
    assert_eq!(done.stdout, "€".as_bytes());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_byte_of_500_fast_commands_is_lost() {
    let set = std::sync::Arc::new(ProcessSet::new());
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let set = set.clone();
        workers.spawn(async move {
            for _ in 0..16 {
                let command = sh("printf last; printf err >&2; exit 1");
                let done = run(&set, command, Limits::new()).await.expect("starts");
                assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"last"[..], &b"err"[..]));
                assert_eq!(done.ending(), Ending::Exited(1));
                assert!(!done.exit.output_open);
            }
        });
    }
    while let Some(result) = workers.join_next().await {
        result.expect("no panic");
    }
    eventually("nothing is left", || set.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_before_the_exit_arrives_although_the_reader_is_late() {
    let set = ProcessSet::new();
    // Fills the pipe exactly, exits, and leaves the pipes with a background child.
    let command = sh("sleep 300 & head -c 65536 /dev/zero; printf end >&2");
    let mut process = set.spawn(command, Limits::new().drain_grace(millis(1))).await.expect("starts");
    tokio::time::sleep(millis(100)).await;
    let done = collect(&mut process).await;
    assert_eq!((done.stdout.len(), &done.stderr[..]), (65536, &b"end"[..]));
    assert_eq!(set.kill_all(seconds(5)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_mebibytes_stream_through_in_bounded_memory() {
    let set = ProcessSet::new();
    let command = sh("head -c 67108864 /dev/zero; head -c 1000000 /dev/zero >&2");
    let before = peak_kib();
    let mut process = set.spawn(command, Limits::new()).await.expect("starts");
    let (mut stdout, mut stderr) = (0, 0);
    let exit = loop {
        match process.next_event().await {
            Some(Event::Stdout(bytes)) => {
                assert!(!bytes.is_empty() && bytes.len() <= CHUNK_BYTES);
                stdout += bytes.len();
            }
            Some(Event::Stderr(bytes)) => stderr += bytes.len(),
            Some(Event::Exit(exit)) => break exit,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((stdout, stderr, exit.ending), (64 << 20, 1_000_000, Ending::Exited(0)));
    assert!(exit.cpu_time > std::time::Duration::ZERO && exit.peak_memory_bytes > 0);
    // The other tests of this binary run at the same time and use up to some 40 MiB.
    assert!(peak_kib() < before + 60_000, "{} KiB more", peak_kib() - before);
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
    let line = status.lines().find(|line| line.starts_with("VmRSS")).expect("is in the status");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn one_stalled_reader_stalls_only_its_own_command() {
    let set = ProcessSet::new();
    let mut stalled = set.spawn(sh("yes"), Limits::new()).await.expect("starts");
    assert!(matches!(stalled.next_event().await, Some(Event::Stdout(_))));
    let begin = Instant::now();
    for _ in 0..20 {
        assert_eq!(run(&set, sh("echo ok"), Limits::new()).await.expect("starts").stdout, b"ok\n");
    }
    assert!(begin.elapsed() < seconds(3));
    drop(stalled);
    assert_eq!(set.kill_all(seconds(5)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_of_300_kilobytes_is_like_a_short_one() {
    let set = ProcessSet::new();
    let path = "/usr/local/bin:/usr/bin:/bin";
    for shell in ["/usr/bin/dash", "/usr/bin/bash"] {
        let tail = "cat <<END\nhere $((1+2))\nEND\ncat\necho \"$0\"\nls /proc/self/fd | tr '\\n' ' '\necho; echo line $LINENO\n(exit 4)\nfalse || exit 42\necho not reached\n";
        let short = format!("# first\n{tail}");
        let long = format!("# first {}\n{tail}", "x".repeat(300_000));
        let mut results = Vec::new();
        for script in [&short, &long] {
            let command = Command::shell(shell, script.as_bytes())
                .expect("no NUL byte")
                .env("PATH", path)
                .stdin(Stdin::Bytes(Bytes::from_static(b"from stdin\n")));
            let done = run(&set, command, Limits::new()).await.expect("starts");
            assert_eq!(done.ending(), Ending::Exited(42), "{}", String::from_utf8_lossy(&done.stderr));
            results.push(String::from_utf8_lossy(&done.stdout).into_owned());
        }
        assert!(results[0].starts_with(&format!("here 3\nfrom stdin\n{shell}\n")), "{}", results[0]);
        // The shell itself keeps the file open above 9, close-on-exec, so the listing is the same.
        assert_eq!(results[0], results[1]);
    }
    let long = format!(": {}; kill -9 $$", "x".repeat(300_000));
    let command = Command::shell("/bin/sh", long.as_bytes()).expect("no NUL byte");
    assert_eq!(run(&set, command, Limits::new()).await.expect("starts").ending(), Ending::Signalled(9));
}
