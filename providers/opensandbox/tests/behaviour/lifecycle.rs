//! Files, pause and resume, finding sandboxes again.

use std::time::{Duration, Instant};

use opensandbox_double::{ControlOptions, Fault};
use sandbox_core::{ErrorKind, ListFilter, Owner, SandboxIdentity, SandboxProvider, SandboxSpec, SandboxStatus};
use serde_json::json;

use crate::support::{World, options, soon};

#[tokio::test]
async fn uploads_and_downloads_that_break_are_repeated_and_leave_nothing_half_made() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let folder = tempfile::tempdir().unwrap();
    let (local, back) = (folder.path().join("local"), folder.path().join("back"));
    let remote = format!("{}/inside/$odd name", folder.path().display());
    let contents = vec![7u8; 3_000_000];
    std::fs::write(&local, &contents).unwrap();
    std::fs::write(&back, "old").unwrap();
    let remote = remote.as_str().into();
    world.control.faults().plan("POST", "/files/upload", Fault::error(503, "X"), 1);
    soon(world.provider.upload_file(&handle, &local, &remote)).await.unwrap();
    let plain = format!("{}/plain", folder.path().display()).as_str().into();
    soon(world.provider.upload_file(&handle, &local, &plain)).await.unwrap();
    world.control.faults().plan("GET", "/files/download", Fault::Cut(1_000_000, true), 1);
    soon(world.provider.download_file(&handle, &plain, &back)).await.unwrap();
    assert!(std::fs::read(&back).unwrap() == contents);
    soon(world.provider.download_file(&handle, &remote, &back)).await.unwrap();
    assert!(std::fs::read(&back).unwrap() == contents);
    // One that breaks for good leaves the old file, and no other.
    std::fs::write(&back, "old").unwrap();
    world.control.faults().plan("GET", "/files/download", Fault::Cut(10, true), 100);
    let error = soon(world.provider.download_file(&handle, &plain, &back)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error:?}");
    assert_eq!(std::fs::read_to_string(&back).unwrap(), "old");
    let names = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 4, "local, back, plain, inside");
    world.control.end().await;
}

#[tokio::test]
async fn b02_a_size_that_is_not_that_of_the_file_is_an_error() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let folder = tempfile::tempdir().unwrap();
    let local = folder.path().join("local");
    std::fs::write(&local, "12345").unwrap();
    let remote = format!("{}/there", folder.path().display());
    let wrong = json!({ remote.as_str(): { "path": remote, "type": "file", "size": 3, "mode": 644 } }).to_string();
    let wrong = Fault::Answer { status: 200, headers: Vec::new(), body: wrong };
    // The first look is before the upload.
    world.execd(&handle).faults.plan("GET", "/files/info", wrong, 2);
    let error = soon(world.provider.upload_file(&handle, &local, &remote.as_str().into())).await.unwrap_err();
    assert!(error.to_string().contains("3 of 5 bytes"), "{error}");
    world.control.end().await;
}

#[tokio::test]
async fn a_resumed_sandbox_has_a_new_handle_and_the_old_one_is_refused() {
    let world = World::with(ControlOptions { new_daemon_on_resume: true, ..options() }, json!({})).await;
    let handle = world.sandbox().await;
    let pause = world.provider.as_pause_resume().unwrap();
    soon(pause.pause(&handle)).await.unwrap();
    let error = world.run(&handle, sandbox_core::ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    // Another process, which knows nothing of the pause.
    let other = crate::support::provider(&world.control.address(), json!({}));
    let descriptor = world.provider.as_connect().unwrap().serialize_handle(&handle, None).await.unwrap();
    let connected = soon(other.as_connect().unwrap().connect(descriptor)).await.unwrap();
    let error = soon(other.exec(&connected, sandbox_core::ExecRequest::shell("true"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState);
    let resumed = soon(pause.resume(&handle)).await.unwrap();
    assert_eq!(world.text(&resumed, "echo again").await, "again\n");
    let error = world.run(&handle, sandbox_core::ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error:?}");
    world.control.end().await;
}

#[tokio::test]
async fn a_pause_or_resume_of_a_dead_sandbox_ends_at_once_and_neither_takes_longer_than_is_set() {
    let settings = json!({ "operations": { "pause_resume_timeout_s": 0.5 } });
    let world = World::new(settings).await;
    let pause = world.provider.as_pause_resume().unwrap();
    let handle = world.sandbox().await;
    let accepted = || Fault::Answer { status: 202, headers: Vec::new(), body: String::new() };
    // It is taken on, and nothing comes of it.
    world.control.faults().plan("POST", "/pause", accepted(), 1);
    let started = Instant::now();
    let error = soon(pause.pause(&handle)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert_eq!(error.help(), Some("ask for its status"));
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // It goes on as it was.
    assert_eq!(world.text(&handle, "echo on").await, "on\n");
    soon(pause.pause(&handle)).await.unwrap();
    world.control.faults().plan("GET", "/proxy/44772/ping", Fault::error(502, "BACKEND_CONNECTION_FAILED"), 10_000);
    let error = soon(pause.resume(&handle)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert!(error.to_string().contains("does not answer"), "{error}");
    world.control.faults().clear();
    for (verb, state) in [("pause", "Failed"), ("pause", "Terminated"), ("resume", "Failed")] {
        let handle = world.sandbox().await;
        if verb == "resume" {
            soon(pause.pause(&handle)).await.unwrap();
        }
        world.control.faults().plan("POST", &format!("/{verb}"), accepted(), 1);
        world.control.set_state(&handle.sandbox_id, state, "PodFailed", "it broke");
        let error = match verb {
            "pause" => soon(pause.pause(&handle)).await.unwrap_err(),
            _ => soon(pause.resume(&handle)).await.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::NotFound, "{verb} {state}: {error:?}");
        assert!(error.to_string().contains("it broke"), "{error}");
    }
    world.control.end().await;
}

#[tokio::test]
async fn a_paused_sandbox_is_found_again_without_its_daemon_and_resumed() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    soon(world.provider.as_pause_resume().unwrap().pause(&handle)).await.unwrap();
    let before = world.calls("GET", "/ping");
    let other = crate::support::provider(&world.control.address(), json!({}));
    // The id alone will do: the server keeps the rest.
    let found = soon(other.as_connect().unwrap().connect(json!({ "sandbox_id": handle.sandbox_id }))).await.unwrap();
    assert_eq!(world.calls("GET", "/ping"), before, "the daemon is not asked");
    assert_eq!(soon(other.status(&found)).await.unwrap(), SandboxStatus::Paused);
    let resumed = soon(other.as_pause_resume().unwrap().resume(&found)).await.unwrap();
    let stream = soon(other.exec(&resumed, sandbox_core::ExecRequest::shell("echo on"))).await.unwrap();
    assert_eq!(soon(stream.collect(Default::default())).await.unwrap().stdout_text(), "on\n");
    for (descriptor, kind) in [
        (json!({ "sandbox_id": "none" }), ErrorKind::NotFound),
        (json!({ "sandbox_id": "" }), ErrorKind::InvalidInput),
        (json!({ "sandbox_id": handle.sandbox_id, "version": 99 }), ErrorKind::InvalidInput),
    ] {
        let error = soon(other.as_connect().unwrap().connect(descriptor.clone())).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{descriptor}");
    }
    world.control.end().await;
}

#[tokio::test]
async fn a_pause_whose_answer_is_lost_has_happened_once() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    world.control.faults().plan("POST", "/pause", Fault::DropAfter, 1);
    soon(world.provider.as_pause_resume().unwrap().pause(&handle)).await.unwrap();
    assert_eq!(world.calls("POST", "/pause"), 1);
    assert_eq!(soon(world.provider.status(&handle)).await.unwrap(), SandboxStatus::Paused);
    world.control.end().await;
}

#[tokio::test]
async fn lists_read_every_page_and_a_sweep_takes_the_stale_ones_only() {
    let world = World::new(json!({ "probe": { "command": null } })).await;
    let owned = |run: &str, expires_at_ms: u64| {
        let mut spec = SandboxSpec::default();
        spec.identity = Some(SandboxIdentity {
            run_id: run.to_owned(),
            owner: Owner::Lease,
            created_at_ms: 1,
            expires_at_ms: Some(expires_at_ms),
            attribution: Default::default(),
        });
        spec
    };
    for number in 0..103 {
        let expires = if number < 101 { 5 } else { u64::MAX };
        soon(world.provider.create(owned("a run/x", expires))).await.unwrap();
    }
    // Its label reads the same, its run is another one.
    soon(world.provider.create(owned("a run x", 5))).await.unwrap();
    let list = world.provider.as_list_sweep().unwrap();
    let filter = ListFilter { run_id: Some("a run/x".to_owned()), ..ListFilter::default() };
    assert_eq!(soon(list.list(filter.clone())).await.unwrap().len(), 103);
    let dry = soon(list.sweep(filter.clone(), true)).await.unwrap();
    assert_eq!((dry.removed.len(), world.control.ids().len()), (101, 104));
    let report = soon(list.sweep(filter, false)).await.unwrap();
    assert_eq!((report.removed.len(), report.failed.len(), world.control.ids().len()), (101, 0, 3));
    world.control.end().await;
}
