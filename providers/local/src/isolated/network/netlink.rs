//! The few requests about interfaces and addresses that networks need.

use std::{
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType,
        netdevice::name_to_index,
        recv, send, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};

/// The kernel answers within the call; this is for the case that it does not.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

const LOOPBACK: u32 = 1;

// Of <linux/rtnetlink.h>, <linux/if_link.h>, <linux/if_addr.h> and <linux/veth.h>.
const NEW_LINK: u16 = 16;
const DELETE_LINK: u16 = 17;
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CREATE: u16 = 0x400;
const EXCLUSIVE: u16 = 0x200;
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const LINK_NAMESPACE: u16 = 28;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const PEER: u16 = 1;
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;
const UP: u32 = 1;
const ERROR: u16 = 2;
const HEADER_BYTES: usize = 16;

/// A socket of the network namespace that this thread is in.
pub(super) struct Netlink(OwnedFd);

/// One end of a cable.
pub(super) struct End<'a> {
    pub(super) name: &'a str,
    pub(super) address: Ipv4Addr,
}

impl Netlink {
    pub(super) fn open() -> Result<Self, Errno> {
        // No protocol is the first one, which is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WITHIN))?;
        Ok(Self(socket))
    }

    /// Makes a cable from this namespace to another one. Its ends are down: one of them is there first.
    pub(super) fn make_cable(&self, here: &str, there: &str, other: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut message = Message::new(NEW_LINK, CREATE | EXCLUSIVE);
        message.link(0, 0);
        message.text(LINK_NAME, here);
        message.nested(LINK_INFO, |message| {
            message.text(INFO_KIND, "veth");
            message.nested(INFO_DATA, |message| {
                message.nested(PEER, |message| {
                    message.link(0, 0);
                    message.text(LINK_NAME, there);
                    message.bytes(LINK_NAMESPACE, &other.as_raw_fd().to_ne_bytes());
                });
            });
        });
        self.ask(message)
    }

    /// Removes a cable by the name of its end here. One that is gone is fine.
    pub(super) fn remove_cable(&self, here: &str) -> Result<(), Errno> {
        let mut message = Message::new(DELETE_LINK, 0);
        message.link(0, 0);
        message.text(LINK_NAME, here);
        match self.ask(message) {
            Err(Errno::NODEV) => Ok(()),
            other => other,
        }
    }

    /// Takes this end of a cable up, gives it its address, and leads the other end's address into it.
    pub(super) fn address_cable(&self, here: &End<'_>, there: Ipv4Addr) -> Result<(), Errno> {
        let index = index(here.name)?;
        let mut message = Message::new(NEW_LINK, 0);
        message.link(index, UP);
        self.ask(message)?;
        self.address(NEW_ADDRESS, CREATE | EXCLUSIVE, index, here.address, there)
    }

    /// Lets the namespace answer to an address whatever cables there are. One that is there is fine.
    pub(super) fn add_own_address(&self, address: Ipv4Addr) -> Result<(), Errno> {
        match self.address(NEW_ADDRESS, CREATE | EXCLUSIVE, LOOPBACK, address, address) {
            Err(Errno::EXIST) => Ok(()),
            other => other,
        }
    }

    pub(super) fn remove_own_address(&self, address: Ipv4Addr) -> Result<(), Errno> {
        match self.address(DELETE_ADDRESS, 0, LOOPBACK, address, address) {
            Err(Errno::ADDRNOTAVAIL) => Ok(()),
            other => other,
        }
    }

    fn address(&self, kind: u16, flags: u16, index: u32, local: Ipv4Addr, peer: Ipv4Addr) -> Result<(), Errno> {
        let mut message = Message::new(kind, flags);
        let [family, prefix, no_flags, scope] = [AddressFamily::INET.as_raw() as u8, 32, 0, 0];
        message.0.extend([family, prefix, no_flags, scope]);
        message.0.extend(index.to_ne_bytes());
        message.bytes(LOCAL, &local.octets());
        message.bytes(ADDRESS, &peer.octets());
        self.ask(message)
    }

    fn ask(&self, message: Message) -> Result<(), Errno> {
        let message = message.finish();
        rustix::io::retry_on_intr(|| send(&self.0, &message, SendFlags::empty()))?;
        let mut answer = [0; 4096];
        let (length, _) = rustix::io::retry_on_intr(|| recv(&self.0, &mut answer, RecvFlags::empty()))?;
        // One answer of a header and an error number: this socket has no other request and is in no group.
        let number = |at: usize| answer[..length].get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        let kind = answer[..length].get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
        match (kind, number(HEADER_BYTES).map(i32::from_ne_bytes)) {
            (Some(ERROR), Some(0)) => Ok(()),
            (Some(ERROR), Some(error)) => Err(Errno::from_raw_os_error(-error)),
            _ => Err(Errno::PROTO),
        }
    }
}

/// The number of an interface of this thread's namespace.
fn index(name: &str) -> Result<u32, Errno> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    name_to_index(socket.as_fd(), name)
}

/// A request that is being written. Everything in it begins at a multiple of four bytes.
struct Message(Vec<u8>);

impl Message {
    fn new(kind: u16, flags: u16) -> Self {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(REQUEST | ACK | flags).to_ne_bytes());
        Self(bytes)
    }

    /// `struct ifinfomsg` with these flags to set. Index 0 is by name.
    fn link(&mut self, index: u32, flags: u32) {
        self.0.extend([0; 4]);
        self.0.extend(index.to_ne_bytes());
        self.0.extend(flags.to_ne_bytes());
        self.0.extend(flags.to_ne_bytes());
    }

    fn text(&mut self, kind: u16, text: &str) {
        self.nested(kind, |message| {
            message.0.extend(text.as_bytes());
            message.0.push(0);
        });
    }

    fn bytes(&mut self, kind: u16, bytes: &[u8]) {
        self.nested(kind, |message| message.0.extend(bytes));
    }

    fn nested(&mut self, kind: u16, content: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend(kind.to_ne_bytes());
        content(self);
        let length = u16::try_from(self.0.len() - start).expect("names and addresses are short");
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len()).expect("names and addresses are short");
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}
