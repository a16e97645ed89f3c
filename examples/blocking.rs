//! Without an async runtime, from several threads.

use sandbox_api::{Result, Sandbox, SandboxSpec, serde_json::json};

fn main() -> Result<()> {
    let sandbox = Sandbox::from_config(&json!({"local": {"isolation": "none"}}))?;
    sandbox.start(Some(SandboxSpec::default()))?;
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|i| {
                let sandbox = &sandbox;
                scope.spawn(move || sandbox.run(format!("echo {i}")))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    });
    sandbox.stop()?;
    for result in results {
        print!("{}", result?.stdout_text());
    }
    Ok(())
}
