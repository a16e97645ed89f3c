//! Through the SSH server of the sidecar, to the agent's socket in the volume that both containers share.

use std::{
    borrow::Cow,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use russh::{
    Preferred, cipher,
    client::{self, AuthResult, Handle},
    keys::{HashAlg, PrivateKey, PrivateKeyWithHashAlg},
};
use sandbox_core::{ErrorKind, Result, SandboxError, async_trait};
use tokio::io::{AsyncRead, ReadBuf};

use super::{Stream, Transport, connect, prompt::Prompt};
use crate::definition::SOCKET;

/// How long greeting and key exchange may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(15);
/// What the other side may send ahead of its reader: a fast link with a long way is full with so much.
const WINDOW_BYTES: u32 = 8 << 20;
/// Packets that wait for the reader.
const QUEUE_PACKETS: usize = 256;

/// What the processors of today do by themselves goes first.
const CIPHERS: &[cipher::Name] =
    &[cipher::AES_128_GCM, cipher::AES_256_GCM, cipher::CHACHA20_POLY1305, cipher::AES_256_CTR];

/// The way into one task.
pub(crate) struct Ssh {
    address: SocketAddr,
    key: Arc<PrivateKey>,
    /// The server's key, from the first connection on: no other one is talked to.
    pinned: Mutex<Option<String>>,
}

impl Ssh {
    /// The server at this address, which has this key if it is known already.
    pub(crate) fn new(address: SocketAddr, key: Arc<PrivateKey>, host_key: Option<String>) -> Self {
        Self { address, key, pinned: Mutex::new(host_key) }
    }
}

/// Accepts the pinned key, and where none is pinned yet the first one.
struct Pinning {
    pinned: Option<String>,
    seen: Arc<Mutex<Option<String>>>,
}

impl client::Handler for Pinning {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &russh::keys::PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        let found = key.public_key().fingerprint(HashAlg::Sha256).to_string();
        let is_same = self.pinned.as_ref().is_none_or(|pinned| *pinned == found);
        *lock(&self.seen) = Some(found);
        Ok(is_same)
    }
}

#[async_trait]
impl Transport for Ssh {
    async fn open(&self) -> Result<Stream> {
        let stream = connect(self.address).await?;
        let opened = tokio::time::timeout(HANDSHAKE_LIMIT, self.enter(stream)).await;
        opened.unwrap_or_else(|_| Err(SandboxError::unavailable("the SSH server does not answer")))
    }

    fn host_key(&self) -> Option<String> {
        lock(&self.pinned).clone()
    }
}

fn lock(key: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    key.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ssh {
    async fn enter(&self, stream: tokio::net::TcpStream) -> Result<Stream> {
        let config = client::Config {
            window_size: WINDOW_BYTES,
            channel_buffer_size: QUEUE_PACKETS,
            nodelay: true,
            preferred: Preferred { cipher: Cow::Borrowed(CIPHERS), ..Preferred::default() },
            ..client::Config::default()
        };
        let (pinned, seen) = (self.host_key(), Arc::default());
        let handler = Pinning { pinned: pinned.clone(), seen: Arc::clone(&seen) };
        let failed = |what: &str, error: russh::Error| {
            SandboxError::unavailable(format!("the SSH server: {what}: {}", crate::aws::one_line(&error.to_string())))
        };
        let mut handle = match client::connect_stream(Arc::new(config), Prompt::new(stream), handler).await {
            Ok(handle) => handle,
            Err(_) if pinned.is_some() && lock(&seen).as_ref().is_some_and(|seen| Some(seen) != pinned.as_ref()) => {
                let text = "the SSH server is not the one that it was: its key is another one";
                return Err(SandboxError::new(ErrorKind::PermissionDenied, text));
            }
            Err(error) => return Err(failed("greeting", error)),
        };
        let key = PrivateKeyWithHashAlg::new(self.key.clone(), None);
        match handle.authenticate_publickey("root", key).await.map_err(|error| failed("entering", error))? {
            AuthResult::Success => {}
            // A server that refuses says how one may try again. Without a word it was the connection that broke.
            AuthResult::Failure { remaining_methods, .. } if remaining_methods.is_empty() => {
                return Err(SandboxError::unavailable("the SSH server: the connection broke while it was entered"));
            }
            AuthResult::Failure { .. } => {
                let text = "the SSH server does not take the sandbox's key";
                return Err(SandboxError::new(ErrorKind::PermissionDenied, text)
                    .with_help("was the sandbox made with another key, or is root locked in the sidecar's image?"));
            }
        }
        // Only now has it shown that the key is its own, and that it knows ours.
        if let Some(seen) = lock(&seen).take() {
            lock(&self.pinned).get_or_insert(seen);
        }
        let channel = handle.channel_open_direct_streamlocal(SOCKET).await;
        let channel = channel.map_err(|error| failed("the agent's socket", error))?;
        let (read, write) = tokio::io::split(channel.into_stream());
        let read = Kept { stream: read, _handle: handle };
        Ok(Stream { read: Box::new(read), write: Box::new(write) })
    }
}

/// Keeps the connection for as long as its stream.
struct Kept<S> {
    stream: S,
    _handle: Handle<Pinning>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Kept<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::{net::SocketAddr, sync::Arc};

    use russh::{
        MethodSet,
        keys::{PrivateKey, ssh_key::private::Ed25519Keypair},
        server::{self, Auth},
    };
    use sandbox_core::ErrorKind;
    use tokio::net::TcpListener;

    use super::{Ssh, Transport};

    /// What a server does with a key.
    #[derive(Clone, Copy)]
    enum Entering {
        Breaks,
        Refuses,
    }

    impl server::Handler for Entering {
        type Error = russh::Error;

        async fn auth_publickey(&mut self, _: &str, _: server::VerifiedPublicKey<'_>) -> Result<Auth, Self::Error> {
            match self {
                Self::Breaks => Err(russh::Error::Disconnect),
                Self::Refuses => Ok(Auth::Reject {
                    proceed_with_methods: Some(MethodSet::client_supported()),
                    partial_success: false,
                }),
            }
        }
    }

    fn key(seed: u8) -> PrivateKey {
        PrivateKey::from(Ed25519Keypair::from_seed(&[seed; 32]))
    }

    async fn server(entering: Entering) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config =
            server::Config { keys: vec![key(1)], auth_rejection_time: Default::default(), ..Default::default() };
        let config = Arc::new(config);
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(session) = server::run_stream(config, stream, entering).await {
                let _ = session.await;
            }
        });
        address
    }

    /// A connection that is cut in this moment was taken for a refusal, which nobody tries again.
    #[tokio::test]
    async fn f04_a_connection_that_breaks_while_it_is_entered_may_be_made_again_and_a_refusal_not() {
        for (entering, kind) in
            [(Entering::Breaks, ErrorKind::Unavailable), (Entering::Refuses, ErrorKind::PermissionDenied)]
        {
            let ssh = Ssh::new(server(entering).await, Arc::new(key(2)), None);
            let error = ssh.open().await.err().unwrap();
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(ssh.host_key(), None, "nothing is pinned of a server that was not entered");
        }
    }
}
