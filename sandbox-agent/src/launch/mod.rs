//! `sandbox-agent launch`: from an ordinary process to PID 1 of a sandbox.
//!
//! Two processes share the work. The outer half stays as it was started: it opens what only the host's side may open,
//! makes the namespaces by forking into them, writes the id maps and reports. The inner half builds the root and
//! executes PID 1. Each ends when the other does.

mod dev;
mod etc;
mod ids;
mod inner;
mod keeper;
mod mapped;
mod message;
mod mounts;
mod network;
mod outer;
mod overlay;
mod proc;
mod program;
mod root;
mod sources;

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use crate::error::{Context, LaunchError, Stage};
use crate::sys;

pub use outer::run;

/// The numbers of the descriptors that a launch uses. Every other inherited one is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arguments {
    /// The configuration is read from here to its end. Default 0.
    pub config_fd: RawFd,
    /// The [`LaunchStatus`](crate::LaunchStatus) goes here as one line. If it is a unix socket, a pidfd of PID 1 goes
    /// with it. Default 1.
    pub status_fd: RawFd,
    /// The connected socket that becomes PID 1's descriptor [`SOCKET_FD`](crate::SOCKET_FD).
    pub socket_fd: Option<RawFd>,
    /// A [`Basis`](crate::Basis) comes first, as one line: what it says is made before the configuration is read.
    pub ahead: bool,
}

impl Arguments {
    /// Reads `--config-fd N --status-fd N --socket-fd N --ahead`.
    ///
    /// # Errors
    /// What is wrong with the arguments, in one line.
    pub fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Arguments, String> {
        let mut parsed = Arguments { config_fd: 0, status_fd: 1, socket_fd: None, ahead: false };
        let mut arguments = arguments.into_iter();
        while let Some(name) = arguments.next() {
            if name == "--ahead" {
                parsed.ahead = true;
                continue;
            }
            let number = arguments.next().and_then(|value| value.parse::<RawFd>().ok()).filter(|number| *number >= 0);
            let Some(number) = number else { return Err(format!("{name} needs a descriptor's number")) };
            match name.as_str() {
                "--config-fd" => parsed.config_fd = number,
                "--status-fd" => parsed.status_fd = number,
                "--socket-fd" => parsed.socket_fd = Some(number),
                _ => return Err("launch takes --config-fd, --status-fd, --socket-fd and --ahead".to_owned()),
            }
        }
        Ok(parsed)
    }
}

/// The descriptors that a launch uses, away from 0, 1 and 2.
struct Descriptors {
    config: OwnedFd,
    socket: Option<OwnedFd>,
}

impl Descriptors {
    /// Takes the descriptors, closes all others and lets 0, 1 and 2 be `/dev/null`: whoever waits for the end of one
    /// of them is not held by a keeper.
    fn take(arguments: Arguments, status: &OwnedFd) -> Result<Descriptors, LaunchError> {
        let duplicate = |fd| sys::duplicate_inherited(fd).stage(Stage::Config, "using an inherited descriptor");
        let config = duplicate(arguments.config_fd)?;
        let socket = arguments.socket_fd.map(duplicate).transpose()?;
        let mut kept: Vec<u32> = [Some(status), Some(&config), socket.as_ref()]
            .into_iter()
            .flatten()
            .map(|fd| fd.as_raw_fd() as u32)
            .collect();
        kept.sort_unstable();
        let mut first = 3;
        for fd in kept.into_iter().chain([u32::MAX]) {
            if fd > first {
                sys::close_inherited(first, fd - 1).stage(Stage::Config, "closing inherited descriptors")?;
            }
            first = fd.saturating_add(1);
        }
        let null = mounts::open_null().stage_at(Stage::Config, "opening", "/dev/null")?;
        for fd in 0..=2 {
            sys::place(null.as_fd(), fd).stage(Stage::Config, "replacing descriptors 0 to 2")?;
        }
        Ok(Descriptors { config, socket })
    }
}
