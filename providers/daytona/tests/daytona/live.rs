//! The program that people with an account run, here against the double: whatever happens to it, nothing is left.

use std::{
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use sandbox_daytona_double::{Double, Fault, KEY};
use tokio::process::{Child, Command};

use crate::support::LATE;

/// The folder of the examples; `cargo xtask test` builds them and sets this.
const EXAMPLES: &str = "SANDBOX_TEST_EXAMPLES";

/// What people set, and nothing else.
fn live(double: &Double, filter: &str) -> Child {
    let folder = std::env::var_os(EXAMPLES).map(PathBuf::from);
    let folder = folder.unwrap_or_else(|| panic!("{EXAMPLES} is not set: run cargo xtask test"));
    let mut live = Command::new(folder.join("daytona-live"));
    live.arg(filter).env("DAYTONA_API_KEY", KEY).env("DAYTONA_API_URL", format!("{}/api", double.url()));
    live.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    live.spawn().expect("the live test starts")
}

async fn end(live: Child) -> (Output, String) {
    let output = tokio::time::timeout(LATE, live.wait_with_output()).await.expect("it ends").unwrap();
    let said = [output.stdout.as_slice(), &output.stderr].map(String::from_utf8_lossy).concat();
    (output, said)
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = std::time::Instant::now() + LATE;
    while !is_so().await {
        assert!(std::time::Instant::now() < deadline, "{what} does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_live_test_that_is_interrupted_leaves_nothing() {
    let double = Double::start().await.unwrap();
    // One request is still unanswered when the interrupt comes, and one sandbox is there.
    double.fault(Fault {
        method: "POST".to_owned(),
        path: "/api/sandbox".to_owned(),
        skip: 1,
        delay_ms: 800,
        ..Fault::default()
    });
    let live = live(&double, "timeout.");
    until("a sandbox", async || !double.sandboxes().await.is_empty()).await;
    until("a second request", async || double.faults_left() == 0).await;
    let pid = live.id().expect("it runs").to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
    let (output, said) = end(live).await;
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("nothing is left"), "{said}");
    assert_eq!(double.sandboxes().await, [], "{said}");
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_live_test_deletes_what_a_failed_case_has_left() {
    let double = Double::start().await.unwrap();
    // Nothing can be deleted for a while.
    let refusal = Fault { method: "DELETE".to_owned(), status: Some(403), times: 8, ..Fault::default() };
    double.fault(refusal);
    let (output, said) = end(live(&double, "lifecycle.created_sandbox_runs_commands_at_once")).await;
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("which was left") && said.contains("nothing is left"), "{said}");
    assert_eq!((double.sandboxes().await, double.faults_left()), (Vec::new(), 0), "{said}");
    double.stop().await;
}
