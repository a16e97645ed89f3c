//! A client that may have few processes and threads only.

use std::time::Duration;

use sandbox_core::{ErrorKind, ExecOutcome, ExecRequest, SandboxProvider, StartFailure, serde_json::json};

use crate::{
    agent,
    support::{eventually, local, run},
};

/// A user whom nobody else is: the limit counts all that one user runs.
const USER: &str = "64213";
const PROCESSES: &str = "--nproc=64:64";
const AT_ONCE: usize = 200;
/// Each command runs so long that there is no room for the others meanwhile.
const SECONDS: &str = "0.3";
const LIMIT: Duration = Duration::from_secs(60);

/// Children of this process that have ended and that nobody has waited for.
fn zombies() -> usize {
    let own = std::process::id().to_string();
    let is_one = |entry: &std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
        fields.next() == Some("Z") && fields.next() == Some(&own)
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter(is_one).count()
}

/// Runs as another program with few processes, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn under_pressure() {
    if !agent::is_nobody() {
        return;
    }
    let local = std::sync::Arc::new(local(json!({})));
    let handle = local.create().await;
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..AT_ONCE {
        let (local, handle) = (local.clone(), handle.clone());
        all.spawn(async move {
            let stream = local.provider.exec(&handle, ExecRequest::argv(["sleep", SECONDS])).await?;
            stream.collect(Default::default()).await
        });
    }
    let (mut done, mut refused) = (0, 0);
    for end in tokio::time::timeout(LIMIT, all.join_all()).await.expect("a command hangs") {
        match end {
            Ok(result) => match result.outcome() {
                ExecOutcome::Exited(0) => done += 1,
                ExecOutcome::StartFailed { reason: StartFailure::Resources, .. } => refused += 1,
                other => panic!("{other:?}: {}", result.stderr_text()),
            },
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Exhausted, "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(done >= 10, "{done} of {AT_ONCE} have run");
    assert!(refused > 0, "there was room for all of them, and the test has shown nothing");
    // When the others have ended, there is room again.
    for _ in 0..20 {
        let result = run(&local.provider, &handle, ExecRequest::argv(["echo", "again"])).await;
        assert_eq!(result.stdout_text(), "again\n");
    }
    local.provider.close(&handle).await.unwrap();
    eventually("there are zombies", || zombies() == 0).await;
    assert!(local.remains().is_empty());
}

#[test]
fn j04_a_client_that_may_have_few_threads_and_processes_is_told_so_and_goes_on() {
    let said = agent::as_user_by(USER, &["prlimit", PROCESSES], "pressure::under_pressure");
    assert!(!said.contains("panicked"), "{said}");
}
