//! Published ports: a listener of this process for each, and a forwarded connection for each client.

use std::{net::SocketAddr, sync::Arc};

use sandbox_core::{Capability, ErrorKind, PortEvent, PortStream, Result, SandboxError};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
};

use crate::{
    AsyncSandbox, checks,
    compose::{ComposePort, HostPort},
};

/// How many connections one port may have at once.
const MOST_CONNECTIONS: usize = 256;

/// How much is read at once.
const CHUNK_BYTES: usize = 64 << 10;

/// A port that this process publishes. Dropping it ends the listener and its connections.
pub(super) struct Relay {
    pub(super) service: String,
    pub(super) replica: u32,
    pub(super) target: u16,
    pub(super) address: SocketAddr,
    task: AbortHandle,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    pub(super) async fn start(
        service: &str,
        replica: u32,
        sandbox: Arc<AsyncSandbox>,
        port: &ComposePort,
    ) -> Result<Self> {
        checks::require(
            sandbox.provider().name(),
            sandbox.provider().as_port_forwarding(),
            Capability::PortForwarding,
        )?;
        let (listener, address) = bind(service, port).await?;
        let target = port.target;
        let task = tokio::spawn(accept(listener, sandbox, target)).abort_handle();
        Ok(Self { service: service.to_owned(), replica, target, address, task })
    }
}

async fn bind(service: &str, port: &ComposePort) -> Result<(TcpListener, SocketAddr)> {
    let host = port.host_ip.unwrap_or(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST));
    let (first, last) = match port.published {
        HostPort::Any => (0, 0),
        HostPort::Fixed(port) => (port, port),
        HostPort::Range(first, last) => (first, last),
    };
    let mut taken = None;
    for number in first..=last {
        match TcpListener::bind((host, number)).await {
            Ok(listener) => {
                let address = listener.local_addr().map_err(|error| SandboxError::io("the listener", error))?;
                return Ok((listener, address));
            }
            Err(error) => taken = Some(error),
        }
    }
    let message = format!("port {} of service {service:?} cannot be published at {host}:{first}", port.target);
    let error = SandboxError::new(ErrorKind::AlreadyExists, message)
        .with_field(format!("services.{service}.ports"))
        .with_help("let any free port be taken with --publish dynamic");
    Err(match taken {
        Some(taken) => error.with_source(taken),
        None => error,
    })
}

async fn accept(listener: TcpListener, sandbox: Arc<AsyncSandbox>, target: u16) {
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    // Dropped with this task, and the connections with it.
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else {
                    // Out of descriptors: the next attempt may find some.
                    tokio::task::yield_now().await;
                    continue;
                };
                let sandbox = sandbox.clone();
                connections.spawn(async move {
                    if let Err(error) = carry(client, &sandbox, target).await {
                        tracing::debug!(kind = error.kind().as_str(), target, "published connection ended");
                    }
                    drop(permit);
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn carry(mut client: TcpStream, sandbox: &AsyncSandbox, target: u16) -> Result<()> {
    let provider = sandbox.provider();
    let forwarding = checks::require(provider.name(), provider.as_port_forwarding(), Capability::PortForwarding)?;
    let mut inside: PortStream = forwarding.open_port(&sandbox.handle()?, target).await?;
    let control = inside.control();
    let (mut reader, mut writer) = client.split();
    let io = |error| SandboxError::io("the client", error);
    let inwards = async {
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let count = reader.read(&mut buffer).await.map_err(io)?;
            if count == 0 {
                return control.control(sandbox_core::ControlRequest::CloseInput).await.map(drop);
            }
            control.write(buffer[..count].to_vec().into()).await?;
        }
    };
    let outwards = async {
        while let Some(event) = inside.next().await? {
            match event {
                PortEvent::Data(bytes) => writer.write_all(&bytes).await.map_err(io)?,
                _ => break,
            }
        }
        writer.shutdown().await.map_err(io)
    };
    tokio::pin!(inwards, outwards);
    let mut has_sent = false;
    loop {
        tokio::select! {
            result = &mut outwards => return result,
            result = &mut inwards, if !has_sent => {
                result?;
                has_sent = true;
            }
        }
    }
}
