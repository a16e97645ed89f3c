//! What keeps the double honest: the service's own client drives it.

use std::{path::PathBuf, process::Stdio, time::Duration};

use sandbox_daytona_double::{Double, KEY};

/// Names a python that has the client; `cargo xtask test` installs it and sets this.
const PYTHON: &str = "SANDBOX_TEST_DAYTONA_PYTHON";

fn python() -> PathBuf {
    std::env::var_os(PYTHON).map(PathBuf::from).unwrap_or_else(|| panic!("{PYTHON} is not set: run cargo xtask test"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_makes_uses_and_deletes_a_sandbox_of_the_double() {
    let python = python();
    let double = Double::start().await.unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/doubles/daytona/official_sdk.py");
    let mut drive = tokio::process::Command::new(python);
    drive.arg(script).env("DAYTONA_API_KEY", KEY).env("DAYTONA_API_URL", format!("{}/api", double.url()));
    drive.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(150), drive.output()).await.expect("it ends").unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("all good"), "{said}\n{errors}");
    assert_eq!(double.sandboxes().await, []);
    double.stop().await;
}
