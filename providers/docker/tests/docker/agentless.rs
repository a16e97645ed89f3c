//! Without our agent: the engine's own exec and archives.

use std::time::{Duration, Instant};

use sandbox_core::{
    Capability, ExecOutcome, ExecRequest, SandboxProvider, SandboxStatus, StartFailure, StdinSource, serde_json::json,
};

use crate::support::{Docker, by_hand, docker, eventually, spec};

fn off() -> Docker {
    docker(json!({ "agent": "off" }))
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_codes_input_and_environment_are_right() {
    let docker = off();
    let handle = docker.create(spec().with_workdir("/work").with_env("A", "spec").with_user("user")).await;
    let script = "echo out; echo err >&2; echo $A $B; pwd; id -un; exit 125";
    let result = docker.run(&handle, ExecRequest::shell(script).with_env("B", "exec").with_cwd("/tmp")).await;
    assert_eq!(result.stdout_text(), "out\nspec exec\n/tmp\nuser\n");
    assert_eq!((result.stderr_text().as_ref(), result.outcome()), ("err\n", &ExecOutcome::Exited(125)));
    let result = docker.run(&handle, ExecRequest::argv(["cat"]).with_stdin_bytes(vec![0xff; 300_000])).await;
    assert_eq!((result.stdout.len(), result.outcome()), (300_000, &ExecOutcome::Exited(0)));
    let result = docker.run(&handle, ExecRequest::argv(["cat"])).await;
    assert_eq!(result.stdout_text(), "");
    let stream = docker.provider.exec(&handle, ExecRequest::argv(["cat"]).with_stdin(StdinSource::Stream)).await;
    let stream = stream.unwrap();
    stream.control().write("typed".into()).await.unwrap();
    stream.control().control(sandbox_core::ControlRequest::CloseInput).await.unwrap();
    assert_eq!(stream.collect(Default::default()).await.unwrap().stdout_text(), "typed");
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a05_a_failed_start_is_an_outcome_and_no_output() {
    let docker = off();
    let handle = docker.create(spec()).await;
    for (request, expected) in [
        (ExecRequest::argv(["/no/such"]), StartFailure::NotFound),
        (ExecRequest::argv(["no-such"]), StartFailure::NotFound),
        (ExecRequest::argv(["/etc/passwd"]), StartFailure::NotExecutable),
        (ExecRequest::shell("true").with_user("nosuch"), StartFailure::UnknownUser),
        (ExecRequest::shell("true").with_cwd("/etc/passwd"), StartFailure::CwdNotADirectory),
    ] {
        let result = docker.run(&handle, request).await;
        match result.outcome() {
            ExecOutcome::StartFailed { reason, .. } if *reason == expected => {}
            other => panic!("expected {expected:?}, got {other:?}"),
        }
        assert!(result.stdout.is_empty() && result.stderr.is_empty(), "{:?}", result.stdout_text());
    }
    // What a program says is never taken for what the engine says.
    let script = "echo 'OCI runtime exec failed: executable file not found' ; exit 127";
    let result = docker.run(&handle, ExecRequest::shell(script)).await;
    assert_eq!(*result.outcome(), ExecOutcome::Exited(127));
    assert!(result.stdout_text().contains("OCI runtime"));
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a02_a_limit_ends_the_tree_where_this_machine_sees_it_and_keeps_the_output() {
    let docker = off();
    let handle = docker.create(spec()).await;
    let started = Instant::now();
    let script = "echo partial; setsid sleep 4711 & sleep 4711";
    let result = docker.run(&handle, ExecRequest::shell(script).with_timeout_s(1.0)).await;
    assert_eq!(*result.outcome(), ExecOutcome::TimedOut { idle: false });
    assert_eq!(result.stdout_text(), "partial\n");
    assert!(started.elapsed() < Duration::from_secs(30));
    let is_gone = async || docker.text(&handle, "ps | grep -c '[s]leep 4711' || true").await == "0";
    eventually("the tree lives on", is_gone).await;
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_folders_move_and_what_cannot_be_is_not_declared() {
    let docker = off();
    let handle = docker.create(spec().with_workdir("/work")).await;
    docker.put(&handle, "deep/er/file", b"\xff data").await;
    assert_eq!(docker.get(&handle, "deep/er/file").await, b"\xff data");
    docker.text(&handle, "ln -s /etc/passwd link").await;
    let local = docker.temp.path().join("link");
    assert!(docker.provider.download_file(&handle, &"link".into(), &local).await.is_err());
    assert!(std::fs::symlink_metadata(&local).is_err(), "a link came out");
    let declared = docker.provider.capabilities();
    for absent in [Capability::PtyAttach, Capability::Renew, Capability::PortForwarding, Capability::Files] {
        assert!(!declared.contains(absent), "{absent}");
    }
    assert_eq!(handle.state["via"], "engine");
    assert!(docker.provider.info().details["agent"].contains("off"));
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_cannot_run_is_replaced_or_refused_as_the_settings_say() {
    let broken = tempfile::tempdir().unwrap();
    let path = broken.path().join("agent");
    std::fs::write(&path, "no program").unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let auto = docker(json!({ "agent": "auto", "agent_path": &path }));
    let handle = auto.create(spec()).await;
    assert_eq!(handle.state["via"], "engine");
    assert_eq!(auto.text(&handle, "echo works").await, "works");
    auto.provider.close(&handle).await.unwrap();
    auto.ensure_no_folders();
    let required = docker(json!({ "agent": "required", "agent_path": &path }));
    let mut spec = spec();
    spec.metadata.insert("which".to_owned(), "required".to_owned());
    let error = required.provider.create(spec).await.unwrap_err();
    assert!(["create", "create_verification", "invalid_input"].contains(&error.kind().as_str()), "{error:?}");
    assert_eq!(by_hand(["ps", "--all", "--quiet", "--filter", "label=which=required"]), "");
    required.ensure_no_folders();
    assert_eq!(auto.provider.status(&handle).await.unwrap(), SandboxStatus::Stopped);
}
