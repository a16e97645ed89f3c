//! The host dies by SIGKILL. The test runs its own binary again as that host.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use std::io::BufRead;

use common::{Mark, eventually, marked, millis};
use sandbox_process::{Event, Limits, ProcessSet};

const SCRIPT: &str = "setsid sleep 300 & ( ( sleep 300 & ) & ); echo up; sleep 300";

#[test]
fn play_the_host() {
    if std::env::var_os("SBX_PLAY_HOST").is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let set = ProcessSet::new();
        let (foreground, mark) = marked(SCRIPT);
        let mut running = set.spawn(foreground, Limits::new()).await.expect("starts");
        assert!(matches!(running.next_event().await, Some(Event::Stdout(_))));
        let (background, left) = marked("setsid sleep 300 & sleep 300 & echo up");
        common::run(&set, background, Limits::new()).await.expect("starts");
        // Whoever supervises it waits for the next one then.
        common::run(&set, common::sh("true"), Limits::new()).await.expect("starts");
        eventually("all run", || mark.alive() == 4 && left.alive() == 2).await;
        println!("\nMARKS {} {}", mark.text(), left.text());
        std::future::pending::<()>().await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_survives_a_host_that_is_killed() {
    let mut host = std::process::Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", "play_the_host", "--nocapture"])
        .env("SBX_PLAY_HOST", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    let lines = std::io::BufReader::new(host.stdout.take().expect("piped")).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("MARKS ")).expect("the host came up");
    let marks: Vec<Mark> = line.split(' ').skip(1).map(Mark::from_text).collect();
    let alive = || marks.iter().map(Mark::alive).sum::<usize>();
    assert_eq!(alive(), 6);
    let all = || supervisors_of(host.id());
    eventually("one nursery, two supervisors, and one that waits", || all().len() == 4).await;
    let supervisors = all();
    host.kill().expect("SIGKILL");
    host.wait().expect("reaped");
    let begin = std::time::Instant::now();
    eventually("no command survives", || alive() == 0).await;
    eventually("no supervisor survives", || {
        supervisors.iter().all(|&pid| common::state(pid).is_none_or(|s| s == b'Z'))
    })
    .await;
    assert!(begin.elapsed() < millis(1000), "{:?}", begin.elapsed());
}

/// The nursery of each set, and their supervisors.
fn supervisors_of(host: u32) -> Vec<u32> {
    let nurseries = common::children(host);
    let supervisors: Vec<u32> = nurseries.iter().flat_map(|&nursery| common::children(nursery)).collect();
    nurseries.into_iter().chain(supervisors).collect()
}
