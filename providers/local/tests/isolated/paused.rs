//! Pausing by one client, and what it is for the others.

use std::time::{Duration, Instant};

use sandbox_core::{
    Connect, ErrorKind, ExecRequest, Field, FieldSupport, ListFilter, ListSweep, Metrics, PauseResume, Renew,
    SandboxProvider, SandboxStatus, serde_json::json,
};
use sandbox_provider_local::LocalProvider;

use crate::{
    outlive::{another_program, leased},
    support::{cgroups, eventually, isolated, provider, remains, run},
};

/// Whether sandboxes can be paused here: a freezer is there that this user can write.
fn can_pause(provider: &LocalProvider) -> bool {
    let can = provider.as_pause_resume().is_some();
    if !can {
        // Then the limits are refused too, and for a reason.
        assert!(matches!(provider.info().support(Field::Pids), FieldSupport::Refused(why) if !why.is_empty()));
    }
    can
}

#[tokio::test(flavor = "multi_thread")]
async fn any_client_pauses_and_resumes_and_all_of_them_know() {
    let temp = tempfile::tempdir().unwrap();
    let maker = provider(temp.path(), json!({}));
    if !can_pause(&maker) {
        return;
    }
    let handle = maker.create(leased("paused", 600.0)).await.unwrap();
    let descriptor = maker.serialize_handle(&handle, None).await.unwrap();
    another_program(temp.path(), &maker, &handle, "pause").await;
    assert_eq!(maker.status(&handle).await.unwrap(), SandboxStatus::Paused);
    let error = maker.exec(&handle, ExecRequest::shell("true")).await.expect_err("is paused");
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    // One that comes now cannot ask the agent.
    drop(maker);
    let late = provider(temp.path(), json!({}));
    let handle = late.connect(descriptor).await.unwrap();
    assert_eq!(late.status(&handle).await.unwrap(), SandboxStatus::Paused);
    let error = late.exec(&handle, ExecRequest::shell("true")).await.expect_err("is paused");
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    assert_eq!(late.pause(&handle).await.unwrap_err().kind(), ErrorKind::InvalidState);
    late.renew(&handle, 1200.0).await.unwrap();
    late.resume(&handle).await.unwrap();
    assert_eq!(run(&late, &handle, ExecRequest::shell("echo on")).await.stdout_text(), "on\n");
    late.close(&handle).await.unwrap();
    assert_eq!(remains(temp.path()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_stops_whatever_runs_even_what_forks_all_the_time_and_goes_on_with_it() {
    let local = isolated(json!({}));
    if !can_pause(&local.provider) {
        return;
    }
    let handle = local.create().await;
    // One that is nobody's child any more, and one that is always another process.
    let orphan = "setsid sh -c '(while :; do echo >> orphan; sleep 0.01; done) &' >/dev/null 2>&1";
    let forks = "step() { echo >> forks; (step) & }; (step) >/dev/null 2>&1 & echo";
    local.text(&handle, orphan).await;
    local.run(&handle, ExecRequest::shell(forks)).await;
    let sizes =
        || ["orphan", "forks"].map(|name| std::fs::metadata(local.work(&handle).join(name)).map_or(0, |at| at.len()));
    for _ in 0..2 {
        let before = sizes();
        eventually("they run", || sizes().iter().zip(before).all(|(now, before)| *now > before)).await;
        local.provider.pause(&handle).await.unwrap();
        let stopped = sizes();
        until(Instant::now() + Duration::from_millis(300)).await;
        assert_eq!(sizes(), stopped);
        assert_eq!(local.provider.status(&handle).await.unwrap(), SandboxStatus::Paused);
        local.provider.resume(&handle).await.unwrap();
    }
    let used = local.provider.metrics(&handle).await.unwrap();
    assert!(used.cpu_time_s > Some(0.0) && used.memory_bytes > Some(0), "{used:?}");
    local.provider.close(&handle).await.unwrap();
    assert!(cgroups(&handle.sandbox_id).is_empty() && local.remains().is_empty());
}

/// Waits for a moment that the clock alone brings.
async fn until(moment: Instant) {
    while Instant::now() < moment {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn time_does_not_end_a_paused_sandbox_but_its_resumption_and_a_sweep_do() {
    let temp = tempfile::tempdir().unwrap();
    let maker = provider(temp.path(), json!({}));
    if !can_pause(&maker) {
        return;
    }
    let mut handles = Vec::new();
    for _ in 0..3 {
        let handle = maker.create(leased("late", 1.5)).await.unwrap();
        maker.pause(&handle).await.unwrap();
        handles.push(handle);
    }
    let due = Instant::now() + Duration::from_millis(2_000);
    // Moved while its agent could not hear of it.
    maker.renew(&handles[2], 600.0).await.unwrap();
    until(due).await;
    for handle in &handles {
        assert_eq!(maker.status(handle).await.unwrap(), SandboxStatus::Paused);
    }
    let error = maker.resume(&handles[0]).await.unwrap_err();
    assert!(error.kind() == ErrorKind::NotFound && error.message().contains("expired"), "{error}");
    assert_eq!(maker.status(&handles[0]).await.unwrap(), SandboxStatus::Stopped);
    let sweeper = provider(temp.path(), json!({}));
    let report = sweeper.sweep(ListFilter::default(), false).await.unwrap();
    assert_eq!((report.removed, report.failed), (vec![handles[1].sandbox_id.clone()], vec![]));
    maker.resume(&handles[2]).await.unwrap();
    until(due + Duration::from_millis(2_500)).await;
    assert_eq!(run(&maker, &handles[2], ExecRequest::shell("echo on")).await.stdout_text(), "on\n");
    maker.close(&handles[2]).await.unwrap();
    assert_eq!(remains(temp.path()), Vec::<String>::new());
}
