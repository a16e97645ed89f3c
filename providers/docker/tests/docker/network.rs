//! Ports, names and networks.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use sandbox_core::{
    Endpoint, ErrorKind, ExecRequest, Network, NetworkMode, NetworkRequest, Networks, PortEvent, PortForwarding,
    SandboxProvider, serde_json::json,
};

use crate::support::{docker, eventually, spec};

/// A server that answers every connection with one line.
const SERVE: &str = "while :; do echo answer | nc -l -p 8000; done >/dev/null 2>&1 & echo up";

fn ask(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"x\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

#[tokio::test(flavor = "multi_thread")]
async fn d23_a_declared_port_is_reached_at_its_endpoint_also_on_a_wildcard() {
    for publish_host in ["127.0.0.1", "0.0.0.0"] {
        let docker = docker(json!({ "publish_host": publish_host }));
        let handle = docker.create(spec().with_ports([8000])).await;
        assert_eq!(docker.text(&handle, SERVE).await, "up");
        for provider in [&docker.provider, &docker.another()] {
            let endpoint = provider.endpoint(&handle, 8000).await.unwrap().endpoint;
            let address = endpoint.strip_prefix("http://").unwrap().to_owned();
            assert!(address.starts_with("127.0.0.1:"), "{endpoint}");
            let answers = async || ask(&address).is_ok_and(|said| said.contains("answer"));
            eventually("nobody answers at the endpoint", answers).await;
        }
        let undeclared = docker.provider.endpoint(&handle, 8001).await.unwrap_err();
        assert_eq!(undeclared.kind(), ErrorKind::InvalidInput);
        docker.provider.close(&handle).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_inside_is_reached_through_the_agent_without_being_published() {
    let docker = docker(json!({}));
    let mut spec = spec();
    spec.network = Some(NetworkMode::None);
    let handle = docker.create(spec).await;
    assert_eq!(docker.text(&handle, SERVE).await, "up");
    let answers = async || {
        let Ok(mut stream) = docker.provider.open_port(&handle, 8000).await else { return false };
        matches!(stream.next().await, Ok(Some(PortEvent::Data(bytes))) if bytes == "answer\n")
    };
    eventually("nobody answers at the port", answers).await;
    docker.provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_of_a_named_network_reach_each_other_by_address_and_by_name() {
    let docker = docker(json!({}));
    let name = format!("tests-{}", std::process::id());
    docker.provider.create_network(NetworkRequest { name: name.clone(), ..Default::default() }).await.unwrap();
    let mut spec = spec();
    spec.network = Some(NetworkMode::Named(name.clone()));
    let (one, two) = (docker.create(spec.clone()).await, docker.create(spec).await);
    assert_eq!(docker.text(&one, SERVE).await, "up");
    docker.provider.validate_networking().await.unwrap();
    let address = docker.provider.network_address(&one).await.unwrap();
    let hosts = [("server.test".to_owned(), address.clone())].into();
    docker.provider.set_hosts(&two, hosts).await.unwrap();
    for target in [address.as_str(), "server.test"] {
        let script = format!("echo x | nc -w 5 {target} 8000");
        let reached = async || {
            let result = docker.run(&two, ExecRequest::shell(script.as_str())).await;
            result.stdout_text().contains("answer")
        };
        eventually(&format!("{target} is not reached"), reached).await;
    }
    let used = docker.provider.remove_network(name.clone()).await.unwrap_err();
    assert_eq!(used.kind(), ErrorKind::InvalidState, "{used:?}");
    for handle in [&one, &two] {
        docker.provider.close(handle).await.unwrap();
    }
    docker.provider.remove_network(name).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_another_sandbox_are_reached_on_the_own_loopback_without_a_network() {
    let docker = docker(json!({}));
    let mut spec = spec();
    spec.network = Some(NetworkMode::None);
    let (server, client) = (docker.create(spec.clone()).await, docker.create(spec).await);
    assert_eq!(docker.text(&server, SERVE).await, "up");
    let forward = async |target: &str| docker.provider.forward_ports(&client, target.to_owned(), vec![8000]).await;
    let stream = forward(&server.sandbox_id).await.unwrap();
    let asked = async || docker.run(&client, ExecRequest::shell("echo x | nc -w 5 127.0.0.1 8000")).await;
    eventually("the port is not reached", async || asked().await.stdout_text() == "answer\n").await;
    let taken = forward(&server.sandbox_id).await.err().unwrap();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists, "{taken:?}");
    drop(stream);
    eventually("it is still forwarded", async || !asked().await.outcome().is_success()).await;
    for target in ["no-such-sandbox", ""] {
        let error = forward(target).await.err().unwrap();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("target")), "{error:?}");
    }
    for handle in [&server, &client] {
        docker.provider.close(handle).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_does_not_exist_is_told_and_leaves_nothing() {
    let docker = docker(json!({}));
    let mut spec = spec();
    spec.network = Some(NetworkMode::Named("no-such-network".to_owned()));
    let error = docker.provider.create(spec).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    docker.ensure_no_folders();
}
