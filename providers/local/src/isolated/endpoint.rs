//! Ports of a sandbox as ports of this machine: a listener on the loopback, whose connections go through the agent.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv4Addr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::BytesMut;
use sandbox_core::{
    Endpoint, PortEvent, PortStream, Result, SandboxEndpoint, SandboxError, SandboxHandle, async_trait,
};
use sandbox_protocol::{
    Client,
    methods::{self, PortOpen},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::AbortHandle,
};

use crate::{error::NAME, provider::LocalProvider};

/// Most connections to one port at once; more wait to be taken.
const CONNECTIONS_MAX: usize = 256;

/// Most bytes of one read.
const CHUNK_BYTES: usize = 64 * 1024;

/// How long is waited when this process has no descriptors for another connection.
const PAUSE: Duration = Duration::from_millis(100);

/// The declared ports of a sandbox, and who listens for them here.
#[derive(Default)]
pub(crate) struct Endpoints {
    declared: Vec<u16>,
    listeners: Mutex<HashMap<u16, Listener>>,
}

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
    pub(crate) fn new(declared: Vec<u16>) -> Self {
        Self { declared, listeners: Mutex::default() }
    }

    /// The port of this machine that leads to a declared one. Made when it is first asked for; ends with the sandbox.
    fn find(&self, client: &Client, port: u16) -> Result<u16> {
        if !self.declared.contains(&port) {
            let why = format!("{port} was not declared; declared are: {:?}", self.declared);
            return Err(SandboxError::invalid_input("port", why).with_help("list it in ports of the spec"));
        }
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(listener) = listeners.get(&port) {
            return Ok(listener.port);
        }
        let failed = |error| SandboxError::io("listening on the loopback", error);
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let own = listener.local_addr().map_err(failed)?.port();
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let task = tokio::spawn(serve(listener, client.clone(), port)).abort_handle();
        listeners.insert(port, Listener { port: own, task });
        Ok(own)
    }
}

#[async_trait]
impl Endpoint for LocalProvider {
    async fn endpoint(&self, handle: &SandboxHandle, port: u16) -> Result<SandboxEndpoint> {
        let (sandbox, inside) = self.isolated(handle).await?;
        let _busy = sandbox.enter()?;
        let own = inside.endpoints.find(&inside.client, port).map_err(|error| error.with_provider(NAME))?;
        SandboxEndpoint::new(format!("http://127.0.0.1:{own}"), BTreeMap::new())
    }
}

/// Takes connections until the sandbox ends.
async fn serve(listener: TcpListener, client: Client, port: u16) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let take = async {
        loop {
            // Never closed.
            let Ok(place) = places.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let client = client.clone();
                    tokio::spawn(async move {
                        tokio::select! {
                            // Whoever has connected sees how it ends.
                            _ = connect(stream, &client, port) => {}
                            _ = client.closed() => {}
                        }
                        drop(place);
                    });
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    tokio::select! {
        () = take => {}
        _ = client.closed() => {}
    }
}

/// Carries one connection. Where nothing listens inside, it is closed at once.
async fn connect(stream: TcpStream, client: &Client, port: u16) -> Result<()> {
    let failed = |error| SandboxError::io("a forwarded connection", error);
    stream.set_nodelay(true).map_err(failed)?;
    let mut inside: PortStream = client.open(methods::PORT_OPEN, &PortOpen { port, host: None }).await?;
    let control = inside.control();
    let (mut read, mut write) = stream.into_split();
    let inwards = async {
        loop {
            let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
            match read.read_buf(&mut chunk).await.map_err(failed)? {
                0 => break control.control(sandbox_core::ControlRequest::CloseInput).await.map(drop),
                _ => control.write(chunk.freeze()).await?,
            }
        }
    };
    let outwards = async {
        while let Some(PortEvent::Data(bytes)) = inside.next().await? {
            write.write_all(&bytes).await.map_err(failed)?;
        }
        write.shutdown().await.map_err(failed)
    };
    // Each direction ends by itself; a broken one ends both.
    tokio::try_join!(inwards, outwards).map(drop)
}
