//! The address of a task: this machine's side of its network, and the ways in and out.
//!
//! Addresses are on the loopback of both sides, but those are two. Connections to a port of a task are carried over by a
//! relay, which is also where they are cut, refused and held up. What listens on `127.0.0.1` in a task cannot be reached, as
//! with an address of its own.

use std::{
    io,
    net::{SocketAddrV4, TcpListener as StdListener, TcpStream as StdStream},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use rustix::{
    net::sockopt::set_tcp_quickack,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{oneshot, watch},
    task::JoinSet,
    time::Instant,
};

/// Bytes that are carried at once.
const CHUNK_BYTES: usize = 256 << 10;
/// Chunks on a long way in one direction of one connection.
const CHUNKS_UNDER_WAY: usize = 4096;

enum Job {
    Dial(SocketAddrV4, oneshot::Sender<io::Result<StdStream>>),
    Listen(SocketAddrV4, oneshot::Sender<io::Result<StdListener>>),
}

/// A thread in the network of a task, which makes sockets there. It ends with this value.
#[derive(Clone, Debug)]
pub(crate) struct Inside(mpsc::Sender<Job>);

impl Inside {
    /// Enters the network of a process.
    pub(crate) fn enter(pid: u32) -> io::Result<Self> {
        let space = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
        let (send, jobs) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        std::thread::Builder::new().name("network of a task".to_owned()).spawn(move || {
            let entered = move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network));
            let is_in = entered.is_ok();
            let _ = tell.send(entered);
            while let (true, Ok(job)) = (is_in, jobs.recv()) {
                // Nobody waits any more: nothing to do.
                let _ = match job {
                    Job::Dial(address, reply) => reply.send(StdStream::connect(address)).is_ok(),
                    Job::Listen(address, reply) => reply.send(StdListener::bind(address)).is_ok(),
                };
            }
        })?;
        told.recv().map_err(io::Error::other)??;
        Ok(Self(send))
    }

    fn gone<T>(_: T) -> io::Error {
        io::Error::other("the network of the task is gone")
    }

    /// Connects from inside.
    pub(crate) async fn dial(&self, address: SocketAddrV4) -> io::Result<TcpStream> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Job::Dial(address, reply)).map_err(Self::gone)?;
        let stream = answer.await.map_err(Self::gone)??;
        stream.set_nonblocking(true)?;
        TcpStream::from_std(stream)
    }

    /// Listens inside.
    pub(crate) async fn listen(&self, address: SocketAddrV4) -> io::Result<TcpListener> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Job::Listen(address, reply)).map_err(Self::gone)?;
        let listener = answer.await.map_err(Self::gone)??;
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    }
}

/// What is done with connections to a task.
#[derive(Clone, Copy, Debug, Default)]
struct Orders {
    /// Grows with every cut.
    cuts: u64,
    is_refusing: bool,
    is_stalled: bool,
}

/// The connections to one task.
#[derive(Debug)]
pub(crate) struct Gate {
    orders: watch::Sender<Orders>,
    open: AtomicUsize,
    carried: AtomicU64,
    /// Cut when so much has been carried; the greatest number is never.
    cut_at: AtomicU64,
    cut: AtomicUsize,
    /// How long everything is on its way.
    distance: Duration,
}

impl Gate {
    pub(crate) fn new(distance: Duration) -> Arc<Self> {
        Arc::new(Self {
            orders: watch::Sender::default(),
            open: AtomicUsize::new(0),
            carried: AtomicU64::new(0),
            cut_at: AtomicU64::new(u64::MAX),
            cut: AtomicUsize::new(0),
            distance,
        })
    }

    /// Resets every connection. Returns how many there were.
    pub(crate) fn cut(&self) -> usize {
        let open = self.open.load(Ordering::SeqCst);
        self.cut.fetch_add(open, Ordering::SeqCst);
        self.orders.send_modify(|orders| orders.cuts += 1);
        open
    }

    /// Does so when this many more bytes have been carried.
    pub(crate) fn cut_after(&self, bytes: u64) {
        self.cut_at.store(self.carried.load(Ordering::SeqCst) + bytes, Ordering::SeqCst);
    }

    /// How many connections were cut.
    pub(crate) fn was_cut(&self) -> usize {
        self.cut.load(Ordering::SeqCst)
    }

    /// Refuses new connections, or no longer.
    pub(crate) fn refuse(&self, is_refusing: bool) {
        self.orders.send_modify(|orders| orders.is_refusing = is_refusing);
    }

    /// Carries nothing, or goes on.
    pub(crate) fn stall(&self, is_stalled: bool) {
        self.orders.send_modify(|orders| orders.is_stalled = is_stalled);
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    fn count(&self, bytes: usize) {
        let carried = self.carried.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
        let at = self.cut_at.load(Ordering::SeqCst);
        if carried >= at && self.cut_at.compare_exchange(at, u64::MAX, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.cut();
        }
    }

    /// Until the connections of now are cut.
    async fn next_cut(&self) {
        let mut orders = self.orders.subscribe();
        let now = orders.borrow_and_update().cuts;
        if orders.wait_for(|orders| orders.cuts != now).await.is_err() {
            std::future::pending().await
        }
    }

    async fn flows(&self) {
        if self.orders.borrow().is_stalled {
            // The sender is this value's: it is there.
            let _ = self.orders.subscribe().wait_for(|orders| !orders.is_stalled).await;
        }
    }
}

/// One more that is open.
struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Some bytes; none at the end.
async fn take(gate: &Gate, from: &mut OwnedReadHalf, chunk: &mut [u8]) -> io::Result<usize> {
    let bytes = from.read(chunk).await?;
    // The relay stands for a network, which adds no waits of its own: whoever holds small packets back until what it sent
    // before is acknowledged would wait for this machine's timer. One that cannot is slower, not wrong.
    let _ = set_tcp_quickack(from.as_ref(), true);
    gate.flows().await;
    Ok(bytes)
}

async fn pump(gate: &Gate, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) -> io::Result<()> {
    if !gate.distance.is_zero() {
        return pump_far(gate, from, to).await;
    }
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let bytes = take(gate, from, &mut chunk).await?;
        if bytes == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..bytes]).await?;
        gate.count(bytes);
    }
}

/// The same over a long way: each chunk arrives when its time has come, however many are under way.
async fn pump_far(gate: &Gate, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) -> io::Result<()> {
    let (send, mut under_way) = tokio::sync::mpsc::channel::<(Instant, Vec<u8>)>(CHUNKS_UNDER_WAY);
    let leave = async {
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let bytes = take(gate, from, &mut chunk).await?;
            let is_gone = send.send((Instant::now() + gate.distance, chunk[..bytes].to_vec())).await.is_err();
            if bytes == 0 || is_gone {
                return io::Result::Ok(());
            }
        }
    };
    let arrive = async {
        while let Some((at, bytes)) = under_way.recv().await {
            tokio::time::sleep_until(at).await;
            if bytes.is_empty() {
                break;
            }
            to.write_all(&bytes).await?;
            gate.count(bytes.len());
        }
        to.shutdown().await
    };
    tokio::try_join!(leave, arrive).map(drop)
}

/// Carries one connection over, until both sides are done or it is cut.
async fn carry(gate: &Gate, outer: TcpStream, inner: TcpStream) {
    let _open = Open::new(&gate.open);
    for stream in [&outer, &inner] {
        let _ = stream.set_nodelay(true);
    }
    let (mut outer_read, mut outer_write) = outer.into_split();
    let (mut inner_read, mut inner_write) = inner.into_split();
    let both = async {
        tokio::try_join!(pump(gate, &mut outer_read, &mut inner_write), pump(gate, &mut inner_read, &mut outer_write))
    };
    let is_whole = tokio::select! {
        done = both => done.is_ok(),
        () = gate.next_cut() => false,
    };
    if !is_whole {
        // Ended by a reset, on both sides.
        for half in [outer_write, inner_write] {
            let _ = half.as_ref().set_zero_linger();
            half.forget();
        }
    }
}

/// Serves a port of a task on this machine's side, for ever.
pub(crate) async fn serve(listener: TcpListener, gate: Arc<Gate>, inside: Inside, address: SocketAddrV4) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((outer, _)) = accepted else { continue };
                let (gate, inside) = (gate.clone(), inside.clone());
                connections.spawn(async move {
                    let is_refusing = gate.orders.borrow().is_refusing;
                    match inside.dial(address).await {
                        Ok(inner) if !is_refusing => carry(&gate, outer, inner).await,
                        _ => drop(outer.set_zero_linger()),
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves an address of the outside inside a task, for ever.
pub(crate) async fn serve_outside(listener: TcpListener, address: SocketAddrV4) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((mut inner, _)) = accepted else { continue };
                connections.spawn(async move {
                    if let Ok(mut outer) = TcpStream::connect(address).await {
                        // Whoever ends it first ends it for both.
                        let _ = tokio::io::copy_bidirectional(&mut inner, &mut outer).await;
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}
