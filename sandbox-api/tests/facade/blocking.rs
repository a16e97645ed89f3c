//! The same verbs without an async runtime.

use std::time::Duration;

use sandbox_api::{
    Capability, ErrorKind, ExecRequest, Ownership, Sandbox, SandboxProvider, SandboxSpec, SandboxStatus,
    flush_cleanup_blocking,
};

use crate::on::{On, on_each};

on_each! { @every
    the_blocking_sandbox_does_the_same_from_many_threads,
}

async fn the_blocking_sandbox_does_the_same_from_many_threads(on: On) {
    let place = on.ready().await;
    let error = Sandbox::new(place.provider.clone()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    assert!(
        error.to_string().contains("AsyncSandbox") || error.help().is_some_and(|help| help.contains("AsyncSandbox"))
    );
    let (provider, spec) = (place.provider.clone(), place.spec());
    tokio::task::spawn_blocking(move || use_it(provider, spec)).await.unwrap();
    place.end().await;
}

fn use_it(provider: std::sync::Arc<dyn SandboxProvider>, spec: SandboxSpec) {
    let new = || Sandbox::new(provider.clone()).unwrap().with_ownership(Ownership::Shared);
    let sandbox = new();
    assert_eq!(sandbox.status().unwrap(), SandboxStatus::Unknown);
    sandbox.start(Some(spec.clone().with_env("WHO", "world"))).unwrap();
    assert_eq!(sandbox.status().unwrap(), SandboxStatus::Running);
    let result = sandbox.run("echo hello $WHO; exit 3").unwrap();
    assert_eq!((&*result.stdout_text(), result.return_code()), ("hello world\n", 3));
    let late = sandbox.exec(ExecRequest::shell("echo early; sleep 300").with_timeout_s(2.0)).unwrap();
    assert_eq!((late.error_type(), &*late.stdout_text()), (Some("timeout"), "early\n"));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let sandbox = &sandbox;
            scope.spawn(move || {
                let path = format!("/tmp/facade-blocking-{number}");
                sandbox.write_file(path.as_str(), number.to_string()).unwrap();
                assert_eq!(sandbox.run(format!("cat {path}; rm {path}")).unwrap().stdout_text(), number.to_string());
            });
        }
    });
    let mut seen = Vec::new();
    for event in sandbox.exec_stream(ExecRequest::shell("echo one; echo two")).unwrap() {
        if let sandbox_api::ExecEvent::Stdout(bytes) = event.unwrap() {
            seen.extend_from_slice(&bytes);
        }
    }
    assert_eq!(seen, b"one\ntwo\n");
    if sandbox.info().capabilities.contains(Capability::Connect) {
        let descriptor = sandbox.serialize(None).unwrap();
        let other = Sandbox::connect(provider.clone(), descriptor).unwrap().with_ownership(Ownership::Shared);
        assert_eq!(other.run("echo again").unwrap().stdout_text(), "again\n");
        other.disconnect().unwrap();
    }
    sandbox.stop().unwrap();
    sandbox.stop().unwrap();
    assert_eq!(sandbox.status().unwrap(), SandboxStatus::Stopped);
    assert_eq!(sandbox.run("true").unwrap_err().kind(), ErrorKind::InvalidState);
    let dropped = new();
    dropped.start(Some(spec)).unwrap();
    drop(dropped);
    assert!(flush_cleanup_blocking(Duration::from_secs(60)).is_clean());
}
