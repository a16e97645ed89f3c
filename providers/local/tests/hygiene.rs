//! Many sandboxes, and what they leave in this process. One test only: it counts what the process has.

use std::{sync::Arc, time::Duration};

use sandbox_core::{
    CaptureLimits, ExecOutcome, ExecRequest, SandboxProvider, SandboxSpec, from_json, serde_json::json,
};
use sandbox_provider_local::LocalProvider;

const AT_ONCE: usize = 200;
const CYCLES: usize = 300;

async fn cycle(provider: &LocalProvider, number: usize) {
    let handle = provider.create(SandboxSpec::default()).await.unwrap();
    let stream = provider.exec(&handle, ExecRequest::shell(format!("sleep 60 & echo {number}"))).await.unwrap();
    let result = stream.collect(CaptureLimits::default()).await.unwrap();
    assert_eq!(*result.outcome(), ExecOutcome::Exited(0));
    assert_eq!(result.stdout_text(), format!("{number}\n"));
    provider.close(&handle).await.unwrap();
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Waits until so few descriptors and children are there. A process that was killed takes a moment to be reaped.
async fn settles(files: usize, children_most: usize) {
    for _ in 0..200 {
        if open_files() <= files && children() <= children_most {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} descriptors instead of {files}, {} children instead of {children_most}", open_files(), children());
}

/// Children of this process, zombies included.
fn children() -> usize {
    let own = std::process::id().to_string();
    let parent = |entry: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        Some(stat.rsplit_once(") ")?.1.split(' ').nth(1)?.to_owned())
    };
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| parent(entry.unwrap())).filter(|pid| *pid == own).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sandboxes_at_once_and_one_after_the_other_leave_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let settings =
        from_json(json!({ "workspace_root": temp.path(), "drain_grace_ms": 0, "isolation": "none" }), "settings")
            .unwrap();
    let provider = Arc::new(LocalProvider::new(settings).unwrap());
    let all = tokio::time::timeout(Duration::from_secs(60), async {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..AT_ONCE {
            let provider = provider.clone();
            tasks.spawn(async move { cycle(&provider, number).await });
        }
        tasks.join_all().await
    });
    let begin = std::time::Instant::now();
    assert_eq!(all.await.unwrap().len(), AT_ONCE);
    println!("{AT_ONCE} at once: {:?}", begin.elapsed());
    // The process that starts processes may stay.
    settles(usize::MAX, 1).await;
    let (files, children) = (open_files(), children());
    for number in 0..CYCLES {
        cycle(&provider, number).await;
    }
    println!("{CYCLES} cycles: {:?}", begin.elapsed());
    settles(files, children).await;
    assert_eq!(std::fs::read_dir(temp.path().join(".records")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 1);
}
