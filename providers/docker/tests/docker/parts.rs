//! Sidecars, snapshots, shared storage, runtime requirements, metrics, entrypoints.

use sandbox_core::{
    ByteString, ErrorKind, ExecEvent, ExecRequest, Metrics, RuntimeRequirements, RuntimeRequirementsSpec,
    SandboxProvider, SandboxSidecarSpec, SandboxSpec, SharedStorage, Sidecars, Snapshots, VolumeRequest, Volumes,
    serde_json::json,
};

use crate::{
    engine,
    support::{by_hand, docker, eventually, spec},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_shares_the_network_runs_commands_and_ends_with_the_sandbox() {
    let docker = docker(json!({}));
    let mut spec = spec();
    let sidecar =
        SandboxSidecarSpec { name: "side".to_owned(), image: engine::BUSYBOX.to_owned(), ..Default::default() };
    spec.sidecars = vec![SandboxSidecarSpec { env: [("A", "side")].into_iter().collect(), ..sidecar }];
    let handle = docker.create(spec).await;
    let request = ExecRequest::argv(["sh", "-c", "echo $A > /made; cat /made; hostname -i"]);
    let stream = docker.provider.sidecar_exec(&handle, "side".to_owned(), request).await.unwrap();
    let said = stream.collect(Default::default()).await.unwrap().stdout_text().into_owned();
    assert!(said.starts_with("side\n"), "{said}");
    // No shell reads the words; and output comes while the command runs: it goes on when it has been heard.
    let words =
        ["sh", "-c", "printf '%s|' \"$@\"; until test -e /heard; do sleep 0.05; done; echo end", "x", "a b", "$A", ";"];
    let mut stream = docker.provider.sidecar_exec(&handle, "side".to_owned(), ExecRequest::argv(words)).await.unwrap();
    let mut heard = Vec::new();
    while heard != b"a b|$A|;|" {
        match stream.next().await.unwrap().unwrap() {
            ExecEvent::Stdout(bytes) => heard.extend_from_slice(&bytes),
            other => panic!("{other:?} after {heard:?}"),
        }
    }
    let go_on = ExecRequest::argv(["touch", "/heard"]);
    let other = docker.provider.sidecar_exec(&handle, "side".to_owned(), go_on).await.unwrap();
    assert_eq!(other.collect(Default::default()).await.unwrap().return_code(), 0);
    let rest = stream.collect(Default::default()).await.unwrap();
    assert_eq!((rest.stdout_text().as_ref(), rest.return_code()), ("end\n", 0));
    let local = docker.temp.path().join("made");
    docker.provider.download_sidecar_file(&handle, "side", &ByteString::from("/made"), &local).await.unwrap();
    assert_eq!(std::fs::read(&local).unwrap(), b"side\n");
    let address = "ip -4 -o addr show eth0 | awk '{print $4}'";
    let request = ExecRequest::argv(["sh", "-c", address]);
    let stream = docker.provider.sidecar_exec(&handle, "side".to_owned(), request).await.unwrap();
    let beside = stream.collect(Default::default()).await.unwrap().stdout_text().trim().to_owned();
    assert_eq!(docker.text(&handle, address).await, beside);
    let error = docker.provider.sidecar_exec(&handle, "other".to_owned(), ExecRequest::argv(["true"])).await;
    assert_eq!(error.err().unwrap().field(), Some("sidecar"));
    docker.provider.close(&handle).await.unwrap();
    let left = by_hand(["ps", "--all", "--quiet", "--filter", &format!("label=sandbox.id={}", handle.sandbox_id)]);
    assert_eq!(left, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_the_image_of_a_new_sandbox() {
    let docker = docker(json!({}));
    let handle = docker.create(spec()).await;
    docker.put(&handle, "/kept", b"kept").await;
    let name = format!("tests-{}", std::process::id());
    let snapshot = docker.provider.create_snapshot(&handle, name).await.unwrap();
    docker.provider.close(&handle).await.unwrap();
    let again = docker.create(SandboxSpec::image(&snapshot.id)).await;
    assert_eq!(docker.get(&again, "/kept").await, b"kept");
    docker.provider.close(&again).await.unwrap();
    docker.provider.remove_snapshot(snapshot.id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_storage_is_seen_by_several_sandboxes() {
    let volume = format!("tests-{}", std::process::id());
    let docker = docker(json!({ "shared_storage": { "volume": &volume } }));
    docker.provider.create_volume(VolumeRequest { name: volume.clone(), ..Default::default() }).await.unwrap();
    let options = docker.provider.shared_volume_options(None, "/shared".to_owned(), false).await.unwrap();
    let mut spec = spec();
    spec.provider_options = options.as_object().unwrap().clone();
    let (one, two) = (docker.create(spec.clone()).await, docker.create(spec).await);
    docker.text(&one, "echo from-one > /shared/file").await;
    assert_eq!(docker.text(&two, "cat /shared/file").await, "from-one");
    for source in ["../x", "a/../../b"] {
        let outside = docker.provider.shared_volume_options(Some(source.to_owned()), "/s".to_owned(), true).await;
        assert_eq!(outside.unwrap_err().field(), Some("source"), "{source}");
    }
    for handle in [&one, &two] {
        docker.provider.close(handle).await.unwrap();
    }
    docker.provider.remove_volume(volume).await.unwrap();
    // A folder of this machine, of which a part can be had, and only to read.
    let folder = docker.temp.path().join("shared");
    std::fs::create_dir_all(folder.join("part")).unwrap();
    std::fs::write(folder.join("part/file"), "in a part").unwrap();
    let by_folder = crate::support::docker(json!({ "shared_storage": { "folder": &folder } }));
    by_folder.provider.shared_volume_metadata().await.unwrap();
    let part = by_folder.provider.shared_volume_options(Some("part".to_owned()), "/shared".to_owned(), true).await;
    let mut spec = self::spec();
    spec.provider_options = part.unwrap().as_object().unwrap().clone();
    let handle = by_folder.create(spec).await;
    assert_eq!(by_folder.text(&handle, "cat /shared/file; touch /shared/x 2>/dev/null || true").await, "in a part");
    assert_eq!(std::fs::read_dir(folder.join("part")).unwrap().count(), 1);
    by_folder.provider.close(&handle).await.unwrap();
    // And where none is configured, that is said.
    let none = crate::support::docker(json!({}));
    for refused in [
        none.provider.shared_volume_options(None, "/s".to_owned(), false).await.map(drop),
        none.provider.shared_volume_metadata().await.map(drop),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requirements_are_checked_before_and_after() {
    let docker = docker(json!({}));
    let needs = RuntimeRequirementsSpec { cap_add: vec!["SYS_NICE".to_owned()], shm_size_mib: Some(96) };
    let fields = docker.provider.validate_runtime_requirements(needs.clone()).await.unwrap().unwrap();
    let mut whole = json!({ "image": engine::BUSYBOX });
    whole.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let (with, without) = (docker.create(SandboxSpec::from_json(whole).unwrap()).await, docker.create(spec()).await);
    docker.provider.configure_runtime(&with, needs.clone()).await.unwrap();
    assert!(docker.text(&with, "df -k /dev/shm | tail -1").await.contains(" 98304 "), "96 MiB");
    let error = docker.provider.configure_runtime(&without, needs).await.unwrap_err();
    assert_eq!(error.field(), Some("cap_add"), "{error}");
    let more = RuntimeRequirementsSpec { shm_size_mib: Some(128), ..Default::default() };
    let error = docker.provider.configure_runtime(&with, more).await.unwrap_err();
    assert_eq!(error.field(), Some("shm_size_mib"), "{error}");
    // What cannot be is refused before anything is made.
    for (needs, field) in [
        (RuntimeRequirementsSpec { cap_add: vec!["NOT_ONE".to_owned()], ..Default::default() }, "cap_add"),
        (RuntimeRequirementsSpec { shm_size_mib: Some(0), ..Default::default() }, "shm_size_mib"),
    ] {
        let error = docker.provider.validate_runtime_requirements(needs).await.unwrap_err();
        assert!(error.field().is_some_and(|named| named.contains(field)), "{error:?}");
    }
    for handle in [&with, &without] {
        docker.provider.close(handle).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d26_an_entrypoint_runs_and_the_sandbox_ends_with_it() {
    let docker = docker(json!({}));
    let mut spec = spec().with_workdir("/work");
    spec.entrypoint = Some(["sh", "-c", "echo started > here; sleep 600"].map(str::to_owned).to_vec());
    let handle = docker.create(spec).await;
    let started = async || docker.text(&handle, "cat here 2>/dev/null || true").await == "started";
    eventually("the entrypoint does not run", started).await;
    docker.text(&handle, "head -c 3000000 /dev/zero > written").await;
    let metrics = docker.provider.metrics(&handle).await.unwrap();
    assert!(metrics.disk_bytes.is_some_and(|bytes| bytes >= 3_000_000), "{metrics:?}");
    assert!(metrics.processes.is_some_and(|count| count >= 2), "{metrics:?}");
    assert!(metrics.memory_bytes.is_some_and(|bytes| bytes > 0) && metrics.received_bytes.is_some(), "{metrics:?}");
    assert!(metrics.cpu_time_s.is_some_and(|seconds| seconds > 0.0) && metrics.sent_bytes.is_some(), "{metrics:?}");
    // The sandbox may end before it can tell how this went.
    let kill = docker.provider.exec(&handle, ExecRequest::argv(["killall", "sleep"])).await;
    drop(kill.unwrap().collect(Default::default()).await);
    let is_over = async || docker.provider.status(&handle).await.unwrap() == sandbox_core::SandboxStatus::Stopped;
    eventually("the sandbox does not end with its entrypoint", is_over).await;
    docker.provider.close(&handle).await.unwrap();
}
