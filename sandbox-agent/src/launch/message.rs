//! What the two halves of a launch say to each other, and a provider to its launcher: one packet each.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};

use super::sources::{Source, Sources};
use crate::config::{Basis, LaunchConfig};
use crate::error::{Context, LaunchError, Stage};
use crate::report::Landlock;

/// An error, with its paths, is longer than anything else.
const MESSAGE_MAX: usize = 16 * 1024;
/// An order with its basis, and a configuration with what is opened for it. Longer ones come another way: who is forked
/// for one sandbox is to touch little memory.
const PACKET_MAX: usize = 4096;
/// Anything else.
const WORD_MAX: usize = 16;
/// Descriptors that come with one packet, at most.
const DESCRIPTORS_MAX: usize = 3;

/// From the inner half to the outer one. After `Built` comes `Failed`, or the end of the socket when PID 1 executes.
#[derive(Serialize, Deserialize)]
pub(super) enum Message {
    Built(Built),
    /// A template is ready.
    Sealed,
    Failed(LaunchError),
}

/// What is in force inside.
#[derive(Serialize, Deserialize)]
pub(super) struct Built {
    pub(super) landlock: Landlock,
    pub(super) seccomp_calls: usize,
    pub(super) masked_paths: Vec<String>,
    pub(super) read_only_paths: Vec<String>,
}

/// What comes with a configuration as descriptors, in this order: itself, if it is not behind this; the workdir, if it is
/// there, and each bind, and whether they are folders; the rootfs's two.
#[derive(Default, Serialize, Deserialize)]
struct Opened {
    is_behind: bool,
    workdir: Option<bool>,
    binds: Vec<bool>,
    rootfs: bool,
}

/// What a provider wants of its launcher: another process that makes one sandbox.
pub(super) struct Order {
    /// The configuration is read from here to its end.
    pub(super) config: OwnedFd,
    /// A unix socket: the [`LaunchStatus`](crate::LaunchStatus) goes here as one line, and a pidfd of PID 1 with it; the
    /// end of a kept sandbox as another.
    pub(super) status: OwnedFd,
    /// What PID 1 serves.
    pub(super) socket: OwnedFd,
    /// What is made before the configuration is read.
    pub(super) ahead: Option<Basis>,
}

/// One end of a socket for packets, closed by exec.
#[derive(Debug)]
pub(crate) struct Line(OwnedFd);

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Line {
    pub(crate) fn pair() -> Result<(Line, Line), LaunchError> {
        let flags = SocketFlags::CLOEXEC;
        let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (one, other) = pair.stage(Stage::Report, "making the launcher's socket pair")?;
        Ok((Line(one), Line(other)))
    }

    /// This end, where it is to be inherited.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    pub(super) fn of(fd: OwnedFd) -> Line {
        Line(fd)
    }

    /// Asks a launcher for a process that waits for its configuration, and perhaps makes what this basis says meanwhile.
    /// Returns its pidfd.
    pub(crate) fn order(
        &self,
        ahead: Option<&Basis>,
        descriptors: [BorrowedFd<'_>; 3],
    ) -> Result<OwnedFd, LaunchError> {
        let nothing: Option<&Basis> = None;
        let text = serde_json::to_vec(&ahead).ok().filter(|text| text.len() <= PACKET_MAX);
        // One that is too long to be told, or cannot be, is not made ahead.
        let text = text.or_else(|| serde_json::to_vec(&nothing).ok()).unwrap_or_default();
        self.send_with(&text, &descriptors)?;
        let (text, mut fds) = self.receive_with(MESSAGE_MAX)?;
        match (fds.pop(), text.is_empty()) {
            (Some(pidfd), _) => Ok(pidfd),
            (None, true) => Err(LaunchError::new(Stage::Report, "the launcher has ended (is it an agent file?)")),
            (None, false) => Err(serde_json::from_slice(&text).unwrap_or_else(|_| not_understood())),
        }
    }

    /// The next order; `None` when there will be none.
    pub(super) fn receive_order(&self) -> Result<Option<Order>, LaunchError> {
        let (text, fds) = self.receive_with(PACKET_MAX)?;
        if text.is_empty() {
            return Ok(None);
        }
        let [config, status, socket] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| not_understood())?;
        let ahead = serde_json::from_slice(&text).map_err(|_| not_understood())?;
        Ok(Some(Order { config, status, socket, ahead }))
    }

    /// Answers an order.
    pub(super) fn answer(&self, made: Result<&OwnedFd, &LaunchError>) -> Result<(), LaunchError> {
        match made {
            Ok(pidfd) => self.send_with(b"made", &[pidfd.as_fd()]),
            Err(error) => self.send_with(&serde_json::to_vec(error).map_err(|_| not_understood())?, &[]),
        }
    }

    /// Tells the inner half that its ids are mapped.
    pub(super) fn send_go(&self) -> Result<(), LaunchError> {
        self.send_bytes(b"go")
    }

    /// Waits for that.
    pub(super) fn receive_go(&self) -> Result<(), LaunchError> {
        match self.receive_with(WORD_MAX)?.0.as_slice() {
            b"go" => Ok(()),
            _ => Err(LaunchError::new(Stage::Report, "the launcher's outer half has ended")),
        }
    }

    pub(super) fn send(&self, message: &Message) -> Result<(), LaunchError> {
        let bytes = serde_json::to_vec(message)
            .map_err(|_| LaunchError::new(Stage::Report, "a path that is not UTF-8 cannot be reported"))?;
        self.send_bytes(&bytes)
    }

    /// The other half's next message; `None` when its end of the socket is closed.
    pub(super) fn receive(&self) -> Result<Option<Message>, LaunchError> {
        let (bytes, _) = self.receive_with(MESSAGE_MAX)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let message = serde_json::from_slice(&bytes);
        message.map(Some).map_err(|_| not_understood())
    }

    /// Tells the inner half which sandbox it is for, and hands over what is opened for it already.
    pub(super) fn send_config(&self, config: &[u8], sources: Option<&Sources>) -> Result<(), LaunchError> {
        let opened = sources.map(|sources| Opened {
            is_behind: false,
            workdir: sources.workdir.as_ref().map(|source| source.is_folder),
            binds: sources.binds.iter().map(|source| source.is_folder).collect(),
            rootfs: sources.rootfs.is_some(),
        });
        let has_sources = opened.is_some();
        let mut opened = opened.unwrap_or_default();
        let told = |opened: &Opened| serde_json::to_vec(&(has_sources, opened)).map_err(|_| not_understood());
        opened.is_behind = true;
        let mut text = told(&opened)?;
        text.push(b'\n');
        text.extend_from_slice(config);
        let mut file = None;
        if text.len() > PACKET_MAX {
            opened.is_behind = false;
            text = told(&opened)?;
            let write = || -> std::io::Result<File> {
                let mut file = File::from(rustix::fs::memfd_create(c"sandbox-agent-config", MemfdFlags::CLOEXEC)?);
                file.write_all(config)?;
                file.rewind()?;
                Ok(file)
            };
            file = Some(write().stage(Stage::Report, "writing the configuration for the inner half")?);
        }
        let mounts = sources.into_iter().flat_map(|sources| {
            let rootfs = sources.rootfs.iter().flat_map(|(lower, upper)| [lower, upper]);
            sources.workdir.iter().chain(&sources.binds).map(|source| &source.mount).chain(rootfs)
        });
        let fds: Vec<_> = file.iter().map(AsFd::as_fd).chain(mounts.map(AsFd::as_fd)).collect();
        let (first, rest) = fds.split_at(fds.len().min(DESCRIPTORS_MAX));
        self.send_with(&text, first)?;
        rest.chunks(DESCRIPTORS_MAX).try_for_each(|some| self.send_with(b"more", some))
    }

    /// Waits for [`send_config`](Self::send_config).
    pub(super) fn receive_config(&self) -> Result<(LaunchConfig, Option<Sources>), LaunchError> {
        let (text, mut fds) = self.receive_with(PACKET_MAX)?;
        if text.is_empty() {
            return Err(LaunchError::new(Stage::Report, "the launcher's outer half has ended"));
        }
        let (told, config) = match text.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&text[..end], Some(&text[end + 1..])),
            None => (&text[..], None),
        };
        let (has_sources, opened): (bool, Opened) = serde_json::from_slice(told).map_err(|_| not_understood())?;
        let mounts = usize::from(opened.workdir.is_some()) + opened.binds.len() + 2 * usize::from(opened.rootfs);
        let count = usize::from(!opened.is_behind) + mounts;
        while fds.len() < count {
            let (_, more) = self.receive_with(WORD_MAX)?;
            if more.is_empty() {
                return Err(not_understood());
            }
            fds.extend(more);
        }
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(not_understood);
        let config = match config {
            Some(text) if opened.is_behind => serde_json::from_slice(text),
            _ => {
                let text = std::io::read_to_string(File::from(next()?));
                serde_json::from_str(&text.stage(Stage::Report, "reading the configuration")?)
            }
        };
        let config = config.map_err(|_| not_understood())?;
        if !has_sources {
            return Ok((config, None));
        }
        let mut source = |is_folder| Ok(Source { mount: next()?, is_folder });
        let workdir = opened.workdir.map(&mut source).transpose()?;
        let binds = opened.binds.into_iter().map(&mut source).collect::<Result<_, LaunchError>>()?;
        let rootfs = if opened.rootfs { Some((next()?, next()?)) } else { None };
        Ok((config, Some(Sources { workdir, binds, rootfs })))
    }

    fn send_bytes(&self, bytes: &[u8]) -> Result<(), LaunchError> {
        self.send_with(bytes, &[])
    }

    fn send_with(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), LaunchError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        let sent = rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
        });
        sent.stage(Stage::Report, "telling the launcher's other half").map(drop)
    }

    /// A packet of at most so many bytes, and what comes with it. Empty when the other end is closed.
    fn receive_with(&self, longest: usize) -> Result<(Vec<u8>, Vec<OwnedFd>), LaunchError> {
        let mut buffer = vec![0; longest];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut receive = || {
            rustix::io::retry_on_intr(|| {
                let flags = RecvFlags::CMSG_CLOEXEC;
                rustix::net::recvmsg(&self.0, &mut [IoSliceMut::new(&mut buffer)], &mut control, flags)
            })
        };
        let received = match receive() {
            // Told once, when the other half has ended without reading all; what it had said before comes next.
            Err(rustix::io::Errno::CONNRESET) => receive(),
            received => received,
        };
        let length = received.stage(Stage::Report, "hearing from the launcher's other half")?.bytes;
        buffer.truncate(length);
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        Ok((buffer, fds))
    }
}

fn not_understood() -> LaunchError {
    LaunchError::new(Stage::Report, "the launcher's halves do not understand each other")
}
