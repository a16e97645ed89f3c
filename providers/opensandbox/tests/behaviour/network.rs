//! Addresses, names, ports, shared folders and what is needed of the kernel.

use std::{collections::BTreeMap, time::Duration};

use opensandbox_double::{ControlOptions, Fault};
use sandbox_core::{
    ErrorKind, ExecRequest, PortEvent, PortStream, RuntimeRequirementsSpec, SandboxHandle, SandboxProvider,
    SandboxSpec, VolumeMount, VolumeSource,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::support::{World, options, soon};

/// A world whose sandboxes have files of their own. Their network is this machine's.
async fn with_files(over: Value) -> World {
    World::with(ControlOptions { containers: true, ..options() }, over).await
}

fn described(endpoint: &str, headers: Value) -> Fault {
    let body = json!({ "endpoint": endpoint, "headers": headers }).to_string();
    Fault::Answer { status: 200, headers: Vec::new(), body }
}

#[tokio::test]
async fn an_address_is_one_that_other_sandboxes_reach_or_is_refused() {
    let world = World::new(json!({ "networking": { "enabled": true } })).await;
    let handle = world.sandbox().await;
    let network = world.provider.as_network().unwrap();
    soon(network.validate_networking()).await.unwrap();
    for (endpoint, expected) in [("10.1.2.3:44772", "10.1.2.3"), ("[fd00::7]:44772", "fd00::7")] {
        world.control.faults().plan("GET", "/endpoints/44772", described(endpoint, json!({})), 1);
        assert_eq!(soon(network.network_address(&handle)).await.unwrap(), expected);
    }
    // It is asked for directly, however commands go.
    let asked = world.control.seen().into_iter().rfind(|seen| seen.path.contains("/endpoints/")).unwrap();
    assert!(asked.path.contains("use_server_proxy=false"), "{}", asked.path);
    for (endpoint, headers) in [
        ("10.1.2.3:1234/proxy/44772", json!({})),
        ("10.1.2.3:8080", json!({})),
        ("box.example:44772", json!({})),
        ("127.0.0.1:44772", json!({})),
        ("0.0.0.0:44772", json!({})),
        ("10.1.2.3:44772", json!({ "OpenSandbox-Ingress-To": "x" })),
    ] {
        world.control.faults().plan("GET", "/endpoints/44772", described(endpoint, headers), 1);
        let error = soon(network.network_address(&handle)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{endpoint}: {error:?}");
    }
    world.control.end().await;
    assert!(World::new(json!({})).await.provider.as_network().is_none(), "without the setting there is none");
}

#[tokio::test]
async fn an_endpoint_that_is_none_is_an_error() {
    let world = World::new(json!({})).await;
    let handle = soon(world.provider.create(SandboxSpec::default().with_ports([8000]))).await.unwrap();
    world.control.faults().plan("GET", "/endpoints/8000", described(" ", json!({})), 1);
    let error = soon(world.provider.as_endpoint().unwrap().endpoint(&handle, 8000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error:?}");
    let with_headers = described("h.example/1", json!({ "OpenSandbox-Ingress-To": "x-8000" }));
    world.control.faults().plan("GET", "/endpoints/8000", with_headers, 1);
    let endpoint = soon(world.provider.as_endpoint().unwrap().endpoint(&handle, 8000)).await.unwrap();
    assert_eq!(endpoint.endpoint, "http://h.example/1");
    assert_eq!(endpoint.headers["OpenSandbox-Ingress-To"], "x-8000");
    world.control.end().await;
}

#[tokio::test]
async fn names_that_are_set_take_the_place_of_earlier_ones_and_of_no_others() {
    let world = with_files(json!({ "networking": { "enabled": true } })).await;
    let handle = world.sandbox().await;
    let network = world.provider.as_network().unwrap();
    let hosts = |name: &str, address: &str| BTreeMap::from([(name.to_owned(), address.to_owned())]);
    soon(network.set_hosts(&handle, hosts("first.test", "10.0.0.1"))).await.unwrap();
    soon(network.set_hosts(&handle, hosts("second.test", "fd00::2"))).await.unwrap();
    let text = world.text(&handle, "cat /etc/hosts").await;
    let lines: Vec<&str> = text.lines().filter_map(|line| line.split(" #").next()).collect();
    assert_eq!(lines, ["127.0.0.1 localhost", "fd00::2 second.test"]);
    for (name, address) in [("a b", "10.0.0.1"), ("-x", "10.0.0.1"), ("", "10.0.0.1"), ("x", "10.0.0"), ("x\ny", "::1")]
    {
        let error = soon(network.set_hosts(&handle, hosts(name, address))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name:?} {address:?}");
    }
    world.control.end().await;
}

fn forwarding() -> Value {
    json!({ "networking": { "enabled": true, "loopback_forwarding": true } })
}

/// Answers in capitals, until the other side has said everything.
async fn echo(address: &str) -> u16 {
    let listener = TcpListener::bind(address).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = client.split();
                let mut piece = [0; 4096];
                while let Ok(read @ 1..) = from.read(&mut piece).await {
                    if to.write_all(&piece[..read].to_ascii_uppercase()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

async fn heard(stream: &mut PortStream) -> Vec<u8> {
    let mut heard = Vec::new();
    while let Some(event) = soon(stream.next()).await.unwrap() {
        if let PortEvent::Data(bytes) = event {
            heard.extend_from_slice(&bytes);
        }
    }
    heard
}

#[tokio::test]
async fn a_port_of_a_sandbox_is_connected_to_byte_for_byte_and_each_direction_ends_by_itself() {
    let world = World::new(forwarding()).await;
    let handle = world.sandbox().await;
    let ports = world.provider.as_port_forwarding().unwrap();
    soon(ports.validate_port_forwarding()).await.unwrap();
    let port = echo("127.0.0.1:0").await;
    let mut stream = soon(ports.open_port(&handle, port)).await.unwrap();
    let sent: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
    let (control, whole) = (stream.control(), sent.clone());
    let writing = tokio::spawn(async move {
        control.write(whole.into()).await?;
        control.control(sandbox_core::ControlRequest::CloseInput).await
    });
    assert!(heard(&mut stream).await == sent.to_ascii_uppercase());
    soon(writing).await.unwrap().unwrap();
    // A stream that nobody holds leaves nothing inside.
    drop(soon(ports.open_port(&handle, port)).await.unwrap());
    let execd = world.execd(&handle);
    crate::support::eventually(|| execd.pty_count() == 0).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let error = soon(ports.open_port(&handle, closed)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert_eq!(soon(ports.open_port(&handle, 0)).await.unwrap_err().field(), Some("port"));
    world.control.end().await;
}

async fn ask(port: u16, text: &str) -> std::io::Result<String> {
    let mut client = TcpStream::connect(("127.0.0.1", port)).await?;
    client.write_all(text.as_bytes()).await?;
    client.shutdown().await?;
    let mut answer = String::new();
    client.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test]
async fn ports_of_another_place_are_on_the_loopback_as_long_as_somebody_holds_them() {
    let world = World::new(forwarding()).await;
    let handle = world.sandbox().await;
    let ports = world.provider.as_port_forwarding().unwrap();
    // The loopback of the sandbox is this machine's; the other place is another address of it.
    let (first, second) = (echo("127.0.0.2:0").await, echo("127.0.0.2:0").await);
    let forward = |ports_of: Vec<u16>| ports.forward_ports(&handle, "127.0.0.2".to_owned(), ports_of);
    let held = soon(forward(vec![first, second])).await.unwrap();
    for (port, text) in [(first, "one"), (second, "two"), (first, "three")] {
        assert_eq!(soon(ask(port, text)).await.unwrap(), text.to_ascii_uppercase());
    }
    let taken = soon(forward(vec![second])).await.unwrap_err();
    assert_eq!((taken.kind(), taken.field()), (ErrorKind::AlreadyExists, Some("ports")), "{taken:?}");
    drop(held);
    let is_closed = async {
        while ask(first, "x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    soon(is_closed).await;
    let error = soon(ports.forward_ports(&handle, "127.0.0.2".to_owned(), vec![])).await.unwrap_err();
    assert_eq!(error.field(), Some("ports"));
    // A sandbox by its id, where the server gives it no address.
    let error = soon(ports.forward_ports(&handle, handle.sandbox_id.clone(), vec![first])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    world.control.end().await;
}

#[tokio::test]
async fn a_forwarding_says_what_it_lacks_and_runs_its_set_up_first() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("set-up");
    let set_up = |script: String, python: &str| {
        let mut all = forwarding();
        all["networking"]["setup_command"] = json!(script);
        all["networking"]["python_executable"] = json!(python);
        all
    };
    let world = World::new(set_up(format!("id -u >{}", file.display()), "python3")).await;
    let handle = world.sandbox().await;
    let port = echo("127.0.0.1:0").await;
    drop(soon(world.provider.as_port_forwarding().unwrap().open_port(&handle, port)).await.unwrap());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "0\n", "as root");
    world.control.end().await;
    for (script, python, help) in
        [("true", "no-such-python", "networking.python_executable"), ("exit 3", "python3", "")]
    {
        let world = World::new(set_up(script.to_owned(), python)).await;
        let handle = world.sandbox().await;
        let ports = world.provider.as_port_forwarding().unwrap();
        for error in [
            soon(ports.open_port(&handle, port)).await.unwrap_err(),
            soon(ports.forward_ports(&handle, "127.0.0.2".to_owned(), vec![port])).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
            assert!(error.help().unwrap_or_default().contains(help), "{error:?}");
        }
        world.control.end().await;
    }
    assert!(World::new(json!({})).await.provider.as_port_forwarding().is_none(), "without the setting there is none");
}

#[tokio::test]
async fn volumes_are_in_the_servers_words_and_mounted() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("team/a")).unwrap();
    std::fs::write(folder.path().join("team/a/f"), "shared\n").unwrap();
    let shared = json!({ "host_path": folder.path().display().to_string(), "metadata": { "zone": "z1" } });
    let world = with_files(json!({ "shared_storage": shared })).await;
    let storage = world.provider.as_shared_storage().unwrap();
    let given = storage.shared_volume_options(Some("team/a".to_owned()), "/shared".to_owned(), true).await.unwrap();
    let mut spec = SandboxSpec::default();
    spec.provider_options.extend(given.as_object().cloned().unwrap());
    spec.metadata.extend(storage.shared_volume_metadata().await.unwrap());
    let source = VolumeSource::Named("data".to_owned());
    spec.volumes = vec![VolumeMount { source, target: "/data".to_owned(), read_only: false }];
    let handle = soon(world.provider.create(spec)).await.unwrap();
    let sent = world.control.created_with(&handle.sandbox_id).unwrap();
    assert_eq!(sent["volumes"][0]["pvc"]["claimName"], json!("data"));
    assert_eq!((&sent["volumes"][1]["subPath"], &sent["metadata"]["zone"]), (&json!("team/a"), &json!("z1")));
    assert_eq!(world.text(&handle, "cat /shared/f; echo x >/data/f; cat /data/f").await, "shared\nx\n");
    let refused = world.run(&handle, ExecRequest::shell("echo y >/shared/f")).await.unwrap();
    assert!(!refused.outcome().is_success(), "it is mounted read-only");
    world.control.end().await;
}

async fn configured(world: &World, handle: &SandboxHandle, cap: &str) -> sandbox_core::Result<()> {
    let wanted = RuntimeRequirementsSpec { cap_add: vec![cap.to_owned()], shm_size_mib: None };
    soon(world.provider.as_runtime_requirements().unwrap().configure_runtime(handle, wanted)).await
}

#[tokio::test]
async fn what_is_needed_of_the_kernel_is_tried_in_the_sandbox_as_root() {
    let probes = json!({ "capability_probes": { "SYS_PTRACE": "test $(id -u) = 0", "NET_ADMIN": "exit 1" },
                         "shm_size_metadata_key": "shm" });
    let world = World::new(json!({ "runtime_requirements": probes })).await;
    let handle = soon(world.provider.create(SandboxSpec::default().with_user("nobody"))).await.unwrap();
    configured(&world, &handle, "SYS_PTRACE").await.unwrap();
    let error = configured(&world, &handle, "NET_ADMIN").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("NET_ADMIN"), "{error}");
    // The size is measured in blocks, and told to the server as a label.
    let requirements = world.provider.as_runtime_requirements().unwrap();
    let size = |shm_size_mib: u64| RuntimeRequirementsSpec { cap_add: vec![], shm_size_mib: Some(shm_size_mib) };
    let labels = requirements.validate_runtime_requirements(size(64)).await.unwrap();
    assert_eq!(labels, Some(json!({ "shm": "64Mi" })));
    let own = world.text(&handle, "set -- $(stat -f -c '%S %b' /dev/shm); echo $(($1 * $2 / 1048576))").await;
    let own: u64 = own.trim().parse().unwrap();
    soon(requirements.configure_runtime(&handle, size(own))).await.unwrap();
    let error = soon(requirements.configure_runtime(&handle, size(own + 1))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    world.control.end().await;
}
