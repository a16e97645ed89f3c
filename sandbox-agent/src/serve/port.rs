//! Connections to ports and sockets inside.

use std::{io, os::unix::ffi::OsStringExt, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use sandbox_core::{
    Admitted, ControlReply, ControlRequest, ErrorKind, PortEvent, Result, SandboxError, Session, SessionControl,
    SessionEvent, async_trait,
};
use sandbox_protocol::{
    ForwardEvent, StreamResponder,
    methods::{FilePath, PortOpen},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    sync::{Mutex, Notify},
    time::timeout,
};

use super::surroundings::Surroundings;

/// How long a connection inside may take: a listener that is there answers at once.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Most bytes of one event.
const CHUNK_BYTES: usize = 64 * 1024;

pub(super) async fn open_port(request: PortOpen) -> Result<StreamResponder> {
    let PortOpen { port, host } = request;
    if port == 0 {
        return Err(SandboxError::invalid_input("port", "must be 1 to 65535"));
    }
    let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
    // Names would need a resolver of the image.
    let address: std::net::IpAddr =
        host.parse().map_err(|_| SandboxError::invalid_input("host", "must be an address, not a name"))?;
    let stream = connect(&format!("port {port}"), TcpStream::connect((address, port))).await?;
    // A forwarded byte is not held back to be sent with others; a socket that cannot promise that works too.
    let _ = stream.set_nodelay(true);
    let (read, write) = stream.into_split();
    Ok(StreamResponder::session(relay::<PortEvent>(read, write)))
}

pub(super) async fn open_unix(surroundings: &Surroundings, request: FilePath) -> Result<StreamResponder> {
    let path = std::ffi::OsString::from_vec(surroundings.absolute(request.path.as_bytes()));
    let stream = connect("the socket", UnixStream::connect(path)).await?;
    let (read, write) = stream.into_split();
    Ok(StreamResponder::session(relay::<PortEvent>(read, write)))
}

async fn connect<T>(what: &str, connecting: impl Future<Output = io::Result<T>>) -> Result<T> {
    match timeout(CONNECT_LIMIT, connecting).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(SandboxError::io(format!("connecting to {what}"), error)),
        Err(_) => Err(SandboxError::new(ErrorKind::Unavailable, format!("connecting to {what}: no answer in time"))),
    }
}

/// Events of a connection.
pub(super) trait Forwarded: SessionEvent {
    fn data(bytes: Bytes) -> Self;
    /// The inside sends no more, and may still read; none where that is the end of all.
    fn input_end() -> Option<Self>;
    fn end() -> Self;
}

impl Forwarded for PortEvent {
    fn data(bytes: Bytes) -> Self {
        Self::Data(bytes)
    }

    fn input_end() -> Option<Self> {
        None
    }

    fn end() -> Self {
        Self::End
    }
}

impl Forwarded for ForwardEvent {
    fn data(bytes: Bytes) -> Self {
        Self::Data(bytes)
    }

    fn input_end() -> Option<Self> {
        Some(Self::InputEnd)
    }

    fn end() -> Self {
        Self::End
    }
}

pub(super) fn relay<E: Forwarded>(
    mut read: impl AsyncRead + Send + Unpin + 'static,
    write: impl AsyncWrite + Send + Unpin + 'static,
) -> Session<E> {
    let closed = Arc::new(Notify::new());
    let control = Control { write: Mutex::new(Some(write)), closed: closed.clone() };
    Session::spawn(control, move |sink| async move {
        loop {
            let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
            match read.read_buf(&mut chunk).await {
                Ok(0) => break,
                Ok(_) => {
                    if !sink.send(E::data(chunk.freeze())).await {
                        return Ok(());
                    }
                }
                Err(error) => {
                    return Err(SandboxError::lost("the connection inside broke off", Admitted::Yes).with_source(error));
                }
            }
        }
        if let Some(event) = E::input_end() {
            if !sink.send(event).await {
                return Ok(());
            }
            tokio::select! { () = closed.notified() => {} () = sink.closed() => return Ok(()) }
        }
        sink.send(E::end()).await;
        Ok(())
    })
}

struct Control<W> {
    write: Mutex<Option<W>>,
    /// The write half is closed.
    closed: Arc<Notify>,
}

#[async_trait]
impl<W: AsyncWrite + Send + Unpin + 'static> SessionControl for Control<W> {
    async fn write(&self, data: Bytes) -> Result<()> {
        let mut write = self.write.lock().await;
        let Some(stream) = write.as_mut() else { return Err(SandboxError::invalid_state("the input is closed")) };
        if stream.write_all(&data).await.is_err() {
            *write = None;
            self.closed.notify_one();
            return Err(SandboxError::invalid_state("the other side takes no more input"));
        }
        Ok(())
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        match request {
            ControlRequest::CloseInput => {
                if let Some(mut stream) = self.write.lock().await.take() {
                    // One that is closed already is fine.
                    let _ = stream.shutdown().await;
                    self.closed.notify_one();
                }
                Ok(ControlReply::default())
            }
            // A connection does not outlive its client.
            ControlRequest::Detach => Ok(ControlReply::default()),
            _ => Err(SandboxError::unsupported_control("agent", None)),
        }
    }
}
