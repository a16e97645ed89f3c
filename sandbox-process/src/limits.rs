//! How long a command may take to do what.

use std::time::Duration;

/// Default of [`Limits::drain_grace`]: long enough for a pipeline's last member to flush, short enough not to be
/// felt after a command that leaves a background child.
pub const DRAIN_GRACE_DEFAULT: Duration = Duration::from_millis(100);

/// Time limits of one command, on the monotonic clock, counted from the call of `spawn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Ends the tree after this long. Default: none.
    pub timeout: Option<Duration>,
    /// Ends the tree when neither stream had output for this long. A reader that does not take the output does
    /// not count against the command. Default: none.
    pub idle_timeout: Option<Duration>,
    /// How long a timed-out or killed command has between SIGTERM (to its process group) and SIGKILL (to the
    /// tree). Default: zero, SIGKILL at once.
    pub kill_grace: Duration,
    /// How long output is still read after the command has exited while a background child holds its pipes.
    /// Default: [`DRAIN_GRACE_DEFAULT`].
    pub drain_grace: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { timeout: None, idle_timeout: None, kill_grace: Duration::ZERO, drain_grace: DRAIN_GRACE_DEFAULT }
    }
}

impl Limits {
    /// No time limit, no grace before SIGKILL.
    #[must_use]
    pub fn new() -> Limits {
        Limits::default()
    }

    /// Sets [`Limits::timeout`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Limits {
        self.timeout = Some(timeout);
        self
    }

    /// Sets [`Limits::idle_timeout`].
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Limits {
        self.idle_timeout = Some(timeout);
        self
    }

    /// Sets [`Limits::kill_grace`].
    #[must_use]
    pub fn kill_grace(mut self, grace: Duration) -> Limits {
        self.kill_grace = grace;
        self
    }

    /// Sets [`Limits::drain_grace`].
    #[must_use]
    pub fn drain_grace(mut self, grace: Duration) -> Limits {
        self.drain_grace = grace;
        self
    }
}
