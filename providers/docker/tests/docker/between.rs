//! What somebody else does to a creation, between two of its requests to the engine.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use sandbox_core::{
    ErrorKind, SandboxProvider, from_json,
    serde_json::{Value, json},
};
use sandbox_provider_docker::DockerProvider;
use tokio::sync::Notify;

use crate::{
    engine,
    proxy::Proxy,
    registry::{Registry, push_new},
    support::{Docker, by_hand, docker, eventually, of_run, spec},
};

/// The request that makes a container, and the name in it.
fn container_of(line: &str) -> Option<&str> {
    let (_, query) = line.split_once("/containers/create?")?;
    query.split(['&', ' ']).find_map(|pair| pair.strip_prefix("name="))
}

/// A provider that meets the engine behind a proxy.
fn behind(place: &Docker, proxy: &Proxy, mut settings: Value) -> DockerProvider {
    let defaults = json!({
        "host": proxy.host(), "agent_path": engine::agent(), "run_dir": place.temp.path().join("run"),
        "use_docker_config": false,
    });
    settings.as_object_mut().unwrap().extend(defaults.as_object().unwrap().clone());
    DockerProvider::new(from_json(settings, "settings").unwrap()).unwrap()
}

async fn nothing_is_left(docker: &Docker, run_id: &str) {
    let is_clean = async || {
        let folders = std::fs::read_dir(docker.temp.path().join("run")).into_iter().flatten().count();
        docker.count(run_id).await == 0 && folders == 0
    };
    eventually("something is left of a creation", is_clean).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d4_a_creation_that_is_dropped_at_any_of_its_requests_leaves_nothing() {
    let docker = docker(json!({}));
    for (transport, at_least) in [("socket", 4), ("relay", 5)] {
        let run_id = format!("dropped-{transport}-{}", std::process::id());
        let (seen, wanted) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
        let reached = Arc::new(Notify::new());
        let path = docker.temp.path().join(format!("{transport}.sock"));
        let count = (seen.clone(), wanted.clone(), reached.clone());
        let proxy = Proxy::before(&path, move |_| {
            let (seen, wanted, reached) = &count;
            if seen.fetch_add(1, Ordering::SeqCst) + 1 == wanted.load(Ordering::SeqCst) {
                reached.notify_one();
            }
        });
        let provider = behind(&docker, &proxy, json!({ "transport": transport, "agent": "required" }));
        // What is asked once only.
        let handle = provider.create(of_run(&run_id)).await.unwrap();
        provider.close(&handle).await.unwrap();
        let mut number = 0;
        loop {
            number += 1;
            wanted.store(number, Ordering::SeqCst);
            seen.store(0, Ordering::SeqCst);
            let made = tokio::select! {
                biased;
                () = reached.notified() => None,
                made = provider.create(of_run(&run_id)) => Some(made.unwrap()),
            };
            // What was under way is finished and then taken back.
            if let Some(handle) = made {
                provider.close(&handle).await.unwrap();
                break;
            }
            nothing_is_left(&docker, &run_id).await;
        }
        assert!(number > at_least, "{transport}: a creation is more than {number} requests");
        nothing_is_left(&docker, &run_id).await;
        proxy.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c10_an_image_that_goes_between_pull_and_creation_is_pulled_again_or_told_of() {
    let registry = Registry::start(false);
    let docker = docker(json!({}));
    let image = registry.image("tests/vanishes:1");
    push_new(&image, 1024);
    let run_id = format!("vanished-{}", std::process::id());
    let of_image = || {
        let mut spec = of_run(&run_id);
        spec.image = Some(image.clone());
        spec
    };
    let (removals, removed) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicUsize::new(0)));
    let (left, done, name) = (removals.clone(), removed.clone(), image.clone());
    let proxy = Proxy::before(&docker.temp.path().join("d.sock"), move |line| {
        let is_left = |left: usize| left.checked_sub(1);
        let is_creation = container_of(line).is_some();
        if is_creation && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_left).is_ok() {
            by_hand(["rmi", "--force", &name]);
            done.fetch_add(1, Ordering::SeqCst);
        }
    });
    let provider = behind(&docker, &proxy, json!({}));
    let handle = provider.create(of_image()).await.unwrap();
    provider.close(&handle).await.unwrap();
    assert_eq!(removed.load(Ordering::SeqCst), 1, "nobody has removed it");

    // Whoever removes it every time is told of.
    removals.store(usize::MAX, Ordering::SeqCst);
    let error = provider.create(of_image()).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("image")), "{error:?}");
    assert!(error.help().unwrap().contains("removes it"), "{error:?}");
    assert_eq!(removed.load(Ordering::SeqCst), 3, "it is got again once");

    // And where nothing is pulled, once is enough.
    let never = behind(&docker, &proxy, json!({ "pull": "never" }));
    by_hand(["pull", "--quiet", &image]);
    let error = never.create(of_image()).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("image")), "{error:?}");
    assert_eq!(removed.load(Ordering::SeqCst), 4);
    nothing_is_left(&docker, &run_id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_somebody_else_takes_first_is_left_to_him_and_another_one_taken() {
    let docker = docker(json!({}));
    let run_id = format!("taken-{}", std::process::id());
    let label = format!("taken-by={run_id}");
    let (times, taken) = (Arc::new(AtomicUsize::new(1)), label.clone());
    let left = times.clone();
    let proxy = Proxy::before(&docker.temp.path().join("d.sock"), move |line| {
        let is_left = |left: usize| left.checked_sub(1);
        if let Some(name) = container_of(line)
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_left).is_ok()
        {
            by_hand(["create", "--name", name, "--label", &taken, engine::BUSYBOX]);
        }
    });
    let of_others = || {
        let all = by_hand(["ps", "--all", "--format", "{{.Names}}", "--filter", &format!("label={label}")]);
        all.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let provider = behind(&docker, &proxy, json!({}));
    let handle = provider.create(of_run(&run_id)).await.unwrap();
    assert_eq!(of_others().len(), 1, "nobody has taken the name");
    assert!(!of_others().contains(&handle.sandbox_id));
    provider.close(&handle).await.unwrap();
    times.store(usize::MAX, Ordering::SeqCst);
    let error = provider.create(spec()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error:?}");
    let names = of_others();
    assert_eq!(names.len(), 3, "what somebody else has made stays: {names:?}");
    for name in &names {
        by_hand(["rm", "--force", name]);
    }
    nothing_is_left(&docker, &run_id).await;
}
