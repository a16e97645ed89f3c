//! Ports of a sandbox: on its own address where that is how the agent is reached, else on this machine's loopback, from
//! where connections go through the agent.

use std::{
    collections::{BTreeMap, HashMap},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use bytes::BytesMut;
use sandbox_agent_client::open_port;
use sandbox_core::{
    ControlRequest, Endpoint, PortEvent, Result, SandboxEndpoint, SandboxError, SandboxHandle, async_trait,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::AbortHandle,
};

use crate::{
    config::TransportKind,
    error::NAME,
    provider::{FargateProvider, Shared},
    sandbox::Sandbox,
};

/// Most connections to one port at once; more wait to be taken.
const CONNECTIONS_MAX: usize = 256;
/// Most bytes of one read.
const CHUNK_BYTES: usize = 64 * 1024;
/// How long is waited when this process has no descriptors for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Who listens here for the ports of a sandbox.
#[derive(Default)]
pub(crate) struct Endpoints(Mutex<HashMap<u16, Listener>>);

struct Listener {
    port: u16,
    task: AbortHandle,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Endpoints {
    /// The port of this machine that leads to a port inside. Made when it is first asked for; ends with the sandbox.
    fn find(&self, shared: &Arc<Shared>, sandbox: &Arc<Sandbox>, port: u16) -> Result<u16> {
        let mut listeners = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = listeners.get(&port) {
            return Ok(listener.port);
        }
        let failed = |error| SandboxError::io("listening on the loopback", error);
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let own = listener.local_addr().map_err(failed)?.port();
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        // The sandbox holds this, not the other way round.
        let inside = Inside { shared: Arc::downgrade(shared), sandbox: Arc::downgrade(sandbox), port };
        let task = tokio::spawn(serve(listener, inside)).abort_handle();
        listeners.insert(port, Listener { port: own, task });
        Ok(own)
    }

    /// Ends them all.
    pub(crate) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[async_trait]
impl Endpoint for FargateProvider {
    async fn endpoint(&self, handle: &SandboxHandle, port: u16) -> Result<SandboxEndpoint> {
        let sandbox = self.shared.open(handle).await?;
        let declared = &sandbox.labels.ports;
        if !declared.contains(&port) {
            let why = format!("{port} was not declared; declared are: {declared:?}");
            return Err(SandboxError::invalid_input("port", why)
                .with_provider(NAME)
                .with_help("list it in ports of the spec"));
        }
        let address = match sandbox.labels.transport {
            TransportKind::Direct => SocketAddr::new(sandbox.address, port),
            TransportKind::Ssh => {
                let own = sandbox.endpoints.find(&self.shared, &sandbox, port);
                (Ipv4Addr::LOCALHOST, own.map_err(|error| error.with_provider(NAME))?).into()
            }
        };
        SandboxEndpoint::new(format!("http://{address}"), BTreeMap::new())
    }
}

#[derive(Clone)]
struct Inside {
    shared: Weak<Shared>,
    sandbox: Weak<Sandbox>,
    port: u16,
}

/// Takes connections.
async fn serve(listener: TcpListener, inside: Inside) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let inside = inside.clone();
                tokio::spawn(async move {
                    // Whoever has connected sees how it ends.
                    let _ = connect(stream, inside).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Carries one connection. Where nothing listens inside, it is closed at once.
async fn connect(stream: TcpStream, inside: Inside) -> Result<()> {
    let failed = |error| SandboxError::io("a forwarded connection", error);
    stream.set_nodelay(true).map_err(failed)?;
    let (Some(shared), Some(sandbox)) = (inside.shared.upgrade(), inside.sandbox.upgrade()) else { return Ok(()) };
    let mut far = open_port(&sandbox.client(&shared).await?, inside.port).await?;
    drop((shared, sandbox));
    let control = far.control();
    let (mut read, mut write) = stream.into_split();
    let inwards = async {
        loop {
            let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
            match read.read_buf(&mut chunk).await.map_err(failed)? {
                0 => break control.control(ControlRequest::CloseInput).await.map(drop),
                _ => control.write(chunk.freeze()).await?,
            }
        }
    };
    let outwards = async {
        while let Some(PortEvent::Data(bytes)) = far.next().await? {
            write.write_all(&bytes).await.map_err(failed)?;
        }
        write.shutdown().await.map_err(failed)
    };
    // Each direction ends by itself; a broken one ends both.
    tokio::try_join!(inwards, outwards).map(drop)
}
