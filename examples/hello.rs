//! Makes a sandbox with the local provider, runs a command in it and removes it.

use sandbox_api::{AsyncSandbox, Result, SandboxSpec, create_provider, serde_json::json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let provider = create_provider(&json!({"local": {}}))?;
    let sandbox = AsyncSandbox::new(provider).with_spec(SandboxSpec::default().with_env("WHO", "world"));
    sandbox.start(None).await?;
    let result = sandbox.run("echo hello $WHO").await;
    // Whatever came of it: the sandbox goes first.
    sandbox.stop().await?;
    let result = result?;
    print!("{}", result.stdout_text());
    println!("exit code {}", result.return_code());
    Ok(())
}
