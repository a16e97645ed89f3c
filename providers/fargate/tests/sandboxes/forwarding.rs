//! Ports of this machine inside of a sandbox: how a program there reaches a model that only this machine reaches.

use fargate_double::BASE_IMAGE;
use sandbox_core::{ErrorKind, PortForwarding, SandboxHandle, SandboxProvider, SandboxSpec};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{LATE, Service};

/// Says back what it hears in capitals, to its end.
async fn model() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut heard = Vec::new();
                stream.read_to_end(&mut heard).await.unwrap();
                stream.write_all(&heard.to_ascii_uppercase()).await.unwrap();
            });
        }
    });
    port
}

async fn ask(service: &Service, handle: &SandboxHandle, port: u16) -> String {
    service.sh(handle, &format!("echo prompt | nc 127.0.0.1 {port}; true")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_of_this_machine_is_reached_inside_also_after_the_connection_broke_and_ends_with_its_stream() {
    let service = Service::new().await;
    let handle = service.sandbox().await;
    let port = model().await;
    assert_eq!(ask(&service, &handle, port).await, "", "a task has a loopback of its own");
    let stream = service.provider.forward_ports(&handle, "host".into(), vec![port]).await.expect("it is forwarded");
    assert_eq!(ask(&service, &handle, port).await, "PROMPT\n");
    let taken = service.provider.forward_ports(&handle, "host".into(), vec![port]).await.unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists, "{taken}");
    let arn = service.arn(&handle);
    assert_eq!(service.double.cut(&arn), 1);
    let end = std::time::Instant::now() + LATE;
    while ask(&service, &handle, port).await != "PROMPT\n" {
        assert!(std::time::Instant::now() < end, "it is not forwarded again");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    assert_eq!(service.double.was_cut(&arn), 1);
    drop(stream);
    while !ask(&service, &handle, port).await.is_empty() {
        assert!(std::time::Instant::now() < end, "it is forwarded for ever");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    let stream = service.provider.forward_ports(&handle, "host:127.0.0.1".into(), vec![port]).await.unwrap();
    assert_eq!(ask(&service, &handle, port).await, "PROMPT\n");
    drop(stream);
    service.end(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_of_another_sandbox_is_reached_through_both_connections() {
    let service = Service::new().await;
    let (one, two) = (service.sandbox().await, service.provider.create(SandboxSpec::image(BASE_IMAGE)).await.unwrap());
    service.sh(&two, "nc -ll -p 8000 -e cat >/dev/null 2>&1 &").await;
    let target = two.sandbox_id.clone();
    let stream = service.provider.forward_ports(&one, target, vec![8000]).await.expect("it is forwarded");
    let end = std::time::Instant::now() + LATE;
    while service.sh(&one, "echo there | nc 127.0.0.1 8000; true").await != "there\n" {
        assert!(std::time::Instant::now() < end, "it is not reached");
    }
    drop(stream);
    let error = service.provider.forward_ports(&one, "nobody".into(), vec![8000]).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("target")), "{error}");
    service.provider.close(&two).await.unwrap();
    service.double.stopped(&service.arn(&two)).await;
    service.end(&one).await;
}
