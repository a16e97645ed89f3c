use sandbox_core::CaptureLimits;

/// What happens to children that a command leaves in the background.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundChildren {
    /// What the provider does with them by itself; most let them live until the sandbox closes.
    #[default]
    ProviderDefault,
    /// They live until the sandbox closes, also on a provider whose ordinary exec ends them. The command must redirect
    /// their output. A provider without that capability runs an ordinary exec, as in the model.
    Preserve,
}

/// How a command's time limit is found when its request names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum DefaultTimeout {
    #[default]
    Standard,
    None,
}

/// How the facade runs a command, beyond what [`ExecRequest`](sandbox_core::ExecRequest) says.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExecOptions {
    pub(super) default_timeout: DefaultTimeout,
    pub(super) capture: CaptureLimits,
    pub(super) background: BackgroundChildren,
}

impl ExecOptions {
    /// The defaults: 180 s unless the request names a limit, 16 MiB of each output stream kept.
    pub fn new() -> Self {
        Self::default()
    }

    /// No time limit when the request names none. The sandbox's own life still ends the command.
    #[must_use]
    pub fn without_timeout(mut self) -> Self {
        self.default_timeout = DefaultTimeout::None;
        self
    }

    /// Sets how much output is kept.
    #[must_use]
    pub fn with_capture(mut self, capture: CaptureLimits) -> Self {
        self.capture = capture;
        self
    }

    /// Says what happens to background children.
    #[must_use]
    pub fn with_background(mut self, background: BackgroundChildren) -> Self {
        self.background = background;
        self
    }
}
