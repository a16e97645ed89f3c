//! How many connections and calls there are, and how long anything is waited for.

use std::time::{Duration, Instant};

use opensandbox_double::Fault;
use sandbox_core::{CaptureLimits, ErrorKind, ExecRequest, SandboxProvider, SandboxSpec, SandboxStatus};
use serde_json::json;

use crate::support::{World, provider, soon};

#[tokio::test]
async fn no_more_calls_are_under_way_than_is_set() {
    let world = World::new(json!({ "connection": { "max_connections": 3 } })).await;
    let handle = world.sandbox().await;
    let path = format!("/v1/sandboxes/{}", handle.sandbox_id);
    world.control.faults().plan("GET", &path, Fault::Delay(Duration::from_millis(150)), 12);
    let asked = (0..12).map(|_| {
        let (provider, handle) = (world.provider.clone(), handle.clone());
        tokio::spawn(async move { provider.status(&handle).await })
    });
    for one in asked.collect::<Vec<_>>() {
        assert_eq!(soon(one).await.unwrap().unwrap(), SandboxStatus::Running);
    }
    assert_eq!(world.control.most_at_once(), 3);
    world.control.end().await;
}

#[tokio::test]
async fn commands_start_in_turn_through_the_server_and_run_at_once() {
    const COUNT: usize = 32;
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    for _ in 0..3 {
        // Then it is known how near the server is.
        world.text(&handle, "true").await;
    }
    world.control.faults().plan("POST", "/command", Fault::Delay(Duration::from_millis(20)), COUNT);
    // Each ends when all of them run.
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display();
    let script = format!("echo >>{path}; until [ $(wc -l <{path}) = {COUNT} ]; do sleep 0.1; done");
    let started = (0..COUNT).map(|_| {
        let (provider, handle, script) = (world.provider.clone(), handle.clone(), script.clone());
        tokio::spawn(async move {
            provider.exec(&handle, ExecRequest::shell(script)).await?.collect(CaptureLimits::default()).await
        })
    });
    for one in started.collect::<Vec<_>>() {
        assert_eq!(soon(one).await.unwrap().unwrap().return_code(), 0);
    }
    let most = world.control.most_at_once();
    assert!(most < COUNT, "{most}");
    world.control.end().await;
}

#[tokio::test]
async fn connections_are_kept_as_long_as_is_set_or_not_at_all() {
    for (settings, expected) in [
        (json!({ "keepalive_expiry_s": 30.0 }), 0),
        (json!({ "disable_connection_pooling": true }), 6),
        (json!({ "keepalive_expiry_s": 0 }), 6),
        (json!({ "max_keepalive_connections": 0 }), 6),
    ] {
        let world = World::new(json!({ "connection": settings })).await;
        let handle = world.sandbox().await;
        let before = world.control.connections();
        for _ in 0..6 {
            soon(world.provider.status(&handle)).await.unwrap();
            // The answer is read before its connection is free.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(world.control.connections() - before, expected, "{settings}");
        world.control.end().await;
    }
}

#[tokio::test]
async fn a_connection_that_cannot_be_made_is_tried_again_as_often_as_is_set() {
    // Somebody listens a while later only.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let settings = |retries: u32| json!({ "connection": { "connect_retries": retries }, "create": { "retries": 0 } });
    let started = Instant::now();
    let error = soon(provider(&address.to_string(), settings(0)).create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    let at_once = started.elapsed();
    let error = soon(provider(&address.to_string(), settings(3)).create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    // Pauses of at least a quarter of 0.2, 0.4 and 0.8 s.
    assert!(started.elapsed() - at_once >= Duration::from_millis(350), "{:?}", started.elapsed());
}

#[tokio::test]
async fn an_answer_is_not_waited_for_longer_than_is_set() {
    let settings = json!({ "connection": { "request_timeout_s": 1.5 }, "operations": { "retries": 0 } });
    let world = World::new(settings).await;
    let handle = soon(world.provider.create(SandboxSpec::default().with_ttl_s(600.0))).await.unwrap();
    world.control.faults().plan("POST", "/renew-expiration", Fault::Delay(Duration::from_secs(30)), 1);
    let started = Instant::now();
    let error = soon(world.provider.as_renew().unwrap().renew(&handle, 100.0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    // A body that stops half-way is no answer either.
    world.control.faults().plan("POST", "/renew-expiration", Fault::Stall(3), 1);
    let error = soon(world.provider.as_renew().unwrap().renew(&handle, 100.0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    world.control.end().await;
}

#[tokio::test]
async fn a_close_is_not_waited_for_longer_than_is_set_and_can_be_repeated() {
    let world = World::new(json!({ "operations": { "close_timeout_s": 0.3 } })).await;
    let handle = world.sandbox().await;
    world.control.faults().plan("DELETE", "/v1/sandboxes/", Fault::Delay(Duration::from_secs(30)), 1);
    let started = Instant::now();
    let error = soon(world.provider.close(&handle)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(world.text(&handle, "echo still").await, "still\n");
    soon(world.provider.close(&handle)).await.unwrap();
    world.control.end().await;
}
