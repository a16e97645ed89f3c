//! File descriptors beside the frames, over a unix socket: what moves then are files, by the kernel, not bytes.
//!
//! Descriptors go one way only, from the client to the server: a client reads in a way that takes none, so nothing
//! that runs in a sandbox can give its provider one. Each has a number on its connection, counted from 0 in the order
//! of sending; a request names it. What nobody names is closed with the connection, or when there are too many.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use rustix::{
    fs::{FileType, OFlags, fcntl_getfl, fstat},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        recvmsg, sendmsg,
    },
};
use sandbox_core::{ByteString, ErrorKind, ReadRange, Result, SandboxError, WriteOptions};
use tokio::{
    io::{AsyncRead, AsyncWrite, Interest, ReadBuf},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Semaphore,
};

use crate::{
    Client, ClientOptions, CloseReason, FEATURE_FD_PASSING, ServerOptions, Service,
    methods::{self, BytesMoved, FileReadFd, FileReadFdDone, FileWriteFd},
    serve_halves,
};

/// Descriptors in one message; the kernel takes 253.
const MESSAGE_MAX: usize = 16;
/// Descriptors that a server holds and nobody has named yet. The oldest is closed for one more.
const RECEIVED_MAX: usize = 64;
/// Transfers of one client at once: below what the server holds.
const TRANSFERS_MAX: usize = 32;

/// What a server has received on one connection.
#[derive(Default)]
pub struct ReceivedDescriptors {
    state: Mutex<Received>,
}

#[derive(Default)]
struct Received {
    next: u64,
    waiting: BTreeMap<u64, OwnedFd>,
}

impl ReceivedDescriptors {
    /// Takes the descriptor of this number, once.
    ///
    /// # Errors
    /// `Unsupported` when none has come: something between the two sides passes bytes only. Nothing was done then, and
    /// the client can send the bytes instead.
    pub fn take(&self, number: u64) -> Result<OwnedFd> {
        self.lock().waiting.remove(&number).ok_or_else(|| {
            SandboxError::new(ErrorKind::Unsupported, "the descriptor of this request has not come with it")
                .with_field("descriptor")
        })
    }

    fn lock(&self) -> MutexGuard<'_, Received> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, descriptor: OwnedFd) {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, descriptor);
        if state.waiting.len() > RECEIVED_MAX {
            state.waiting.pop_first();
        }
    }
}

impl fmt::Debug for ReceivedDescriptors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedDescriptors").field("waiting", &self.lock().waiting.len()).finish()
    }
}

/// As [`serve`](crate::serve), over a unix socket whose descriptors are kept in `received` for the service. Announce
/// [`FEATURE_FD_PASSING`] and the methods that take descriptors in `options`.
pub async fn serve_unix(
    stream: UnixStream,
    options: ServerOptions,
    service: Arc<dyn Service>,
    received: Arc<ReceivedDescriptors>,
) -> CloseReason {
    let (read, write) = stream.into_split();
    serve_halves(Reader { read, received }, write, options, service).await
}

/// What a client has to send along.
pub(crate) struct SentDescriptors {
    queue: Mutex<Queue>,
    transfers: Semaphore,
}

#[derive(Default)]
struct Queue {
    next: u64,
    waiting: VecDeque<OwnedFd>,
}

impl SentDescriptors {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It goes ahead of every frame that is not written yet.
    fn push(&self, descriptor: OwnedFd) -> u64 {
        let mut queue = self.lock();
        queue.waiting.push_back(descriptor);
        queue.next += 1;
        queue.next - 1
    }
}

impl Client {
    /// As [`Client::connect`], over a unix socket: files move as descriptors if the agent takes them
    /// ([`Client::passes_descriptors`]).
    ///
    /// # Errors
    /// As there.
    pub async fn connect_unix(stream: UnixStream, options: ClientOptions) -> Result<Self> {
        let sent = Arc::new(SentDescriptors { queue: Mutex::default(), transfers: Semaphore::new(TRANSFERS_MAX) });
        let (read, write) = stream.into_split();
        Self::connect_with(read, Writer { write, sent: sent.clone() }, options, Some(sent)).await
    }

    /// Whether [`Client::write_file_from`] and [`Client::read_file_into`] can be used on this connection.
    pub fn passes_descriptors(&self) -> bool {
        self.handle.descriptors.is_some() && self.peer().has(FEATURE_FD_PASSING)
    }

    /// Writes a file inside from one outside, which the agent copies in the kernel: from its first byte to its end.
    ///
    /// The agent holds the descriptor meanwhile, so only a regular file that is open for reading alone is taken.
    ///
    /// # Errors
    /// `Unsupported` when descriptors cannot be passed here; `InvalidInput` for another descriptor; what the agent
    /// refuses with.
    pub async fn write_file_from(
        &self,
        path: impl Into<ByteString>,
        options: WriteOptions,
        file: &File,
    ) -> Result<BytesMoved> {
        let (path, method) = (path.into(), methods::FILE_WRITE_FD);
        self.with_descriptor(method, file.as_fd(), OFlags::RDONLY, |descriptor| FileWriteFd {
            path,
            options,
            descriptor,
        })
        .await
    }

    /// Reads a file inside into one outside, from its first byte on. It is not made shorter first; what was written
    /// before a failure stays.
    ///
    /// The agent holds the descriptor meanwhile, so only a regular file that is open for writing alone is taken. A
    /// dropped call may go on writing for a moment: give it a file that nobody else has.
    ///
    /// # Errors
    /// As [`Client::write_file_from`].
    pub async fn read_file_into(
        &self,
        path: impl Into<ByteString>,
        range: ReadRange,
        file: &File,
    ) -> Result<FileReadFdDone> {
        let (path, method) = (path.into(), methods::FILE_READ_FD);
        self.with_descriptor(method, file.as_fd(), OFlags::WRONLY, |descriptor| FileReadFd { path, range, descriptor })
            .await
    }

    async fn with_descriptor<Q: serde::Serialize, R: serde::de::DeserializeOwned>(
        &self,
        method: &str,
        file: BorrowedFd<'_>,
        access: OFlags,
        request: impl FnOnce(u64) -> Q,
    ) -> Result<R> {
        self.peer().require(FEATURE_FD_PASSING)?;
        self.peer().require(method)?;
        let sent = self.handle.descriptors.as_ref().ok_or_else(|| {
            SandboxError::new(ErrorKind::Unsupported, "this connection passes no descriptors")
                .with_help("connect with Client::connect_unix, or send the bytes")
        })?;
        check(file, access)?;
        let copy = file.try_clone_to_owned().map_err(|error| SandboxError::io("the file", error))?;
        let _place = sent.transfers.acquire().await.map_err(|_| SandboxError::unavailable("closed"))?;
        let number = sent.push(copy);
        self.call(method, &request(number)).await
    }
}

/// Only what the other side has to get: a regular file, with the one access that it needs.
fn check(file: BorrowedFd<'_>, access: OFlags) -> Result<()> {
    let failed = |errno: rustix::io::Errno| SandboxError::io("the file", errno.into());
    let found = fstat(file).map_err(failed)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(SandboxError::invalid_input("file", "must be a regular file"));
    }
    let flags = fcntl_getfl(file).map_err(failed)?;
    if flags.contains(OFlags::PATH) || flags & OFlags::ACCMODE != access {
        let mode = if access == OFlags::RDONLY { "reading" } else { "writing" };
        return Err(SandboxError::invalid_input("file", format!("must be open for {mode} alone")));
    }
    Ok(())
}

/// Writes, and sends what waits along with the next byte.
struct Writer {
    write: OwnedWriteHalf,
    sent: Arc<SentDescriptors>,
}

impl Writer {
    fn try_send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let stream = self.write.as_ref();
        let mut queue = self.sent.lock();
        let descriptors: Vec<BorrowedFd<'_>> = queue.waiting.iter().take(MESSAGE_MAX).map(AsFd::as_fd).collect();
        let count = descriptors.len();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let written = stream.try_io(Interest::WRITABLE, || Ok(sendmsg(stream, slices, &mut control, flags)?))?;
        drop(descriptors);
        if written > 0 {
            queue.waiting.drain(..count);
        }
        Ok(written)
    }
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            if self.sent.lock().waiting.is_empty() {
                return Pin::new(&mut self.write).poll_write_vectored(context, slices);
            }
            ready!(self.write.as_ref().poll_write_ready(context))?;
            match self.try_send(slices) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(context)
    }
}

/// Reads, and keeps what comes along.
struct Reader {
    read: OwnedReadHalf,
    received: Arc<ReceivedDescriptors>,
}

impl Reader {
    fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        let stream = self.read.as_ref();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = recvmsg(stream, &mut [IoSliceMut::new(room)], &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                descriptors.for_each(|descriptor| self.received.add(descriptor));
            }
        }
        Ok(received.bytes)
    }
}

impl AsyncRead for Reader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let stream = self.read.as_ref();
        loop {
            ready!(stream.poll_read_ready(context))?;
            let room = buffer.initialize_unfilled();
            match stream.try_io(Interest::READABLE, || self.receive(room)) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}
