//! Ports of another place as ports of a sandbox's own loopback.

use std::{
    net::IpAddr,
    sync::{Arc, PoisonError},
};

use bytes::Bytes;
use sandbox_core::{
    Admitted, ControlReply, ControlRequest, ErrorKind, PortEvent, PortStream, Result, SandboxError, Session,
    SessionControl, async_trait,
};
use sandbox_protocol::{
    Client, ForwardEvent, ListenEvent,
    methods::{self, PortAccept, PortListen, PortListening, PortOpen},
};
use tokio::{sync::Semaphore, task::JoinSet};

use crate::{error::NAME, isolated::inside::Inside, provider::Shared, sandbox::Sandbox};

/// Most ports of one call.
const PORTS_MAX: usize = 64;

/// Most connections of one port at once; more wait to be taken.
const CONNECTIONS_MAX: usize = 256;

/// Where connections go.
enum Target {
    /// The sandbox reaches it by itself.
    Address(IpAddr),
    /// Another sandbox, through its agent: no network is needed between the two.
    Sandbox(Client),
}

/// Lets programs inside reach the ports of `target`, an address or the id of another sandbox, on their own loopback.
pub(crate) async fn forward(
    shared: &Shared,
    sandbox: &Sandbox,
    inside: &Inside,
    target: &str,
    ports: &[u16],
) -> Result<PortStream> {
    check(ports)?;
    let target = Arc::new(find(shared, sandbox, target)?);
    let mut listeners = JoinSet::new();
    for port in ports.iter().copied() {
        let to = match &*target {
            Target::Address(address) => Some(std::net::SocketAddr::new(*address, port).to_string()),
            Target::Sandbox(_) => None,
        };
        let request = PortListen { port, host: None, target: to };
        // On failure those that listen already are dropped, and end.
        let listening = inside.client.open_with_reply::<ListenEvent, PortListening>(methods::PORT_LISTEN, &request);
        let (_, session) = listening.await.map_err(|error| error.with_field("ports"))?;
        listeners.spawn(listen(session, inside.client.clone(), target.clone(), port));
    }
    Ok(Session::spawn(Nothing, move |sink| async move {
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

fn find(shared: &Shared, sandbox: &Sandbox, target: &str) -> Result<Target> {
    let address = target.parse::<IpAddr>().ok();
    let networks = |sandbox: &Sandbox| sandbox.record.lock().unwrap_or_else(PoisonError::into_inner).networks.clone();
    let own = networks(sandbox);
    let found = shared.sandboxes().values().find_map(|other| {
        let theirs = networks(other);
        let attachment = theirs.iter().find(|attachment| address == Some(attachment.address.into()));
        let is_near = attachment.is_some_and(|there| own.iter().any(|here| here.network == there.network));
        let is_meant = other.is_open() && (other.id == target || attachment.is_some());
        is_meant.then(|| (is_near, other.inside.clone()))
    });
    match (found, address) {
        (Some((false, Some(inside))), _) => Ok(Target::Sandbox(inside.client.clone())),
        (_, Some(address)) => Ok(Target::Address(address)),
        _ => Err(SandboxError::invalid_input("target", "must be an address, or the id of a sandbox that is open here")
            .with_provider(NAME)),
    }
}

/// Takes the connections of one port until it listens no more.
async fn listen(mut session: Session<ListenEvent>, client: Client, target: Arc<Target>, port: u16) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    while let Ok(Some(ListenEvent::Incoming { connection })) = session.next().await {
        let Target::Sandbox(other) = &*target else { continue };
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (client, other) = (client.clone(), other.clone());
        connections.spawn(async move {
            // Whoever has connected sees how it ends.
            let _ = connect(&client, connection, &other, port).await;
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

/// There is nothing to say to a forwarding.
struct Nothing;

#[async_trait]
impl SessionControl for Nothing {
    async fn write(&self, _: Bytes) -> Result<()> {
        Err(SandboxError::new(ErrorKind::InvalidState, "a forwarding takes no input"))
    }

    async fn control(&self, _: ControlRequest) -> Result<ControlReply> {
        Err(SandboxError::unsupported_control(NAME, None))
    }
}
