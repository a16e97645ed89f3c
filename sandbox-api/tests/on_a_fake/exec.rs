//! Commands: what the facade fills in, and what it refuses.

use std::{sync::Arc, time::Duration};

use crate::fake::Fake;
use sandbox_api::{AsyncSandbox, ExecOptions};
use sandbox_core::{CaptureLimits, ErrorKind, ExecEvent, ExecRequest, Field, SandboxSpec};

async fn started(fake: &Arc<Fake>, spec: SandboxSpec) -> AsyncSandbox {
    let sandbox = AsyncSandbox::new(fake.clone());
    sandbox.start(Some(spec)).await.unwrap();
    sandbox
}

fn last(fake: &Fake) -> ExecRequest {
    fake.seen().requests.last().unwrap().clone()
}

fn sh() -> ExecRequest {
    ExecRequest::shell("true")
}

#[tokio::test]
async fn the_result_and_the_stream_are_the_providers() {
    let fake = Fake::with(&[]);
    let sandbox = started(&fake, SandboxSpec::default()).await;
    let result = sandbox.run("x").await.unwrap();
    assert_eq!((result.return_code(), &*result.stdout, &*result.stderr), (3, &b"out"[..], &b"err"[..]));
    let options = ExecOptions::new().with_capture(CaptureLimits::each(2));
    assert!(sandbox.exec_with(sh(), options).await.unwrap().truncated());
    let mut stream = sandbox.exec_stream(sh()).await.unwrap();
    assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn a_command_without_a_limit_has_180_s_unless_none_is_asked_for() {
    let fake = Fake::with(&[]);
    let sandbox = started(&fake, SandboxSpec::default()).await;
    sandbox.exec(sh()).await.unwrap();
    assert_eq!(last(&fake).timeout_s, Some(180.0));
    sandbox.exec_stream(sh()).await.unwrap();
    assert_eq!(last(&fake).timeout_s, Some(180.0));
    sandbox.exec(sh().with_timeout_s(1.5)).await.unwrap();
    assert_eq!(last(&fake).timeout_s, Some(1.5));
    sandbox.exec(sh().with_timeout_s(1e6)).await.unwrap();
    assert_eq!(last(&fake).timeout_s, Some(1e6));
    sandbox.exec_with(sh(), ExecOptions::new().without_timeout()).await.unwrap();
    assert_eq!(last(&fake).timeout_s, None);
    sandbox.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_limit_beyond_the_life_of_the_sandbox_is_refused_and_the_default_is_cut() {
    let fake = Fake::with(&[sandbox_core::Capability::Renew]);
    let sandbox = started(&fake, SandboxSpec::default().with_ttl_s(5.0)).await;
    let error = sandbox.exec(sh().with_timeout_s(20.0)).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("timeout_s")));
    assert!(error.to_string().contains("20 s") && error.to_string().contains("5.0 s"), "{error}");
    assert!(sandbox.exec_stream(sh().with_timeout_s(20.0)).await.is_err());
    assert!(fake.seen().requests.is_empty());
    sandbox.exec(sh().with_timeout_s(4.5)).await.unwrap();
    sandbox.exec(sh()).await.unwrap();
    assert_eq!(last(&fake).timeout_s, Some(5.0));
    tokio::time::advance(Duration::from_secs(3)).await;
    assert!(sandbox.exec(sh().with_timeout_s(4.5)).await.is_err());
    sandbox.exec(sh()).await.unwrap();
    assert_eq!(last(&fake).timeout_s, Some(2.0));
    sandbox.renew(1000.0).await.unwrap();
    sandbox.exec(sh().with_timeout_s(900.0)).await.unwrap();
    sandbox.exec(sh()).await.unwrap();
    assert_eq!(last(&fake).timeout_s, Some(180.0));
    tokio::time::advance(Duration::from_secs(1001)).await;
    assert_eq!(sandbox.exec(sh()).await.unwrap_err().kind(), ErrorKind::InvalidState, "its life is over");
    sandbox.exec_with(sh(), ExecOptions::new().without_timeout()).await.expect("then the provider says what is");
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn no_default_is_forced_on_a_provider_that_refuses_the_field() {
    let fake = Arc::new(Fake { refused: vec![Field::ExecTimeoutS, Field::ExecCwd], ..Fake::default() });
    let sandbox = started(&fake, SandboxSpec::default().with_workdir("/w")).await;
    sandbox.exec(sh()).await.unwrap();
    assert_eq!((last(&fake).timeout_s, last(&fake).cwd), (None, None));
    assert_eq!(sandbox.exec(sh().with_timeout_s(1.0)).await.unwrap_err().field(), Some("exec.timeout_s"));
    assert_eq!(sandbox.exec(sh().with_cwd("/x")).await.unwrap_err().field(), Some("exec.cwd"));
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn directory_and_user_are_the_calls_own_then_the_live_default_then_the_specs() {
    let fake = Fake::with(&[]);
    let sandbox = started(&fake, SandboxSpec::default().with_workdir("/w").with_user("spec")).await;
    let run = async |request: ExecRequest| {
        sandbox.exec(request).await.unwrap();
        let request = last(&fake);
        (request.cwd.map(|cwd| cwd.to_string()), request.user)
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(run(sh()).await, (some("/w"), None), "the provider knows the spec's user");
    assert_eq!(run(sh().with_cwd("sub").with_user("me")).await, (some("sub"), some("me")));
    sandbox.set_default_user(Some("live")).unwrap();
    sandbox.set_default_workdir(Some("/live/")).unwrap();
    assert_eq!(run(sh()).await, (some("/live/"), some("live")));
    assert_eq!(run(sh().with_cwd("sub").with_user("me")).await, (some("/live/sub"), some("me")));
    assert_eq!(run(sh().with_cwd("/abs")).await, (some("/abs"), some("live")));
    sandbox.write_file("f", "x").await.unwrap();
    assert!(fake.seen().files.contains_key("/live/f"), "files and commands mean the same by a relative path");
    sandbox.set_default_user(None).unwrap();
    sandbox.set_default_workdir(None).unwrap();
    assert_eq!(run(sh()).await, (some("/w"), None));
    sandbox.stop().await.unwrap();
}

#[tokio::test]
async fn state_comes_before_values_and_values_before_what_the_provider_honours() {
    let fake = Arc::new(Fake { refused: vec![Field::ExecUser], ..Fake::default() });
    let sandbox = AsyncSandbox::new(fake.clone());
    let wrong = || sh().with_user("me").with_timeout_s(-1.0);
    assert_eq!(sandbox.exec(wrong()).await.unwrap_err().kind(), ErrorKind::InvalidState);
    sandbox.start(Some(SandboxSpec::default())).await.unwrap();
    assert_eq!(sandbox.exec(wrong()).await.unwrap_err().field(), Some("timeout_s"));
    assert_eq!(sandbox.exec(sh().with_user("me")).await.unwrap_err().field(), Some("exec.user"));
    assert!(fake.seen().requests.is_empty());
    sandbox.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_does_not_end_a_command_at_its_limit_is_given_up() {
    let fake = Fake::with(&[]);
    fake.seen().exec_never_ends = true;
    let sandbox = started(&fake, SandboxSpec::default()).await;
    let began = tokio::time::Instant::now();
    let error = sandbox.exec(sh().with_timeout_s(10.0).with_kill_grace_s(5.0)).await.unwrap_err();
    assert_eq!((error.kind(), error.provider()), (ErrorKind::Lost, Some("fake")));
    assert_eq!(began.elapsed().as_secs(), 45);
    sandbox.stop().await.unwrap();
}
