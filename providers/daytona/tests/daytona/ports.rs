//! Ports inside, by way of the agent on a terminal.

use sandbox_core::{ErrorKind, ExecRequest, PauseResume, PortEvent, PortForwarding, SandboxHandle, SandboxProvider};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{LATE, Service};

/// A server that sends back what it hears, turned around; sandboxes of the double with a network have this machine's.
async fn server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut heard = Vec::new();
                client.read_to_end(&mut heard).await?;
                heard.reverse();
                client.write_all(&heard).await
            });
        }
    });
    port
}

async fn ask(service: &Service, sandbox: &SandboxHandle, port: u16, question: &[u8]) -> Vec<u8> {
    let all = async {
        let mut stream = service.provider.open_port(sandbox, port).await.expect("it is open");
        stream.write(question.to_vec()).await.unwrap();
        stream.close_input().await.unwrap();
        let mut answer = Vec::new();
        while let Some(event) = stream.next().await.unwrap() {
            if let PortEvent::Data(bytes) = event {
                answer.extend_from_slice(&bytes);
            }
        }
        answer.reverse();
        answer
    };
    tokio::time::timeout(LATE, all).await.expect("it ends in time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_byte_goes_to_a_port_and_back_and_the_agent_is_placed_once() {
    let service = Service::new().await;
    service.provider.validate_port_forwarding().await.expect("cargo xtask test sets where the agent's file is");
    let (sandbox, port) = (service.sandbox().await, server().await);
    // A terminal as it is would take some of these for itself.
    let every_byte: Vec<u8> = (0..=u8::MAX).cycle().take(300_000).collect();
    let (one, two) = tokio::join!(ask(&service, &sandbox, port, &every_byte), ask(&service, &sandbox, port, b"short"));
    assert!(one == every_byte, "{} bytes came back, or other ones", one.len());
    assert_eq!(two, b"short");
    let counts = || ["/files/bulk-upload", "/process/pty"].map(|path| service.requests("POST", path).len());
    assert_eq!(counts(), [1, 1], "uploads and terminals");

    // What is gone is made again; its file is there.
    let kill = "kill -9 $(grep -ls 'serve.--stdio' /proc/[0-9]*/cmdline | tr -dc '0-9\\n')";
    service.run(&sandbox, ExecRequest::shell(kill)).await;
    let end = std::time::Instant::now() + LATE;
    while service.provider.open_port(&sandbox, port).await.is_err() {
        assert!(std::time::Instant::now() < end, "it is not made again");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(ask(&service, &sandbox, port, b"again").await, b"again");
    assert_eq!(counts(), [1, 2], "uploads and terminals");

    service.provider.pause(&sandbox).await.unwrap();
    let paused = service.provider.open_port(&sandbox, port).await.unwrap_err();
    assert_eq!(paused.kind(), ErrorKind::InvalidState, "{paused}");
    let sandbox = service.provider.resume(&sandbox).await.unwrap();
    assert_eq!(ask(&service, &sandbox, port, b"resumed").await, b"resumed");
    service.provider.close(&sandbox).await.unwrap();
    let gone = service.provider.open_port(&sandbox, port).await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    service.double.stop().await;
}

#[tokio::test]
async fn an_agent_that_cannot_be_found_or_run_is_told_by_its_setting() {
    let agent = |path: &str| json!({"operations": {"agent_path": path}});
    let without = Service::with(agent("/nonexistent/agent")).await;
    let missing = without.provider.validate_port_forwarding().await.unwrap_err();
    assert_eq!((missing.kind(), missing.field()), (ErrorKind::NotFound, Some("agent_path")), "{missing}");
    // A file that is no agent of ours.
    let other = Service::with(agent("/etc/hostname")).await;
    let sandbox = other.sandbox().await;
    let refused = other.provider.open_port(&sandbox, 1).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    other.provider.close(&sandbox).await.unwrap();
    without.double.stop().await;
    other.double.stop().await;
}
