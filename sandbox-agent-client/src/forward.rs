//! Ports of another place as ports of a sandbox's own loopback.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use sandbox_core::{
    Admitted, ControlReply, ControlRequest, ErrorKind, PortEvent, PortStream, Result, SandboxError, Session,
    SessionControl, async_trait,
};
use sandbox_protocol::{
    Client, ForwardEvent, ListenEvent,
    methods::{self, PortAccept, PortListen, PortListening, PortOpen},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Semaphore,
    task::JoinSet,
};

/// Most ports of one call.
const PORTS_MAX: usize = 64;

/// Most connections of one port at once; more wait to be taken.
const CONNECTIONS_MAX: usize = 256;
/// How long a connection of this side may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of one read.
const CHUNK_BYTES: usize = 64 * 1024;

/// Where forwarded connections go.
#[derive(Clone)]
pub enum ForwardTarget {
    /// The sandbox reaches it by itself.
    Address(IpAddr),
    /// Another sandbox, through its agent: no network is needed between the two.
    Sandbox(Client),
    /// A host by name or address as this machine reaches it, through this process: the sandbox needs no way to it.
    Here(String),
}

/// Lets programs inside the sandbox of `client` reach these ports of `target` on their own loopback, for as long as the
/// stream lives.
///
/// # Errors
/// `InvalidInput` for ports that are none; `AlreadyExists` when one is taken inside: nothing is forwarded then.
pub async fn forward_ports(client: &Client, target: ForwardTarget, ports: &[u16]) -> Result<PortStream> {
    check(ports)?;
    let mut listeners = JoinSet::new();
    for port in ports.iter().copied() {
        let to = match &target {
            ForwardTarget::Address(address) => Some(SocketAddr::new(*address, port).to_string()),
            ForwardTarget::Sandbox(_) | ForwardTarget::Here(_) => None,
        };
        let request = PortListen { port, host: None, target: to };
        // On failure those that listen already are dropped, and end.
        let listening = client.open_with_reply::<ListenEvent, PortListening>(methods::PORT_LISTEN, &request);
        let (_, session) = listening.await.map_err(|error| error.with_field("ports"))?;
        listeners.spawn(listen(session, client.clone(), target.clone(), port));
    }
    Ok(Session::spawn(Forwarding, move |sink| async move {
        tokio::select! {
            () = sink.closed() => Ok(()),
            // They go on for as long as the sandbox does.
            _ = listeners.join_next() => {
                Err(SandboxError::lost("the sandbox, or the one that it was led to, has ended", Admitted::Yes))
            }
        }
    }))
}

fn check(ports: &[u16]) -> Result<()> {
    let bad = |why: String| Err(SandboxError::invalid_input("ports", why));
    if ports.is_empty() || ports.len() > PORTS_MAX {
        return bad(format!("must be 1 to {PORTS_MAX} ports"));
    }
    for (index, port) in ports.iter().enumerate() {
        if *port == 0 || ports[..index].contains(port) {
            return bad(format!("must be different, and 1 to 65535: {port}"));
        }
    }
    Ok(())
}

/// Takes the connections of one port until it listens no more.
async fn listen(mut session: Session<ListenEvent>, client: Client, target: ForwardTarget, port: u16) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    while let Ok(Some(ListenEvent::Incoming { connection })) = session.next().await {
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (client, target) = (client.clone(), target.clone());
        connections.spawn(async move {
            // Whoever has connected sees how it ends.
            let _ = match &target {
                ForwardTarget::Sandbox(other) => connect(&client, connection, other, port).await,
                ForwardTarget::Here(host) => connect_here(&client, connection, host, port).await,
                // The agent connects by itself.
                ForwardTarget::Address(_) => Ok(()),
            };
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn connect(client: &Client, connection: u64, other: &Client, port: u16) -> Result<()> {
    let mut near: Session<ForwardEvent> = client.open(methods::PORT_ACCEPT, &PortAccept { connection }).await?;
    let mut far: PortStream = other.open(methods::PORT_OPEN, &PortOpen { port, host: None }).await?;
    let (to_near, to_far) = (near.control(), far.control());
    let there = async {
        loop {
            match near.next().await? {
                Some(ForwardEvent::Data(bytes)) => to_far.write(bytes).await?,
                Some(ForwardEvent::InputEnd) => {
                    to_far.control(ControlRequest::CloseInput).await?;
                }
                _ => return Ok::<_, SandboxError>(()),
            }
        }
    };
    let back = async {
        while let Some(PortEvent::Data(bytes)) = far.next().await? {
            to_near.write(bytes).await?;
        }
        to_near.control(ControlRequest::CloseInput).await.map(drop)
    };
    // Each direction ends by itself; a broken one ends both.
    tokio::try_join!(there, back).map(drop)
}

/// Carries one connection to a host of this side.
async fn connect_here(client: &Client, connection: u64, host: &str, port: u16) -> Result<()> {
    let failed = |error| SandboxError::io("a forwarded connection", error);
    let mut near: Session<ForwardEvent> = client.open(methods::PORT_ACCEPT, &PortAccept { connection }).await?;
    let stream = tokio::time::timeout(CONNECT_LIMIT, TcpStream::connect((host, port))).await;
    let stream = stream.map_err(|_| SandboxError::unavailable("a forwarded connection: no answer in time"))?;
    let stream = stream.map_err(failed)?;
    // A forwarded byte is not held back to be sent with others; a socket that cannot promise that works too.
    let _ = stream.set_nodelay(true);
    let (mut read, mut write) = stream.into_split();
    let to_near = near.control();
    let there = async {
        loop {
            match near.next().await? {
                Some(ForwardEvent::Data(bytes)) => write.write_all(&bytes).await.map_err(failed)?,
                Some(ForwardEvent::InputEnd) => write.shutdown().await.map_err(failed)?,
                _ => return Ok::<_, SandboxError>(()),
            }
        }
    };
    let back = async {
        loop {
            let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
            match read.read_buf(&mut chunk).await.map_err(failed)? {
                0 => return to_near.control(ControlRequest::CloseInput).await.map(drop),
                _ => to_near.write(chunk.freeze()).await?,
            }
        }
    };
    tokio::try_join!(there, back).map(drop)
}

/// There is nothing to say to a forwarding.
struct Forwarding;

#[async_trait]
impl SessionControl for Forwarding {
    async fn write(&self, _: Bytes) -> Result<()> {
        Err(SandboxError::new(ErrorKind::InvalidState, "a forwarding takes no input"))
    }

    async fn control(&self, _: ControlRequest) -> Result<ControlReply> {
        Err(SandboxError::unsupported_control("agent", None))
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn ports_that_are_none_or_named_twice_are_refused() {
        for ports in [&[][..], &[0], &[80, 81, 80], &[1; 65]] {
            assert_eq!(check(ports).unwrap_err().field(), Some("ports"), "{ports:?}");
        }
        assert!(check(&[1, 65535]).is_ok());
    }
}
