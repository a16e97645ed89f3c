//! Listeners inside for a client outside: what connects to them is handed to the client, or relayed to an address.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat, chmod, chownat, fchmod, fstat, openat, statat, unlinkat},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with},
    process::{Gid, Uid},
};
use sandbox_core::{Result, SandboxError, Session, SessionSink};
use sandbox_protocol::{
    ForwardEvent, ListenEvent, StreamResponder,
    methods::{PortAccept, PortListen, PortListening, UnixListen},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::timeout,
};

use super::{
    agent::Agent,
    logs::ReadOnly,
    paths::{Owner, Place},
    port::{CONNECT_LIMIT, relay},
};

/// Connections that wait for their client; the next ones wait in the kernel.
const WAITING_MAX: usize = 256;
/// How long one waits.
const WAITING_LIMIT: Duration = Duration::from_secs(30);
/// Connections of one listener that the agent relays at once.
const RELAYED_MAX: usize = 256;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that wait in the kernel.
const BACKLOG: i32 = 128;

/// Connections that listeners got and no client has taken yet.
#[derive(Debug)]
pub(super) struct Incoming {
    next: AtomicU64,
    waiting: Mutex<HashMap<u64, (Connection, OwnedSemaphorePermit)>>,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Default for Incoming {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), waiting: Mutex::default(), room: Arc::new(Semaphore::new(WAITING_MAX)) }
    }
}

impl Incoming {
    fn take(&self, number: u64) -> Option<Connection> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&number).map(|(connection, _)| connection)
    }

    fn add(self: &Arc<Self>, connection: Connection, permit: OwnedSemaphorePermit) -> Waiting {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(number, (connection, permit));
        Waiting { incoming: self.clone(), number }
    }
}

/// A connection that waits. Dropped, it is closed, unless a client has it.
struct Waiting {
    incoming: Arc<Incoming>,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.incoming.take(self.number);
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix { listener: UnixListener, _file: SocketFile },
}

impl Listener {
    async fn accept(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // A forwarded byte is not held back to be sent with others.
                let _ = stream.set_nodelay(true);
                Ok(Connection::Tcp(stream))
            }
            Self::Unix { listener, .. } => listener.accept().await.map(|(stream, _)| Connection::Unix(stream)),
        }
    }
}

impl Agent {
    pub(super) async fn port_listen(&self, request: PortListen) -> Result<StreamResponder> {
        self.check_open()?;
        let host = match &request.host {
            // Names would need a resolver of the image.
            Some(host) => host.parse().map_err(|_| SandboxError::invalid_input("host", "must be an address"))?,
            None => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        let target = match &request.target {
            Some(target) => Some(target.parse::<SocketAddr>().map_err(|_| {
                SandboxError::invalid_input("target", "must be an address and a port, as in 10.0.0.2:80 or [::1]:80")
            })?),
            None => None,
        };
        let listening = TcpListener::bind((host, request.port)).await;
        let listener = listening.map_err(|error| refused(&format!("port {}", request.port), error))?;
        let port = listener.local_addr().ok().map(|address| address.port());
        self.listening(port, Listener::Tcp(listener), target)
    }

    pub(super) fn unix_listen(&self, request: &UnixListen) -> Result<StreamResponder> {
        self.check_open()?;
        let mode = request.mode.unwrap_or(0o600);
        if mode > 0o777 {
            return Err(SandboxError::invalid_input("mode", "must be permission bits, at most 0o777"));
        }
        let place = self.place(&request.path)?;
        let (socket, file) = make_socket(&place, mode, self.surroundings.owner(None)?)?;
        let listener = UnixListener::from_std(socket.into()).map_err(|error| SandboxError::io(&place.shown, error))?;
        self.listening(None, Listener::Unix { listener, _file: file }, None)
    }

    fn listening(&self, port: Option<u16>, listener: Listener, target: Option<SocketAddr>) -> Result<StreamResponder> {
        let incoming = self.incoming.clone();
        let session = Session::spawn(ReadOnly, move |sink| async move {
            match target {
                Some(target) => pass_on(&listener, target, &sink).await,
                None => hand_over(&listener, &incoming, &sink).await,
            }
            Ok(())
        });
        StreamResponder::session_with_reply(&PortListening { port }, session)
    }

    pub(super) fn port_accept(&self, request: &PortAccept) -> Result<StreamResponder> {
        let connection = self.incoming.take(request.connection).ok_or_else(|| {
            SandboxError::not_found("no connection of this number waits; it was taken, or not in time")
                .with_field("connection")
        })?;
        Ok(StreamResponder::session(match connection {
            Connection::Tcp(stream) => {
                let (read, write) = stream.into_split();
                relay::<ForwardEvent>(read, write)
            }
            Connection::Unix(stream) => {
                let (read, write) = stream.into_split();
                relay::<ForwardEvent>(read, write)
            }
        }))
    }
}

/// The next connection, when there is a place for it. None when the session is over.
async fn next(
    listener: &Listener,
    room: &Arc<Semaphore>,
    sink: &SessionSink<ListenEvent>,
) -> Option<(Connection, OwnedSemaphorePermit)> {
    let work = async {
        let permit = room.clone().acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok(connection) => return Some((connection, permit)),
                Err(error) => {
                    tracing::warn!(%error, "accepting failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! { connection = work => connection, () = sink.closed() => None }
}

/// Tells the client of each connection. Those that are not taken end with this.
async fn hand_over(listener: &Listener, incoming: &Arc<Incoming>, sink: &SessionSink<ListenEvent>) {
    let mut waiting = JoinSet::new();
    while let Some((connection, permit)) = next(listener, &incoming.room, sink).await {
        while waiting.try_join_next().is_some() {}
        let one = incoming.add(connection, permit);
        let event = ListenEvent::Incoming { connection: one.number };
        waiting.spawn(async move {
            tokio::time::sleep(WAITING_LIMIT).await;
            drop(one);
        });
        if !sink.send(event).await {
            return;
        }
    }
}

/// Connects each connection with the target. They end with this.
async fn pass_on(listener: &Listener, target: SocketAddr, sink: &SessionSink<ListenEvent>) {
    let room = Arc::new(Semaphore::new(RELAYED_MAX));
    let mut relayed = JoinSet::new();
    while let Some((connection, permit)) = next(listener, &room, sink).await {
        while relayed.try_join_next().is_some() {}
        relayed.spawn(async move {
            let _permit = permit;
            let Ok(Ok(mut there)) = timeout(CONNECT_LIMIT, TcpStream::connect(target)).await else {
                tracing::debug!("the target of a forwarded port does not answer");
                return;
            };
            let _ = there.set_nodelay(true);
            // Either side may break it off.
            let _ = match connection {
                Connection::Tcp(mut here) => copy_bidirectional(&mut here, &mut there).await,
                Connection::Unix(mut here) => copy_bidirectional(&mut here, &mut there).await,
            };
        });
    }
}

fn refused(what: &str, error: io::Error) -> SandboxError {
    match error.kind() {
        io::ErrorKind::AddrInUse => SandboxError::already_exists(format!("{what} is taken inside")),
        io::ErrorKind::AddrNotAvailable => SandboxError::invalid_input("host", "is no address of the sandbox"),
        _ => SandboxError::io(format!("listening on {what}"), error),
    }
}

/// A socket's own entry. Dropped, it is removed, if it is still this one.
struct SocketFile {
    folder: OwnedFd,
    name: Vec<u8>,
    made: Stat,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let same = statat(&self.folder, self.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|found| (found.st_dev, found.st_ino) == (self.made.st_dev, self.made.st_ino));
        if same {
            // Nobody waits for it any more.
            let _ = unlinkat(&self.folder, self.name.as_slice(), AtFlags::empty());
        }
    }
}

fn make_socket(place: &Place, mode: u32, owner: Owner) -> Result<(OwnedFd, SocketFile)> {
    let entry = place.entry()?;
    let failed = |errno: rustix::io::Errno| refused(&place.shown, errno.into());
    let address = SocketAddrUnix::new(place.path.as_slice())
        .map_err(|_| SandboxError::invalid_input("path", "is too long for a socket; at most 107 bytes"))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    // The entry gets this mode from its first moment on, or less.
    fchmod(&socket, Mode::from_raw_mode(0o600)).map_err(failed)?;
    bind(&socket, &address).map_err(failed)?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let made = openat(&entry.folder, entry.name.as_slice(), flags, Mode::empty()).map_err(failed)?;
    let found = fstat(&made).map_err(failed)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(SandboxError::already_exists(format!("{} was replaced while it was made", place.shown)));
    }
    let file = SocketFile { folder: entry.folder, name: entry.name, made: found };
    if let Some((uid, gid)) = owner {
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        chownat(&made, "", uid, gid, AtFlags::EMPTY_PATH).map_err(failed)?;
    }
    if mode != 0o600 {
        // By the descriptor: what the path leads to may be another one by now.
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&made.as_fd()));
        chmod(link, Mode::from_raw_mode(mode)).map_err(failed)?;
    }
    listen(&socket, BACKLOG).map_err(failed)?;
    Ok((socket, file))
}
