//! What is refused before a provider hears of it.

use crate::fake::Fake;
use sandbox_api::{AsyncSandbox, AttachOptions, PtyExec, SandboxPtySpec, SandboxSpec};
use sandbox_core::ErrorKind;

#[tokio::test]
async fn a_provider_without_sessions_is_named_before_and_after_the_start() {
    let fake = Fake::with(&[]);
    let sandbox = AsyncSandbox::new(fake.clone());
    for _ in 0..2 {
        let create = sandbox.pty().create(SandboxPtySpec::default()).await.unwrap_err();
        let exec = sandbox.pty().exec(PtyExec::new("true")).await.unwrap_err();
        let attach = sandbox.pty().attach("x", AttachOptions::default()).await.unwrap_err();
        for error in [&create, &exec, &attach] {
            assert_eq!((error.kind(), error.provider()), (ErrorKind::Unsupported, Some("fake")));
        }
        assert!(create.help().unwrap().contains("exec()"));
        if sandbox.handle().is_err() {
            sandbox.start(Some(SandboxSpec::default())).await.unwrap();
        }
    }
    sandbox.stop().await.unwrap();
}
