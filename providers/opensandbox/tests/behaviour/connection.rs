//! Keys, connections, pauses that a server asks for.

use std::time::{Duration, Instant};

use opensandbox_double::Fault;
use sandbox_core::{ByteString, ErrorKind, ExecRequest, SandboxProvider, SandboxSpec, SandboxStatus};
use serde_json::json;

use crate::support::{KEY, World, provider, soon};

#[tokio::test]
async fn the_key_goes_to_the_server_and_never_to_a_sandbox() {
    for through_server in [true, false] {
        let world = World::new(json!({ "connection": { "use_server_proxy": through_server } })).await;
        let spec = SandboxSpec::default().with_ports([8000]);
        let handle = soon(world.provider.create(spec)).await.unwrap();
        assert_eq!(world.text(&handle, "env").await.matches(KEY).count(), 0);
        let endpoint = world.provider.as_endpoint().unwrap().endpoint(&handle, 8000).await.unwrap();
        let has_key = endpoint.headers.values().any(|value| value.contains(KEY));
        assert_eq!(has_key, through_server, "headers of an endpoint");
        assert!(endpoint.endpoint.starts_with("http://127.0.0.1:"), "{}", endpoint.endpoint);
        let proxied = world.control.seen().into_iter().filter(|seen| seen.path.contains("/proxy/44772/"));
        let keys: Vec<bool> = proxied.map(|seen| seen.headers.contains_key("open-sandbox-api-key")).collect();
        // Direct calls do not come by here at all.
        assert!(keys.iter().all(|has_key| *has_key) && keys.is_empty() != through_server);
        world.control.end().await;
    }
}

#[tokio::test]
async fn a_wrong_key_is_told_and_is_in_no_error() {
    let world = World::new(json!({ "connection": { "api_key": "another-key" } })).await;
    let error = soon(world.provider.create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(error.help().unwrap().contains("connection.api_key"));
    assert!(!format!("{error:?} {:?}", world.provider).contains("another-key"));
    world.control.end().await;
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_and_a_status_unknown() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let provider = provider(&address, json!({ "create": { "retries": 0 }, "operations": { "retries": 1 } }));
    let error = soon(provider.create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.help().unwrap().contains("connection.domain"));
    let handle = sandbox_core::SandboxHandle::new("x", "opensandbox");
    assert_eq!(soon(provider.status(&handle)).await.unwrap(), SandboxStatus::Unknown);
}

#[tokio::test]
async fn f01_connections_that_a_server_closes_without_a_word_lose_no_command() {
    let world = World::new(json!({ "connection": { "keepalive_expiry_s": 0.2 } })).await;
    let handle = world.sandbox().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("n");
    for _ in 0..10 {
        world.run(&handle, ExecRequest::shell(format!("echo x >>{}", file.display()))).await.unwrap();
        // Longer than connections are kept: the next call makes one of its own.
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(std::fs::read_to_string(file).unwrap().lines().count(), 10);
    world.control.end().await;
}

#[tokio::test]
async fn f02_a_pause_that_the_server_asks_for_holds_for_every_call() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    world.control.faults().plan(
        "GET",
        &format!("/sandboxes/{}", handle.sandbox_id),
        Fault::error(429, "X").with_header("retry-after", "1"),
        1,
    );
    let started = Instant::now();
    assert_eq!(soon(world.provider.status(&handle)).await.unwrap(), SandboxStatus::Running);
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    // Longer than anybody waits: a command is refused with the time.
    let long = Fault::error(429, "X").with_header("retry-after", "86400");
    world.control.faults().plan("POST", "/command", long, 1);
    let error = world.run(&handle, ExecRequest::shell("true")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error:?}");
    assert!(error.retry_after().unwrap() > Duration::from_secs(3600));
    world.control.end().await;
}

#[tokio::test]
async fn f03_a_failure_that_passes_is_not_seen_by_calls_that_may_be_repeated() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    let path = format!("/v1/sandboxes/{}", handle.sandbox_id);
    for fault in [Fault::html(502), Fault::error(503, "X"), Fault::Drop, Fault::error(504, "BACKEND_TIMEOUT")] {
        world.control.faults().plan("GET", &path, fault.clone(), 2);
        assert_eq!(soon(world.provider.status(&handle)).await.unwrap(), SandboxStatus::Running, "{fault:?}");
    }
    world.control.faults().plan("DELETE", &path, Fault::DropAfter, 1);
    soon(world.provider.close(&handle)).await.unwrap();
    soon(world.provider.close(&handle)).await.unwrap();
    assert!(world.control.ids().is_empty());
    world.control.end().await;
}

#[tokio::test]
async fn a_delete_that_fails_is_told_and_can_be_repeated() {
    let world = World::new(json!({})).await;
    let handle = world.sandbox().await;
    world.control.faults().plan("DELETE", "/v1/sandboxes/", Fault::error(500, "GENERAL::UNKNOWN_ERROR"), 1);
    let error = soon(world.provider.close(&handle)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert_eq!(world.text(&handle, "echo still").await, "still\n");
    soon(world.provider.close(&handle)).await.unwrap();
    world.control.end().await;
}

#[tokio::test]
async fn b03_what_fails_with_files_is_told_alike_through_the_server_and_directly() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, local) = (folder.path().join("inside"), folder.path().join("local"));
    std::fs::create_dir(&inside).unwrap();
    for name in ["file", "local"] {
        std::fs::write(inside.join(name), name).unwrap();
    }
    std::fs::write(&local, "local").unwrap();
    let mut told = Vec::new();
    for through_server in [true, false] {
        let world = World::new(json!({ "connection": { "use_server_proxy": through_server } })).await;
        let handle = world.sandbox().await;
        let path = |name: &str| ByteString::from(inside.join(name).as_path());
        let mut errors = Vec::new();
        for (name, kind) in [("missing name%20&?", ErrorKind::NotFound), (".", ErrorKind::InvalidInput)] {
            let error = soon(world.provider.download_file(&handle, &path(name), &local)).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{through_server}: {error:?}");
            errors.push((error.kind(), error.field().map(str::to_owned), error.to_string()));
        }
        let error = soon(world.provider.upload_file(&handle, &local, &path("file/below"))).await.unwrap_err();
        errors.push((error.kind(), error.field().map(str::to_owned), error.to_string()));
        assert!(errors.iter().all(|(_, _, text)| text.contains(inside.to_str().unwrap())), "{errors:?}");
        told.push(errors);
        world.control.end().await;
    }
    assert_eq!(told[0], told[1], "through the server, and directly");
    assert_eq!(std::fs::read_to_string(&local).unwrap(), "local");
}

/// Set where this program runs again, with a proxy in its environment.
const BEHIND_A_PROXY: &str = "SANDBOX_TEST_BEHIND_A_PROXY";

/// Runs as another program, for the test below.
#[tokio::test]
async fn behind_a_proxy() {
    if std::env::var_os(BEHIND_A_PROXY).is_none() {
        return;
    }
    for through_server in [true, false] {
        let world = World::new(json!({ "connection": { "use_server_proxy": through_server } })).await;
        let handle = world.sandbox().await;
        assert_eq!(world.text(&handle, "echo reached").await, "reached\n");
        let seen = world.control.seen();
        assert!(!seen.is_empty() && seen.iter().all(|seen| !seen.headers.contains_key("proxy-authorization")));
        world.control.end().await;
    }
}

#[test]
fn e04_a_server_on_this_machine_is_not_asked_through_a_proxy_of_the_environment() {
    let stub = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    stub.set_nonblocking(true).unwrap();
    let proxy = format!("http://user:canary@{}", stub.local_addr().unwrap());
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "connection::behind_a_proxy", "--nocapture"]).env(BEHIND_A_PROXY, "1");
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        again.env(name, &proxy).env(name.to_uppercase(), &proxy);
    }
    let output = again.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(stub.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "a request went to the proxy");
}
