//! What works across the boundary, whatever the host is like.

use std::{
    path::Path,
    pin::pin,
    process::Command,
    sync::Arc,
    task::{Context, Poll, Wake},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use sandbox_abi_tests::{
    build::Fixture,
    child::{self, Ending},
    hosting::{create, entry, host, provider, run},
    measure::images_of,
    wait::PATIENCE,
    world::World,
};
use sandbox_core::{Capability, ErrorKind, ExecRequest, SandboxProvider};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};

fn acme() -> Arc<dyn SandboxProvider> {
    provider(&Fixture::Good.path(), "acme", &Value::Null).unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

async fn uses_everything_inside(provider: &dyn SandboxProvider) {
    let handle = create(provider).await.unwrap();
    for (request, expected) in [
        (ExecRequest::argv(["@timer", "5"]), "later"),
        (ExecRequest::argv(["@tcp"]), "hello"),
        (ExecRequest::shell("echo child"), "child\n"),
    ] {
        let result = run(provider, &handle, request).await.unwrap();
        assert_eq!((result.stdout_text().as_ref(), result.return_code()), (expected, 0));
    }
    provider.close(&handle).await.unwrap();
}

#[test]
fn timers_sockets_and_children_work_inside_a_plugin_on_every_kind_of_host() {
    let provider = acme();
    for runtime in [current_thread(), multi_thread(1), multi_thread(2)] {
        runtime.block_on(uses_everything_inside(&*provider));
    }
    // A host that drives no timers and no sockets itself.
    Builder::new_current_thread().build().unwrap().block_on(uses_everything_inside(&*provider));
}

/// An executor that knows nothing of tokio.
fn drive<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Arc::new(Unpark(thread::current())).into();
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_host_without_any_tokio_runtime_uses_a_plugin_like_every_other_one() {
    drive(uses_everything_inside(&*acme()));
}

#[test]
fn a_plugin_works_after_the_host_runtime_that_used_it_first_is_gone() {
    let provider = acme();
    let first = multi_thread(1);
    let (handle, stream) = first.block_on(async {
        let handle = create(&*provider).await.unwrap();
        let stream = provider.exec(&handle, ExecRequest::shell("sleep 0.2; echo still here")).await.unwrap();
        (handle, stream)
    });
    first.shutdown_background();
    current_thread().block_on(async {
        let result = stream.collect(Default::default()).await.unwrap();
        assert_eq!(result.stdout_text(), "still here\n");
        uses_everything_inside(&*provider).await;
        provider.close(&handle).await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn children_of_two_plugins_and_of_the_host_all_give_their_own_exit_code() {
    const EACH: i32 = 20;
    let first = acme();
    let second = provider(&Fixture::Second.path(), "second", &Value::Null).unwrap();
    let mut tasks = Vec::new();
    for code in 1..=EACH {
        for provider in [first.clone(), second.clone()] {
            tasks.push(tokio::spawn(async move {
                let handle = create(&*provider).await.unwrap();
                let script = format!("sleep 0.0{}; exit {code}", code % 7);
                let result = run(&*provider, &handle, ExecRequest::shell(script)).await.unwrap();
                provider.close(&handle).await.unwrap();
                (code, result.return_code())
            }));
        }
        tasks.push(tokio::spawn(async move {
            let status = tokio::process::Command::new("sh").arg("-c").arg(format!("exit {code}")).status().await;
            (code, status.unwrap().code().unwrap())
        }));
    }
    assert_eq!(tasks.len(), 60);
    for task in tasks {
        let (expected, found) = task.await.unwrap();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_provider_that_burns_cpu_does_not_stall_the_timers_of_its_host() {
    let plugin = Fixture::Misbehaving.path();
    let burning = provider(&plugin, "misbehaving", &json!({"fault": "burn"})).unwrap();
    // A busy machine may be late by itself, once; a host whose worker is burned is late by 300 ms every time.
    let worst = (0..3).map(|_| worst_tick_beside_a_burn(&burning)).min().unwrap();
    assert!(worst < Duration::from_millis(100), "a tick of 5 ms came {worst:?} late");
}

fn worst_tick_beside_a_burn(burning: &Arc<dyn SandboxProvider>) -> Duration {
    const TICK: Duration = Duration::from_millis(5);
    let burning = burning.clone();
    let (worst, burned) = multi_thread(1).block_on(async {
        let handle = create(&*burning).await.unwrap();
        let burn = tokio::spawn(async move {
            let start = Instant::now();
            run(&*burning, &handle, ExecRequest::shell("x")).await.unwrap();
            start.elapsed()
        });
        let ticks = tokio::spawn(async move {
            let mut worst = Duration::ZERO;
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(400) {
                let tick = Instant::now();
                tokio::time::sleep(TICK).await;
                worst = worst.max(tick.elapsed() - TICK);
            }
            worst
        });
        (ticks.await.unwrap(), burn.await.unwrap())
    });
    assert!(burned >= Duration::from_millis(300), "the fault happened: {burned:?}");
    worst
}

#[test]
fn one_file_is_one_image_whatever_it_is_called_and_a_copy_is_another() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libfirst.so");
    std::fs::copy(Fixture::Second.path(), &file).unwrap();
    let (link, hard) = (folder.path().join("liblink.so"), folder.path().join("libhard.so"));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    std::fs::hard_link(&file, &hard).unwrap();
    for path in [&file, &file, &link, &hard] {
        entry(path).unwrap();
        assert_eq!(images_of(&file), 1, "{}", path.display());
    }
    let copy = folder.path().join("libcopy.so");
    std::fs::copy(&file, &copy).unwrap();
    entry(&copy).unwrap();
    assert_eq!((images_of(&file), images_of(&copy)), (1, 1));
    current_thread().block_on(async {
        for path in [&file, &copy] {
            let provider = entry(path).unwrap().new_provider(&json!({"color": "blue"})).unwrap();
            let handle = create(&*provider).await.unwrap();
            assert_eq!(run(&*provider, &handle, ExecRequest::shell("exit 4")).await.unwrap().return_code(), 4);
        }
    });
}

#[test]
fn a_file_that_is_not_there_is_not_answered_with_a_plugin_that_is_loaded() {
    entry(&Fixture::Good.path()).unwrap();
    let error = entry(Path::new("/nonexistent.so")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let second = entry(&Fixture::Second.path()).unwrap().new_provider(&Value::Null).unwrap();
    assert_eq!(second.name(), "second", "nor is another file");
}

#[test]
fn a_plugin_that_is_replaced_by_a_rename_goes_on_and_the_new_file_is_a_new_image() {
    let folder = tempfile::tempdir().unwrap();
    let (file, new) = (folder.path().join("libplugin.so"), folder.path().join("new"));
    std::fs::copy(Fixture::Second.path(), &file).unwrap();
    let old = entry(&file).unwrap().new_provider(&Value::Null).unwrap();
    std::fs::copy(Fixture::Good.path(), &new).unwrap();
    std::fs::rename(&new, &file).unwrap();
    let replaced = entry(&file).unwrap().new_provider(&Value::Null).unwrap();
    assert_eq!((old.name(), replaced.name()), ("second", "acme"));
    current_thread().block_on(async {
        let handle = create(&*old).await.unwrap();
        assert_eq!(run(&*old, &handle, ExecRequest::shell("exit 5")).await.unwrap().return_code(), 5);
        uses_everything_inside(&*replaced).await;
    });
}

#[test]
fn two_linked_providers_and_a_loaded_one_live_in_one_program_and_linked_and_loaded_answer_the_same() {
    let plugin = Fixture::Good.path();
    let ended = child::run(Command::new(World::Linked.program()).arg(plugin), PATIENCE);
    assert_eq!(ended.ending, Ending::Code(0), "{ended:?}");
    assert!(ended.stdout.starts_with("same: "), "{ended:?}");
}

#[test]
fn a_host_that_ends_while_its_plugin_works_ends_as_it_wanted() {
    let plugin = Fixture::Misbehaving.path();
    for _ in 0..50 {
        let ended = child::run(Command::new(env!("CARGO_BIN_EXE_probe")).arg("leave").arg(&plugin), PATIENCE);
        assert_eq!(ended.ending, Ending::Code(0), "{ended:?}");
    }
}

#[tokio::test]
async fn a_hundred_hosts_in_one_process_share_one_image() {
    let plugin = Fixture::Good.path();
    let hosts: Vec<_> = (0..100).map(|_| host(&[&plugin])).collect();
    let mut providers = Vec::new();
    for (number, host) in hosts.iter().enumerate() {
        providers.push(host.create("acme", &json!({"greeting": number.to_string()})).unwrap());
    }
    drop(hosts);
    for (number, provider) in providers.iter().enumerate() {
        let handle = create(&**provider).await.unwrap();
        let result = run(&**provider, &handle, ExecRequest::argv(["@greet"])).await.unwrap();
        assert_eq!(result.stdout_text(), number.to_string());
        provider.close(&handle).await.unwrap();
    }
    assert_eq!(images_of(&plugin), 1);
}

#[test]
fn names_of_capabilities_that_the_host_does_not_know_are_kept_and_what_is_not_declared_is_absent() {
    let inspected = plugin_host::inspect(Path::new(&Fixture::Good.path()), &plugin_host::Checksum::Compute);
    let manifest = inspected.outcome.unwrap().manifest;
    assert_eq!(manifest.capabilities.names().collect::<Vec<_>>(), ["acme.x/1", "sandbox.files/1"]);
    let provider = acme();
    assert_eq!(provider.capabilities().known().collect::<Vec<_>>(), [Capability::Files]);
    assert!(provider.as_files().is_some() && provider.as_pty().is_none() && provider.as_renew().is_none());
}
