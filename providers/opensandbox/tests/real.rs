//! Against the real `opensandbox-server` on a Docker engine of its own, with our daemon inside its sandboxes: through the
//! server, and directly; driven by its official client, and by this provider. What does not concern the server is proven on
//! the double (`conformance.rs`).

use std::sync::Arc;

use opensandbox_double::{BASE_IMAGE, RealServer};
use sandbox_conformance::{Suite, factory};
use sandbox_core::SandboxSpec;
use serde_json::json;

/// What is asked of the daemon by the API of execd, through the server: one case of each kind. The official client asks more.
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

/// Over the agent's own protocol: what goes through the server, and cases of each kind that go through the agent.
const THROUGH_THE_SERVER: [&str; 26] = [
    "exec.exit_codes_are_passed",
    "start.missing_program_is_not_found",
    "output.all_bytes_arrive_without_a_limit",
    "output.nul_and_non_utf8_bytes_are_unchanged",
    "stdin.bytes_arrive_unchanged",
    "timeout.setsid_child_is_killed",
    "cancel.dropping_the_stream_kills_the_tree",
    "background.orphans_leave_no_zombies",
    "download.no_temporary_file_is_left",
    "lifecycle.status_is_running_and_then_stopped",
    "lifecycle.ten_closes_at_once_succeed",
    "lifecycle.close_ends_a_running_command",
    "lifecycle.calls_after_the_close_are_refused",
    "lifecycle.foreign_handle_is_refused",
    "lifecycle.ttl_ends_the_sandbox",
    "ownership.",
    "services.",
    "pty.",
    "env.values_of_the_spec_are_exact",
    "user.user_of_the_spec_is_the_default",
    "field.resources.memory_mib",
    "field.extra_hosts",
    "field.exec.stdin_stream",
    "field.exec.signal",
    "jobs.",
    "files.",
];

/// The same by the sandbox's published port.
const DIRECT: [&str; 7] = [
    "exec.exit_codes_are_passed",
    "upload.mode_is_kept",
    "services.declared_port_has_an_endpoint",
    "services.another_process_finds_the_sandbox",
    "pty.session_opens_runs_and_gives_its_exit_code",
    "output.all_bytes_arrive_without_a_limit",
    "stdin.bytes_arrive_unchanged",
];

/// Set for all cases instead, which takes minutes.
const WHOLE: &str = "SANDBOX_TEST_OPENSANDBOX_WHOLE";

/// A way into the sandboxes.
#[derive(Clone, Copy, Debug)]
struct Way {
    use_server_proxy: bool,
    native: &'static str,
}

async fn conforms(server: &RealServer, way: Way, cases: &[&str], must_run: usize) {
    let settings = json!({
        "connection": { "domain": server.address, "api_key": server.key, "use_server_proxy": way.use_server_proxy },
        "create": { "connect_poll_s": 0.3, "ready_timeout_s": 60 },
        "operations": { "native": way.native },
    });
    let new = move || {
        let settings = settings.clone();
        async move { sandbox_provider_opensandbox::plugin_entry().new_provider(&settings) }
    };
    let suite = Suite::new(factory(new).with_spec(SandboxSpec::image(BASE_IMAGE))).with_minimum_run(must_run);
    // The server ends sandboxes by timers of its own.
    let cases = if std::env::var_os(WHOLE).is_some() { &[] } else { cases };
    let suite = cases.iter().fold(suite, |suite, case| suite.with_filter(*case)).with_retries(1);
    let begin = std::time::Instant::now();
    let report = suite.run().await.unwrap();
    println!("{report}\n{way:?}: {:.1} s", begin.elapsed().as_secs_f64());
    assert!(report.is_conformant(), "{way:?}\n{report}");
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
async fn the_real_server_is_driven_by_its_official_client_and_by_this_provider_through_itself_and_directly() {
    let server = Arc::new(tokio::task::spawn_blocking(RealServer::start).await.unwrap().unwrap());
    is_as_its_own_client_expects(server.clone()).await;
    conforms(&server, Way { use_server_proxy: true, native: "off" }, &BY_THE_API, 12).await;
    conforms(&server, Way { use_server_proxy: true, native: "required" }, &THROUGH_THE_SERVER, 44).await;
    conforms(&server, Way { use_server_proxy: false, native: "required" }, &DIRECT, 7).await;
    tokio::task::spawn_blocking(move || drop(server)).await.unwrap();
}
