//! The defects of the reference's local provider, turned into requirements (L1 to L14).

use std::time::{Duration, Instant};

use sandbox_core::{
    CaptureLimits, ErrorKind, ExecOutcome, ExecRequest, SandboxProvider, SandboxSpec, SandboxStatus, StartFailure,
    serde_json::json,
};

use crate::support::{eventually, lives, local};

fn started(result: &sandbox_core::SandboxExecResult) -> StartFailure {
    match result.outcome() {
        ExecOutcome::StartFailed { reason, .. } => *reason,
        other => panic!("expected a failed start, got {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l01_concurrency_is_limited_per_provider_and_waiting_is_not_on_the_clock() {
    let narrow = local(json!({ "concurrency": 1 }));
    let wide = local(json!({}));
    let (one, two, other) = (narrow.create().await, narrow.create().await, wide.create().await);
    let holding = narrow.provider.exec(&one, ExecRequest::shell("sleep 1.2")).await.unwrap();
    wide.run(&other, ExecRequest::shell("true")).await;
    // A status and an upload do not wait for a turn.
    narrow.provider.status(&two).await.unwrap();
    let begin = Instant::now();
    let (first, second) = tokio::join!(
        holding.collect(CaptureLimits::default()),
        narrow.run(&two, ExecRequest::shell("true").with_timeout_s(1.0))
    );
    assert_eq!(*first.unwrap().outcome(), ExecOutcome::Exited(0));
    assert_eq!(*second.outcome(), ExecOutcome::Exited(0));
    assert!(begin.elapsed() > Duration::from_millis(900), "the second command did not wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn l01_a_command_that_waits_for_its_turn_ends_with_its_sandbox() {
    let narrow = local(json!({ "concurrency": 1 }));
    let (one, two) = (narrow.create().await, narrow.create().await);
    let _holding = narrow.provider.exec(&one, ExecRequest::shell("sleep 60")).await.unwrap();
    let waiting = narrow.provider.exec(&two, ExecRequest::shell("true"));
    let (waited, closed) = tokio::join!(waiting, narrow.provider.close(&two));
    closed.unwrap();
    assert_eq!(waited.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn l02_the_input_of_a_command_is_empty() {
    let local = local(json!({}));
    let handle = local.create().await;
    assert_eq!(local.text(&handle, "cat; wc -c; readlink /proc/self/fd/0").await, "0\n/dev/null");
}

#[tokio::test(flavor = "multi_thread")]
async fn l03_a_child_in_a_session_of_its_own_dies_at_the_limit() {
    let local = local(json!({}));
    let handle = local.create().await;
    let script = "setsid sh -c 'echo $$ > pid; exec sleep 60' & wait";
    let begin = Instant::now();
    let result = local.run(&handle, ExecRequest::shell(script).with_timeout_s(0.7)).await;
    assert_eq!(*result.outcome(), ExecOutcome::TimedOut { idle: false });
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    let pid = std::fs::read_to_string(local.workspace(&handle).join("pid")).unwrap().trim().parse().unwrap();
    eventually("the child lives", || !lives(pid)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn l04_a_child_in_the_background_holds_nobody_and_lives_on() {
    let local = local(json!({}));
    let handle = local.create().await;
    let begin = Instant::now();
    let result = local.run(&handle, ExecRequest::shell("sleep 60 & echo $!").with_timeout_s(5.0)).await;
    assert_eq!(*result.outcome(), ExecOutcome::Exited(0));
    assert!(result.exit.output_open);
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    let pid = result.stdout_text().trim().parse().unwrap();
    assert!(lives(pid));
    local.provider.close(&handle).await.unwrap();
    assert!(!lives(pid));
}

#[tokio::test(flavor = "multi_thread")]
async fn l05_nothing_in_the_background_lives_after_the_close() {
    let local = local(json!({}));
    let handle = local.create().await;
    let script = "setsid sh -c 'echo $$; exec sleep 60 >/dev/null 2>&1' & nohup sleep 60 >/dev/null 2>&1 & echo $!";
    let result = local.run(&handle, ExecRequest::shell(script)).await;
    let pids: Vec<u32> = result.stdout_text().lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(pids.len(), 2);
    assert!(pids.iter().all(|pid| lives(*pid)));
    local.provider.close(&handle).await.unwrap();
    assert!(!pids.iter().any(|pid| lives(*pid)));
}

#[tokio::test(flavor = "multi_thread")]
async fn l06_a_workdir_is_the_same_for_its_creation_and_its_commands() {
    let local = local(json!({}));
    let real = local.temp().join("real");
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, local.temp().join("link")).unwrap();
    let workdir = local.temp().join("link/~/made it");
    let spec = SandboxSpec::default().with_workdir(workdir.to_str().unwrap());
    let handle = local.provider.create(spec).await.unwrap();
    let real = real.join("~/made it").display().to_string();
    assert_eq!(local.text(&handle, "echo \"$PWD\"; /bin/pwd; echo \"$HOME\"").await, [real.as_str(); 3].join("\n"));
    // The path as it was given is confined just as the real one is.
    local.text(&handle, "ln -s /etc/passwd out").await;
    let through = format!("{}/out", workdir.display());
    let refused = local.provider.download_file(&handle, &through.into(), &local.temp().join("got")).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    local.provider.close(&handle).await.unwrap();
    assert!(workdir.is_dir(), "a workdir that was given is kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn l07_a_relative_cwd_is_below_the_workspace() {
    let local = local(json!({}));
    let handle = local.create().await;
    local.text(&handle, "mkdir -p sub/deep").await;
    let result = local.run(&handle, ExecRequest::argv(["pwd"]).with_cwd("sub/deep")).await;
    assert!(result.stdout_text().trim_end().ends_with(&format!("{}/sub/deep", handle.sandbox_id)));
    let missing = local.run(&handle, ExecRequest::argv(["pwd"]).with_cwd("no")).await;
    assert_eq!(started(&missing), StartFailure::CwdMissing);
}

#[tokio::test(flavor = "multi_thread")]
async fn l09_commands_get_chosen_variables_only() {
    // PATH, HOME and CARGO_PKG_NAME are there in every run of cargo.
    let open = local(json!({ "env_allow": ["CARGO_PKG_NAME", "NOT_SET_ANYWHERE"] }));
    let closed = local(json!({}));
    let names = "env -0 | tr '\\0\\n' '\\n ' | cut -d= -f1 | grep -vx -e SHLVL -e _ -e OLDPWD | sort | tr '\\n' ' '";
    let basics = "HOME LANG LOGNAME PATH PWD SHELL USER";
    assert_eq!(closed.text(&closed.create().await, names).await.trim(), basics);
    let handle = open.create().await;
    assert_eq!(open.text(&handle, names).await.trim(), format!("CARGO_PKG_NAME {basics}"));
    assert_eq!(open.text(&handle, "echo $CARGO_PKG_NAME").await, "sandbox-provider-local");
    let request =
        ExecRequest::shell("echo $CARGO_PKG_NAME $LANG").with_env("CARGO_PKG_NAME", "x").with_env("LANG", "C");
    assert_eq!(open.run(&handle, request).await.stdout_text(), "x C\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn l10_a_signal_is_128_and_its_number() {
    let local = local(json!({}));
    let handle = local.create().await;
    let result = local.run(&handle, ExecRequest::shell("kill -9 $$")).await;
    assert_eq!(*result.outcome(), ExecOutcome::Signalled(9));
    assert_eq!(result.return_code(), 137);
}

#[tokio::test(flavor = "multi_thread")]
async fn l11_the_own_user_is_accepted_by_name_and_by_number() {
    let local = local(json!({}));
    let handle = local.create().await;
    let (uid, gid) = (local.text(&handle, "id -u").await, local.text(&handle, "id -g").await);
    let mut forms = vec![uid.clone(), format!("{uid}:{gid}")];
    forms.extend(local.run(&handle, ExecRequest::argv(["id", "-un"])).await.stdout_text().lines().map(str::to_owned));
    for form in &forms {
        let result = local.run(&handle, ExecRequest::shell("id -u; echo $HOME").with_user(form)).await;
        let expected = format!("{uid}\n{}\n", local.workspace(&handle).canonicalize().unwrap().display());
        assert_eq!(result.stdout_text(), expected, "{form}");
    }
    let unknown = local.run(&handle, ExecRequest::shell("id").with_user("no-such-user")).await;
    assert_eq!(started(&unknown), StartFailure::UnknownUser);
    // Root switches; nobody else is let.
    let other = local.run(&handle, ExecRequest::shell("id -u; echo $USER $HOME").with_user("54321:54322")).await;
    match uid.as_str() {
        "0" => assert_eq!(other.stdout_text(), "54321\n54321 /\n"),
        _ => assert_eq!(started(&other), StartFailure::UserRefused),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l12_a_missing_shell_or_cwd_is_an_outcome() {
    for shell in ["/nope", "nope"] {
        let local = local(json!({ "shell": shell }));
        let handle = local.create().await;
        let result = local.run(&handle, ExecRequest::shell("true")).await;
        assert_eq!(started(&result), StartFailure::NoShell);
        assert_eq!(result.return_code(), 127);
        assert_eq!(*local.run(&handle, ExecRequest::argv(["true"])).await.outcome(), ExecOutcome::Exited(0));
        let cwd = local.run(&handle, ExecRequest::argv(["true"]).with_cwd("/nope")).await;
        assert_eq!(started(&cwd), StartFailure::CwdMissing);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l13_a_closed_sandbox_is_stopped_also_where_its_workdir_is_kept() {
    let local = local(json!({}));
    let workdir = local.temp().join("kept");
    let spec = SandboxSpec::default().with_workdir(workdir.to_str().unwrap());
    let handle = local.provider.create(spec).await.unwrap();
    assert_eq!(local.provider.status(&handle).await.unwrap(), SandboxStatus::Running);
    local.text(&handle, "echo x > file").await;
    local.provider.close(&handle).await.unwrap();
    assert!(workdir.join("file").exists());
    assert_eq!(local.provider.status(&handle).await.unwrap(), SandboxStatus::Stopped);
    assert!(local.remains().is_empty(), "{:?}", local.remains());
}

#[tokio::test(flavor = "multi_thread")]
async fn l14_partial_output_survives_a_timeout_and_is_never_decoded() {
    let local = local(json!({}));
    let handle = local.create().await;
    let request = ExecRequest::shell("printf 'par\\377\\000tial'; sleep 9").with_timeout_s(0.5);
    let result = local.run(&handle, request).await;
    assert_eq!((result.return_code(), result.error_type()), (125, Some("timeout")));
    assert_eq!(result.stdout, b"par\xff\0tial");
    let usage = local.run(&handle, ExecRequest::shell("seq 300000 >/dev/null")).await.exit.usage;
    assert!(usage.peak_memory_bytes > Some(0) && usage.cpu_time_s.is_some() && usage.wall_time_s > Some(0.0));
}
