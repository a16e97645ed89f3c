//! Commands that run without a connection being held.

use std::time::{Duration, Instant};

use sandbox_api::{ErrorKind, PtyExec, SandboxPtySpec};

use crate::{
    on::{On, on_each},
    support::text,
};

on_each! {
    a_detached_command_runs_for_longer_than_the_interval_and_comes_whole,
    output_that_is_lost_between_two_looks_is_an_error_and_never_cut_silently,
    a_detached_command_has_a_limit_and_an_end_of_its_shell_is_seen,
}

const POLL: Duration = Duration::from_millis(300);

async fn a_detached_command_runs_for_longer_than_the_interval_and_comes_whole(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let command =
        || PtyExec::new("for i in 1 2 3 4 5 6; do echo $i; echo e$i >&2; sleep 0.3; done; (exit 5)").detached();
    let expected = |end: &str| (1..=6).map(|i| format!("{i}{end}e{i}{end}")).collect::<String>();
    let began = Instant::now();
    let own = pty.exec(command().with_poll_interval(POLL)).await.unwrap();
    assert!(began.elapsed() > POLL);
    assert_eq!((text(&own.stdout), own.return_code(), own.stderr.len()), (expected("\r\n"), 5, 0));
    // Nor is a shell of its own left as the default one.
    assert_eq!(text(&pty.exec(PtyExec::new("echo x$A").with_env("A", "1")).await.unwrap().stdout), "x1\r\n");
    for (spec, end) in
        [(SandboxPtySpec::default(), "\r\n"), (SandboxPtySpec { pty: false, ..SandboxPtySpec::default() }, "\n")]
    {
        let session = pty.create(spec).await.unwrap();
        let given = pty.exec(command().with_session(&session).with_poll_interval(POLL)).await.unwrap();
        assert_eq!((text(&given.stdout), given.return_code()), (expected(end), 5));
        // It is attached and can be used again.
        let after = pty.exec(PtyExec::new("echo after").with_session(&session)).await.unwrap();
        assert_eq!(text(&after.stdout), format!("after{end}"));
        let attached = pty.attach(session.session_id(), Default::default()).await.unwrap();
        let again = attached.run_detached("echo one; sleep 0.7; echo two", POLL).await.unwrap();
        assert_eq!(text(&again.stdout), format!("one{end}two{end}"));
    }
    sandbox.stop().await.unwrap();
}

async fn output_that_is_lost_between_two_looks_is_an_error_and_never_cut_silently(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let session = pty.create(SandboxPtySpec { pty: false, ..SandboxPtySpec::default() }).await.unwrap();
    let command = PtyExec::new("sleep 1; head -c 3000000 /dev/zero; echo end").with_session(&session);
    let error = pty.exec(command.detached().with_poll_interval(Duration::from_secs(2))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pty);
    assert!(error.to_string().contains("no longer kept"), "{error}");
    sandbox.stop().await.unwrap();
}

async fn a_detached_command_has_a_limit_and_an_end_of_its_shell_is_seen(on: On) {
    let place = on.place();
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    let slow = || PtyExec::new("echo early; sleep 300").detached().with_poll_interval(POLL).with_timeout_s(2.0);
    let own = pty.exec(slow()).await.unwrap();
    assert_eq!((own.error_type(), text(&own.stdout)), (Some("timeout"), "early\r\n".to_owned()));
    let session = pty.create(SandboxPtySpec::default()).await.unwrap();
    assert_eq!(pty.exec(slow().with_session(&session)).await.unwrap().error_type(), Some("timeout"));
    assert!(!session.closed(), "it was taken up again");
    session.write("\x03").await.unwrap();
    let gone = PtyExec::new("sleep 1; exit 3").detached().with_poll_interval(POLL).with_session(&session);
    let error = pty.exec(gone).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pty, "{error}");
    sandbox.stop().await.unwrap();
}
