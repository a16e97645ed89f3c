//! The local provider through the ABI, linked: what the fake cannot show.

#[path = "../../providers/local/tests/isolated/agent.rs"]
mod agent;

use std::time::Duration;

use sandbox_api::{
    AsyncSandbox, ExecRequest, Ownership, ProviderOrigin, Result, Sandbox, SandboxSpec, SandboxStatus, create_provider,
    flush_cleanup_blocking, get_provider, serde_json::json,
};

fn config() -> sandbox_api::serde_json::Value {
    json!({"local": {"agent_path": agent::agent()}})
}

#[test]
fn a_linked_provider_is_used_without_any_file() {
    let description = get_provider("local").unwrap();
    assert_eq!((description.origin, description.path), (ProviderOrigin::BuiltIn, None));
}

#[tokio::test]
async fn a_sandbox_starts_runs_and_stops() -> Result<()> {
    let sandbox = AsyncSandbox::from_config(&config())?;
    sandbox.start(Some(SandboxSpec::default().with_env("WHO", "world").with_file("f", "file"))).await?;
    let result = sandbox.run("printf 'hello %s ' $WHO; cat f; exit 7").await?;
    assert_eq!((result.return_code(), &*result.stdout_text()), (7, "hello world file"));
    assert_eq!(sandbox.read_file("f").await?, "file");
    let slow = sandbox.exec(ExecRequest::shell("echo early; sleep 60").with_timeout_s(0.5)).await?;
    assert_eq!((slow.error_type(), &*slow.stdout_text()), (Some("timeout"), "early\n"));
    sandbox.stop().await?;
    assert_eq!(sandbox.status().await?, SandboxStatus::Stopped);
    Ok(())
}

#[test]
fn the_blocking_one_does_the_same() -> Result<()> {
    let sandbox = Sandbox::from_config(&config())?;
    sandbox.start(Some(SandboxSpec::default()))?;
    assert_eq!(sandbox.run("echo hi")?.stdout, b"hi\n");
    sandbox.stop()
}

#[test]
fn what_is_dropped_after_its_runtime_was_shut_down_is_gone_after_a_flush() {
    let provider = create_provider(&config()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut handles = Vec::new();
    let sandboxes: Vec<AsyncSandbox> = (0..20)
        .map(|_| {
            let sandbox = AsyncSandbox::new(provider.clone()).with_ownership(Ownership::Shared);
            runtime.block_on(sandbox.start(Some(SandboxSpec::default()))).unwrap();
            handles.push(sandbox.handle().unwrap());
            sandbox
        })
        .collect();
    drop(runtime);
    drop(sandboxes);
    let report = flush_cleanup_blocking(Duration::from_secs(20));
    assert!(report.is_clean(), "{report:?}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for handle in handles {
        assert_eq!(runtime.block_on(provider.status(&handle)).unwrap(), SandboxStatus::Stopped);
    }
}
