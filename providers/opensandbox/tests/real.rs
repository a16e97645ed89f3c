//! Against the real `opensandbox-server` on a Docker engine of its own, with our daemon inside its sandboxes: driven by its
//! official client, through the server and directly, and by this provider over the API of execd. Over the agent's own
//! protocol all of the contract is proven on it, by `cargo xtask conformance opensandbox`.

use std::sync::Arc;

use opensandbox_double::{BASE_IMAGE, RealServer};
use sandbox_conformance::{Suite, factory};
use sandbox_core::SandboxSpec;
use serde_json::json;

/// What is asked of the daemon: one case of each kind. The official client asks more.
const BY_THE_API: [&str; 13] = [
    "exec.exit_codes_are_passed",
    "start.missing_program_is_not_found",
    "output.nul_and_non_utf8_bytes_are_unchanged",
    "stdin.bytes_arrive_unchanged",
    "timeout.setsid_child_is_killed",
    "cancel.dropping_the_stream_kills_the_tree",
    "download.no_temporary_file_is_left",
    "lifecycle.close_ends_a_running_command",
    "pty.session_opens_runs_and_gives_its_exit_code",
    "pty.takeover_evicts_the_holder",
    "env.values_of_the_spec_are_exact",
    "user.user_of_the_spec_is_the_default",
    "field.extra_hosts",
];

/// Set for all cases instead, which takes minutes.
const WHOLE: &str = "SANDBOX_TEST_OPENSANDBOX_WHOLE";

/// The cases, or all of them where that is asked for, over the API of execd and through the server.
async fn conforms(server: &RealServer, cases: &[&str], must_run: usize) {
    let settings = json!({
        "connection": { "domain": server.address, "api_key": server.key, "use_server_proxy": true },
        "create": { "ready_timeout_s": 60 },
        "operations": { "native": "off" },
    });
    let new = move || {
        let settings = settings.clone();
        async move { sandbox_provider_opensandbox::plugin_entry().new_provider(&settings) }
    };
    let suite = Suite::new(factory(new).with_spec(SandboxSpec::image(BASE_IMAGE))).with_minimum_run(must_run);
    // The server ends sandboxes by timers of its own.
    let cases = if std::env::var_os(WHOLE).is_some() { &[] } else { cases };
    let suite = cases.iter().fold(suite, |suite, case| suite.with_filter(*case)).with_retries(1);
    let report = suite.run().await.unwrap();
    println!("{report}");
    assert!(report.is_conformant(), "{report}");
    assert_eq!(server.containers().unwrap(), 0, "containers are left");
}

/// The same server and daemon, driven by a client that nobody here wrote.
async fn is_as_its_own_client_expects(server: Arc<RealServer>) {
    // Both ways at once: each waits most of the time.
    let ways = [true, false].map(|use_server_proxy| {
        let server = server.clone();
        (use_server_proxy, tokio::task::spawn_blocking(move || server.drive(use_server_proxy)))
    });
    for (use_server_proxy, driven) in ways {
        driven.await.unwrap().unwrap_or_else(|why| panic!("through the server: {use_server_proxy}\n{why}"));
    }
    assert_eq!(server.containers().unwrap(), 0, "containers are left");
}

/// One server for all of it: it takes long to start.
#[tokio::test(flavor = "multi_thread")]
async fn the_real_server_is_driven_by_its_official_client_both_ways_and_by_this_provider_over_its_api() {
    let server = Arc::new(tokio::task::spawn_blocking(RealServer::start).await.unwrap().unwrap());
    is_as_its_own_client_expects(server.clone()).await;
    conforms(&server, &BY_THE_API, 12).await;
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}
