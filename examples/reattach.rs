//! One process makes a sandbox with a terminal, a second one takes both up.
//!
//! Without arguments it is the first one and starts itself again as the second; on a provider without `connect` it says
//! so. With a descriptor, a session's id and an offset (0 if left out) it is the second one. The provider's configuration
//! may be given in `SANDBOX_EXAMPLE_CONFIG`.

use std::{env, error::Error, process::Command, time::Duration};

use sandbox_api::{
    AsyncSandbox, AttachOptions, ErrorKind, PtyChunk, SandboxPtySpec, SandboxSpec, create_provider,
    serde_json::{Value, from_str, json},
};

type Done = Result<(), Box<dyn Error>>;

fn config() -> Result<Value, Box<dyn Error>> {
    Ok(match env::var("SANDBOX_EXAMPLE_CONFIG") {
        Ok(text) => from_str(&text)?,
        Err(_) => json!({"local": {"isolation": "namespaces"}}),
    })
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Done {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [descriptor, session] => second(from_str(descriptor)?, session, 0).await,
        [descriptor, session, since] => second(from_str(descriptor)?, session, since.parse()?).await,
        _ => {
            let sandbox = AsyncSandbox::from_config(&config()?)?;
            sandbox.start(Some(SandboxSpec::default().with_ttl_s(120.0))).await?;
            let done = first(&sandbox).await;
            sandbox.stop().await?;
            done
        }
    }
}

async fn first(sandbox: &AsyncSandbox) -> Done {
    let descriptor = match sandbox.serialize(None).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            println!("{error}");
            return Ok(());
        }
        descriptor => descriptor?,
    };
    let spec = SandboxPtySpec {
        command: Some("echo from the first; read -r line; echo got $line".into()),
        ..Default::default()
    };
    let session = sandbox.pty().create(spec).await?;
    session.detach().await?;
    let mut again = Command::new(env::current_exe()?);
    again.args([descriptor.to_string(), session.session_id().to_owned()]);
    let status = tokio::task::spawn_blocking(move || again.status()).await??;
    println!("the second one ended with {status}");
    Ok(())
}

async fn second(descriptor: Value, session: &str, since: u64) -> Done {
    let sandbox = AsyncSandbox::connect(create_provider(&config()?)?, descriptor).await?;
    let options = AttachOptions { since: Some(since), ..AttachOptions::default() };
    let session = sandbox.pty().attach(session, options).await?;
    session.write("from the second\n").await?;
    while let Some(chunk) = session.read(Some(Duration::from_secs(20))).await? {
        match chunk {
            PtyChunk::Data(bytes) => print!("{}", String::from_utf8_lossy(&bytes)),
            // More was written than is kept for a client that is away.
            PtyChunk::Gap(bytes) => print!("[{bytes} bytes are missing]"),
            _ => {}
        }
    }
    // The sandbox is the first one's.
    sandbox.disconnect().await?;
    Ok(())
}
