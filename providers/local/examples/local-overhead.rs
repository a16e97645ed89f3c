//! What a sandbox and an exec cost, beside a plain `std::process` in the same run: one at a time, interleaved, medians.
//! The second section is about isolated sandboxes; it needs the agent (`cargo build --release -p sandbox-agent`).
//! `cargo run --release -p sandbox-provider-local --example local-overhead [count]`

use std::time::{Duration, Instant};

use sandbox_core::{CaptureLimits, ExecEvent, ExecRequest, SandboxHandle, SandboxProvider, SandboxSpec};
use sandbox_provider_local::{LocalConfig, LocalProvider};

const ARGV: [&str; 3] = ["/bin/sh", "-c", "echo hi"];

fn plain() -> Duration {
    let begin = Instant::now();
    let output = std::process::Command::new(ARGV[0]).args(&ARGV[1..]).env_clear().output().expect("starts");
    assert_eq!(output.stdout, b"hi\n");
    begin.elapsed()
}

async fn exec(provider: &dyn SandboxProvider, handle: &SandboxHandle) -> Duration {
    let begin = Instant::now();
    let stream = provider.exec(handle, ExecRequest::argv(ARGV)).await.expect("starts");
    let result = stream.collect(CaptureLimits::default()).await.expect("ends");
    assert_eq!(result.stdout, b"hi\n");
    begin.elapsed()
}

/// Create to first output, and the close after it.
async fn sandbox(provider: &dyn SandboxProvider) -> (Duration, Duration) {
    let begin = Instant::now();
    let handle = provider.create(SandboxSpec::default()).await.expect("is made");
    let mut stream = provider.exec(&handle, ExecRequest::argv(ARGV)).await.expect("starts");
    let event = stream.next().await.expect("goes on");
    let first = begin.elapsed();
    assert!(matches!(event, Some(ExecEvent::Stdout(_))));
    drop(stream);
    let begin = Instant::now();
    provider.close(&handle).await.expect("closes");
    (first, begin.elapsed())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

async fn measure(name: &str, provider: &dyn SandboxProvider, count: usize) {
    let handle = provider.create(SandboxSpec::default()).await.expect("is made");
    let [mut bare, mut execs, mut firsts, mut closes] = [(); 4].map(|()| Vec::new());
    for round in 0..count + 10 {
        let (a, b, (c, d)) = (plain(), exec(provider, &handle).await, sandbox(provider).await);
        if round >= 10 {
            bare.push(a);
            execs.push(b);
            firsts.push(c);
            closes.push(d);
        }
    }
    provider.close(&handle).await.expect("closes");
    let (bare, execs) = (median(&mut bare), median(&mut execs));
    let ratio = execs.as_secs_f64() / bare.as_secs_f64();
    println!("{name}: std::process {bare:?}, exec {execs:?} (x {ratio:.2})");
    println!("{name}: create to first output {:?}, close {:?}", median(&mut firsts), median(&mut closes));
}

#[tokio::main]
async fn main() {
    let count = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100);
    let none = serde_json::json!({ "isolation": "none" });
    let direct: LocalConfig = serde_json::from_value(none.clone()).expect("the settings are good");
    let direct = LocalProvider::new(direct).expect("the settings are good");
    tokio::spawn(async move { measure("direct", &direct, count).await }).await.expect("no panic");
    let plugin = sandbox_provider_local::plugin_entry().new_provider(&none).expect("is made");
    tokio::spawn(async move { measure("abi", &*plugin, count).await }).await.expect("no panic");

    let isolated = LocalProvider::new(isolated()).expect("the settings are good");
    tokio::spawn(async move { measure("namespaces", &isolated, count).await }).await.expect("no panic");
}

/// Settings for isolated sandboxes, with the agent that was built beside this program if no other one is named.
fn isolated() -> LocalConfig {
    let mut config = LocalConfig::default();
    if std::env::var_os("SANDBOX_AGENT").is_none() {
        let program = std::env::current_exe().expect("this program has a file");
        config.agent_path = program.ancestors().nth(2).map(|folder| folder.join("sandbox-agent"));
    }
    config
}
