//! The whole life of a sandbox: made, used, removed.

use sandbox_api::{AsyncSandbox, ExecRequest, Result, SandboxSpec, serde_json::json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let sandbox = AsyncSandbox::from_config(&json!({"local": {"isolation": "none"}}))?;
    let spec =
        SandboxSpec::default().with_env("WHO", "world").with_file("greet.sh", "echo hello $WHO").with_ttl_s(60.0);
    // When the setup fails the sandbox is removed.
    sandbox.start_with_setup(Some(spec), async |sandbox| sandbox.write_file("note", "kept\n").await).await?;
    let result = sandbox.exec(ExecRequest::shell("sh greet.sh; cat note; exit 3").with_timeout_s(20.0)).await;
    // Whatever came of it: the sandbox goes first.
    sandbox.stop().await?;
    let result = result?;
    print!("{}", result.stdout_text());
    println!("exit code {}", result.return_code());
    Ok(())
}
