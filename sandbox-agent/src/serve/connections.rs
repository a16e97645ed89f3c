//! Where clients come from, and what becomes of the sandbox when they are gone.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixListener as StdListener},
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    fs::{FileType, Mode, fstat},
    net::{AddressFamily, getsockname, sockopt},
};
use sandbox_protocol::{CloseReason, ReceivedDescriptors, ServerOptions, serve, serve_halves, serve_unix};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream},
    net::{TcpListener, TcpStream, UnixListener, UnixStream, unix::pipe},
    sync::{Mutex, mpsc, watch},
    task::JoinSet,
};

use super::{
    agent::{Agent, DESCRIPTOR_METHODS, Methods},
    arguments::Endpoint,
    config::ServeConfig,
    sys,
};

/// Clients at once: each can hold what its streams may hold.
const CLIENTS_MAX: usize = 64;
/// How long connections may take to close when everything has ended.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);
/// Pause after a failed accept: out of descriptors is not over at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where clients come from, opened.
pub(super) enum Source {
    /// The only client there will be.
    One(Connection),
    Many {
        listener: UnixListener,
        peers: Peers,
    },
    /// Whoever reaches it.
    Tcp(TcpListener),
    /// Clients that this process itself has let in.
    Local(Mutex<mpsc::Receiver<Connection>>),
}

/// Who may connect.
pub(super) struct Peers {
    /// None: anybody.
    pub(super) uids: Option<Vec<u32>>,
    /// Only processes that this one's pid namespace does not know.
    pub(super) outside_only: bool,
}

pub(super) enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream),
    Pipes(pipe::Receiver, pipe::Sender),
    Stream(Box<dyn Duplex>),
    /// Of this process itself.
    Own(DuplexStream),
}

/// Where clients may wait already, before anything is known about them. None where that cannot be.
pub(super) fn bind_early(endpoint: &Endpoint) -> io::Result<Option<StdListener>> {
    match endpoint {
        Endpoint::ListenUnix(path) => bind(path).map(Some),
        _ => Ok(None),
    }
}
/// Bytes in both directions, whatever carries them.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl Source {
    /// Opens the endpoint, of which `bound` may be a part. Inherited descriptors are taken over.
    pub(super) fn open(endpoint: &Endpoint, bound: Option<StdListener>, mut peers: Peers) -> io::Result<Self> {
        match endpoint {
            Endpoint::Fd(fd) => Self::of_socket(sys::take_inherited(*fd)?, peers),
            Endpoint::ListenUnix(path) => {
                let own = rustix::process::geteuid().as_raw();
                let bound = bound.map_or_else(|| bind(path), Ok)?;
                if let Some(owner) = peers.uids.as_ref().and_then(|uids| uids.first()).filter(|uid| **uid != own) {
                    std::os::unix::fs::lchown(path, Some(*owner), None)?;
                }
                peers.uids.get_or_insert_with(|| vec![own, 0]);
                Ok(Self::Many { listener: listener(bound)?, peers })
            }
            Endpoint::ListenTcp(address) => {
                let bound = std::net::TcpListener::bind(address)?;
                bound.set_nonblocking(true)?;
                TcpListener::from_std(bound).map(Self::Tcp)
            }
            Endpoint::Stdio => {
                let (input, output) = (sys::take_inherited(0)?, sys::take_inherited(1)?);
                sys::close_standard(0);
                sys::close_standard(1);
                if FileType::from_raw_mode(fstat(&input)?.st_mode) == FileType::Socket {
                    return Connection::socket(input).map(Self::One);
                }
                let input = pipe::Receiver::from_owned_fd(input)?;
                Ok(Self::One(Connection::Pipes(input, pipe::Sender::from_owned_fd(output)?)))
            }
        }
    }
}

impl Source {
    /// A connected stream socket is the only client there will be, a listening one brings many.
    pub(super) fn of_socket(socket: OwnedFd, peers: Peers) -> io::Result<Self> {
        if sockopt::socket_acceptconn(&socket)? {
            return Ok(Self::Many { listener: listener(socket.into())?, peers });
        }
        Connection::socket(socket).map(Self::One)
    }

    /// The next connection; none for a peer that may not connect.
    async fn accept(&self) -> io::Result<Option<Connection>> {
        match self {
            Self::One(_) => std::future::pending().await,
            Self::Many { listener, peers } => {
                let (stream, _) = listener.accept().await?;
                Ok(peers.welcome(&stream).then_some(Connection::Unix(stream)))
            }
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // A frame is not held back to be sent with others; a socket that cannot promise that works too.
                let _ = stream.set_nodelay(true);
                Ok(Some(Connection::Tcp(stream)))
            }
            Self::Local(connections) => match connections.lock().await.recv().await {
                Some(connection) => Ok(Some(connection)),
                // Nobody can let one in any more.
                None => std::future::pending().await,
            },
        }
    }
}

fn listener(listener: StdListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Makes the socket with mode 0600, from its first moment on.
fn bind(path: &Path) -> io::Result<StdListener> {
    let old = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = StdListener::bind(path);
    rustix::process::umask(old);
    bound
}

impl Connection {
    fn socket(socket: OwnedFd) -> io::Result<Self> {
        if getsockname(&socket)?.address_family() == AddressFamily::UNIX {
            let stream = std::os::unix::net::UnixStream::from(socket);
            stream.set_nonblocking(true)?;
            return UnixStream::from_std(stream).map(Self::Unix);
        }
        let stream = std::net::TcpStream::from(socket);
        stream.set_nonblocking(true)?;
        // A frame is not held back to be sent with others; a socket that cannot promise that works too.
        let _ = stream.set_nodelay(true);
        TcpStream::from_std(stream).map(Self::Tcp)
    }

    async fn serve(self, mut options: ServerOptions, mut service: Methods) -> CloseReason {
        match self {
            Self::Unix(stream) => {
                let received = Arc::new(ReceivedDescriptors::default());
                service.descriptors = Some(received.clone());
                options.features.extend(DESCRIPTOR_METHODS.iter().map(|name| (*name).to_owned()));
                serve_unix(stream, options, Arc::new(service), received).await
            }
            Self::Tcp(stream) => serve(stream, options, Arc::new(service)).await,
            Self::Own(stream) => serve(stream, options, Arc::new(service)).await,
            Self::Stream(stream) => serve(stream, options, Arc::new(service)).await,
            Self::Pipes(read, write) => serve_halves(read, write, options, Arc::new(service)).await,
        }
    }
}

/// Serves until the sandbox is over, with everything in it.
pub(super) async fn run(source: Source, options: ServerOptions, agent: &Arc<Agent>) {
    let clients = watch::Sender::new(0usize);
    let mut connections = JoinSet::new();
    let accepting = async {
        match source {
            Source::One(connection) => {
                connections.spawn(client(connection, options, agent.clone(), clients.clone()));
                let was_used = connections.join_next().await.is_some_and(|joined| joined.unwrap_or(true));
                // Nobody else can come. One that never asked for anything died before anybody could know of it.
                if agent.surroundings.config.die_on_disconnect || !was_used {
                    return;
                }
                std::future::pending().await
            }
            source => loop {
                while connections.try_join_next().is_some() {}
                if connections.len() >= CLIENTS_MAX {
                    connections.join_next().await;
                }
                match source.accept().await {
                    // That of this process ends with it: it is not waited for.
                    Ok(Some(connection @ Connection::Own(_))) => {
                        tokio::spawn(client(connection, options.clone(), agent.clone(), clients.clone()));
                    }
                    Ok(Some(connection)) => {
                        connections.spawn(client(connection, options.clone(), agent.clone(), clients.clone()));
                    }
                    Ok(None) => tracing::warn!("a peer that may not connect was turned away"),
                    Err(error) => {
                        tracing::warn!(%error, "accepting failed");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            },
        }
    };
    tokio::select! {
        () = accepting => {}
        () = abandoned(agent, clients.subscribe()) => {}
        () = agent.lifetime.over() => {}
    }
    agent.end_everything(Duration::ZERO).await;
    // Answers that are on their way still arrive.
    let closed = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(LAST_WORDS, closed).await;
}

impl Peers {
    pub(super) fn of(config: &ServeConfig) -> Self {
        Self { uids: config.peer_uids.clone(), outside_only: config.outside_peers_only }
    }

    fn welcome(&self, stream: &UnixStream) -> bool {
        // tokio's, not rustix's: the pid of a process of no namespace that is seen here is 0, which rustix has no type for.
        let Ok(peer) = stream.peer_cred() else { return false };
        let is_outside = peer.pid() == Some(0);
        (is_outside || !self.outside_only) && self.uids.as_ref().is_none_or(|uids| uids.contains(&peer.uid()))
    }
}

/// A client's connection; true at its end if it was used.
type Client = Pin<Box<dyn Future<Output = bool> + Send>>;

fn client(connection: Connection, options: ServerOptions, agent: Arc<Agent>, clients: watch::Sender<usize>) -> Client {
    Box::pin(async move {
        clients.send_modify(|count| *count += 1);
        let is_used = Arc::new(AtomicBool::new(false));
        let service = Methods { agent, is_used: is_used.clone(), descriptors: None };
        let reason = connection.serve(options, service).await;
        tracing::debug!(cause = ?reason.cause(), "a connection has ended");
        clients.send_modify(|count| *count -= 1);
        is_used.load(Ordering::Relaxed)
    })
}

/// Waits until no client has been there for the grace, if that ends the sandbox.
async fn abandoned(agent: &Agent, mut clients: watch::Receiver<usize>) {
    let config = &agent.surroundings.config;
    if !config.die_on_disconnect {
        return std::future::pending().await;
    }
    loop {
        // The first one may take its time: who started the agent may not be ready yet. The ttl holds.
        if clients.wait_for(|count| *count > 0).await.is_err() || clients.wait_for(|count| *count == 0).await.is_err() {
            return;
        }
        let back = tokio::time::timeout(config.grace(), clients.wait_for(|count| *count > 0)).await.map(drop);
        if back.is_err() {
            return;
        }
    }
}
