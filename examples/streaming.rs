//! Output as it comes, input as it is wanted, and a signal at the end.

use sandbox_api::{AsyncSandbox, ExecEvent, ExecRequest, Result, SandboxSpec, StdinSource, serde_json::json};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let sandbox = AsyncSandbox::from_config(&json!({"local": {"isolation": "none"}}))?;
    sandbox.start(Some(SandboxSpec::default())).await?;
    let done = talk(&sandbox).await;
    sandbox.stop().await?;
    done
}

async fn talk(sandbox: &AsyncSandbox) -> Result<()> {
    let script = "while read -r line; do echo \"got $line\"; done; echo end of input; sleep 600";
    let mut stream = sandbox.exec_stream(ExecRequest::shell(script).with_stdin(StdinSource::Stream)).await?;
    stream.write("one\ntwo\n").await?;
    stream.close_input().await?;
    let mut seen = String::new();
    while let Some(event) = stream.next().await? {
        match event {
            ExecEvent::Stdout(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                print!("{text}");
                seen.push_str(&text);
                if seen.contains("end of input") {
                    stream.signal(15).await?;
                }
            }
            ExecEvent::Exit(exit) => println!("ended with {}", exit.outcome.return_code()),
            _ => {}
        }
    }
    Ok(())
}
