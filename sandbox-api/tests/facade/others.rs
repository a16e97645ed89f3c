//! What not every provider can do: it works, or it is refused with the provider's and the capability's name.

use std::time::Duration;

use sandbox_api::{
    AsyncSandbox, Capability, ErrorKind, ExecRequest, Field, FieldSupport, Ownership, PtyExec, SandboxPtySpec,
    SandboxSpec, SandboxStatus,
};

use crate::{
    has,
    on::{On, Place, on_each},
    refused,
};

on_each! { @every
    another_object_takes_a_sandbox_over_and_may_leave_it,
    a_paused_sandbox_goes_on_where_it_was,
    only_declared_ports_are_reached,
    a_terminal_runs_commands_in_one_shell,
    jobs_run_on_without_their_starter,
    a_life_is_prolonged_and_measured,
}

/// What sandboxes are made from, with a declared port where that can be.
fn with_port(place: &Place) -> SandboxSpec {
    match place.provider.full_info().support(Field::Ports) {
        FieldSupport::Refused(_) => place.spec(),
        _ => place.spec().with_ports([8080]),
    }
}

async fn another_object_takes_a_sandbox_over_and_may_leave_it(on: On) {
    let place = on.ready().await;
    let sandbox = place.start_with(with_port(&place)).await;
    sandbox.set_default_workdir(Some("/tmp")).unwrap();
    sandbox.run("echo kept > /tmp/facade-kept").await.unwrap();
    if has(&sandbox, Capability::Connect) {
        let descriptor = sandbox.serialize(None).await.unwrap();
        assert_eq!(
            (&descriptor["default_workdir"], &descriptor["ports"][0]),
            (&"/tmp".into(), &8080.into()),
            "{descriptor}"
        );
        let connect = async || {
            let other = AsyncSandbox::connect(place.provider.clone(), descriptor.clone()).await.unwrap();
            other.with_ownership(Ownership::Shared)
        };
        let other = connect().await;
        assert_eq!(other.run("pwd; cat facade-kept").await.unwrap().stdout_text(), "/tmp\nkept\n");
        other.disconnect().await.unwrap();
        assert_eq!(other.run("true").await.unwrap_err().kind(), ErrorKind::InvalidState);
        assert_eq!(sandbox.run("cat facade-kept").await.unwrap().stdout_text(), "kept\n", "it lives on");
        drop(connect().await);
        assert_eq!(sandbox.run("cat facade-kept").await.unwrap().stdout_text(), "kept\n", "dropping leaves it, too");
        connect().await.stop().await.unwrap();
        assert_ne!(sandbox.status().await.ok(), Some(SandboxStatus::Running), "a stop is a stop");
    } else {
        refused(&place, Capability::Connect, sandbox.serialize(None).await);
        sandbox.run("rm /tmp/facade-kept").await.unwrap();
    }
    assert_eq!(sandbox.disconnect().await.unwrap_err().kind(), ErrorKind::InvalidState, "it was not connected");
    sandbox.stop().await.unwrap();
    place.end().await;
}

async fn a_paused_sandbox_goes_on_where_it_was(on: On) {
    let place = on.ready().await;
    let sandbox = place.start().await;
    if has(&sandbox, Capability::PauseResume) {
        sandbox.run("echo before > /tmp/facade-paused").await.unwrap();
        sandbox.pause().await.unwrap();
        assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Paused);
        sandbox.resume().await.unwrap();
        assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Running);
        assert_eq!(sandbox.run("cat /tmp/facade-paused").await.unwrap().stdout_text(), "before\n");
    } else {
        refused(&place, Capability::PauseResume, sandbox.pause().await);
        refused(&place, Capability::PauseResume, sandbox.resume().await);
    }
    sandbox.stop().await.unwrap();
    place.end().await;
}

async fn only_declared_ports_are_reached(on: On) {
    let place = on.ready().await;
    let sandbox = place.start_with(with_port(&place)).await;
    for wrong in [0, 8081] {
        let error = sandbox.endpoint(wrong).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("port")), "{error}");
    }
    if with_port(&place).ports.is_empty() {
        assert_eq!(sandbox.endpoint(8080).await.unwrap_err().field(), Some("port"), "it could not be declared");
    } else if has(&sandbox, Capability::Endpoint) {
        assert!(sandbox.endpoint(8080).await.unwrap().endpoint.contains("://"));
    } else {
        refused(&place, Capability::Endpoint, sandbox.endpoint(8080).await);
    }
    sandbox.stop().await.unwrap();
    place.end().await;
}

async fn a_terminal_runs_commands_in_one_shell(on: On) {
    let place = on.ready().await;
    let sandbox = place.start().await;
    let pty = sandbox.pty();
    if has(&sandbox, Capability::Pty) {
        let shell = pty.create(SandboxPtySpec { pty: false, ..SandboxPtySpec::default() }).await.unwrap();
        let run = async |text: &str| {
            let done = pty.exec(PtyExec::new(text).with_session(&shell)).await.unwrap();
            (done.stdout_text().into_owned(), done.return_code())
        };
        assert_eq!(run("X='a b'; cd /tmp").await, (String::new(), 0));
        assert_eq!(run("echo \"$X\" $PWD; (exit 4)").await, ("a b /tmp\n".to_owned(), 4));
        shell.close().await.unwrap();
    } else {
        refused(&place, Capability::Pty, pty.create(SandboxPtySpec::default()).await);
        refused(&place, Capability::Pty, pty.exec(PtyExec::new("true")).await);
    }
    sandbox.stop().await.unwrap();
    place.end().await;
}

async fn jobs_run_on_without_their_starter(on: On) {
    let place = on.ready().await;
    let sandbox = place.start().await;
    let request = ExecRequest::shell("echo said; exit 6");
    if has(&sandbox, Capability::Jobs) {
        let job = sandbox.start_job(request).await.unwrap().job_id;
        let exit = sandbox.wait_job(&job, Some(Duration::from_secs(60))).await.unwrap().unwrap();
        assert_eq!(exit.outcome.return_code(), 6);
        let output = sandbox.attach_job(&job, Default::default()).await.unwrap();
        assert_eq!(output.collect(Default::default()).await.unwrap().stdout_text(), "said\n");
    } else {
        refused(&place, Capability::Jobs, sandbox.start_job(request).await);
        refused(&place, Capability::Jobs, sandbox.jobs().await);
    }
    // A supervised worker needs a shell at most, and there an input that stays open.
    let minute = Duration::from_secs(60);
    let done = sandbox.supervise(["sh", "-c", "sleep 300 & echo left; exit 5"], minute, minute).await;
    let has_input = !matches!(sandbox.info().support(Field::ExecStdinStream), FieldSupport::Refused(_));
    if has(&sandbox, Capability::Jobs) || has_input {
        let done = done.unwrap();
        assert_eq!((done.receipt.return_code, done.receipt.cleanup_confirmed), (Some(5), true), "{:?}", done.receipt);
        assert_eq!(done.output.stdout_text(), "left\n");
    } else {
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    sandbox.stop().await.unwrap();
    place.end().await;
}

async fn a_life_is_prolonged_and_measured(on: On) {
    let place = on.ready().await;
    let sandbox = place.start().await;
    if has(&sandbox, Capability::Metrics) {
        sandbox.metrics().await.unwrap();
    } else {
        refused(&place, Capability::Metrics, sandbox.metrics().await);
    }
    if !has(&sandbox, Capability::Renew) {
        refused(&place, Capability::Renew, sandbox.renew(600.0).await);
    }
    sandbox.stop().await.unwrap();
    place.end().await;
}
