//! What the handles, the set and the pump of one process share.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};

use crate::error::{ControlError, ControlErrorKind};
use crate::raw::{self, Errno};
use crate::sys;
use crate::terminal::{self, TerminalSize};
use crate::wire::{MESSAGE_BYTES, Report, encode_signal};

/// The host's end of the control socket.
pub(crate) struct ControlSocket(AsyncFd<OwnedFd>);

impl ControlSocket {
    /// Takes a non-blocking socket.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<ControlSocket> {
        sys::watch(socket, Interest::READABLE).map(ControlSocket)
    }

    /// The next report; `None` when the supervisor is gone. Cancel-safe.
    pub(crate) async fn report(&self) -> Option<Report> {
        loop {
            let mut guard = self.0.readable().await.ok()?;
            let mut message = [0u8; MESSAGE_BYTES];
            let received = guard.try_io(|fd| {
                raw::receive(fd.as_raw_fd(), &mut message).map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))
            });
            match received {
                Ok(Ok(length)) => return message.get(..length).and_then(Report::decode),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return None,
                Err(_would_block) => {}
            }
        }
    }
}

/// State shared by everyone who can reach one process.
pub(crate) struct Shared {
    /// `None` once the supervisor is gone.
    socket: Mutex<Option<Arc<ControlSocket>>>,
    /// Standard input, for [`Stdin::Stream`](crate::Stdin::Stream) and bytes that do not fit into the pipe.
    stdin: tokio::sync::Mutex<Option<AsyncFd<OwnedFd>>>,
    /// Our end of the terminal; `None` without one, and once the supervisor is gone.
    terminal: Mutex<Option<OwnedFd>>,
    has_terminal: bool,
    pid: AtomicI32,
    kill_requested: AtomicBool,
    has_grace: bool,
    /// Wakes the pump after `kill_requested` was set.
    pub(crate) kill: Notify,
    ended: watch::Sender<bool>,
    /// The whole tree is gone.
    gone: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(
        socket: Arc<ControlSocket>,
        stdin: Option<AsyncFd<OwnedFd>>,
        terminal: Option<OwnedFd>,
        has_grace: bool,
    ) -> Shared {
        Shared {
            socket: Mutex::new(Some(socket)),
            stdin: tokio::sync::Mutex::new(stdin),
            has_terminal: terminal.is_some(),
            terminal: Mutex::new(terminal),
            pid: AtomicI32::new(0),
            kill_requested: AtomicBool::new(false),
            has_grace,
            kill: Notify::new(),
            ended: watch::Sender::new(false),
            gone: watch::Sender::new(false),
        }
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.load(Ordering::SeqCst)
    }

    pub(crate) fn set_pid(&self, pid: i32) {
        self.pid.store(pid, Ordering::SeqCst);
    }

    pub(crate) fn kill_requested(&self) -> bool {
        self.kill_requested.load(Ordering::SeqCst)
    }

    fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Marks the command's own process as over. Its input closes; a kill that was asked for meanwhile is done.
    pub(crate) fn set_ended(&self) {
        self.ended.send_replace(true);
        if let Ok(mut stdin) = self.stdin.try_lock() {
            *stdin = None;
        }
        if self.kill_requested() {
            self.kill_now();
        }
    }

    /// The supervisor is gone: nothing can be reached any more.
    pub(crate) fn set_gone(&self) {
        self.set_ended();
        *self.socket.lock().unwrap_or_else(PoisonError::into_inner) = None;
        *self.terminal.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.gone.send_replace(true);
    }

    /// Waits until nothing of the tree is left.
    pub(crate) async fn gone(&self) {
        // The sender lives as long as this.
        let _ = self.gone.subscribe().wait_for(|gone| *gone).await;
    }

    fn socket(&self) -> Option<Arc<ControlSocket>> {
        self.socket.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes the supervisor end the tree at once. Never blocks.
    pub(crate) fn kill_now(&self) {
        if let Some(socket) = self.socket() {
            sys::shut_down_writing(socket.0.as_fd());
        }
    }

    /// Ends the tree: after the grace, if the process has one and runs.
    pub(crate) fn request_kill(&self) {
        self.kill_requested.store(true, Ordering::SeqCst);
        if !self.has_grace || self.has_ended() {
            self.kill_now();
        }
        self.kill.notify_one();
    }

    /// Ends the tree without any grace.
    pub(crate) fn request_kill_now(&self) {
        self.kill_requested.store(true, Ordering::SeqCst);
        self.kill_now();
        self.kill.notify_one();
    }

    pub(crate) fn signal(&self, signal: i32) -> Result<(), ControlError> {
        if !(1..=64).contains(&signal) {
            return Err(ControlError::new(ControlErrorKind::InvalidSignal));
        }
        let socket = match self.socket() {
            Some(socket) if !self.has_ended() => socket,
            _ => return Err(ControlError::new(ControlErrorKind::Ended)),
        };
        let terminal = self.terminal.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = terminal.as_ref().and_then(|terminal| terminal::foreground_group(terminal.as_fd())) {
            raw::kill(-group, signal);
            return Ok(());
        }
        drop(terminal);
        raw::send(socket.0.as_raw_fd(), &encode_signal(signal)).map_err(|Errno(errno)| match errno {
            libc::EPIPE | libc::ECONNRESET => ControlError::new(ControlErrorKind::Ended),
            errno => ControlError::from_errno(errno),
        })
    }

    /// The signal that asks the command to end.
    pub(crate) fn end_signal(&self) -> i32 {
        if self.has_terminal { libc::SIGHUP } else { libc::SIGTERM }
    }

    /// Sends a signal to the command's own group, whoever has the terminal.
    pub(crate) fn signal_command(&self, signal: i32) -> Result<(), ControlError> {
        let socket = self.socket().filter(|_| !self.has_ended());
        let socket = socket.ok_or_else(|| ControlError::new(ControlErrorKind::Ended))?;
        raw::send(socket.0.as_raw_fd(), &encode_signal(signal)).map_err(|Errno(errno)| ControlError::from_errno(errno))
    }

    pub(crate) fn resize(&self, size: TerminalSize) -> Result<(), ControlError> {
        if self.has_ended() {
            return Err(ControlError::new(ControlErrorKind::Ended));
        }
        match &*self.terminal.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(terminal) => terminal::resize(terminal, size)
                .map_err(|error| ControlError::from_errno(error.raw_os_error().unwrap_or(libc::EIO))),
            None if self.has_terminal => Err(ControlError::new(ControlErrorKind::Ended)),
            None => Err(ControlError::new(ControlErrorKind::NoTerminal)),
        }
    }

    /// Writes all bytes, or fails when the command (or its input) ends first.
    pub(crate) async fn write_stdin(&self, mut bytes: &[u8]) -> Result<(), ControlError> {
        let mut ended = self.ended.subscribe();
        let mut stdin = tokio::select! {
            biased;
            stdin = self.stdin.lock() => stdin,
            _ = ended.wait_for(|ended| *ended) => return Err(ControlError::new(ControlErrorKind::Ended)),
        };
        while !bytes.is_empty() {
            let Some(pipe) = stdin.as_ref() else {
                let kind = if self.has_ended() { ControlErrorKind::Ended } else { ControlErrorKind::StdinClosed };
                return Err(ControlError::new(kind));
            };
            let mut guard = tokio::select! {
                biased;
                _ = ended.wait_for(|ended| *ended) => {
                    *stdin = None;
                    return Err(ControlError::new(ControlErrorKind::BrokenPipe));
                }
                guard = pipe.writable() => guard.map_err(|_| ControlError::new(ControlErrorKind::Ended))?,
            };
            match guard.try_io(|fd| sys::write(fd.as_fd(), bytes)) {
                Ok(Ok(written)) => bytes = bytes.get(written..).unwrap_or_default(),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => {
                    *stdin = None;
                    return Err(ControlError::from_errno(error.raw_os_error().unwrap_or(libc::EIO)));
                }
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    pub(crate) async fn close_stdin(&self) {
        if self.has_terminal {
            // A terminal has no end; this is what a program reads as one. A command that has ended needs none.
            let _ = self.write_stdin(&[terminal::END_OF_INPUT]).await;
            return;
        }
        *self.stdin.lock().await = None;
    }
}
