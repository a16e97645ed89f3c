//! Signals to us: the first one stops gracefully, the second kills, the third leaves.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that ends us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndSignal {
    Hangup,
    Interrupt,
    Terminate,
}

impl EndSignal {
    /// Its number, the same on every system.
    pub(crate) const fn number(self) -> i32 {
        match self {
            Self::Hangup => 1,
            Self::Interrupt => 2,
            Self::Terminate => 15,
        }
    }

    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Hangup => "SIGHUP",
            Self::Interrupt => "SIGINT",
            Self::Terminate => "SIGTERM",
        }
    }
}

/// Listens to the signals that end us. From the first moment on, none of them ends the process by itself.
///
/// A hang-up that we were started to ignore stays ignored: that is what `nohup` means. The other two are heard even then:
/// a script that starts us in the background makes us ignore them without meaning it.
pub(crate) struct Interrupts {
    hangup: Option<Signal>,
    interrupt: Signal,
    terminate: Signal,
    first: Option<EndSignal>,
    count: u32,
}

impl Interrupts {
    pub(crate) fn listen() -> io::Result<Self> {
        let hears_hangup = ignored_signals() & (1 << (EndSignal::Hangup.number() - 1)) == 0;
        Ok(Self {
            hangup: hears_hangup.then(|| signal(SignalKind::hangup())).transpose()?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            first: None,
            count: 0,
        })
    }

    /// The next signal, and how many there have been with it. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> (EndSignal, u32) {
        let interrupt = tokio::select! {
            () = hung_up(&mut self.hangup) => EndSignal::Hangup,
            _ = self.interrupt.recv() => EndSignal::Interrupt,
            _ = self.terminate.recv() => EndSignal::Terminate,
        };
        self.first.get_or_insert(interrupt);
        self.count += 1;
        (interrupt, self.count)
    }

    /// The signal that came first, if one came.
    pub(crate) fn first(&self) -> Option<EndSignal> {
        self.first
    }
}

async fn hung_up(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            // None comes only when the runtime ends, and this with it.
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// The signals that this process ignores, one bit each. None where that cannot be read.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
