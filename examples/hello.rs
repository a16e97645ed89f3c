//! The example of README.md: makes a sandbox with the local provider, runs a command in it and removes it.

use sandbox_api::{Result, serde_json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    use sandbox_api::{AsyncSandbox, ExecRequest, SandboxSpec};

    let provider = sandbox_api::create_provider(&serde_json::json!({ "local": {} }))?;
    let sandbox = AsyncSandbox::new(provider);
    sandbox.start(Some(SandboxSpec::default().with_env("GREETING", "hi"))).await?;
    let result = sandbox.exec(ExecRequest::shell("echo $GREETING; exit 3").with_timeout_s(10.0)).await?;
    assert_eq!((result.return_code(), result.stdout_text().as_ref()), (3, "hi\n"));
    sandbox.stop().await?;

    println!("as expected: {}", result.stdout_text().trim_end());
    Ok(())
}
