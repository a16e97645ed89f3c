//! What there is without a sandbox: fork and exec, and a copy by the kernel.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

/// The command of every comparison.
pub const HELLO: [&str; 3] = ["/bin/sh", "-c", "echo hi"];

/// The same command by the static shell of the small image, as this machine has it.
pub const HELLO_OF_IMAGE: [&str; 4] = ["/bin/busybox", "sh", "-c", "echo hi"];

/// Runs a program to its end and checks what it says.
pub async fn fork_exec(argv: &[&str]) -> Duration {
    let begin = Instant::now();
    let mut command = tokio::process::Command::new(argv[0]);
    let output = command.args(&argv[1..]).env_clear().stdin(Stdio::null()).output().await.expect("it starts");
    assert_eq!(output.stdout, b"hi\n");
    begin.elapsed()
}

/// The same, so many at once, in all `count` times: each one's time, and that of all.
pub async fn fork_exec_many(argv: &[&str], at_once: usize, count: usize) -> (Vec<Duration>, Duration) {
    crate::provider::many(at_once, count, async || fork_exec(argv).await).await
}

/// Waits until what was written before is on the disk: whoever comes next does not pay for it.
pub fn settle() {
    assert!(std::process::Command::new("sync").status().expect("it starts").success());
}

/// Copies a file by the kernel, to where nothing was before.
pub fn copy_file(from: &Path, to: &Path) -> Duration {
    let _ = std::fs::remove_file(to);
    let begin = Instant::now();
    std::fs::copy(from, to).expect("it is copied");
    begin.elapsed()
}
