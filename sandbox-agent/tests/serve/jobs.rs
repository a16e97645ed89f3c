//! Detached commands: their kept output, a second reader, and input over lost connections.

use crate::support::{Agent, default_config, drain, numbered, seconds, within};
use sandbox_core::{ErrorKind, ExecEvent, ExecExit, ExecOutcome, ExecRequest, ExecStream, Session, StdinSource};
use sandbox_protocol::{
    Client, LogEvent,
    methods::{
        self, ExecAttach, ExecAttached, ExecList, ExecLogs, ExecLogsAt, ExecSignal, ExecStart, ExecWait, ExecWaited,
        Nothing,
    },
};
use serde_json::json;

fn detached(id: &str, request: ExecRequest) -> ExecStart {
    let mut start = ExecStart::new(request);
    start.request.exec_id = id.to_owned();
    start.detached = true;
    start
}

async fn logs(client: &Client, stdout_offset: u64, follow: bool) -> (ExecLogsAt, Session<LogEvent>) {
    let request = ExecLogs { exec_id: "job".to_owned(), stdout_offset, follow, ..ExecLogs::default() };
    client.open_with_reply(methods::EXEC_LOGS, &request).await.unwrap()
}

/// Standard output with its offsets, what is missing, and the end.
async fn read(at: &ExecLogsAt, mut session: Session<LogEvent>) -> (Vec<(u64, Vec<u8>)>, u64, Option<ExecExit>) {
    let (mut parts, mut offset, mut missing) = (Vec::<(u64, Vec<u8>)>::new(), at.stdout_offset, 0);
    loop {
        match within(seconds(30), session.next()).await.unwrap().unwrap() {
            LogEvent::Stdout(bytes) => {
                match parts.last_mut() {
                    Some((from, part)) if *from + part.len() as u64 == offset => part.extend_from_slice(&bytes),
                    _ => parts.push((offset, bytes.to_vec())),
                }
                offset += bytes.len() as u64;
            }
            LogEvent::Gap { stdout_bytes, stderr_bytes } => {
                assert_eq!(stderr_bytes, 0);
                offset += stdout_bytes;
                missing += stdout_bytes;
            }
            LogEvent::End(exit) => return (parts, missing, exit),
            other => panic!("{other:?}"),
        }
    }
}

async fn wait(client: &Client) -> ExecExit {
    let wait = ExecWait { exec_id: "job".to_owned(), timeout_s: Some(30.0) };
    client.call::<ExecWaited>(methods::EXEC_WAIT, &wait).await.unwrap().exit.expect("it has ended")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_job_keeps_its_first_and_last_output_and_tells_the_gap_to_the_byte() {
    let agent = Agent::start(json!({ "log_head_bytes": 1000, "log_tail_bytes": 524_288 }));
    let client = agent.connect().await;
    let lines = 5_000_000 / 8;
    let request = ExecRequest::argv(["seq", "-f", "%07.0f", "0", &(lines - 1).to_string()]);
    let (_, stream) = client.exec_start(detached("job", request)).await.unwrap();
    // Nobody reads it, and it ends all the same.
    drop(stream);
    assert_eq!(wait(&client).await.outcome, ExecOutcome::Exited(0));
    let second = agent.connect().await;
    let whole = numbered(lines);
    for since in [0u64, 10, 1000, 2_000_000, 4_999_990, 5_000_000, 9_000_000] {
        let (at, session) = logs(&second, since, false).await;
        let (parts, missing, exit) = read(&at, session).await;
        assert_eq!(exit.unwrap().outcome, ExecOutcome::Exited(0));
        for (offset, part) in &parts {
            let from = *offset as usize;
            assert!(*part == whole[from..from + part.len()], "since {since}: at {offset}");
        }
        let read: u64 = parts.iter().map(|(_, part)| part.len() as u64).sum();
        assert_eq!(at.stdout_offset + read + missing, whole.len() as u64, "since {since}");
        match since {
            0 => assert_eq!((parts[0].1.len(), parts[1].1.len(), at.stdout_offset), (1000, 524_288, 0)),
            10 => assert_eq!((parts[0].1.len(), parts[1].1.len()), (990, 524_288)),
            4_999_990 => assert_eq!((at.stdout_offset, missing, read), (since, 0, 10)),
            // What was asked for is not kept: it begins where it goes on.
            1000 | 2_000_000 => assert_eq!((at.stdout_offset, read), (whole.len() as u64 - 524_288, 524_288)),
            _ => assert_eq!((at.stdout_offset, read), (whole.len() as u64, 0)),
        }
    }
    // Who attaches goes on behind the gap, and is told so.
    let request = ExecAttach { exec_id: "job".to_owned(), ..ExecAttach::default() };
    let (attached, stream) =
        client.open_with_reply::<ExecEvent, ExecAttached>(methods::EXEC_ATTACH, &request).await.unwrap();
    assert_eq!(attached.stdout_offset, whole.len() as u64 - 524_288);
    assert!(drain(stream).await.0 == whole[attached.stdout_offset as usize..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_client_follows_a_job_beside_the_one_that_has_it() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let request = ExecRequest::argv(["cat"]).with_stdin(StdinSource::Stream);
    let (started, mut stream) = client.exec_start(detached("job", request)).await.unwrap();
    assert_eq!((started.was_known, started.stdin_offset), (false, 0));
    let second = agent.connect().await;
    let (at, mut follower) = logs(&second, 0, true).await;
    for piece in ["one", "two"] {
        stream.write(piece).await.unwrap();
        assert!(matches!(within(seconds(20), stream.next()).await.unwrap(), Some(ExecEvent::Stdout(_))));
        match within(seconds(20), follower.next()).await.unwrap().unwrap() {
            LogEvent::Stdout(bytes) => assert_eq!(bytes, piece),
            other => panic!("{other:?}"),
        }
    }
    // Without following it ends where the output is now, though the command runs.
    let (at_now, now) = logs(&second, 3, false).await;
    assert_eq!(read(&at_now, now).await, (vec![(3, b"two".to_vec())], 0, None));
    stream.close_input().await.unwrap();
    assert!(matches!(within(seconds(20), follower.next()).await.unwrap(), Some(LogEvent::End(Some(_)))));
    assert_eq!(at.stdout_offset, 0);
    let list: ExecList = second.call(methods::EXEC_LIST, &Nothing {}).await.unwrap();
    assert_eq!((list.execs[0].stdout_bytes, list.execs[0].detached), (6, true));
    let request = ExecLogs { exec_id: "nobody".to_owned(), ..ExecLogs::default() };
    let error = second.open::<LogEvent>(methods::EXEC_LOGS, &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn a_job_is_killed_and_signalled_by_its_id_from_elsewhere() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let request =
        ExecRequest::shell("exec 2>/dev/null; trap 'echo got; exit 3' USR1; echo up; while :; do sleep 0.05; done");
    let (_, mut stream) = client.exec_start(detached("job", request)).await.unwrap();
    assert!(matches!(within(seconds(20), stream.next()).await.unwrap(), Some(ExecEvent::Stdout(_))));
    drop(stream);
    let second = agent.connect().await;
    let signal = ExecSignal { exec_id: "job".to_owned(), signal: libc::SIGUSR1, tree: false };
    let _: Nothing = second.call(methods::EXEC_SIGNAL, &signal).await.unwrap();
    assert_eq!(wait(&second).await.outcome, ExecOutcome::Exited(3));
    let (at, session) = logs(&second, 3, false).await;
    assert_eq!(read(&at, session).await.0, [(3, b"got\n".to_vec())]);
}

#[tokio::test]
async fn what_a_job_that_is_over_left_is_killed_by_its_id_and_gone_at_the_answer() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let folder = tempfile::tempdir().unwrap();
    let ticks = folder.path().join("ticks");
    let script = "(setsid sh -c 'trap \"\" TERM HUP; while :; do echo x >> $0; sleep 0.02; done' $T &) ; \
                  until test -s $T; do sleep 0.02; done; exit 4";
    let request = ExecRequest::shell(script).with_env("T", ticks.to_str().unwrap());
    drop(client.exec_start(detached("job", request)).await.unwrap());
    assert_eq!(wait(&client).await.outcome, ExecOutcome::Exited(4));
    for _ in 0..2 {
        let signal = ExecSignal { exec_id: "job".to_owned(), signal: libc::SIGKILL, tree: true };
        let _: Nothing = within(seconds(30), client.call(methods::EXEC_SIGNAL, &signal)).await.unwrap();
        let length = || std::fs::metadata(&ticks).unwrap().len();
        let before = length();
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert_eq!(length(), before, "something still writes");
    }
    assert_eq!(wait(&client).await.outcome, ExecOutcome::Exited(4), "the end is what it was");
}

/// Attaches again, telling where the input that this client writes begins.
async fn attach(client: &Client, stdout_offset: u64, stdin_offset: Option<u64>) -> (ExecAttached, ExecStream) {
    let request = ExecAttach { exec_id: "job".to_owned(), stdout_offset, stdin_offset, ..ExecAttach::default() };
    client.open_with_reply(methods::EXEC_ATTACH, &request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn input_over_lost_connections_is_neither_repeated_nor_lost() {
    let agent = Agent::start(default_config());
    // More than what can be under way at the last cut.
    let input = numbered(5_000_000 / 8);
    let mut request = ExecRequest::argv(["cat"]).with_stdin(StdinSource::Stream);
    request.exec_id = "job".to_owned();
    let (client, mut switch) = agent.connect_cuttable().await;
    let (_, mut stream) = client.exec_start(ExecStart::new(request)).await.unwrap();
    let (mut output, mut cuts) = (Vec::new(), 0);
    let mut from = 0;
    // The connection is cut while bytes of both directions are under way.
    let exit = loop {
        let (control, rest) = (stream.control(), input[from..].to_vec());
        let writing = tokio::spawn(async move {
            for piece in rest.chunks(10_000) {
                if control.write(piece.to_vec().into()).await.is_err() {
                    return;
                }
            }
            let _ = control.control(sandbox_core::ControlRequest::CloseInput).await;
        });
        let before = output.len();
        let exit = loop {
            match within(seconds(30), stream.next()).await {
                Ok(Some(ExecEvent::Stdout(bytes))) => output.extend_from_slice(&bytes),
                Ok(Some(ExecEvent::Exit(exit))) => break Some(exit),
                other => panic!("{other:?}"),
            }
            if output.len() - before > 500_000 && cuts < 5 {
                break None;
            }
        };
        if let Some(exit) = exit {
            break exit;
        }
        cuts += 1;
        switch.shutdown(std::net::Shutdown::Both).unwrap();
        writing.await.unwrap();
        let (client, new_switch) = agent.connect_cuttable().await;
        // Everything is written again from a byte that was surely taken: the agent skips what it has.
        from = output.len();
        let (attached, new_stream) = attach(&client, output.len() as u64, Some(from as u64)).await;
        assert!(attached.stdin_offset >= from as u64 && !attached.stdin_closed);
        (stream, switch) = (new_stream, new_switch);
    };
    assert_eq!((exit.outcome, cuts), (ExecOutcome::Exited(0), 5));
    assert!(output == input, "each byte once, in order");
}

#[tokio::test]
async fn a_repeated_start_brings_its_input_once_and_another_command_cannot_have_the_id() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let bytes = numbered(10_000);
    let request = |command: &str| {
        let mut request = ExecRequest::argv([command]).with_stdin_bytes(bytes.clone());
        request.exec_id = "job".to_owned();
        ExecStart::new(request)
    };
    let (_, stream) = client.exec_start(request("cat")).await.unwrap();
    let first = stream.control();
    let second = agent.connect().await;
    let (started, again) = second.exec_start(request("cat")).await.unwrap();
    assert!(started.was_known);
    let (output, _, exit) = within(seconds(30), drain(again)).await;
    assert_eq!(exit.unwrap().outcome, ExecOutcome::Exited(0));
    assert!(output == bytes, "{} bytes", output.len());
    assert!(first.write("late".into()).await.is_err(), "who was replaced writes nothing");
    drop(stream);
    let error = second.exec_start(request("tac")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::AlreadyExists, Some("exec_id")));
}

#[tokio::test]
async fn input_that_was_never_taken_is_not_skipped() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let request = ExecRequest::argv(["cat"]).with_stdin(StdinSource::Stream);
    let (_, mut stream) = client.exec_start(detached("job", request)).await.unwrap();
    stream.write("abc").await.unwrap();
    assert!(matches!(within(seconds(20), stream.next()).await.unwrap(), Some(ExecEvent::Stdout(_))));
    let request = ExecAttach { exec_id: "job".to_owned(), stdin_offset: Some(4), ..ExecAttach::default() };
    let error = client.open::<ExecEvent>(methods::EXEC_ATTACH, &request).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("stdin_offset")));
    // Who has it keeps it then.
    stream.write("d").await.unwrap();
    assert!(matches!(within(seconds(20), stream.next()).await.unwrap(), Some(ExecEvent::Stdout(_))));
    let (attached, again) = attach(&client, 0, None).await;
    assert_eq!(attached.stdin_offset, 4);
    again.write("e").await.unwrap();
    again.close_input().await.unwrap();
    assert_eq!(within(seconds(20), drain(again)).await.0, b"abcde");
}
