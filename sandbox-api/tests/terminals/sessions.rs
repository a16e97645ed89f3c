//! One session: reading, writing, sizes, signals, other clients, its end.

use std::time::Duration;

use sandbox_api::{AttachOptions, ErrorKind, ExecOutcome, PtyChunk, PtyExec, PtyMode, SandboxPtySpec};

use crate::{
    on::{On, on_each},
    support::{PATIENCE, rest, text, until},
};

on_each! {
    a_session_is_read_to_its_end_and_then_stays_at_it,
    pipe_mode_has_two_streams_and_no_size,
    d01_d02_the_size_is_there_from_the_start_and_a_program_sees_it_change,
    d05_the_interrupt_key_reaches_the_foreground_job_and_closing_ends_everything,
    d07_a_takeover_evicts_the_holder_and_refusals_are_of_different_kinds,
    d06_numbered_lines_come_once_and_in_order_over_many_reattachments,
    directory_and_user_are_those_of_the_sandbox_unless_the_session_says_otherwise,
    opening_and_dropping_many_sessions_leaves_no_process,
}

fn script(command: &str) -> SandboxPtySpec {
    SandboxPtySpec { command: Some(command.into()), ..SandboxPtySpec::default() }
}

async fn a_session_is_read_to_its_end_and_then_stays_at_it(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let session = sandbox.pty().create(script("echo hi; read line; echo got $line; exit 7")).await.unwrap();
    assert_eq!(session.mode(), Some(PtyMode::Pty));
    until(&session, "hi\r\n").await;
    let error = session.read(Some(Duration::from_millis(50))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // A waiter that gives up disturbs no other one, and one clone reads while another one writes.
    let waiter = tokio::spawn({
        let session = session.clone();
        async move { session.wait_exit(PATIENCE).await }
    });
    let error = session.wait_exit(Some(Duration::from_millis(50))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(!session.closed());
    session.write("\u{e9}\u{20ac}\n").await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap().outcome, ExecOutcome::Exited(7));
    // What came while somebody waited for the exit is still there.
    let (output, gap) = rest(&session).await;
    assert_eq!((text(&output), gap), ("\u{e9}\u{20ac}\r\ngot \u{e9}\u{20ac}\r\n".to_owned(), 0));
    for _ in 0..2 {
        assert_eq!(session.read(PATIENCE).await.unwrap(), None);
        assert_eq!(session.read_stderr(PATIENCE).await.unwrap(), None);
    }
    assert!(session.closed());
    assert_eq!(session.wait_exit(PATIENCE).await.unwrap().outcome, ExecOutcome::Exited(7));
    for error in [session.write("x").await.unwrap_err(), session.resize(10, 10).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    }
    session.close().await.unwrap();
    session.close().await.unwrap();
    assert_eq!(session.wait_exit(PATIENCE).await.unwrap().outcome, ExecOutcome::Exited(7));
    sandbox.stop().await.unwrap();
}

async fn pipe_mode_has_two_streams_and_no_size(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let spec = SandboxPtySpec { pty: false, ..script("cat; printf 'e\\377' >&2; exit 2") };
    let session = sandbox.pty().create(spec).await.unwrap();
    assert_eq!(session.mode(), Some(PtyMode::Pipe));
    assert_eq!(session.resize(5, 5).await.unwrap_err().kind(), ErrorKind::Unsupported);
    session.write(&b"raw \0\xff\n"[..]).await.unwrap();
    session.close_input().await.unwrap();
    let mut errors = Vec::new();
    while let Some(PtyChunk::Data(bytes)) = session.read_stderr(PATIENCE).await.unwrap() {
        errors.extend_from_slice(&bytes);
    }
    assert_eq!(errors, b"e\xff");
    assert_eq!(rest(&session).await, (b"raw \0\xff\n".to_vec(), 0));
    sandbox.stop().await.unwrap();
}

async fn d01_d02_the_size_is_there_from_the_start_and_a_program_sees_it_change(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let command = "stty size; trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done";
    let spec = SandboxPtySpec { rows: 43, cols: 132, ..script(command) };
    let session = sandbox.pty().create(spec).await.unwrap();
    let seen = until(&session, "ready\r\n").await;
    assert!(seen.starts_with("43 132\r\n"), "{seen:?}");
    for (rows, cols, field) in [(0, 80, "rows"), (24, 0, "cols"), (10_000, 80, "rows")] {
        let error = session.resize(rows, cols).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(field)));
    }
    session.resize(50, 101).await.unwrap();
    until(&session, "50 101\r\n").await;
    sandbox.stop().await.unwrap();
}

async fn d05_the_interrupt_key_reaches_the_foreground_job_and_closing_ends_everything(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let shell = sandbox.pty().create(SandboxPtySpec::default()).await.unwrap();
    shell.write("PS1=; sleep 321 & sh -c 'echo in; exec sleep 322'\n").await.unwrap();
    until(&shell, "in\r\n").await;
    shell.write("\x03").await.unwrap();
    shell.write("echo code-$?-\n").await.unwrap();
    until(&shell, "code-130-").await;
    // A name of a signal does the same for the foreground program.
    shell.write("sh -c 'echo in2; exec sleep 323'\n").await.unwrap();
    until(&shell, "in2\r\n").await;
    shell.send_signal("SIGINT").await.unwrap();
    shell.write("echo code2-$?-\n").await.unwrap();
    until(&shell, "code2-130-").await;
    assert_eq!(shell.send_signal("SIGNONE").await.unwrap_err().field(), Some("signal"));
    // Detach keys of some engines are plain keys here.
    shell
        .write("stty -icanon -echo -ixon min 1; echo ok; dd bs=1 count=2 2>/dev/null | od -An -tx1; stty sane\n")
        .await
        .unwrap();
    until(&shell, "ok\r\n").await;
    shell.write("\x10").await.unwrap();
    shell.write("\x11").await.unwrap();
    until(&shell, " 10 11").await;
    shell.close().await.unwrap();
    let left = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $f; echo; done 2>/dev/null | grep -c 'sleep 32[1]'";
    let left = sandbox.run(left).await.unwrap();
    assert_eq!(left.stdout_text().trim(), "0");
    sandbox.stop().await.unwrap();
}

async fn d07_a_takeover_evicts_the_holder_and_refusals_are_of_different_kinds(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let session = pty.create(script("echo 0123456789; read line; echo end-$line; exit 4")).await.unwrap();
    until(&session, "9\r\n").await;
    let id = session.session_id().to_owned();
    let keep = AttachOptions { takeover: false, since: None };
    assert_eq!(pty.attach("nobody", keep).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(pty.attach(&id, keep).await.unwrap_err().kind(), ErrorKind::InvalidState);
    assert!(!session.closed());
    let second = pty.attach(&id, AttachOptions { takeover: true, since: Some(4) }).await.unwrap();
    assert_eq!((second.session_id(), second.mode()), (id.as_str(), None));
    let error = session.read(PATIENCE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pty);
    assert!(error.to_string().contains("replaced"), "{error}");
    assert!(session.closed());
    assert_eq!(until(&second, "9\r\n").await, "456789\r\n");
    // Closing an attached one leaves it running; the one that was evicted takes it up where it stopped.
    second.close().await.unwrap();
    assert_eq!(second.read(PATIENCE).await.unwrap_err().kind(), ErrorKind::InvalidState);
    session.reattach().await.unwrap();
    assert!(!session.closed());
    session.write("x\n").await.unwrap();
    let (output, gap) = rest(&session).await;
    assert_eq!((text(&output), gap), ("x\r\nend-x\r\n".to_owned(), 0));
    // An ended session still gives its last output and its end.
    let ended = pty.attach(&id, AttachOptions { takeover: false, since: Some(0) }).await.unwrap();
    assert_eq!(text(&rest(&ended).await.0), "0123456789\r\nx\r\nend-x\r\n");
    assert_eq!(ended.wait_exit(PATIENCE).await.unwrap().outcome, ExecOutcome::Exited(4));
    sandbox.stop().await.unwrap();
}

async fn d06_numbered_lines_come_once_and_in_order_over_many_reattachments(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let command = "for i in $(seq 3000); do echo line-$i; test $((i%100)) -gt 0 || sleep 0.02; done";
    let session = sandbox.pty().create(script(command)).await.unwrap();
    let mut output = Vec::new();
    let mut reattached = 0;
    while let Some(chunk) = session.read(PATIENCE).await.unwrap() {
        output.extend_from_slice(chunk.data().expect("nothing is missing"));
        if reattached < 20 {
            session.detach().await.unwrap();
            assert_eq!(session.write("x").await.unwrap_err().kind(), ErrorKind::InvalidState);
            session.reattach().await.unwrap();
            reattached += 1;
        }
    }
    let expected: String = (1..=3000).map(|i| format!("line-{i}\r\n")).collect();
    assert!(text(&output) == expected, "{} bytes, not {}", output.len(), expected.len());
    sandbox.stop().await.unwrap();
}

async fn directory_and_user_are_those_of_the_sandbox_unless_the_session_says_otherwise(on: On) {
    let place = on.place();
    let sandbox = place.start_with(place.spec().with_workdir("/work").with_env("A", "spec")).await;
    let pty = sandbox.pty();
    let run = async |command: PtyExec| text(&pty.exec(command).await.unwrap().stdout).trim().to_owned();
    assert_eq!(run(PtyExec::new("echo $PWD $A")).await, "/work spec");
    assert_eq!(run(PtyExec::new("echo $PWD $A").with_cwd("/usr").with_env("A", "own")).await, "/usr own");
    sandbox.set_default_workdir(Some("/tmp")).unwrap();
    assert_eq!(run(PtyExec::new("echo $PWD")).await, "/tmp");
    sandbox.stop().await.unwrap();
    let error = pty.create(SandboxPtySpec::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);
}

async fn opening_and_dropping_many_sessions_leaves_no_process(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    for round in 0..30 {
        let session = pty.create(script("sleep 777 & sleep 778")).await.unwrap();
        match round % 3 {
            0 => session.close().await.unwrap(),
            1 => drop(session),
            _ => {
                // Detached and dropped: ended by the clean-up lane.
                session.detach().await.unwrap();
                drop(session);
            }
        }
    }
    let report = sandbox_api::flush_cleanup(Duration::from_secs(30)).await;
    assert!(report.is_clean(), "{report:?}");
    let gone = "for i in $(seq 200); do cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | \
                grep -q 'sleep 77[78]' || exit 0; sleep 0.1; done; exit 1";
    assert_eq!(*sandbox.run(gone).await.unwrap().outcome(), ExecOutcome::Exited(0));
    sandbox.stop().await.unwrap();
}
