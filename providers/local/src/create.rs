//! Making a sandbox.

use std::{path::PathBuf, sync::Arc, time::Duration};

use sandbox_agent_client::this_process;
use sandbox_core::{ByteString, ErrorKind, Result, SandboxError, SandboxIdentity, SandboxSpec, tracing};

use crate::{
    environment::find_shell,
    error::NAME,
    folder::random_hex,
    paths::Paths,
    provider::Shared,
    record::{Record, now_ms},
    records::Records,
    sandbox::{Parts, Sandbox},
    user::{Identity, is_privileged},
    workspace::{Root, make_workdir, unmake},
};

/// Makes everything that a sandbox needs, or nothing.
pub(crate) fn create(shared: &Shared, spec: SandboxSpec) -> Result<Unclaimed> {
    let Shared { config, root, records, .. } = shared;
    let user = user(&spec)?;
    root.prepare().map_err(as_create)?;
    let id = format!("local-{}", random_hex(6)?);
    let mut made = Made::new(root, records, &id);
    let paths = made.working_folder(&spec, &user).map_err(as_create)?;
    let record = Record {
        id: id.clone(),
        incarnation: random_hex(16)?,
        name: spec.name.clone(),
        identity: identity(&spec),
        holder: this_process(),
        workspace: ByteString::from(paths.workdir()),
        is_owned: spec.workdir.is_none(),
        metadata: spec.metadata,
        inside: None,
        lasting: None,
        ports: Vec::new(),
        image_key: None,
        volumes: Vec::new(),
        networks: Vec::new(),
        hosts: Default::default(),
        token: None,
    };
    made.record = true;
    records.write(&record).map_err(as_create)?;
    let folders = made.keep();
    let (root, shell) = (root.clone(), find_shell(config));
    let records = records.clone();
    let parts = Parts { record, root, records, paths, user, env: spec.env, shell, inside: None };
    Ok(Unclaimed::new(Sandbox::new(parts), folders))
}

/// A sandbox that nobody has taken yet: it goes again when its caller has gone.
pub(crate) struct Unclaimed {
    sandbox: Option<Arc<Sandbox>>,
    /// Folders that were made for its workdir.
    folders: Vec<PathBuf>,
}

impl Unclaimed {
    pub(crate) fn new(sandbox: Arc<Sandbox>, folders: Vec<PathBuf>) -> Self {
        Self { sandbox: Some(sandbox), folders }
    }

    /// Takes it.
    pub(crate) fn claim(mut self) -> Result<Arc<Sandbox>> {
        self.sandbox.take().ok_or_else(|| SandboxError::internal("a sandbox was taken twice"))
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        let Some(sandbox) = self.sandbox.take() else { return };
        let ended = sandbox.inside.as_ref().map_or(Ok(()), |inside| inside.running.end());
        if let Err(error) = ended.and_then(|()| sandbox.remove_files()) {
            tracing::warn!(sandbox_id = sandbox.id, kind = %error.kind(), "an abandoned sandbox could not be removed");
        }
        unmake(&self.folders);
    }
}

/// The user that the sandbox is for.
fn user(spec: &SandboxSpec) -> Result<Identity> {
    let Some(user) = &spec.user else { return Ok(Identity::own()) };
    let identity = Identity::resolve(user).map_err(|error| SandboxError::invalid_input("user", error.to_string()))?;
    if identity.switch.is_some() && !is_privileged() {
        let why =
            format!("this process is not root and can only be {}", String::from_utf8_lossy(&Identity::own().name));
        return Err(SandboxError::unsupported_field(NAME, "user", why));
    }
    Ok(identity)
}

/// Who answers for it: as the host says, else this process.
pub(crate) fn identity(spec: &SandboxSpec) -> SandboxIdentity {
    let mut identity = spec.identity.clone().unwrap_or_else(|| SandboxIdentity {
        run_id: String::new(),
        owner: this_process(),
        created_at_ms: now_ms(),
        expires_at_ms: None,
        attribution: Default::default(),
    });
    if let Some(ttl) = spec.ttl() {
        identity.expires_at_ms = Some(expiry_ms(ttl));
    }
    identity
}

/// So long from now, in milliseconds since the Unix epoch.
pub(crate) fn expiry_ms(ttl: Duration) -> u64 {
    now_ms().saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
}

/// A step of creation that failed is a failed creation, unless the kind says what to do about it.
pub(crate) fn as_create(error: SandboxError) -> SandboxError {
    match error.kind() {
        ErrorKind::Exhausted | ErrorKind::InvalidInput | ErrorKind::PermissionDenied => error,
        _ => error.with_kind(ErrorKind::Create),
    }
}

/// What has been made so far. Dropped before `keep`, it is removed again.
pub(crate) struct Made<'a> {
    root: &'a Root,
    records: &'a Records,
    id: &'a str,
    pub(crate) workspace: bool,
    folders: Vec<PathBuf>,
    pub(crate) record: bool,
}

impl<'a> Made<'a> {
    /// Nothing yet.
    pub(crate) fn new(root: &'a Root, records: &'a Records, id: &'a str) -> Self {
        Self { root, records, id, workspace: false, folders: Vec::new(), record: false }
    }

    fn working_folder(&mut self, spec: &SandboxSpec, user: &Identity) -> Result<Paths> {
        let owner = user.file_owner();
        let Some(given) = &spec.workdir else {
            self.workspace = true;
            return Ok(Paths::new(self.root.make_workspace(self.id, owner)?, None));
        };
        let given = PathBuf::from(given);
        self.folders = make_workdir(&given, owner)?;
        let real = given.canonicalize().map_err(|error| SandboxError::io(given.display(), error))?;
        Ok(Paths::new(real, Some(given)))
    }

    /// Keeps everything and gives the folders that were made for the workdir.
    pub(crate) fn keep(&mut self) -> Vec<PathBuf> {
        self.workspace = false;
        self.record = false;
        std::mem::take(&mut self.folders)
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // The failure that led here is what is told; what stays has a record or is empty.
        if self.workspace {
            let _ = self.root.remove_workspace(self.id);
        }
        if self.record {
            let _ = self.records.remove(self.id);
        }
        unmake(&self.folders);
    }
}
