//! Commands over the real agent.

use std::time::Instant;

use crate::support::{Agent, default_config, drain, eventually, numbered, run, seconds, sh, within};
use sandbox_core::{ErrorKind, ExecEvent, ExecOutcome, ExecRequest, StartFailure, StdinSource};
use sandbox_protocol::methods::{
    self, ExecAttach, ExecAttached, ExecList, ExecSignal, ExecStart, ExecWait, ExecWaited, Nothing,
};
use serde_json::json;

#[tokio::test]
async fn both_streams_arrive_byte_by_byte_with_the_exit_code_and_the_usage() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let script = r"printf 'a\nb\377\000c'; printf 'e\376' >&2; exit 7";
    let result = run(&client, ExecRequest::shell(script)).await;
    assert_eq!(result.stdout, b"a\nb\xff\0c");
    assert_eq!(result.stderr, b"e\xfe");
    assert_eq!(result.exit.outcome, ExecOutcome::Exited(7));
    assert!(result.exit.usage.wall_time_s.unwrap() > 0.0);
    let argv = [&b"/usr/bin/printf"[..], b"%s|", b"a b", b"$HOME", b"\xff"];
    let result = run(&client, ExecRequest::argv(argv)).await;
    assert_eq!(result.stdout, b"a b|$HOME|\xff|");
    let result = run(&client, ExecRequest::shell("kill -9 $$")).await;
    assert_eq!(result.exit.outcome, ExecOutcome::Signalled(9));
}

#[tokio::test]
async fn the_environment_is_the_configured_one_and_nothing_of_the_agent() {
    let agent = Agent::start(json!({ "workdir": "/usr", "env": { "A": "1", "B": "base", "BASH_ENV": "/no/such" } }));
    let client = agent.connect().await;
    let request = ExecRequest::argv(["env"]).with_env("B", "mine\nline").with_env("C", "3");
    let text = String::from_utf8(run(&client, request).await.stdout.to_vec()).unwrap();
    for wanted in ["A=1", "B=mine\nline", "C=3", "HOME=/root", "USER=root", "PWD=/usr", "PATH="] {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
    assert!(!text.contains("TOKEN") && !text.contains("CARGO"), "{text}");
    assert_eq!(sh(&client, "pwd; echo ${BASH_ENV-none}").await, "/usr\nnone\n");
    let result = run(&client, ExecRequest::shell("pwd").with_cwd("lib")).await;
    assert!(result.stdout.starts_with(b"/usr/lib"));
    let descriptors = sh(&client, "ls /proc/$$/fd; true").await;
    assert_eq!(descriptors.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2"], "nothing of the agent's is open");
}

#[tokio::test]
async fn a_start_that_fails_says_exactly_why() {
    let agent = Agent::start(json!({}));
    let client = agent.connect().await;
    let sh = || ExecRequest::shell("true");
    for (request, wanted) in [
        (ExecRequest::argv(["no-such-program"]), StartFailure::NotFound),
        (ExecRequest::argv(["/etc/passwd"]), StartFailure::NotExecutable),
        (sh().with_cwd("/no/such"), StartFailure::CwdMissing),
        (sh().with_cwd("/etc/passwd"), StartFailure::CwdNotADirectory),
        (sh().with_user("nobody-knows"), StartFailure::UnknownUser),
    ] {
        match run(&client, request).await.exit.outcome {
            ExecOutcome::StartFailed { reason, .. } => assert_eq!(reason, wanted),
            other => panic!("{wanted:?} expected, not {other:?}"),
        }
    }
    let mut request = sh();
    if let sandbox_core::ExecCommand::Shell { shell, .. } = &mut request.command {
        *shell = Some("no-such-shell".to_owned());
    }
    let outcome = run(&client, request).await.exit.outcome;
    assert!(matches!(outcome, ExecOutcome::StartFailed { reason: StartFailure::NoShell, .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_user_is_switched_to_with_its_groups_and_home() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let request = ExecRequest::shell("id -u; id -g; id -G; echo $HOME $USER").with_user("nobody");
    let result = run(&client, request).await;
    let text = String::from_utf8(result.stdout.to_vec()).unwrap();
    assert!(text.starts_with("65534\n65534\n65534\n") && text.ends_with("nobody\n"), "{text}");
    let result = run(&client, ExecRequest::shell("id -u; id -G").with_user("4321:99")).await;
    assert_eq!(result.stdout, b"4321\n99\n");
}

#[tokio::test]
async fn input_is_nothing_bytes_or_a_stream() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let limit = seconds(20);
    assert!(within(limit, run(&client, ExecRequest::argv(["cat"]))).await.stdout.is_empty());
    let bytes = numbered(100_000);
    let request = ExecRequest::argv(["cat"]).with_stdin_bytes(bytes.clone());
    assert!(within(limit, run(&client, request)).await.stdout == bytes);
    // A command that does not read what it is given is no failure.
    let request = ExecRequest::argv(["true"]).with_stdin_bytes(bytes.clone());
    assert_eq!(within(limit, run(&client, request)).await.exit.outcome, ExecOutcome::Exited(0));
    let mut stream = client.exec(ExecRequest::argv(["cat"]).with_stdin(StdinSource::Stream)).await.unwrap();
    for piece in ["one", "two"] {
        stream.write(piece).await.unwrap();
        match within(limit, stream.next()).await.unwrap().unwrap() {
            ExecEvent::Stdout(bytes) => assert_eq!(bytes, piece),
            other => panic!("{other:?}"),
        }
    }
    stream.close_input().await.unwrap();
    assert!(matches!(within(limit, stream.next()).await.unwrap(), Some(ExecEvent::Exit(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_commands_at_thirty_two_at_once_each_get_their_own_output() {
    let agent = Agent::start(default_config());
    let client = std::sync::Arc::new(agent.connect().await);
    let turns = std::sync::Arc::new(tokio::sync::Semaphore::new(32));
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..200 {
        let (client, turns) = (client.clone(), turns.clone());
        tasks.spawn(async move {
            let _turn = turns.acquire().await.unwrap();
            let text = sh(&client, &format!("echo out-{index}; echo err-{index} >&2")).await;
            assert_eq!(text, format!("out-{index}\n"));
        });
    }
    while let Some(done) = within(seconds(60), tasks.join_next()).await {
        done.unwrap();
    }
    eventually("nothing is left", async || sh(&client, "true").await.is_empty()).await;
}

#[tokio::test]
async fn an_id_runs_once_and_a_second_start_attaches_to_the_first() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let file = agent.folder().join("ran");
    let mut request = ExecRequest::shell(format!("echo x >> {}; echo done", file.display()));
    request.exec_id = "once".to_owned();
    let (started, stream) = client.exec_start(ExecStart::new(request.clone())).await.unwrap();
    assert!(!started.was_known);
    assert_eq!(drain(stream).await.0, b"done\n");
    let (started, stream) = client.exec_start(ExecStart::new(request)).await.unwrap();
    assert!(started.was_known);
    let (stdout, _, exit) = drain(stream).await;
    assert_eq!((stdout.as_slice(), exit.unwrap().outcome), (&b"done\n"[..], ExecOutcome::Exited(0)));
    assert_eq!(std::fs::read(file).unwrap(), b"x\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_lost_in_the_middle_of_the_output_costs_no_byte() {
    let agent = Agent::start(default_config());
    let (client, switch) = agent.connect_cuttable().await;
    let lines = 5_000_000 / 8;
    let mut request = ExecRequest::argv(["seq", "-f", "%07.0f", "0", &(lines - 1).to_string()]);
    request.exec_id = "flood".to_owned();
    let (_, mut stream) = client.exec_start(ExecStart::new(request)).await.unwrap();
    let mut stdout = Vec::new();
    let mut cuts = 0;
    while stdout.len() < 300_000 {
        match stream.next().await.unwrap().unwrap() {
            ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
            other => panic!("{other:?}"),
        }
    }
    switch.shutdown(std::net::Shutdown::Both).unwrap();
    drop((stream, client));
    let exit = loop {
        cuts += 1;
        let (client, switch) = agent.connect_cuttable().await;
        let request =
            ExecAttach { exec_id: "flood".to_owned(), stdout_offset: stdout.len() as u64, ..ExecAttach::default() };
        let (attached, mut stream) =
            client.open_with_reply::<ExecEvent, ExecAttached>(methods::EXEC_ATTACH, &request).await.unwrap();
        assert_eq!(attached.stdout_offset, stdout.len() as u64, "nothing is lost");
        let before = stdout.len();
        let exit = loop {
            match within(seconds(20), stream.next()).await.unwrap().unwrap() {
                ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                ExecEvent::Exit(exit) => break Some(exit),
                other => panic!("{other:?}"),
            }
            if stdout.len() - before > 700_000 {
                break None;
            }
        };
        match exit {
            Some(exit) => break exit,
            None => switch.shutdown(std::net::Shutdown::Both).unwrap(),
        }
    };
    assert!(cuts > 4, "the connection was lost {cuts} times");
    assert_eq!(exit.outcome, ExecOutcome::Exited(0));
    assert!(stdout == numbered(lines), "each byte once, in order");
}

#[tokio::test]
async fn a_command_whose_client_does_not_come_back_is_ended_after_the_grace_and_a_detached_one_is_not() {
    let agent = Agent::start(json!({ "disconnect_grace_s": 0.2 }));
    let (client, switch) = agent.connect_cuttable().await;
    let start = |id: &str, detached| {
        let mut request = ExecRequest::shell("setsid sleep 300 & echo up; sleep 300");
        request.exec_id = id.to_owned();
        let mut start = ExecStart::new(request);
        start.detached = detached;
        start
    };
    let mut streams = Vec::new();
    for (id, detached) in [("attached", false), ("detached", true)] {
        let (_, mut stream) = client.exec_start(start(id, detached)).await.unwrap();
        assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
        streams.push(stream);
    }
    switch.shutdown(std::net::Shutdown::Both).unwrap();
    let client = agent.connect().await;
    let wait = ExecWait { exec_id: "attached".to_owned(), timeout_s: Some(10.0) };
    let waited: ExecWaited = client.call(methods::EXEC_WAIT, &wait).await.unwrap();
    assert_eq!(waited.exit.unwrap().outcome, ExecOutcome::Signalled(9));
    let list: ExecList = client.call(methods::EXEC_LIST, &Nothing {}).await.unwrap();
    let detached = list.execs.iter().find(|exec| exec.exec_id == "detached").unwrap();
    assert!(detached.exit.is_none() && detached.pid.is_some());
    let signal = ExecSignal { exec_id: "detached".to_owned(), signal: 9, tree: true };
    let _: Nothing = client.call(methods::EXEC_SIGNAL, &signal).await.unwrap();
    let wait = ExecWait { exec_id: "detached".to_owned(), timeout_s: Some(10.0) };
    let waited: ExecWaited = client.call(methods::EXEC_WAIT, &wait).await.unwrap();
    assert_eq!(waited.exit.unwrap().outcome, ExecOutcome::Signalled(9));
    let unknown = ExecWait { exec_id: "nobody".to_owned(), timeout_s: None };
    let error = client.call::<ExecWaited>(methods::EXEC_WAIT, &unknown).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test]
async fn the_answer_comes_at_the_deadline_and_nobody_survives_it() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let mark = format!("3{:06}", std::process::id() % 1_000_000);
    let script = format!("echo partial; setsid sleep {mark} & (setsid setsid sleep {mark} &); sleep {mark}");
    let begin = Instant::now();
    let result = run(&client, ExecRequest::shell(script).with_timeout_s(0.5)).await;
    let elapsed = begin.elapsed();
    assert_eq!(result.exit.outcome, ExecOutcome::TimedOut { idle: false });
    assert_eq!(result.stdout, b"partial\n");
    assert!(elapsed.as_secs_f64() < 1.5, "{elapsed:?}");
    let pattern = format!("sleep {mark}");
    eventually("no process is left", async || !command_lines().iter().any(|line| line.contains(&pattern))).await;
    let result = run(&client, ExecRequest::shell("echo a; sleep 30").with_idle_timeout_s(0.2)).await;
    assert_eq!(result.exit.outcome, ExecOutcome::TimedOut { idle: true });
}

#[tokio::test]
async fn a_background_child_holds_nobody_and_lives_until_the_agent_ends() {
    let mut agent = Agent::start(default_config());
    let client = agent.connect().await;
    let mark = format!("4{:06}", std::process::id() % 1_000_000);
    let result = within(seconds(5), run(&client, ExecRequest::shell(format!("sleep {mark} & echo hi")))).await;
    assert_eq!(result.stdout, b"hi\n");
    assert!(result.exit.output_open);
    let pattern = format!("sleep {mark}");
    let is_there = || command_lines().iter().any(|line| line.contains(&pattern));
    assert!(is_there());
    let _: Nothing = client.call(methods::SHUTDOWN, &methods::Shutdown { grace_s: 0.0 }).await.unwrap();
    assert!(!is_there(), "the answer of shutdown means that nobody is left");
    drop(client);
    assert!(agent.ended().await.success());
}

#[tokio::test]
async fn dropping_the_stream_ends_the_command_and_a_slow_reader_stalls_only_its_own() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let mark = format!("5{:06}", std::process::id() % 1_000_000);
    let stream = client.exec(ExecRequest::shell(format!("sleep {mark}"))).await.unwrap();
    let pattern = format!("sleep {mark}");
    let is_there = || command_lines().iter().any(|line| line.contains(&pattern));
    eventually("it runs", async || is_there()).await;
    drop(stream);
    eventually("it is gone", async || !is_there()).await;
    let stalled = client.exec(ExecRequest::argv(["yes"])).await.unwrap();
    for _ in 0..20 {
        assert_eq!(within(seconds(5), sh(&client, "echo ok")).await, "ok\n");
    }
    drop(stalled);
}

fn command_lines() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&line).replace('\0', " "))
        })
        .filter(|line| line.starts_with("sleep "))
        .collect()
}
