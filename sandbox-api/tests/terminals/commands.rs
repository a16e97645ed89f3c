//! `pty().exec`: which session a command runs in, and what comes back.

use std::time::{Duration, Instant};

use sandbox_api::{ErrorKind, ExecOutcome, PtyExec, SandboxPtySpec};

use crate::{
    on::{On, on_each},
    support::text,
};

on_each! {
    the_default_shell_is_used_only_when_nothing_shapes_the_command,
    a12_every_text_comes_back_exactly_from_shells_with_and_without_a_terminal,
    d03_pipe_mode_splits_the_streams_and_a_terminal_joins_them,
    a11_a_shell_that_ends_is_an_error_at_once_and_the_next_command_runs,
    a14_a_timeout_is_a_result_with_what_came_and_retires_only_the_default_shell,
    one_command_runs_at_a_time_in_a_session_and_waiting_counts,
    a_command_that_is_given_up_ends_the_default_shell_and_leaves_nothing,
    surroundings_together_with_a_session_and_wrong_values_are_refused,
}

fn shell() -> SandboxPtySpec {
    SandboxPtySpec::default()
}

fn pipes() -> SandboxPtySpec {
    SandboxPtySpec { pty: false, ..SandboxPtySpec::default() }
}

async fn the_default_shell_is_used_only_when_nothing_shapes_the_command(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let run = async |command: PtyExec| text(&pty.exec(command).await.unwrap().stdout);
    // Without a shell each has a session of its own, whose output is all there is.
    assert_eq!(run(PtyExec::new("X=1; echo a$X")).await, "a1\r\n");
    assert_eq!(run(PtyExec::new("echo a$X")).await, "a\r\n");
    // A session with a command never becomes the default.
    pty.create(SandboxPtySpec { command: Some("sleep 300".into()), ..shell() }).await.unwrap();
    assert_eq!(run(PtyExec::new("echo a$X")).await, "a\r\n");
    let first = pty.create(shell()).await.unwrap();
    assert_eq!(run(PtyExec::new("X=2; cd /usr; echo set")).await, "set\r\n");
    assert_eq!(run(PtyExec::new("echo $X $PWD")).await, "2 /usr\r\n");
    // Nor does a second shell while the first one lives.
    let second = pty.create(shell()).await.unwrap();
    assert_eq!(run(PtyExec::new("echo $X")).await, "2\r\n");
    for shaped in [
        PtyExec::new("echo b$X").with_cwd("/"),
        PtyExec::new("echo b$X").with_env("Y", "1"),
        PtyExec::new("echo b$X").with_size(30, 80),
    ] {
        assert_eq!(run(shaped).await, "b\r\n");
    }
    assert_eq!(run(PtyExec::new("echo b$X").with_pipes()).await, "b\n");
    assert_eq!(run(PtyExec::new("echo c$X").with_size(24, 80)).await, "c2\r\n", "the default size shapes nothing");
    assert_eq!(run(PtyExec::new("X=3; echo d$X").with_session(&second)).await, "d3\r\n");
    assert_eq!(run(PtyExec::new("echo d$X")).await, "d2\r\n");
    // What is closed is forgotten, and the next shell takes its place.
    first.close().await.unwrap();
    assert_eq!(run(PtyExec::new("echo e$X")).await, "e\r\n");
    let third = pty.create(pipes()).await.unwrap();
    assert_eq!(run(PtyExec::new("X=4; echo f")).await, "f\n");
    assert_eq!(run(PtyExec::new("echo $X")).await, "4\n");
    assert!(!third.closed() && !second.closed());
    sandbox.stop().await.unwrap();
}

async fn a12_every_text_comes_back_exactly_from_shells_with_and_without_a_terminal(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let long = format!("printf '%s' '{}' | wc -c", "x\u{e9}".repeat(30_000));
    let cases: [(&str, &str, i32); 10] = [
        ("printf 'no end'", "no end", 0),
        ("cat <<'EOF'\na $b\nEOF", "a $b\n", 0),
        ("echo 'unclosed", "", 1),
        ("}", "", 1),
        ("echo back \\", "back \\\n", 0),
        ("cat; echo 'input is at its end!'", "input is at its end!\n", 0),
        ("false", "", 1),
        ("(exit 200)", "", 200),
        ("echo \u{20ac}; printf 'a\\000b\\377c' | od -An -tx1", "\u{20ac}\n 61 00 62 ff 63\n", 0),
        (&long, "90000\n", 0),
    ];
    for terminal in [true, false] {
        for command in [None, Some("exec sh -i"), Some("exec sh")] {
            let spec = SandboxPtySpec { pty: terminal, command: command.map(Into::into), ..shell() };
            let session = pty.create(spec).await.unwrap();
            for (script, output, status) in cases {
                let result = pty.exec(PtyExec::new(script).with_session(&session).with_timeout_s(60.0)).await.unwrap();
                let case = format!("{terminal} {command:?} {:.60}: {result:?} {}", script, text(&result.stderr));
                let expected = if terminal { output.replace('\n', "\r\n") } else { output.to_owned() };
                let code = result.return_code();
                assert!(code == status || (status == 1 && code > 0), "{case}");
                assert_eq!(result.error_type(), None, "{case}");
                // What a shell says of a syntax error comes on a terminal, too.
                if status != 1 || !terminal {
                    assert_eq!(text(&result.stdout), expected, "{case}");
                }
            }
            let raw = "stty raw 2>/dev/null; printf 'a\\nb\\000\\377'";
            let result = pty.exec(PtyExec::new(raw).with_session(&session)).await.unwrap();
            if !terminal {
                assert_eq!(result.stdout, b"a\nb\0\xff");
                let both = PtyExec::new("echo out; echo err >&2; (exit 3)").with_session(&session);
                let result = pty.exec(both).await.unwrap();
                assert_eq!((text(&result.stdout), text(&result.stderr)), ("out\n".into(), "err\n".into()));
                assert_eq!(result.return_code(), 3);
            }
            session.close().await.unwrap();
        }
    }
    sandbox.stop().await.unwrap();
}

async fn d03_pipe_mode_splits_the_streams_and_a_terminal_joins_them(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let command = || PtyExec::new("printf 'a\\nb'; printf e >&2; exit 9");
    let piped = sandbox.pty().exec(command().with_pipes()).await.unwrap();
    assert_eq!((&*piped.stdout, &*piped.stderr, piped.return_code()), (&b"a\nb"[..], &b"e"[..], 9));
    let joined = sandbox.pty().exec(command()).await.unwrap();
    assert_eq!((&*joined.stdout, &*joined.stderr, joined.return_code()), (&b"a\r\nbe"[..], &b""[..], 9));
    sandbox.stop().await.unwrap();
}

async fn a11_a_shell_that_ends_is_an_error_at_once_and_the_next_command_runs(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    for (command, spec) in
        [("exit 4", shell()), ("set -e; false", shell()), ("exec true", shell()), ("exit 4", pipes())]
    {
        let session = pty.create(spec).await.unwrap();
        for given in [false, true] {
            let began = Instant::now();
            let exec = PtyExec::new(command);
            let error = pty.exec(if given { exec.with_session(&session) } else { exec }).await;
            assert!(began.elapsed() < Duration::from_secs(60), "it waited for its limit");
            match error {
                Err(error) => assert_eq!(error.kind(), ErrorKind::Pty, "{command}: {error}"),
                // The default shell is gone, so the second one ran in a session of its own.
                Ok(result) => panic!("{command} {given}: {result:?}"),
            }
            assert!(session.closed());
        }
        let result = pty.exec(PtyExec::new("echo next")).await.unwrap();
        assert_eq!(text(&result.stdout), "next\r\n");
    }
    sandbox.stop().await.unwrap();
}

async fn a14_a_timeout_is_a_result_with_what_came_and_retires_only_the_default_shell(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let slow = || PtyExec::new("echo early; sleep 300").with_timeout_s(1.5);
    let own = pty.exec(slow()).await.unwrap();
    assert_eq!((own.return_code(), own.error_type(), text(&own.stdout)), (125, Some("timeout"), "early\r\n".into()));
    assert!(own.stderr_text().contains("1.5 s") && !own.stderr_text().contains("sleep"), "{}", own.stderr_text());
    let default = pty.create(shell()).await.unwrap();
    let reused = pty.exec(slow()).await.unwrap();
    assert_eq!((reused.error_type(), text(&reused.stdout)), (Some("timeout"), "early\r\n".into()));
    assert!(default.closed());
    let given = pty.create(shell()).await.unwrap();
    let result = pty.exec(slow().with_session(&given)).await.unwrap();
    assert_eq!(result.error_type(), Some("timeout"));
    assert!(result.stderr_text().contains("discard"), "{}", result.stderr_text());
    assert!(!given.closed());
    given.write("\x03").await.unwrap();
    let after = pty.exec(PtyExec::new("echo after").with_session(&given)).await.unwrap();
    assert_eq!(text(&after.stdout), "after\r\n");
    // Nothing of the others runs on.
    let left = sandbox.run("for f in /proc/[0-9]*/comm; do cat $f; done | grep -c sleep || true").await.unwrap();
    assert_eq!(left.stdout_text().trim(), "0");
    sandbox.stop().await.unwrap();
}

async fn one_command_runs_at_a_time_in_a_session_and_waiting_counts(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let session = pty.create(shell()).await.unwrap();
    pty.exec(PtyExec::new("n=0").with_session(&session)).await.unwrap();
    let script = "m=$n; sleep 0.05; n=$((m+1))";
    let one = async || pty.exec(PtyExec::new(script).with_session(&session)).await.unwrap();
    tokio::join!(one(), one(), one(), one());
    let count = pty.exec(PtyExec::new("echo $n").with_session(&session)).await.unwrap();
    assert_eq!(text(&count.stdout), "4\r\n");
    // One that waits for another one runs out of time without having begun.
    let long = pty.exec(PtyExec::new("sleep 2; echo long").with_session(&session));
    let short = async {
        // The long one has the session when it is polled first.
        pty.exec(PtyExec::new("touch /tmp/ran; echo short").with_session(&session).with_timeout_s(0.5)).await.unwrap()
    };
    let (long, short) = tokio::join!(biased; long, short);
    assert_eq!(text(&long.unwrap().stdout), "long\r\n");
    assert_eq!(short.error_type(), Some("timeout"));
    assert!(!sandbox.run("test -e /tmp/ran").await.unwrap().outcome().is_success());
    sandbox.stop().await.unwrap();
}

async fn a_command_that_is_given_up_ends_the_default_shell_and_leaves_nothing(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let shell = pty.create(shell()).await.unwrap();
    for own in [false, true] {
        let command = PtyExec::new("touch /tmp/begun; sleep 300");
        let command = if own { command.with_cwd("/tmp") } else { command };
        let begun = async {
            while !sandbox.run("test -e /tmp/begun && rm /tmp/begun").await.unwrap().outcome().is_success() {}
        };
        tokio::select! {
            result = pty.exec(command) => panic!("{result:?}"),
            () = begun => {}
        }
        let gone = "for i in $(seq 300); do ps -e -o comm | grep -q sleep || exit 0; sleep 0.1 & wait; done; exit 1";
        let gone = gone
            .replace("ps -e -o comm", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")
            .replace("grep -q sleep", "grep -q 'sleep 30''0'");
        let result = sandbox.run(gone).await.unwrap();
        assert_eq!(*result.outcome(), ExecOutcome::Exited(0), "{own}: it runs on");
    }
    assert!(shell.closed());
    let result = pty.exec(PtyExec::new("echo next")).await.unwrap();
    assert_eq!(text(&result.stdout), "next\r\n");
    sandbox.stop().await.unwrap();
}

async fn surroundings_together_with_a_session_and_wrong_values_are_refused(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let session = pty.create(shell()).await.unwrap();
    let given = || PtyExec::new("true").with_session(&session);
    for (command, field) in [
        (given().with_cwd("/"), "cwd"),
        (given().with_env("A", "b"), "env"),
        (given().with_user("root"), "user"),
        (given().with_size(10, 10), "size"),
        (given().with_pipes(), "pipes"),
        (given().with_timeout_s(0.0), "timeout_s"),
        (given().with_timeout_s(f64::NAN), "timeout_s"),
        (given().detached().with_poll_interval(Duration::ZERO), "poll_interval"),
        (PtyExec::new("a\0b"), "command"),
        (PtyExec::new("true").with_size(0, 80), "rows"),
    ] {
        let error = pty.exec(command).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(field)), "{error}");
    }
    let error = pty.exec(PtyExec::new("x".repeat(2_000_000)).with_session(&session)).await.unwrap_err();
    assert_eq!(error.field(), Some("command"));
    sandbox.stop().await.unwrap();
}
