//! Starts one process: pipes, socket, supervisor, pump.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use bytes::Bytes;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::blob;
use crate::command::{Command, Stdin};
use crate::control::{ControlSocket, Shared};
use crate::error::StartError;
use crate::fork::{Nursery, Order};
use crate::limits::Limits;
use crate::output::Output;
use crate::prepare::Prepared;
use crate::process::Process;
use crate::pump::Pump;
use crate::raw::Errno;
use crate::set::Registry;
use crate::sys;
use crate::terminal;
use crate::wire::Stage;

/// Output events that wait for a slow reader: with 64 KiB each, one MiB per process before the command is stalled.
pub const EVENT_QUEUE: usize = 16;

/// How many nurseries a command is tried on when each dies before it has begun it.
const NURSERIES_MAX: usize = 3;

/// Why a command does not run.
pub(crate) enum NotStarted {
    Refused(StartError),
    /// This nursery has died, and nobody has begun or will begin the launch.
    NeverBegun(Arc<Nursery>),
}

impl From<StartError> for NotStarted {
    fn from(error: StartError) -> NotStarted {
        NotStarted::Refused(error)
    }
}

pub(crate) async fn spawn(registry: &Arc<Registry>, command: Command, limits: Limits) -> Result<Process, StartError> {
    let prepared = Prepared::new(&command)?;
    let start = Start { registry, prepared: &prepared, command: &command, limits, started: Instant::now() };
    let mut gone = None;
    for _ in 0..NURSERIES_MAX {
        match start.attempt(gone.as_ref()).await {
            Ok(process) => return Ok(process),
            Err(NotStarted::Refused(error)) => return Err(error),
            Err(NotStarted::NeverBegun(nursery)) => gone = Some(nursery),
        }
    }
    Err(StartError::lost())
}

/// What is to be started, and in which set.
struct Start<'a> {
    registry: &'a Arc<Registry>,
    prepared: &'a Prepared,
    command: &'a Command,
    limits: Limits,
    started: Instant,
}

impl Start<'_> {
    /// Starts it on the set's nursery, which is made anew if it is `gone`.
    async fn attempt(&self, gone: Option<&Arc<Nursery>>) -> Result<Process, NotStarted> {
        let Start { registry, prepared, command, limits, started } = *self;
        let ends = Ends::new(registry, command).map_err(|error| refused(&error))?;
        let nursery = registry.nursery(gone).map_err(|error| refused(&error))?;
        let is_sole = nursery.is_sole();
        let id = send(&nursery, prepared, command, &ends.child).await?;
        let Ends { child, control, output, stdin, rest, terminal } = ends;
        drop(child);
        let shared = Arc::new(Shared::new(control.clone(), stdin, terminal, !limits.kill_grace.is_zero()));
        let registration = registry.add(shared.clone());
        let (events_in, events) = mpsc::channel(EVENT_QUEUE);
        let (ready_in, ready) = oneshot::channel();
        let pump = Pump {
            shared: shared.clone(),
            control,
            nursery,
            id,
            registration,
            output,
            events: events_in,
            limits,
            started,
        };
        tokio::spawn(pump.run(ready_in));
        ready.await.unwrap_or_else(|_| Err(StartError::lost().into()))?;
        // While this one runs.
        match is_sole {
            true => registry.prepare_soon(),
            false => registry.make_ahead(),
        }
        if let Some(rest) = rest {
            tokio::spawn(feed(shared.clone(), rest));
        }
        Ok(Process::new(shared, events, started))
    }
}

pub(crate) fn refused(error: &io::Error) -> StartError {
    StartError::from_errno(Stage::Fork, Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Writes the given input and closes it. Ends with the command.
async fn feed(shared: Arc<Shared>, bytes: Bytes) {
    // A command that does not read its input is not an error.
    let _ = shared.write_stdin(&bytes).await;
    shared.close_stdin().await;
}

/// The supervisor's ends of everything.
struct ChildEnds {
    control: OwnedFd,
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
}

/// Both sides' ends, registered with the runtime before anything is started, so that nothing can fail afterwards.
struct Ends {
    child: ChildEnds,
    control: Arc<ControlSocket>,
    output: Output,
    stdin: Option<AsyncFd<OwnedFd>>,
    rest: Option<Bytes>,
    terminal: Option<OwnedFd>,
}

/// What every command without a terminal needs, whichever it is: these can be made ahead of it.
pub(crate) struct Channels {
    control: Arc<ControlSocket>,
    output: Output,
    child_control: OwnedFd,
    child_stdout: OwnedFd,
    child_stderr: OwnedFd,
    null: Option<OwnedFd>,
}

impl Channels {
    fn new() -> io::Result<Channels> {
        let (control, child_control) = sys::socket_pair()?;
        let (stdout, child_stdout) = sys::pipe()?;
        let (stderr, child_stderr) = sys::pipe()?;
        for fd in [&control, &stdout, &stderr] {
            sys::set_nonblocking(fd)?;
        }
        let (control, output) = (Arc::new(ControlSocket::new(control)?), Output::new(stdout, stderr)?);
        Ok(Channels { control, output, child_control, child_stdout, child_stderr, null: None })
    }

    /// With the input of most commands, which is none.
    pub(crate) fn ahead() -> io::Result<Channels> {
        Ok(Channels { null: Some(sys::dev_null()?), ..Channels::new()? })
    }
}

impl Ends {
    fn new(registry: &Registry, command: &Command) -> io::Result<Ends> {
        if let Some(size) = command.terminal {
            let (control, child_control) = sys::socket_pair()?;
            sys::set_nonblocking(&control)?;
            let (master, slave) = terminal::open(size, command.user.as_ref())?;
            sys::set_nonblocking(&master)?;
            let (stdin, stdout) = (slave.try_clone()?, slave.try_clone()?);
            return Ok(Ends {
                child: ChildEnds { control: child_control, stdin, stdout, stderr: slave },
                control: Arc::new(ControlSocket::new(control)?),
                output: Output::terminal(master.try_clone()?)?,
                stdin: Some(sys::watch(master.try_clone()?, Interest::WRITABLE)?),
                rest: None,
                terminal: Some(master),
            });
        }
        let channels = registry.ahead().map_or_else(Channels::new, Ok)?;
        let Channels { control, output, child_control, child_stdout, child_stderr, null } = channels;
        let (child_stdin, stdin, rest) = match (null, &command.stdin) {
            (Some(null), Stdin::Null) => (null, None, None),
            (_, wanted) => input(wanted)?,
        };
        Ok(Ends {
            child: ChildEnds { control: child_control, stdin: child_stdin, stdout: child_stdout, stderr: child_stderr },
            control,
            output,
            stdin,
            rest,
            terminal: None,
        })
    }
}

type Input = (OwnedFd, Option<AsyncFd<OwnedFd>>, Option<Bytes>);

fn input(stdin: &Stdin) -> io::Result<Input> {
    let mut bytes = match stdin {
        Stdin::Null => return Ok((sys::dev_null()?, None, None)),
        Stdin::Bytes(bytes) => bytes.clone(),
        Stdin::Stream => Bytes::new(),
    };
    let (read, write) = sys::pipe()?;
    sys::set_nonblocking(&write)?;
    if matches!(stdin, Stdin::Bytes(_)) {
        // What fits into the pipe needs nobody to feed it.
        while !bytes.is_empty() {
            match sys::write(write.as_fd(), &bytes) {
                Ok(written) => drop(bytes.split_to(written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if bytes.is_empty() {
            return Ok((read, None, None));
        }
    }
    let writer = sys::watch(write, Interest::WRITABLE)?;
    Ok((read, Some(writer), Some(bytes).filter(|bytes| !bytes.is_empty())))
}

/// Has the nursery start the command, and returns the launch's id.
async fn send(
    nursery: &Arc<Nursery>,
    prepared: &Prepared,
    command: &Command,
    ends: &ChildEnds,
) -> Result<u64, NotStarted> {
    let mut descriptors: Vec<(RawFd, RawFd)> =
        vec![(ends.stdin.as_raw_fd(), 0), (ends.stdout.as_raw_fd(), 1), (ends.stderr.as_raw_fd(), 2)];
    descriptors.extend(command.extra_pairs());
    descriptors.sort_unstable_by_key(|(_, target)| *target);
    let mut block = blob::encode(prepared);
    block.extend(descriptors.iter().flat_map(|(_, target)| target.to_ne_bytes()));
    let descriptors = descriptors.into_iter().map(|(source, _)| source).collect();
    let order = Order { block, control: ends.control.as_fd(), descriptors };
    nursery.send(&order).await.map_err(|error| match error.raw_os_error() {
        Some(libc::EPIPE | libc::ECONNRESET) => NotStarted::NeverBegun(nursery.clone()),
        _ => refused(&error).into(),
    })
}
