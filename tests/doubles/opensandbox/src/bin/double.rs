//! The double as a process: prints where it listens, and serves until its input ends.

use std::io::Write;

use opensandbox_double::{Control, ControlOptions};
use tokio::io::AsyncReadExt;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> std::io::Result<()> {
    let options = ControlOptions { api_key: std::env::args().nth(1), containers: true, ..ControlOptions::default() };
    let control = Control::start(options).await?;
    writeln!(std::io::stdout(), "{}", control.address())?;
    std::io::stdout().flush()?;
    // Whoever started this holds the other end of the input.
    let _ = tokio::io::stdin().read(&mut [0; 1]).await;
    control.end().await;
    Ok(())
}
