//! A borrower's view of a sandbox.

use crate::fake::Fake;
use sandbox_api::{AsyncSandbox, SandboxAccess};
use sandbox_core::{Capability, ErrorKind, SandboxSpec, SandboxStatus, serde_json};

#[tokio::test]
async fn a_borrower_uses_the_sandbox_disconnects_and_leaves_it_running() {
    let fake = Fake::with(&[Capability::Connect]);
    let owner = AsyncSandbox::new(fake.clone());
    assert_eq!(owner.access("box").await.unwrap_err().kind(), ErrorKind::InvalidState);
    owner.start(Some(SandboxSpec::default().with_workdir("/w"))).await.unwrap();
    assert_eq!(owner.access(" ").await.unwrap_err().field(), Some("provider_config_ref"));
    let sent = serde_json::to_string(&owner.access("box").await.unwrap()).unwrap();
    let access: SandboxAccess = serde_json::from_str(&sent).unwrap();
    assert_eq!((access.workdir.as_str(), access.connection.provider_config_ref.as_str()), ("/w", "box"));
    assert!(sent.contains("\"kind\":\"direct\""), "{sent}");
    let borrowed = access.borrow_with(fake.clone()).await.unwrap();
    borrowed.run("true").await.unwrap();
    borrowed.disconnect().await.unwrap();
    assert_eq!(owner.status().await.unwrap(), SandboxStatus::Running);
    // A directory that was set later is where the borrower works.
    owner.set_default_workdir(Some("/later")).unwrap();
    assert_eq!(owner.access("box").await.unwrap().workdir, "/later");
    owner.stop().await.unwrap();
    for bad in [sent.replace("direct", "relay"), sent.replace("\"workdir\":", "\"extra\":1,\"workdir\":")] {
        serde_json::from_str::<SandboxAccess>(&bad).unwrap_err();
    }
}

#[tokio::test]
async fn a_sandbox_without_a_directory_has_nothing_to_lend() {
    let fake = Fake::with(&[Capability::Connect]);
    let owner = AsyncSandbox::new(fake);
    owner.start(Some(SandboxSpec::default())).await.unwrap();
    let error = owner.access("box").await.unwrap_err();
    assert_eq!(error.field(), Some("workdir"));
    owner.stop().await.unwrap();
}
