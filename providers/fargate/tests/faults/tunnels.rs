//! The way to a running task, and its end.

use std::time::{Duration, Instant};

use sandbox_core::{ByteString, CaptureLimits, ExecOutcome, ExecRequest, SandboxProvider, SandboxStatus};
use serde_json::json;

use crate::support::{LATE, Service, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_that_drops_under_a_command_neither_ends_nor_repeats_it() {
    for transport in ["ssh", "direct"] {
        let service = Service::with(Default::default(), json!({"transport": transport})).await;
        let sandbox = service.sandbox().await;
        let task = service.task();
        let script = "echo ran >> runs; for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.5; done; exit 3";
        let stream = service.provider.exec(&sandbox, ExecRequest::shell(script)).await.expect("it starts");
        let collected = tokio::spawn(async move { stream.collect(CaptureLimits::default()).await });
        let mut cut = 0;
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            until("there is a connection", || service.double.connections(&task) > 0).await;
            cut += service.double.cut(&task);
        }
        let result = tokio::time::timeout(LATE, collected).await.expect("it ends").unwrap().expect("it is not lost");
        assert_eq!(*result.outcome(), ExecOutcome::Exited(3), "{transport}");
        assert_eq!(result.stdout_text(), "1\n2\n3\n4\n5\n6\n7\n8\n", "{transport}");
        assert!(cut >= 2 && service.double.was_cut(&task) == cut, "{transport}: cut {cut}");
        assert_eq!(service.sh(&sandbox, "cat runs").await, "ran\n", "{transport}: it ran once");
        service.works_and_goes(&sandbox).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_that_drops_as_commands_start_runs_none_of_them_twice() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let task = service.task();
    // Somewhere within the request, the answer, or between.
    let mut runs = 0;
    for bytes in [1, 100, 200, 300, 400, 500, 700, 900] {
        service.double.cut_after(&task, bytes);
        runs += 1;
        let result =
            service.run(&sandbox, ExecRequest::shell(format!("echo {runs} >> starts; echo done {runs}"))).await;
        assert_eq!(result.stdout_text(), format!("done {runs}\n"));
    }
    let expected: String = (1..=runs).map(|run| format!("{run}\n")).collect();
    assert_eq!(service.sh(&sandbox, "cat starts").await, expected);
    assert!(service.double.was_cut(&task) >= 4, "cut {} times", service.double.was_cut(&task));
    service.works_and_goes(&sandbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transfer_that_is_cut_is_made_whole_or_fails_and_leaves_no_half() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let task = service.task();
    let folder = tempfile::tempdir().unwrap();
    let (file, back) = (folder.path().join("file"), folder.path().join("back"));
    let bytes: Vec<u8> = (0..8_000_000_u32).map(|number| (number % 251) as u8).collect();
    std::fs::write(&file, &bytes).unwrap();
    let remote = ByteString::from("folder/file");
    service.sh(&sandbox, "mkdir folder; echo old > folder/file").await;
    service.double.cut_after(&task, 3_000_000);
    if service.provider.upload_file(&sandbox, &file, &remote).await.is_err() {
        assert_eq!(service.sh(&sandbox, "cat folder/file").await, "old\n");
        service.provider.upload_file(&sandbox, &file, &remote).await.expect("the next time");
    }
    assert_eq!(service.double.was_cut(&task), 1);
    assert_eq!(service.sh(&sandbox, "wc -c < folder/file; ls -A folder").await.trim(), "8000000\nfile");
    std::fs::write(&back, "old").unwrap();
    service.double.cut_after(&task, 3_000_000);
    if service.provider.download_file(&sandbox, &remote, &back).await.is_err() {
        assert_eq!(std::fs::read(&back).unwrap(), b"old");
        service.provider.download_file(&sandbox, &remote, &back).await.expect("the next time");
    }
    assert_eq!(service.double.was_cut(&task), 2);
    assert!(std::fs::read(&back).unwrap() == bytes, "byte by byte");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
    service.works_and_goes(&sandbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_cannot_be_reached_for_a_while_is_waited_for() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let task = service.task();
    let stream = service.provider.exec(&sandbox, ExecRequest::shell("sleep 1; echo through")).await.expect("it starts");
    service.double.refuse(&task, true);
    assert!(service.double.cut(&task) > 0);
    let collected = tokio::spawn(async move { stream.collect(CaptureLimits::default()).await });
    tokio::time::sleep(Duration::from_secs(2)).await;
    service.double.refuse(&task, false);
    let result = tokio::time::timeout(LATE, collected).await.expect("it ends").unwrap().expect("it is not lost");
    assert_eq!(result.stdout_text(), "through\n");
    service.works_and_goes(&sandbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_is_stopped_behind_our_back_is_told_as_stopped() {
    for (code, is_killed) in [("SpotInterruption", false), ("UserInitiated", false), ("", true)] {
        let service = Service::new().await;
        let sandbox = service.sandbox().await;
        let task = service.task();
        let stream = service.provider.exec(&sandbox, ExecRequest::shell("sleep 1000")).await.expect("it starts");
        if is_killed {
            assert!(service.double.kill_container(&task, "ssh").await);
        } else {
            service.double.stop_task(&task, code, "behind our back");
            assert_eq!(service.double.happened("task stopped"), 1);
        }
        let begin = Instant::now();
        let ended = tokio::time::timeout(LATE, stream.collect(CaptureLimits::default())).await.expect("it is told");
        assert!(ended.is_err(), "a command that was lost did not end well: {ended:?}");
        service.double.stopped(&task).await;
        let status = service.provider.status(&sandbox).await;
        assert!(matches!(status, Ok(SandboxStatus::Stopped)), "after {:?}: {status:?}", begin.elapsed());
        assert!(service.provider.exec(&sandbox, ExecRequest::shell("true")).await.is_err());
        service.provider.close(&sandbox).await.expect("it is closed all the same");
        service.ends_empty().await;
    }
}
