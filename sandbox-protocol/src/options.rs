//! What a side of a connection can be told.

use std::{collections::BTreeSet, time::Duration};

use sandbox_core::Secret;

use crate::{
    hello::{GENERATION, Hello, HelloLimits, MAGIC},
    limits::{HANDSHAKE_LIMIT, IDLE_LIMIT, KEEP_ALIVE, MAX_STREAMS, MAX_WINDOW_BYTES, MIN_WINDOW_BYTES, WINDOW_BYTES},
    methods,
};

/// When a quiet connection says that it lives, and when a dead one is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeepAlive {
    /// A PING goes out after so long without sending or hearing anything; none: never. Keep it below the idle limits of
    /// what is in between.
    pub interval: Option<Duration>,
    /// The connection is lost when nothing arrives, or nothing can be written, for so long. Longer than the peer's
    /// interval.
    pub idle_limit: Duration,
}

impl KeepAlive {
    /// These times.
    pub fn new(interval: Option<Duration>, idle_limit: Duration) -> Self {
        Self { interval, idle_limit }
    }
}

impl Default for KeepAlive {
    /// [`KEEP_ALIVE`](crate::limits::KEEP_ALIVE) and [`IDLE_LIMIT`](crate::limits::IDLE_LIMIT).
    fn default() -> Self {
        Self::new(Some(KEEP_ALIVE), IDLE_LIMIT)
    }
}

/// How a client connects.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Shown to the server, which may demand it.
    pub token: Option<Secret>,
    /// This side's release, for people.
    pub version: String,
    /// What this side can do beyond the methods, for the server to know.
    pub features: BTreeSet<String>,
    /// How much each stream may hold for a reader that has not taken it: 128 KiB to 16 MiB.
    pub window_bytes: u32,
    /// The server may demand fewer.
    pub max_streams: u32,
    /// Liveness.
    pub keep_alive: KeepAlive,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            token: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            features: BTreeSet::new(),
            window_bytes: WINDOW_BYTES,
            max_streams: MAX_STREAMS,
            keep_alive: KeepAlive::default(),
        }
    }
}

impl ClientOptions {
    /// Shows this token.
    #[must_use]
    pub fn with_token(mut self, token: Secret) -> Self {
        self.token = Some(token);
        self
    }

    /// Sets the times of liveness.
    #[must_use]
    pub fn with_keep_alive(mut self, keep_alive: KeepAlive) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    pub(crate) fn hello(&self) -> Hello {
        hello(&self.token, &self.version, &self.features, self.window_bytes, self.max_streams)
    }
}

/// How a server serves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// What clients must show; none only where the transport is private.
    pub token: Option<Secret>,
    /// The SHA-256 of what clients must show, for a server that must not know it. Beside `token`: both must fit.
    pub token_sha256: Option<[u8; 32]>,
    /// This side's release, for people.
    pub version: String,
    /// The methods that are served, and features beyond them. Clients refuse locally what is not in here.
    pub features: BTreeSet<String>,
    /// How much each stream may hold for a reader that has not taken it: 128 KiB to 16 MiB.
    pub window_bytes: u32,
    /// How many streams a client may have open.
    pub max_streams: u32,
    /// Liveness.
    pub keep_alive: KeepAlive,
    /// How long a client may take to show who it is.
    pub handshake_limit: Duration,
}

impl Default for ServerOptions {
    /// Serves every method of [`methods::ALL`](crate::methods::ALL), without a token.
    fn default() -> Self {
        Self {
            token: None,
            token_sha256: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            features: methods::ALL.iter().map(|&method| method.to_owned()).collect(),
            window_bytes: WINDOW_BYTES,
            max_streams: MAX_STREAMS,
            keep_alive: KeepAlive::default(),
            handshake_limit: HANDSHAKE_LIMIT,
        }
    }
}

impl ServerOptions {
    /// Demands this token.
    #[must_use]
    pub fn with_token(mut self, token: Secret) -> Self {
        self.token = Some(token);
        self
    }

    /// Demands the token with this SHA-256.
    #[must_use]
    pub fn with_token_sha256(mut self, digest: [u8; 32]) -> Self {
        self.token_sha256 = Some(digest);
        self
    }

    /// Serves these methods and features instead of every known method.
    #[must_use]
    pub fn with_features<F: Into<String>>(mut self, features: impl IntoIterator<Item = F>) -> Self {
        self.features = features.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the times of liveness.
    #[must_use]
    pub fn with_keep_alive(mut self, keep_alive: KeepAlive) -> Self {
        self.keep_alive = keep_alive;
        self
    }

    /// Sets how many streams a client may have open.
    #[must_use]
    pub fn with_max_streams(mut self, max_streams: u32) -> Self {
        self.max_streams = max_streams;
        self
    }

    pub(crate) fn hello(&self) -> Hello {
        hello(&self.token, &self.version, &self.features, self.window_bytes, self.max_streams)
    }
}

pub(crate) fn window(bytes: u32) -> u32 {
    bytes.clamp(MIN_WINDOW_BYTES, MAX_WINDOW_BYTES)
}

fn hello(
    token: &Option<Secret>,
    version: &str,
    features: &BTreeSet<String>,
    window_bytes: u32,
    max_streams: u32,
) -> Hello {
    Hello {
        magic: MAGIC.to_owned(),
        generation: GENERATION,
        version: version.to_owned(),
        features: features.clone(),
        token: token.clone(),
        limits: HelloLimits { window_bytes: window(window_bytes), max_streams },
    }
}
