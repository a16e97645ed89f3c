//! The other optional abilities, each in its simple form.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sandbox_core::{ErrorKind, ExecRequest, NetworkRequest, SandboxStatus, VolumeRequest};

use super::cases;
use crate::{
    check::{Check, Stop, ensure_refused},
    context::Context,
    host::within,
    sandbox::{RUN_WITHIN, TestSandbox},
};

cases! { "services":
    renew_moves_the_expiry, "C16, contract: Lifecycle, renew", field TtlS, capability Renew;
    renew_of_a_gone_sandbox_is_refused, "contract: Lifecycle, renew", capability Renew;
    command_on_a_paused_sandbox_is_refused, "C06, contract: Capabilities, pause_resume", capability PauseResume;
    resumed_sandbox_goes_on, "C05, C07, contract: Capabilities, pause_resume", capability PauseResume;
    paused_sandbox_can_be_closed, "C06, contract: Capabilities, pause_resume", capability PauseResume;
    another_process_finds_the_sandbox, "C12, contract: Lifecycle, serialize and connect", capability Connect;
    wrong_descriptor_is_refused, "contract: Lifecycle, serialize and connect", capability Connect;
    descriptor_holds_no_secret, "I01, contract: Lifecycle, serialize and connect", field Env, capability Connect;
    background_service_lives_on, "contract: Capabilities, background_services", capability BackgroundServices;
    declared_port_has_an_endpoint, "E01, contract: Types, SandboxEndpoint", field Ports, capability Endpoint;
    metrics_are_measured, "contract: Capabilities, metrics", capability Metrics;
    snapshot_is_listed_until_it_is_removed, "contract: Capabilities, snapshots", capability Snapshots;
    network_is_listed_until_it_is_removed, "H09, contract: Capabilities, networks", capability Networks;
    volume_is_listed_until_it_is_removed, "H12, contract: Capabilities, volumes", capability Volumes;
    closed_port_is_unavailable, "contract: Capabilities, port_forwarding", capability PortForwarding;
}

fn declared<T: ?Sized>(ability: Option<&T>) -> Check<&T> {
    ability.ok_or_else(|| Stop::failed("it is declared, but its accessor is empty"))
}

async fn renew_moves_the_expiry(cx: Context) -> Check {
    let started = Instant::now();
    let sandbox = cx.sandbox_with(cx.spec().with_ttl_s(3.0)).await?;
    let expiry = declared(cx.provider().as_renew())?.renew(sandbox.handle(), 60.0).await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    ensure!(expiry.abs_diff(now + 60_000) < 10_000, "the new expiry is {} ms from now", expiry as i128 - now as i128);
    tokio::time::sleep(Duration::from_millis(4500).saturating_sub(started.elapsed())).await;
    ensure_eq!(sandbox.text("echo usable").await?, "usable", "stdout after the old expiry");
    Ok(())
}

async fn renew_of_a_gone_sandbox_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.close().await?;
    let renew = declared(cx.provider().as_renew())?.renew(sandbox.handle(), 60.0).await;
    ensure_refused(renew, &[ErrorKind::NotFound, ErrorKind::InvalidState], "the renewal of a closed sandbox")?;
    Ok(())
}

async fn command_on_a_paused_sandbox_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let pause = declared(cx.provider().as_pause_resume())?;
    pause.pause(sandbox.handle()).await?;
    ensure_eq!(sandbox.provider().status(sandbox.handle()).await?, SandboxStatus::Paused, "status");
    let exec = sandbox.provider().exec(sandbox.handle(), ExecRequest::shell("touch ran"));
    let exec = within(Duration::from_secs(5), "a command on a paused sandbox", exec).await?;
    ensure_refused(exec, &[ErrorKind::InvalidState], "a command on a paused sandbox")?;
    ensure_refused(pause.pause(sandbox.handle()).await, &[ErrorKind::InvalidState], "a second pause")?;
    let resumed = TestSandbox::new(cx.clone(), pause.resume(sandbox.handle()).await?);
    ensure_eq!(resumed.text("ls ran 2>/dev/null || true").await?, "", "files of the refused command");
    ensure_refused(pause.resume(resumed.handle()).await, &[ErrorKind::InvalidState], "a second resume")?;
    Ok(())
}

async fn resumed_sandbox_goes_on(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "(while :; do echo tick >> ticks; sleep 0.05; done) >/dev/null 2>&1 & echo kept > kept";
    sandbox.bytes(script).await?;
    let pause = declared(cx.provider().as_pause_resume())?;
    pause.pause(sandbox.handle()).await?;
    let resumed = cx.adopt(pause.resume(sandbox.handle()).await?);
    ensure_eq!(resumed.provider().status(resumed.handle()).await?, SandboxStatus::Running, "status");
    ensure_eq!(resumed.text("cat kept").await?, "kept", "a file");
    let grows = "a=$(wc -c < ticks); sleep 0.4; test \"$a\" != \"$(wc -c < ticks)\"";
    ensure!(resumed.eventually(Duration::from_secs(5), grows).await?, "a process did not go on after the resume");
    Ok(())
}

async fn paused_sandbox_can_be_closed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("sleep 60 >/dev/null 2>&1 &").await?;
    declared(cx.provider().as_pause_resume())?.pause(sandbox.handle()).await?;
    sandbox.close().await?;
    cx.ensure_nothing_is_left().await
}

async fn another_process_finds_the_sandbox(cx: Context) -> Check {
    let (sandbox, wrong) = (cx.sandbox().await?, cx.sandbox().await?);
    sandbox.put("which", b"this one").await?;
    wrong.put("which", b"another one").await?;
    let descriptor = declared(cx.provider().as_connect())?.serialize_handle(sandbox.handle(), None).await?;
    ensure!(descriptor.is_object(), "the descriptor is no JSON object");
    let other = cx.another_provider().await?;
    let handle = declared(other.as_connect())?.connect(descriptor).await?;
    let read = ExecRequest::argv(["cat", "which"]);
    let result = within(RUN_WITHIN, "a command", other.exec(&handle, read)).await??;
    let result = within(RUN_WITHIN, "a command", result.collect(Default::default())).await??;
    ensure_eq!(result.stdout_text(), "this one", "the file of the sandbox that was found");
    within(RUN_WITHIN, "aclose", other.aclose()).await??;
    ensure_eq!(sandbox.text("cat which").await?, "this one", "the file after the other client has gone");
    Ok(())
}

async fn wrong_descriptor_is_refused(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let connect = declared(cx.provider().as_connect())?;
    for wrong in
        [serde_json::json!({}), serde_json::json!("x"), serde_json::json!({"sandbox": 1}), serde_json::Value::Null]
    {
        ensure_refused(
            connect.connect(wrong.clone()).await,
            &[ErrorKind::InvalidInput],
            &format!("the descriptor {wrong}"),
        )?;
    }
    let descriptor = connect.serialize_handle(sandbox.handle(), None).await?;
    sandbox.close().await?;
    let gone = [ErrorKind::NotFound];
    ensure_refused(connect.connect(descriptor).await, &gone, "the descriptor of a closed sandbox")?;
    Ok(())
}

async fn descriptor_holds_no_secret(cx: Context) -> Check {
    let canary = format!("canary-{}", cx.token());
    let sandbox = cx.sandbox_with(cx.spec().with_env("SECRET", canary.as_str())).await?;
    let descriptor = declared(cx.provider().as_connect())?.serialize_handle(sandbox.handle(), None).await?;
    ensure!(!descriptor.to_string().contains(&canary), "the descriptor holds the environment");
    Ok(())
}

async fn background_service_lives_on(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "(while :; do echo tick >> ticks; sleep 0.05; done) >/dev/null 2>&1 & echo up";
    let services = declared(cx.provider().as_background_services())?;
    let stream = services.exec_with_background_services(sandbox.handle(), ExecRequest::shell(script)).await?;
    let result = within(Duration::from_secs(5), "the command", stream.collect(Default::default())).await??;
    ensure_eq!(result.stdout_text(), "up\n", "stdout");
    let grows = "a=$(wc -c < ticks); sleep 0.4; test \"$a\" != \"$(wc -c < ticks)\"";
    ensure!(sandbox.sh(grows).await?.outcome().is_success(), "the service did not live on");
    Ok(())
}

async fn declared_port_has_an_endpoint(cx: Context) -> Check {
    let sandbox = cx.sandbox_with(cx.spec().with_ports([8000])).await?;
    let endpoints = declared(cx.provider().as_endpoint())?;
    let endpoint = endpoints.endpoint(sandbox.handle(), 8000).await?;
    ensure!(endpoint.endpoint.contains("://"), "the endpoint is no absolute URL");
    let undeclared = endpoints.endpoint(sandbox.handle(), 8001).await;
    ensure_refused(undeclared, &[ErrorKind::InvalidInput], "the endpoint of an undeclared port")?;
    Ok(())
}

async fn metrics_are_measured(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.bytes("sleep 60 >/dev/null 2>&1 & sleep 60 >/dev/null 2>&1 &").await?;
    let metrics = declared(cx.provider().as_metrics())?;
    let now = metrics.metrics(sandbox.handle()).await?;
    let is_any = now.cpu_time_s.is_some() || now.memory_bytes.is_some() || now.processes.is_some();
    ensure!(is_any, "nothing is measured");
    ensure!(now.processes.is_none_or(|count| count >= 2), "{:?} processes, but two run", now.processes);
    sandbox.close().await?;
    let gone = metrics.metrics(sandbox.handle()).await;
    ensure_refused(gone, &[ErrorKind::NotFound, ErrorKind::InvalidState], "the metrics of a closed sandbox")?;
    Ok(())
}

async fn snapshot_is_listed_until_it_is_removed(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    sandbox.put("kept", b"kept").await?;
    let snapshots = declared(cx.provider().as_snapshots())?;
    let name = format!("conformance-{}", cx.token());
    let snapshot = snapshots.create_snapshot(sandbox.handle(), name).await?;
    let is_listed = async || snapshots.list_snapshots().await.map(|all| all.iter().any(|one| one.id == snapshot.id));
    let listed = is_listed().await;
    for _ in 0..2 {
        snapshots.remove_snapshot(snapshot.id.clone()).await?;
    }
    ensure!(listed?, "the snapshot is not listed");
    ensure!(!is_listed().await?, "the removed snapshot is still listed");
    Ok(())
}

async fn network_is_listed_until_it_is_removed(cx: Context) -> Check {
    let networks = declared(cx.provider().as_networks())?;
    let name = format!("conformance-{}", cx.token());
    let request = NetworkRequest { name: name.clone(), ..Default::default() };
    networks.create_network(request.clone()).await?;
    let again = networks.create_network(request).await;
    let is_listed = async || networks.list_networks().await.map(|all| all.iter().any(|one| one.name == name));
    let listed = is_listed().await;
    for _ in 0..2 {
        networks.remove_network(name.clone()).await?;
    }
    ensure_refused(again, &[ErrorKind::AlreadyExists], "a second network of that name")?;
    ensure!(listed?, "the network is not listed");
    ensure!(!is_listed().await?, "the removed network is still listed");
    Ok(())
}

async fn volume_is_listed_until_it_is_removed(cx: Context) -> Check {
    let volumes = declared(cx.provider().as_volumes())?;
    let name = format!("conformance-{}", cx.token());
    let request = VolumeRequest { name: name.clone(), ..Default::default() };
    volumes.create_volume(request).await?;
    let is_listed = async || volumes.list_volumes().await.map(|all| all.iter().any(|one| one.name == name));
    let listed = is_listed().await;
    for _ in 0..2 {
        volumes.remove_volume(name.clone()).await?;
    }
    ensure!(listed?, "the volume is not listed");
    ensure!(!is_listed().await?, "the removed volume is still listed");
    Ok(())
}

async fn closed_port_is_unavailable(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let forwarding = declared(cx.provider().as_port_forwarding())?;
    forwarding.validate_port_forwarding().await?;
    // Port 1 is free wherever the sandbox is not the host's own network.
    let open = within(RUN_WITHIN, "the connection", forwarding.open_port(sandbox.handle(), 1)).await?;
    ensure_refused(open, &[ErrorKind::Unavailable], "a connection to a port where nothing listens")?;
    Ok(())
}
