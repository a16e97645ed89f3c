//! `docs/api.md` against the reference's list and against the names in the code.

use std::{fs, path::Path};

/// The reference's public surface: what, and its arguments with their defaults.
const REFERENCE: &[(&str, &str)] = &[
    (
        "SandboxSpec",
        "image=None, ttl_s=None, ready_timeout_s=None, workdir=None, env={}, files={}, metadata={}, \
      resources={}, entrypoint=None, provider_options={}, ports=(), sidecars=()",
    ),
    ("SandboxResources", "cpu=None, memory_mib=None, disk_gib=None, gpu=None, gpu_type=None"),
    ("SandboxResources.from_mapping", "resources"),
    ("SandboxEndpoint", "endpoint, headers={}"),
    ("SandboxExecResult", "stdout, stderr, return_code, error_type=None"),
    ("SandboxStatus", "starting running paused stopped error unknown"),
    ("SandboxHandle", "sandbox_id, provider_name, raw"),
    ("SandboxPtySpec", "command=None, cwd=None, env=None, rows=24, cols=80, user=None, pty=True"),
    ("SandboxSidecarSpec", "name, image, env={}, resources={}"),
    ("AsyncSandbox", "provider, spec=None, owns_provider=True"),
    ("start", "spec=None"),
    ("start_with_setup", "spec, setup"),
    ("exec", "command, cwd=None, env=None, timeout_s=180, user=None, preserve_background_services=False"),
    ("upload", "local_path, remote_path"),
    ("download", "remote_path, local_path"),
    ("status", ""),
    ("endpoint", "port"),
    ("pause", ""),
    ("resume", ""),
    ("stop", ""),
    ("disconnect", ""),
    ("serialize", "scope=None"),
    ("connect", "descriptor, provider, owns_provider=True"),
    ("default user setter", "user"),
    ("default directory setter", "workdir"),
    ("sidecar", "name"),
    ("sidecar.exec", "*argv, timeout_s, on_stdout=None"),
    ("sidecar.download", "remote, local"),
    ("pty", ""),
    ("Sandbox", "provider, spec=None"),
    ("wait limit", "3600 s"),
    ("inside a running loop", ""),
    ("pty.create", "command=None, cwd=None, env=None, rows=24, cols=80, user=None, pty=True"),
    ("pty.attach", "session_id, takeover=True, since=None"),
    (
        "pty.exec",
        "command, session=None, cwd=None, env=None, timeout_s=180, user=None, rows=24, cols=80, pty=True, \
      detach=False, poll_interval_s=15.0",
    ),
    ("session.session_id", ""),
    ("session.mode", ""),
    ("session.closed", ""),
    ("session.read", "timeout_s=None"),
    ("session.read_stderr", "timeout_s=None"),
    ("session.__aiter__", ""),
    ("session.write", "data"),
    ("session.resize", "rows, cols"),
    ("session.send_signal", "name"),
    ("session.wait_exit", "timeout_s=None"),
    ("session.run_detached", "command, poll_interval_s=15.0"),
    ("session.reattach", ""),
    ("session.close", ""),
    ("register_provider", "name, class, override=False"),
    ("get_provider_class", "name"),
    ("list_providers", ""),
    ("create_provider", "config"),
    ("resolve_provider_config", "ref, named=None"),
    ("resolve_provider_metadata", "ref, named=None"),
    ("rewrite_image", "image, rewrites"),
    ("cpu_cap_env", "cpu"),
    ("resolve_attribution", "team, user, workload, environ=None"),
    ("resolve_run_id", "run=None, environ=None"),
    ("log_attribution_once", "metadata"),
    ("SandboxAccess", "connection, workdir"),
    ("DirectSandboxConnection", "kind, provider_config_ref, descriptor"),
    ("sandbox_server_url", "name, require_reachable=False"),
    ("restricted_network_policy", "provider_name, urls"),
    ("process supervisor", "--timeout, --cleanup-timeout=10, --receipt, --stop-file"),
    ("provider.create", "spec"),
    ("provider.exec", "handle, command, cwd=None, env=None, timeout_s=None, user=None"),
    ("provider.upload_file", "handle, source, target"),
    ("provider.download_file", "handle, source, target"),
    ("provider.status", "handle"),
    ("provider.close", "handle"),
    ("provider.aclose", ""),
    ("SupportsSandboxEndpoint", "endpoint(handle, port)"),
    ("SupportsSandboxPauseResume", "pause(handle), resume(handle)"),
    ("SupportsSandboxPty", "create_pty(handle, spec)"),
    ("SupportsSandboxPtyAttach", "attach_pty(handle, session_id, takeover=True, since=None)"),
    ("ConnectableProvider", "serialize_handle(handle, scope=None), connect(descriptor)"),
    (
        "SupportsSandboxBackgroundServices",
        "exec_with_background_services(handle, command, cwd=None, timeout_s=None, env, \
         user)",
    ),
    ("SupportsSandboxNetwork", "validate_networking(), network_address(handle), set_hosts(handle, hosts)"),
    (
        "SupportsSandboxRuntimeRequirements",
        "validate_runtime_requirements(cap_add, shm_size), configure_runtime(handle, \
         ...)",
    ),
    ("SupportsSandboxPortForwarding", "validate_port_forwarding(), forward_ports(handle, target, ports, ready_file)"),
    (
        "SupportsSandboxSharedStorage",
        "shared_volume_options(source, target, read_only=False), \
         shared_volume_metadata()",
    ),
    (
        "SupportsSandboxSidecars",
        "sidecar_exec(handle, sidecar, argv, timeout_s, on_stdout=None), download_sidecar_file(handle, \
         sidecar, source, target)",
    ),
    ("exec_timeout", "timeout, cleanup_timeout=10"),
    ("path_under_mount", "mount, path"),
];

/// The reference's errors and signals.
const SIMPLE: &[&str] = &[
    "ValueError",
    "TypeError",
    "RuntimeError",
    "NotImplementedError",
    "TimeoutError",
    "SandboxCreateError",
    "SandboxCreateVerificationError",
    "SandboxPtyError",
    "gym.sandbox.start",
    "gym.sandbox.exec",
    "gym.sandbox.stop",
    "gym.sandbox.active",
    "gym.sandbox.startup_duration_ms",
    "gym.sandbox.exec_duration_ms",
    "gym.sandbox.create_retry_total",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn rows() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("docs/api.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| reference "));
    rows.map(|row| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[test]
fn everything_of_the_reference_is_in_the_table_with_its_arguments_and_defaults() {
    let rows = rows();
    for (what, arguments) in REFERENCE {
        let row =
            rows.iter().find(|row| row[0].replace('`', "") == *what).unwrap_or_else(|| panic!("no row for {what}"));
        assert_eq!(row[1].replace('`', ""), *arguments, "{what}");
        assert!(!row[2].is_empty(), "{what} is nothing here");
    }
    for what in SIMPLE {
        let row = rows.iter().find(|row| row[0].split('`').nth(1) == Some(what));
        assert!(row.is_some_and(|row| !row[1].is_empty()), "no row for {what}");
    }
}

#[test]
fn every_name_that_the_table_says_is_ours_is_in_the_code() {
    let mut code = String::new();
    for folder in ["sandbox-api/src", "sandbox-core/src"] {
        collect(&root().join(folder), &mut code);
    }
    let mut checked = 0;
    for row in rows().iter().filter(|row| row.len() == 4) {
        // Names stand between backticks, also as `Type::method`.
        for name in row[2].split('`').skip(1).step_by(2) {
            let name = name.rsplit("::").next().unwrap();
            let is_there = ["fn ", "struct ", "enum ", "mirrored! {", "const "].iter().any(|kind| {
                code.contains(&format!("pub {kind}{name}")) || code.contains(&format!("pub async {kind}{name}"))
            }) || code.contains(&format!("    {name},"))
                || code.contains(&format!("    {name} ="))
                || code.contains(&format!("pub trait {name}"))
                || code.contains(&format!("    async fn {name}("));
            assert!(is_there, "{name:?} is said to be ours, but is not in the code");
            checked += 1;
        }
    }
    assert!(checked > 60, "{checked}");
}

fn collect(folder: &Path, code: &mut String) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => collect(&entry.path(), code),
            false => code.push_str(&fs::read_to_string(entry.path()).unwrap()),
        }
    }
}
