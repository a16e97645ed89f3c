//! Listeners inside for clients outside, and names that resolve inside.

use std::{collections::BTreeMap, os::unix::fs::PermissionsExt};

use crate::support::{Agent, As, default_config, eventually, seconds, sh, within};
use sandbox_core::{ErrorKind, Session};
use sandbox_protocol::{
    Client, ForwardEvent, ListenEvent,
    methods::{self, HostsSet, Nothing, PortAccept, PortListen, PortListening, UnixListen},
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UnixStream},
};

type Listening = (PortListening, Session<ListenEvent>);

async fn listen(client: &Client, request: PortListen) -> Listening {
    client.open_with_reply(methods::PORT_LISTEN, &request).await.unwrap()
}

/// Takes the next connection of a listener.
async fn accept(client: &Client, listener: &mut Session<ListenEvent>) -> Session<ForwardEvent> {
    match within(seconds(20), listener.next()).await.unwrap().unwrap() {
        ListenEvent::Incoming { connection } => {
            client.open(methods::PORT_ACCEPT, &PortAccept { connection }).await.unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// Sends everything back, to the end.
async fn echo(mut stream: Session<ForwardEvent>) {
    while let Some(ForwardEvent::Data(bytes)) = stream.next().await.unwrap() {
        stream.write(bytes).await.unwrap();
    }
    stream.close_input().await.unwrap();
    assert_eq!(stream.next().await.unwrap(), Some(ForwardEvent::End));
}

async fn talk(stream: impl AsyncReadExt + AsyncWriteExt) {
    let data: Vec<u8> = (0..1_000_000u32).map(|index| (index % 251) as u8).collect();
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = async {
        write.write_all(&data).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let receiving = read.read_to_end(&mut back);
    let ((), received) = within(seconds(30), async { tokio::join!(sending, receiving) }).await;
    received.unwrap();
    assert!(back == data);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_connects_inside_reaches_the_client_outside() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let (at, mut listener) = listen(&client, PortListen::default()).await;
    let port = at.port.unwrap();
    for _ in 0..3 {
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let served = tokio::spawn(echo(accept(&client, &mut listener).await));
        talk(stream).await;
        within(seconds(20), served).await.unwrap();
    }
    // A port is taken once, and free when its session has gone.
    let again = PortListen { port, ..PortListen::default() };
    let error = client.open::<ListenEvent>(methods::PORT_LISTEN, &again).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let waiting = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    assert!(matches!(within(seconds(20), listener.next()).await.unwrap(), Some(ListenEvent::Incoming { .. })));
    drop(listener);
    eventually("it listens no more", async || TcpStream::connect(("127.0.0.1", port)).await.is_err()).await;
    let mut waiting = waiting;
    // Closed, or reset: over either way.
    let read = within(seconds(20), waiting.read(&mut [0; 1])).await;
    assert!(matches!(read, Ok(0) | Err(_)), "one that nobody took is closed with its listener");
    let gone = PortAccept { connection: 999 };
    let error = client.open::<ForwardEvent>(methods::PORT_ACCEPT, &gone).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_inside_has_its_mode_and_owner_and_goes_with_its_session() {
    let agent = Agent::start(json!({ "user": "65534:65534" }));
    std::fs::set_permissions(agent.folder(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let client = agent.connect().await;
    let path = agent.folder().join("inside.sock");
    let request = UnixListen { path: path.to_str().unwrap().into(), mode: Some(0o666) };
    let (_, mut listener): Listening = client.open_with_reply(methods::UNIX_LISTEN, &request).await.unwrap();
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o666);
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&found), 65534);
    let stream = UnixStream::connect(&path).await.unwrap();
    let served = tokio::spawn(echo(accept(&client, &mut listener).await));
    talk(stream).await;
    within(seconds(20), served).await.unwrap();
    let error = client.open::<ListenEvent>(methods::UNIX_LISTEN, &request).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(path.exists(), "a refused one removes nothing");
    drop(listener);
    eventually("the socket is gone", async || !path.exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_inside_is_passed_on_to_an_address_without_the_client() {
    let agent = Agent::start(default_config());
    let client = agent.connect().await;
    let service = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = service.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = service.accept().await.unwrap();
            tokio::spawn(async move {
                let (mut read, mut write) = stream.split();
                tokio::io::copy(&mut read, &mut write).await.unwrap();
                write.shutdown().await.unwrap();
            });
        }
    });
    let (at, listener) = listen(&client, PortListen { target: Some(target), ..PortListen::default() }).await;
    for _ in 0..3 {
        talk(TcpStream::connect(("127.0.0.1", at.port.unwrap())).await.unwrap()).await;
    }
    drop(listener);
    let bad = PortListen { target: Some("db:80".to_owned()), ..PortListen::default() };
    let error = client.open::<ListenEvent>(methods::PORT_LISTEN, &bad).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("target")));
}

async fn set(client: &Client, pairs: &[(&str, &str)]) -> sandbox_core::Result<Nothing> {
    let hosts = pairs.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned()));
    client.call(methods::HOSTS_SET, &HostsSet { hosts: hosts.collect::<BTreeMap<_, _>>() }).await
}

async fn hosts_are_set(script: &'static str) {
    let agent = Agent::start_as(As::Mounted(script), json!({ "user": "0:0" }));
    let client = agent.connect().await;
    set(&client, &[("db", "10.0.0.2"), ("cache.local", "fd00::1")]).await.unwrap();
    let text = sh(&client, "cat /etc/hosts").await;
    assert!(text.starts_with("127.0.0.1 localhost\n"), "{text}");
    assert!(text.contains("\n10.0.0.2\tdb\n") && text.contains("\nfd00::1\tcache.local\n"), "{text}");
    set(&client, &[("db", "10.0.0.3")]).await.unwrap();
    let text = sh(&client, "cat /etc/hosts").await;
    assert!(text.contains("10.0.0.3\tdb") && !text.contains("10.0.0.2") && !text.contains("cache"), "{text}");
    assert_eq!(sh(&client, "stat -c %a /etc/hosts").await, "640\n");
    assert_eq!(sh(&client, "ls -A /etc | grep -c sandbox-part || true").await, "0\n");
    set(&client, &[]).await.unwrap();
    assert_eq!(sh(&client, "cat /etc/hosts").await, "127.0.0.1 localhost\n");
    let error = set(&client, &[("a b", "10.0.0.2")]).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("hosts")));
}

#[tokio::test]
async fn hosts_are_replaced_in_one_step() {
    hosts_are_set("mount -t tmpfs none /etc; echo 127.0.0.1 localhost > /etc/hosts; chmod 640 /etc/hosts").await;
}

#[tokio::test]
async fn hosts_that_are_a_mount_are_written_in_place() {
    hosts_are_set(
        "mount -t tmpfs none /mnt; echo 127.0.0.1 localhost > /mnt/hosts; chmod 640 /mnt/hosts; \
         mount --bind /mnt/hosts /etc/hosts",
    )
    .await;
}

#[tokio::test]
async fn hosts_in_a_read_only_folder_are_refused_by_their_path() {
    let script = "mount -t tmpfs none /etc; echo x > /etc/hosts; mount -o remount,ro /etc";
    let agent = Agent::start_as(As::Mounted(script), json!({ "user": "0:0" }));
    let client = agent.connect().await;
    let error = set(&client, &[("db", "10.0.0.2")]).await.unwrap_err();
    assert!(error.message().contains("/etc/hosts"), "{error}");
    assert_eq!(sh(&client, "cat /etc/hosts").await, "x\n");
}
