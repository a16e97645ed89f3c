//! Known failures of other systems that the conformance suite does not provoke, by the names they have in docs/cases.md.

use std::{os::unix::fs::PermissionsExt, path::Path, time::Duration};

use sandbox_core::{
    ErrorKind, ExecEvent, ExecOutcome, ExecRequest, Field, FieldSupport, Files, JobOffsets, Jobs, Pty, PtyEvent,
    ReadRange, SandboxHandle, SandboxProvider, SandboxPtySpec, SandboxSpec, StartFailure, VolumeMount, VolumeRequest,
    VolumeSource, Volumes, WriteOptions, serde_json::json,
};

use crate::{
    agent,
    support::{Local, isolated},
};

async fn outcome(local: &Local, handle: &SandboxHandle, request: ExecRequest) -> ExecOutcome {
    local.run(handle, request).await.exit.outcome
}

/// A system with one program (and what the agent of a test, which is not static, needs).
fn one_program(folder: &Path) -> std::path::PathBuf {
    let system = folder.canonicalize().unwrap().join("system");
    std::fs::create_dir_all(system.join("app")).unwrap();
    let script = "libraries=$(ldd /bin/cat $1 | grep -o '/[^ )]*' | grep -v : | sort -u); \
                  cp -L --parents $libraries \"$0\" && cp /bin/cat \"$0/app/say\"";
    let copied = std::process::Command::new("sh").args(["-c", script]).arg(&system).arg(agent::agent()).status();
    assert!(copied.unwrap().success());
    system
}

#[tokio::test(flavor = "multi_thread")]
async fn a13_a_job_tells_how_much_of_its_output_is_no_longer_kept() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let mut request = ExecRequest::shell("seq 1 3000000");
    "job".clone_into(&mut request.exec_id);
    local.provider.start_job(&handle, request).await.unwrap();
    let exit = local.provider.wait_job(&handle, "job".to_owned(), Some(60.0)).await.unwrap();
    assert_eq!(exit.unwrap().outcome, ExecOutcome::Exited(0));
    let stream = local.provider.attach_job(&handle, "job".to_owned(), JobOffsets::default()).await.unwrap();
    let result = stream.collect(Default::default()).await.unwrap();
    assert_eq!(result.stdout_bytes, 22_888_896);
    assert!(result.stdout_truncated && !result.stderr_truncated);
    assert!(result.stdout.starts_with(b"1\n2\n") && result.stdout.ends_with(b"\n3000000\n"));
    // From the middle of what is gone on: what is missing comes first.
    let since = JobOffsets { stdout: 10_000_000, stderr: 0 };
    let mut stream = local.provider.attach_job(&handle, "job".to_owned(), since).await.unwrap();
    let first = stream.next().await.unwrap();
    assert!(matches!(first, Some(ExecEvent::Gap { stdout_bytes: 1.., stderr_bytes: 0 })), "{first:?}");
    let rest = stream.collect(Default::default()).await.unwrap();
    assert!(rest.stdout.ends_with(b"\n3000000\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a22_a_system_with_one_program_and_no_shell_works() {
    let temp = tempfile::tempdir().unwrap();
    let local = isolated(json!({}));
    let image = format!("rootfs:{}", one_program(temp.path()).display());
    let handle = local.create_with(SandboxSpec::image(&image).with_workdir("/work")).await;
    let said = local.run(&handle, ExecRequest::argv(["/app/say"]).with_stdin_bytes("hi")).await;
    assert_eq!((said.stdout_text().as_ref(), said.outcome()), ("hi", &ExecOutcome::Exited(0)));
    let shell = outcome(&local, &handle, ExecRequest::shell("true")).await;
    assert!(matches!(shell, ExecOutcome::StartFailed { reason: StartFailure::NoShell, .. }), "{shell:?}");
    local.provider.write_file(&handle, "a/b".into(), "data".into(), WriteOptions::default()).await.unwrap();
    assert_eq!(local.provider.read_file(&handle, "/work/a/b".into(), ReadRange::default()).await.unwrap(), "data");
    assert_eq!(local.provider.list_dir(&handle, "/work".into()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a26_a_flood_of_processes_ends_at_the_limit_and_touches_no_other_sandbox() {
    let local = isolated(json!({}));
    let mut spec = SandboxSpec::default();
    spec.resources.pids = Some(256);
    let (flooded, other) = (local.create_with(spec).await, local.create().await);
    let flood = "i=0; while [ $i -lt 2000 ]; do sleep 20 & i=$((i+1)); done; wait";
    let flooding = local.run(&flooded, ExecRequest::shell(flood).with_timeout_s(5.0));
    let beside = async {
        for _ in 0..10 {
            assert_eq!(local.text(&other, "echo ok").await, "ok");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (ended, ()) = tokio::join!(flooding, beside);
    assert_ne!(ended.exit.outcome, ExecOutcome::Exited(0), "2000 processes ran where 256 may");
    // The shell says why; the provider's own commands work again at once.
    assert!(ended.stderr_text().to_lowercase().contains("fork"), "{}", ended.stderr_text());
    assert_eq!(local.text(&flooded, "echo ok").await, "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a27_shared_memory_has_the_size_that_was_asked_for() {
    let local = isolated(json!({}));
    let mut spec = SandboxSpec::default();
    spec.shm_size_mib = Some(256);
    let handle = local.create_with(spec).await;
    let script = "df -k /dev/shm | tail -1 | tr -s ' ' | cut -d ' ' -f 2; \
                  head -c 200000000 /dev/zero > /dev/shm/f && stat -c %s /dev/shm/f";
    assert_eq!(local.text(&handle, script).await, "262144\n200000000");
}

#[tokio::test(flavor = "multi_thread")]
async fn a29_text_is_utf_8_unless_somebody_says_otherwise() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let euro = || ExecRequest::argv(["python3", "-c", "print('\\u20ac')"]);
    let said = local.run(&handle, euro()).await;
    assert_eq!((said.stdout.as_ref(), said.outcome()), (&b"\xe2\x82\xac\n"[..], &ExecOutcome::Exited(0)));
    assert_eq!(local.text(&handle, "echo $LANG").await, "C.UTF-8");
    let given = local.run(&handle, ExecRequest::shell("echo $LANG$LC_ALL").with_env("LANG", "POSIX")).await;
    assert_eq!(given.stdout_text(), "POSIX\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a32_at_least_1024_files_may_be_open() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let limits = local.text(&handle, "cat /proc/self/limits").await;
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("the kernel lists it");
    let soft: u64 = line.split_whitespace().nth(3).and_then(|word| word.parse().ok()).expect("a number");
    assert!(soft >= 1024, "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a34_nested_namespaces_are_refused_and_so_is_a_profile_that_allows_them() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let nested = outcome(&local, &handle, ExecRequest::argv(["unshare", "--user", "true"])).await;
    assert!(matches!(nested, ExecOutcome::Exited(code) if code != 0), "{nested:?}");
    // The info says so beforehand, and a spec that asks is refused by the field's name.
    let info = local.provider.info();
    assert!(matches!(info.fields.get(Field::SeccompProfile.as_str()), Some(FieldSupport::Refused(_))));
    let mut spec = SandboxSpec::default();
    spec.security.seccomp_profile = Some("unconfined".to_owned());
    let error = local.provider.create(spec).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.field()),
        (ErrorKind::Unsupported, Some(Field::SeccompProfile.as_str())),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn b01_volumes_take_files_on_a_root_that_takes_none() {
    let local = isolated(json!({}));
    let volume = VolumeRequest { name: "b01".to_owned(), ..Default::default() };
    local.provider.create_volume(volume).await.unwrap();
    let mount = |source, target: &str| VolumeMount { source, target: target.to_owned(), read_only: false };
    let mut spec = SandboxSpec::default();
    spec.volumes =
        vec![mount(VolumeSource::Tmpfs(Some(8)), "/data"), mount(VolumeSource::Named("b01".to_owned()), "/data2")];
    let handle = local.create_with(spec).await;
    let file = local.temp().join("file");
    std::fs::write(&file, "content").unwrap();
    for target in ["/data/a", "/data2/b"] {
        local.provider.upload_file(&handle, &file, &target.into()).await.unwrap();
    }
    assert_eq!(local.text(&handle, "cat /data/a /data2/b").await, "contentcontent");
    let before = local.text(&handle, "ls -a /etc").await;
    let error = local.provider.upload_file(&handle, &file, &"/etc/c".into()).await.unwrap_err();
    assert!(error.to_string().contains("/etc"), "{error}");
    assert!(error.to_string().to_lowercase().contains("read-only"), "{error}");
    assert_eq!(local.text(&handle, "ls -a /etc").await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn b08_what_is_uploaded_belongs_to_the_user_of_commands() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let file = local.temp().join("file");
    std::fs::write(&file, "#!/bin/sh\necho ran\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    let target = "/home/sandbox/new/dir/f";
    local.provider.upload_file(&handle, &file, &target.into()).await.unwrap();
    let script = "cat /home/sandbox/new/dir/f >/dev/null && /home/sandbox/new/dir/f && touch /home/sandbox/new/dir/g && \
                  stat -c %u /home/sandbox/new /home/sandbox/new/dir /home/sandbox/new/dir/f; stat -c %u /home";
    assert_eq!(local.text(&handle, script).await, "ran\n1000\n1000\n1000\n0");
}

/// The most memory that this process has had, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread")]
async fn b09_two_gibibytes_move_through_little_memory() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let (folder, back) = (local.temp().join("large"), local.temp().join("back"));
    std::fs::create_dir(&folder).unwrap();
    let file = local.temp().join("file");
    std::fs::File::create(&file).unwrap().set_len(2 << 30).unwrap();
    std::fs::File::create(folder.join("f")).unwrap().set_len(512 << 20).unwrap();
    // As a file by the kernel, and as a folder through the connection.
    local.provider.upload_file(&handle, &file, &"one".into()).await.unwrap();
    assert_eq!(local.text(&handle, "stat -c %s one; rm one").await, (2_u64 << 30).to_string());
    local.provider.upload_dir(&handle, &folder, &"all".into()).await.unwrap();
    local.provider.download_dir(&handle, &"all".into(), &back).await.unwrap();
    assert_eq!(std::fs::metadata(back.join("f")).unwrap().len(), 512 << 20);
    assert!(peak_mib() < 256, "{} MiB", peak_mib());
}

#[tokio::test(flavor = "multi_thread")]
async fn d04_no_key_is_held_back() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    let script = "stty raw -echo; echo ready; \
                  while :; do printf '<%s>' $(dd bs=1 count=1 2>/dev/null | od -An -tx1); done";
    let spec = SandboxPtySpec { command: Some(script.into()), ..SandboxPtySpec::default() };
    let mut stream = local.provider.create_pty(&handle, spec).await.unwrap();
    let mut seen = String::new();
    let mut wait_for = async |text: &str, keys: Option<&'static [u8]>| {
        if let Some(keys) = keys {
            stream.write(keys).await.unwrap();
        }
        let until = async {
            while !seen.contains(text) {
                match stream.next().await.unwrap() {
                    Some(PtyEvent::Output(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
                    Some(PtyEvent::Exit(exit)) => panic!("{exit:?}"),
                    Some(_) => {}
                    None => panic!("the session ended after {seen:?}"),
                }
            }
            seen.clear();
        };
        tokio::time::timeout(Duration::from_secs(20), until).await.unwrap_or_else(|_| panic!("no {text}"));
    };
    wait_for("ready", None).await;
    // The keys by which engines detach, one by one and together; and those that end and stop programs elsewhere.
    wait_for("<10>", Some(b"\x10")).await;
    wait_for("<10><11>", Some(b"\x10\x11")).await;
    for (text, keys) in [("<03>", &b"\x03"[..]), ("<04>", &b"\x04"[..]), ("<1a>", &b"\x1a"[..])] {
        wait_for(text, Some(keys)).await;
    }
}
