//! A shell that keeps its state between commands, and a program in a terminal of its own.

use std::time::Duration;

use sandbox_api::{AsyncSandbox, PtyExec, Result, SandboxPtySpec, SandboxSpec, serde_json::json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let sandbox = AsyncSandbox::from_config(&json!({"local": {"isolation": "namespaces"}}))?;
    sandbox.start(Some(SandboxSpec::default())).await?;
    let done = use_terminals(&sandbox).await;
    sandbox.stop().await?;
    done
}

async fn use_terminals(sandbox: &AsyncSandbox) -> Result<()> {
    let shell = sandbox.pty().create(SandboxPtySpec::default()).await?;
    sandbox.pty().exec(PtyExec::new("cd /tmp; WHO=terminal")).await?;
    print!("{}", sandbox.pty().exec(PtyExec::new("echo hello $WHO in $PWD")).await?.stdout_text());
    shell.close().await?;

    let spec =
        SandboxPtySpec { command: Some("read -r line; stty size; echo bye".into()), ..SandboxPtySpec::default() };
    let session = sandbox.pty().create(spec).await?;
    session.resize(50, 120).await?;
    session.write("\n").await?;
    while let Some(chunk) = session.read(Some(Duration::from_secs(20))).await? {
        print!("{}", chunk.data().map(|bytes| String::from_utf8_lossy(bytes)).unwrap_or_default());
    }
    println!("ended with {}", session.wait_exit(None).await?.outcome.return_code());
    Ok(())
}
