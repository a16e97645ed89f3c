//! Declared ports, seen from this machine.

use std::{
    io::{ErrorKind as IoKind, Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use sandbox_core::{
    Endpoint, ErrorKind, ExecRequest, PortForwarding, SandboxHandle, SandboxProvider, SandboxSpec, serde_json::json,
};

use crate::{
    agent,
    support::{Local, eventually, isolated},
};

/// Says back what it hears, in capitals, until the other side has said everything.
const ECHO: &str = "import socket, sys, threading
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
def serve(c):
  while True:
    b = c.recv(65536)
    if not b: break
    c.sendall(b.upper())
  c.close()
open('/tmp/ready', 'w')
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
";

async fn echo(local: &Local, handle: &SandboxHandle, port: u16) {
    let script = format!(
        "cat > /tmp/echo.py; python3 /tmp/echo.py {port} >/dev/null 2>&1 & \
         for i in $(seq 200); do test -e /tmp/ready && break; sleep 0.05; done; test -e /tmp/ready"
    );
    let result = local.run(handle, ExecRequest::shell(script).with_stdin_bytes(ECHO)).await;
    assert!(result.outcome().is_success(), "{}", result.stderr_text());
}

fn connect(endpoint: &str) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect(endpoint.strip_prefix("http://").unwrap())?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    Ok(stream)
}

fn exchange(endpoint: &str, said: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = connect(endpoint)?;
    let mut writer = stream.try_clone()?;
    std::thread::scope(|scope| {
        scope.spawn(move || writer.write_all(said).and_then(|()| writer.shutdown(Shutdown::Write)));
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).map(|_| heard)
    })
}

async fn declared_ports() {
    let local = isolated(json!({}));
    let handle = local.create_with(SandboxSpec::default().with_ports([8000, 8001])).await;
    let endpoint = async |port| local.provider.endpoint(&handle, port).await.map(|endpoint| endpoint.endpoint);
    let url = endpoint(8000).await.unwrap();
    assert_eq!(endpoint(8000).await.unwrap(), url);
    assert_ne!(endpoint(8001).await.unwrap(), url);
    let error = endpoint(8002).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("port")), "{error}");
    // Nothing listens yet: closed without a word, and not for ever.
    let blocking = async |said: Vec<u8>| {
        let url = url.clone();
        tokio::task::spawn_blocking(move || exchange(&url, &said)).await.unwrap()
    };
    let none = blocking(Vec::new()).await;
    assert!(none.as_ref().is_ok_and(Vec::is_empty) || none.is_err_and(|error| error.kind() == IoKind::ConnectionReset));
    echo(&local, &handle, 8000).await;
    assert_eq!(blocking(b"hello".to_vec()).await.unwrap(), b"HELLO");
    let much = b"abcdefgh".repeat(1 << 19);
    let heard = blocking(much.clone()).await.unwrap();
    assert!(heard == much.to_ascii_uppercase(), "{} bytes came back of {}", heard.len(), much.len());
    let mut many = tokio::task::JoinSet::new();
    for number in 0..32 {
        let url = url.clone();
        many.spawn_blocking(move || {
            exchange(&url, format!("n{number}").as_bytes()).unwrap() == format!("N{number}").as_bytes()
        });
    }
    assert!(many.join_all().await.into_iter().all(|is_right| is_right));
    // Only by the loopback.
    let port: u16 = url.rsplit_once(':').unwrap().1.parse().unwrap();
    assert!(std::net::TcpListener::bind(("127.0.0.2", port)).is_ok());
    if let Some(pause) = local.provider.as_pause_resume() {
        pause.pause(&handle).await.unwrap();
        pause.resume(&handle).await.unwrap();
        assert_eq!(endpoint(8000).await.unwrap(), url);
        assert_eq!(blocking(b"again".to_vec()).await.unwrap(), b"AGAIN");
    }
    // A connection ends with the sandbox, and nobody listens here any more.
    let mut open = connect(&url).unwrap();
    open.write_all(b"x").unwrap();
    open.read_exact(&mut [0]).unwrap();
    local.provider.close(&handle).await.unwrap();
    let end = tokio::task::spawn_blocking(move || open.read(&mut [0])).await.unwrap();
    assert!(
        end.as_ref().is_ok_and(|bytes| *bytes == 0) || end.is_err_and(|error| error.kind() == IoKind::ConnectionReset)
    );
    eventually("the port stays open", || connect(&url).is_err()).await;
    assert_eq!(endpoint(8000).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn e02_e03_a_declared_port_is_reached_by_the_loopback_though_the_sandbox_has_no_network() {
    declared_ports().await;
}

async fn forwarded_ports() {
    let local = isolated(json!({}));
    let (server, client) = (local.create().await, local.create().await);
    echo(&local, &server, 8000).await;
    let ask = async |port: u16| {
        let script = format!(
            "import socket\ntry:\n  s = socket.create_connection(('127.0.0.1', {port}), timeout=20)\n\
             except OSError as e:\n  print('failed', e.errno); exit()\n\
             s.sendall(b'x' * 300000); s.shutdown(1); n = 0\nwhile True:\n  b = s.recv(65536)\n  if not b: break\n\
             \x20 assert b == b'X' * len(b); n += len(b)\nprint(n)"
        );
        let result = local.run(&client, ExecRequest::argv(["python3", "-c", &script])).await;
        format!("{}{}", result.stdout_text().trim(), result.stderr_text())
    };
    assert_eq!(ask(8000).await, "failed 111");
    let forward = async |target: &str, ports: &[u16]| {
        local.provider.forward_ports(&client, target.to_owned(), ports.to_vec()).await
    };
    // Neither has a network: it goes through the two agents.
    let stream = forward(&server.sandbox_id, &[8000, 8001]).await.unwrap();
    assert_eq!(ask(8000).await, "300000");
    // Nothing listens there: closed, not held.
    assert_ne!(ask(8001).await, "300000");
    let taken = forward(&server.sandbox_id, &[8000]).await.err().unwrap();
    assert_eq!((taken.kind(), taken.field()), (ErrorKind::AlreadyExists, Some("ports")), "{taken}");
    // One that fails in part leaves nothing of itself.
    let taken = forward(&server.sandbox_id, &[8002, 8001]).await.err().unwrap();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists, "{taken}");
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while ask(8002).await != "failed 111" {
        assert!(std::time::Instant::now() < end);
    }
    for (target, ports, field) in
        [("local-nobody", vec![1], "target"), ("127.0.0.1", vec![], "ports"), ("127.0.0.1", vec![1, 1], "ports")]
    {
        let error = forward(target, &ports).await.err().unwrap();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(field)), "{error}");
    }
    drop(stream);
    while ask(8000).await != "failed 111" {
        assert!(std::time::Instant::now() < end + Duration::from_secs(20));
    }
    let mut stream = forward(&server.sandbox_id, &[8000]).await.unwrap();
    local.provider.close(&client).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_secs(20), stream.next()).await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_of_another_sandbox_are_reached_on_the_own_loopback_without_any_network() {
    forwarded_ports().await;
}

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn ports_as_nobody() {
    if agent::is_nobody() {
        declared_ports().await;
        forwarded_ports().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_need_no_privileges() {
    agent::as_nobody("ports::ports_as_nobody");
}
