//! One secret, and the keys of every sandbox derived from it: so another process with the same secret reaches them, and
//! no handle, tag or override holds anything that opens one.

use std::{
    io::Write,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use ring::{
    digest::{SHA256, digest},
    hmac::{self, HMAC_SHA256},
};
use russh::keys::{PrivateKey, ssh_key::private::Ed25519Keypair};
use sandbox_core::{ErrorKind, Result, SandboxError, Secret};
use tokio::time::Instant;

use crate::{
    aws::{Aws, Environment},
    config::KeySource,
};

/// The shortest secret, in bytes.
const BYTES_MIN: usize = 32;

/// The keys of sandboxes.
#[derive(Clone)]
pub(crate) struct Keys {
    secret: hmac::Key,
    id: String,
}

impl Keys {
    /// Reads the secret from where the settings say; a file that is missing is made.
    ///
    /// # Errors
    /// What the place failed with, naming the setting.
    pub(crate) async fn load(source: &KeySource, aws: &Aws, deadline: Instant) -> Result<Self> {
        let path = match source {
            KeySource::SecretArn(arn) => {
                let secret = aws.secret(arn, deadline).await.map_err(SandboxError::from)?;
                return Self::new("key.secret_arn", secret.expose().trim().as_bytes());
            }
            KeySource::File(path) => path.clone(),
            KeySource::State => state_file(aws.environment())?,
        };
        let work = tokio::task::spawn_blocking(move || read_or_make(&path));
        let secret = work.await.unwrap_or_else(|_| Err(SandboxError::internal("reading the key panicked")))?;
        Self::new("key.file", &secret)
    }

    fn new(field: &str, secret: &[u8]) -> Result<Self> {
        if secret.len() < BYTES_MIN {
            let text = format!("must hold at least {BYTES_MIN} bytes, not {}", secret.len());
            return Err(SandboxError::invalid_input(field, text));
        }
        let secret = hmac::Key::new(HMAC_SHA256, secret);
        let id = hex(&hmac::sign(&secret, b"id").as_ref()[..8]);
        Ok(Self { secret, id })
    }

    #[cfg(test)]
    pub(crate) fn of_test() -> Self {
        Self::new("key", &[7; 32]).unwrap()
    }

    /// Tells secrets apart, and is none.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    fn derive(&self, purpose: &str, incarnation: &str) -> [u8; 32] {
        let tag = hmac::sign(&self.secret, format!("{purpose}\n{incarnation}").as_bytes());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(tag.as_ref());
        bytes
    }

    /// The key with which this sandbox's SSH server is entered.
    pub(crate) fn ssh(&self, incarnation: &str) -> Arc<PrivateKey> {
        Arc::new(PrivateKey::from(Ed25519Keypair::from_seed(&self.derive("ssh", incarnation))))
    }

    /// Its public half, as a line of `authorized_keys`.
    ///
    /// # Errors
    /// `Internal`.
    pub(crate) fn ssh_public(&self, incarnation: &str) -> Result<String> {
        let line = self.ssh(incarnation).public_key().to_openssh();
        line.map_err(|_| SandboxError::internal("the public key could not be written"))
    }

    /// What the agent of this sandbox is shown.
    pub(crate) fn token(&self, incarnation: &str) -> Secret {
        Secret::new(hex(&self.derive("token", incarnation)))
    }

    /// What the agent knows of it.
    pub(crate) fn token_sha256(&self, incarnation: &str) -> String {
        sha256(self.token(incarnation).expose().as_bytes())
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// In hexadecimal digits.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn state_file(environment: &Environment) -> Result<PathBuf> {
    let folder = environment.file("XDG_STATE_HOME", ".local/state").filter(|folder| folder.is_absolute());
    folder.map(|folder| folder.join("sandbox-fargate/key")).ok_or_else(|| {
        SandboxError::invalid_input("key", "there is no HOME for a private file")
            .with_help("set key.file or key.secret_arn")
    })
}

/// Reads the file, or makes it: in one step, so that of many who make it at once all read the same.
fn read_or_make(path: &Path) -> Result<Vec<u8>> {
    let failed = |error| SandboxError::io(path.display(), error).with_field("key.file");
    for _ in 0..2 {
        match std::fs::File::open(path) {
            Ok(file) => {
                let found = file.metadata().map_err(failed)?;
                if !found.is_file() || found.mode() & 0o077 != 0 {
                    let text = format!("{} must be a file that only its owner can read", path.display());
                    let error = SandboxError::new(ErrorKind::PermissionDenied, text).with_field("key.file");
                    return Err(error.with_help(format!("chmod 600 {}", path.display())));
                }
                let mut text = Vec::new();
                std::io::Read::read_to_end(&mut std::io::Read::take(file, 4096), &mut text).map_err(failed)?;
                return Ok(text.trim_ascii().to_vec());
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => make(path)?,
            Err(error) => return Err(failed(error)),
        }
    }
    Err(SandboxError::not_found(format!("{} goes away", path.display())).with_field("key.file"))
}

fn make(path: &Path) -> Result<()> {
    let failed = |error| SandboxError::io(path.display(), error).with_field("key.file");
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", sandbox_agent_client::random_hex(6)?));
    let draft = PathBuf::from(name);
    let text = sandbox_agent_client::random_hex(32)?;
    let written = || {
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        match std::fs::hard_link(&draft, path) {
            // Somebody else was first.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        }
    };
    let made = written();
    let _ = std::fs::remove_file(&draft);
    made.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use sandbox_core::ErrorKind;

    use super::{Keys, read_or_make};

    #[test]
    fn each_sandbox_has_keys_of_its_own_and_the_same_secret_gives_the_same() {
        let (one, same) = (Keys::new("key", &[7; 32]).unwrap(), Keys::new("key", &[7; 32]).unwrap());
        let other = Keys::new("key", &[8; 32]).unwrap();
        assert_eq!(one.ssh_public("a").unwrap(), same.ssh_public("a").unwrap());
        assert!(one.ssh_public("a").unwrap().starts_with("ssh-ed25519 "));
        for (different, from) in [(&one, "b"), (&other, "a")] {
            assert_ne!(one.ssh_public("a").unwrap(), different.ssh_public(from).unwrap());
            assert_ne!(one.token("a"), different.token(from));
        }
        assert_eq!((one.id() == same.id(), one.id() == other.id()), (true, false));
        assert_eq!(one.token_sha256("a").len(), 64);
        assert_ne!(one.token_sha256("a"), one.token("a").expose());
        assert_eq!(Keys::new("key", b"short").err().unwrap().field(), Some("key"));
    }

    #[test]
    fn the_file_is_made_once_for_all_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/key");
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| read_or_make(&path).unwrap())).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|secret| *secret == made[0] && secret.len() == 64));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft is left");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = read_or_make(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.help().unwrap().starts_with("chmod 600"));
    }
}
