//! Terminal sessions and what else lasts, without an async runtime.

use std::time::Duration;

use sandbox_api::{
    CaptureLimits, ErrorKind, ExecOutcome, ExecRequest, JobOffsets, Ownership, PtyExec, Sandbox, SandboxPtySpec,
};

use crate::on::{On, on_each};

const MINUTE: Duration = Duration::from_secs(60);

on_each! {
    the_blocking_sandbox_has_the_same_sessions_on_many_threads,
    the_blocking_sandbox_has_jobs_measures_and_supervises,
}

async fn the_blocking_sandbox_has_jobs_measures_and_supervises(on: On) {
    tokio::task::spawn_blocking(move || jobs(on)).await.unwrap();
}

fn jobs(on: On) {
    let place = on.place();
    let sandbox = Sandbox::new(place.provider.clone()).unwrap().with_ownership(Ownership::Shared);
    sandbox.start(Some(place.spec())).unwrap();
    match place.provider.as_jobs() {
        Some(_) => use_jobs(&sandbox),
        None => assert_eq!(sandbox.jobs().unwrap_err().kind(), ErrorKind::Unsupported),
    }
    assert!(sandbox.metrics().unwrap().processes.is_some_and(|number| number > 0));
    let done = sandbox.supervise(["sh", "-c", "exit 3"], MINUTE, MINUTE).unwrap();
    assert_eq!((done.receipt.return_code, done.receipt.cleanup_confirmed), (Some(3), true));
    // It is this process's, and nobody else would end it.
    assert_eq!(sandbox.leave().unwrap_err().kind(), ErrorKind::InvalidState);
    sandbox.stop().unwrap();
}

fn use_jobs(sandbox: &Sandbox) {
    let script = "echo 0123; while ! test -e /tmp/go; do sleep 0.05; done; exit 4";
    let id = sandbox.start_job(ExecRequest::shell(script)).unwrap().job_id;
    assert_eq!(sandbox.wait_job(&id, Some(Duration::from_millis(50))).unwrap(), None, "it runs");
    sandbox.run("touch /tmp/go").unwrap();
    assert_eq!(sandbox.wait_job(&id, Some(MINUTE)).unwrap().unwrap().outcome.return_code(), 4);
    let rest = sandbox.attach_job(&id, JobOffsets { stdout: 2, stderr: 0 }).unwrap();
    assert_eq!(rest.collect(CaptureLimits::default()).unwrap().stdout, b"23\n");
    assert_eq!(sandbox.jobs().unwrap().len(), 1);
    let long = sandbox.start_job(ExecRequest::shell("sleep 300")).unwrap().job_id;
    sandbox.signal_job(&long, 9, true).unwrap();
    assert_eq!(sandbox.wait_job(&long, Some(MINUTE)).unwrap().unwrap().outcome, ExecOutcome::Signalled(9));
}

async fn the_blocking_sandbox_has_the_same_sessions_on_many_threads(on: On) {
    // The blocking sandbox refuses to wait inside of a runtime.
    tokio::task::spawn_blocking(move || blocking(on)).await.unwrap();
}

fn blocking(on: On) {
    let place = on.place();
    let sandbox = Sandbox::new(place.provider.clone()).unwrap().with_ownership(Ownership::Shared);
    sandbox.start(Some(place.spec())).unwrap();
    let session = sandbox.pty().create(SandboxPtySpec::default()).unwrap();
    sandbox.pty().exec(PtyExec::new("X=kept")).unwrap();
    assert_eq!(sandbox.pty().exec(PtyExec::new("echo $X")).unwrap().stdout, b"kept\r\n");
    session.close().unwrap();
    assert!(session.closed());
    let spec = SandboxPtySpec { command: Some("read a; echo got $a; exit 3".into()), pty: false, ..Default::default() };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let session = sandbox.pty().create(spec.clone()).unwrap();
                let error = session.read(Some(Duration::from_millis(10))).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TimedOut);
                let writer = session.clone();
                scope.spawn(move || writer.write("x\n").unwrap());
                let mut output = Vec::new();
                for chunk in session.clone() {
                    output.extend_from_slice(chunk.unwrap().data().unwrap());
                }
                assert_eq!(output, b"got x\n");
                assert_eq!(session.wait_exit(None).unwrap().outcome.return_code(), 3);
            });
        }
    });
    sandbox.stop().unwrap();
}
