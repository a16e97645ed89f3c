//! The double as a program: prints the settings of a provider on a line and serves until its standard input ends.

use fargate_double::Double;
use tokio::io::AsyncReadExt;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let double = Double::start().await?;
    println!("{}", double.settings_with_builds());
    // Whoever started it holds the other end.
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    double.stop().await;
    Ok(())
}
