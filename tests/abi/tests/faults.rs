//! Whatever a provider does wrong is an error of that call, and nothing else.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_abi_tests::{
    build::Fixture,
    hosting::{create, host, provider, run},
    wait::{PATIENCE, count, eventually},
};
use sandbox_core::{
    ErrorKind, ExecEvent, ExecRequest, ReadRange, Result, SandboxError, SandboxHandle, SandboxProvider, WriteOptions,
};
use serde_json::json;
use tempfile::TempDir;

/// A provider with a fault, and the journal that it writes.
struct Faulty {
    provider: Arc<dyn SandboxProvider>,
    folder: TempDir,
}

impl Faulty {
    fn try_new(fault: &str) -> Result<Self> {
        let folder = tempfile::tempdir().unwrap();
        let settings = json!({"fault": fault, "journal": folder.path().join("journal")});
        let provider = provider(&Fixture::Misbehaving.path(), "misbehaving", &settings)?;
        Ok(Self { provider, folder })
    }

    fn new(fault: &str) -> Self {
        Self::try_new(fault).unwrap()
    }

    fn count(&self, word: &str) -> usize {
        count(&self.journal(), word)
    }

    fn journal(&self) -> std::path::PathBuf {
        self.folder.path().join("journal")
    }

    async fn saw(&self, word: &str, limit: Duration) -> bool {
        eventually(limit, || self.count(word) > 0).await
    }

    async fn exec(&self) -> Result<sandbox_core::ExecStream> {
        let handle = SandboxHandle::new("0", "misbehaving");
        self.provider.exec(&handle, ExecRequest::shell("x")).await
    }
}

/// The host lives, the same plugin works, and so does another one.
async fn everything_else_works() {
    let sound = Faulty::new("none");
    let handle = create(&*sound.provider).await.unwrap();
    assert_eq!(run(&*sound.provider, &handle, ExecRequest::shell("x")).await.unwrap().stdout_text(), "onetwothree");
    let other = provider(&Fixture::Second.path(), "second", &json!({})).unwrap();
    let handle = create(&*other).await.unwrap();
    assert_eq!(run(&*other, &handle, ExecRequest::shell("exit 7")).await.unwrap().return_code(), 7);
}

fn assert_panicked(error: &SandboxError, text: &str) {
    assert_eq!(error.kind(), ErrorKind::Internal, "{error:?}");
    assert!(error.to_string().contains("panicked") && error.to_string().contains(text), "{error}");
    assert_eq!(error.provider(), Some("misbehaving"), "{error}");
}

#[tokio::test]
async fn a_panic_in_the_constructor_or_in_info_is_an_error_of_making_the_provider() {
    for (fault, text) in [("panic_in_constructor", "PanicInConstructor"), ("panic_in_info", "PanicInInfo")] {
        let error = Faulty::try_new(fault).err().expect("it panics");
        assert_panicked(&error, text);
    }
    everything_else_works().await;
}

#[tokio::test]
async fn a_synchronous_call_that_blocks_holds_its_caller_and_is_no_runtime_in_a_runtime() {
    let start = Instant::now();
    // This is a task of the host's runtime: were the plugin's the same tokio, blocking in it would panic.
    let faulty = Faulty::new("block_in_sync_calls");
    assert!(start.elapsed() >= Duration::from_millis(200), "{:?}", start.elapsed());
    assert_eq!((faulty.count("blocked-in-constructor"), faulty.count("blocked-in-info")), (1, 1));
    create(&*faulty.provider).await.unwrap();
    everything_else_works().await;
}

#[tokio::test]
async fn a_panic_in_a_call_is_an_error_with_its_text_and_the_name_of_the_provider() {
    for (fault, text) in [
        ("panic_in_create", "as asked: PanicInCreate"),
        ("panic_without_text", "no message"),
        ("panic_that_panics_again", "no message"),
    ] {
        let faulty = Faulty::new(fault);
        assert_panicked(&create(&*faulty.provider).await.unwrap_err(), text);
    }
    let faulty = Faulty::new("panic_in_exec");
    assert_panicked(&faulty.exec().await.unwrap_err(), "as asked: PanicInExec");
    everything_else_works().await;
}

#[tokio::test]
async fn a_panic_in_the_task_behind_a_stream_ends_the_stream_with_an_error() {
    let faulty = Faulty::new("panic_in_task");
    let error = faulty.exec().await.unwrap().next().await.unwrap_err();
    assert_panicked(&error, "as asked: PanicInTask");
    everything_else_works().await;
}

#[tokio::test]
async fn a_panic_in_control_is_an_error_of_that_request_and_the_stream_goes_on() {
    let faulty = Faulty::new("panic_in_control");
    let mut stream = faulty.exec().await.unwrap();
    for error in [stream.kill().await.unwrap_err(), stream.write("x").await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Internal, "{error:?}");
        assert!(error.to_string().contains("as asked: PanicInControl"), "{error}");
    }
    for _ in 0..100 {
        assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
    }
    drop(stream);
    everything_else_works().await;
}

#[tokio::test]
async fn a_panic_while_something_is_dropped_hurts_nobody() {
    let faulty = Faulty::new("panic_in_session_drop");
    drop(faulty.exec().await.unwrap());
    assert!(faulty.saw("session-dropped", PATIENCE).await, "the fault happened");

    let faulty = Faulty::new("panic_in_provider_drop");
    let journal = faulty.journal();
    drop(faulty.provider);
    assert!(eventually(PATIENCE, || count(&journal, "provider-dropped") == 1).await, "the fault happened");

    let faulty = Faulty::new("panic_when_cancelled");
    let waited = tokio::time::timeout(Duration::from_millis(100), faulty.exec()).await;
    assert!(waited.is_err(), "it hangs");
    assert!(faulty.saw("cancelled", PATIENCE).await, "the fault happened");
    everything_else_works().await;
}

#[tokio::test]
async fn a_panic_in_a_thread_of_the_plugin_is_that_threads_own() {
    let faulty = Faulty::new("panic_in_thread");
    let result = faulty.exec().await.unwrap().collect(Default::default()).await.unwrap();
    assert_eq!((result.stdout_text().as_ref(), faulty.count("thread-panicked")), ("onetwothree", 1));
    everything_else_works().await;
}

#[test]
fn a_drop_that_needs_the_runtime_finds_it_on_every_thread_of_the_host() {
    let faulty = Faulty::new("spawn_in_drop");
    let journal = faulty.journal();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(faulty.exec()).unwrap();
    // This thread and the new one are in no runtime at all.
    std::thread::spawn(move || drop(stream)).join().unwrap();
    drop(faulty.provider);
    // The task of the stream, the guard of the session, the provider.
    let all = runtime.block_on(eventually(PATIENCE, || count(&journal, "spawned-in-drop") == 3));
    assert!(all, "{:?}", std::fs::read_to_string(&journal));
}

#[tokio::test]
async fn dropping_a_call_that_hangs_runs_its_destructors_within_a_second() {
    const LIMIT: Duration = Duration::from_secs(1);
    let faulty = Faulty::new("hang_in_exec");
    let call = faulty.exec();
    tokio::select! {
        _ = call => panic!("it hangs"),
        started = faulty.saw("exec-hangs", PATIENCE) => assert!(started),
    }
    assert!(faulty.saw("cancelled", LIMIT).await);

    let faulty = Faulty::new("hang_in_close");
    let handle = create(&*faulty.provider).await.unwrap();
    tokio::select! {
        _ = faulty.provider.close(&handle) => panic!("it hangs"),
        started = faulty.saw("close-hangs", PATIENCE) => assert!(started),
    }
    assert!(faulty.saw("cancelled", LIMIT).await);
}

#[tokio::test]
async fn a_call_that_is_never_polled_never_starts() {
    let faulty = Faulty::new("hang_in_exec");
    drop(faulty.exec());
    let faulty_create = Faulty::new("none");
    drop(create(&*faulty_create.provider));
    // Calls made afterwards have come back: the plugin has had every chance to start the others.
    create(&*faulty.provider).await.unwrap();
    assert_eq!((faulty.count("exec-hangs"), faulty_create.count("created")), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sandbox_of_an_abandoned_create_is_closed_by_the_plugin() {
    const CALLS: u64 = 24;
    let faulty = Arc::new(Faulty::new("slow_create"));
    let tasks: Vec<_> = (0..CALLS)
        .map(|number| {
            let faulty = faulty.clone();
            tokio::spawn(async move {
                // From at once to about the moment at which the answer comes, which is after a second.
                let patience = Duration::from_millis(if number < 8 { number * 100 } else { 980 + number * 3 });
                match tokio::time::timeout(patience, create(&*faulty.provider)).await {
                    Ok(handle) => faulty.provider.close(&handle.unwrap()).await.map(|()| true),
                    Err(_) => Ok(false),
                }
            })
        })
        .collect();
    let mut answered = 0;
    for task in tasks {
        answered += usize::from(task.await.unwrap().unwrap());
    }
    assert!(answered < CALLS as usize, "some were abandoned");
    let settled = eventually(PATIENCE, || {
        let made = faulty.count("created");
        // The one with no patience may have been dropped before its first poll.
        made == faulty.count("create-started") && made >= CALLS as usize - 1 && made == faulty.count("closed")
    });
    assert!(settled.await, "{:?}", std::fs::read_to_string(faulty.journal()));
}

#[tokio::test]
async fn a_create_that_hangs_is_left_alone_when_its_caller_goes_and_holds_nobody() {
    let faulty = Faulty::new("hang_in_create");
    tokio::select! {
        _ = create(&*faulty.provider) => panic!("it hangs"),
        started = faulty.saw("create-hangs", PATIENCE) => assert!(started),
    }
    everything_else_works().await;
    // By the contract it runs to its end: half a sandbox is worse than a late one.
    assert_eq!(faulty.count("cancelled"), 0);
}

#[tokio::test]
async fn an_abandoned_create_that_fails_closes_nothing() {
    let faulty = Faulty::new("fail_create");
    let waited = tokio::time::timeout(Duration::from_millis(50), create(&*faulty.provider)).await;
    assert!(waited.is_err());
    assert!(faulty.saw("create-failed", PATIENCE).await);
    create(&*faulty.provider).await.unwrap_err();
    assert_eq!((faulty.count("create-failed"), faulty.count("closed")), (2, 0));
}

#[tokio::test]
async fn a_stream_that_ends_without_an_exit_is_lost_and_one_that_fails_gives_its_events_first() {
    for (fault, kind) in [("no_exit", ErrorKind::Lost), ("error_after_events", ErrorKind::Exhausted)] {
        let mut stream = Faulty::new(fault).exec().await.unwrap();
        let mut seen = Vec::new();
        let error = loop {
            match stream.next().await {
                Ok(Some(ExecEvent::Stdout(bytes))) => seen.push(bytes),
                Ok(other) => panic!("{other:?}"),
                Err(error) => break error,
            }
        };
        assert_eq!(seen, ["one", "two", "three"]);
        assert_eq!(error.kind(), kind, "{error:?}");
        if fault == "error_after_events" {
            assert_eq!(error.help(), Some("wait"));
        }
    }
}

#[tokio::test]
async fn a_declared_capability_that_is_not_there_is_absent_and_one_that_refuses_is_unsupported() {
    let faulty = Faulty::new("none");
    assert!(faulty.provider.as_metrics().is_none(), "the manifest says what there may be, not what there is");
    let renew = faulty.provider.as_renew().expect("it says so");
    let error = renew.renew(&SandboxHandle::new("0", "misbehaving"), 1.0).await.unwrap_err();
    assert_eq!((error.kind(), error.capability()), (ErrorKind::Unsupported, Some("sandbox.renew/1")));
    assert_eq!(error.provider(), Some("misbehaving"));
}

#[test]
fn a_provider_that_calls_itself_other_than_its_manifest_does_is_refused_with_both_names() {
    let plugin = Fixture::Misbehaving.path();
    let error = host(&[Path::new(&plugin)]).create("misbehaving", &json!({"fault": "other_name"})).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Plugin);
    let text = error.to_string();
    assert!(text.contains("\"misbehaving\"") && text.contains("\"somebody-else\""), "{text}");
}

#[tokio::test]
async fn bodies_of_64_mib_cross_in_both_directions() {
    const BYTES: usize = 64 * 1024 * 1024;
    let faulty = Faulty::new("none");
    let handle = create(&*faulty.provider).await.unwrap();
    let files = faulty.provider.as_files().unwrap();
    let range = ReadRange { offset: 0, length: Some(BYTES as u64) };
    let body = files.read_file(&handle, "f".into(), range).await.unwrap();
    assert!(body.len() == BYTES && body.iter().step_by(4096).all(|byte| *byte == 0x5a));
    files.write_file(&handle, "f".into(), body, WriteOptions::default()).await.unwrap();
    assert_eq!(faulty.count(&format!("wrote-{BYTES}")), 1);
}
