//! What is written down about each sandbox, so that another process can find it and remove what a dead one left.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use sandbox_agent_client::{Life, boot_id, life};
use sandbox_core::{Owner, SandboxHandle, SandboxIdentity, SandboxRecord, SandboxStatus, Secret, serde_json::json};
use serde::{Deserialize, Serialize};

use crate::{
    error::NAME,
    isolated::{Attachment, Leftover},
    sandbox::{GENERATION, incarnation},
    workspace::Root,
};

/// The version of what is written down of sandboxes that outlive their program. It grows when an older reader would
/// take something wrong.
pub(crate) const VERSION: u32 = 1;

/// One sandbox as it is written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) incarnation: String,
    #[serde(default)]
    pub(crate) name: Option<String>,
    #[serde(default)]
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) identity: SandboxIdentity,
    /// The process that its commands belong to. When it is gone, they are. Of a sandbox that outlives the program that
    /// made it: its PID 1.
    pub(crate) holder: Owner,
    /// Where files are; for people.
    pub(crate) workspace: sandbox_core::ByteString,
    /// Whether the workspace is removed with the sandbox.
    pub(crate) is_owned: bool,
    /// Of an isolated sandbox: what could be left of its processes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inside: Option<Leftover>,
    /// The unpacked image that it runs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) image_key: Option<String>,
    /// The named volumes that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<String>,
    /// The networks that it is in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) networks: Vec<Attachment>,
    /// Names that resolve inside, as the caller has set them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) hosts: BTreeMap<String, String>,
    /// What the agent of an isolated sandbox wants to be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) token: Option<Secret>,
    /// The ports that it declared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ports: Vec<u16>,
    /// Of a sandbox that outlives the program that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lasting: Option<Lasting>,
}

/// What another program has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lasting {
    pub(crate) version: u32,
    /// In which run of the kernel its processes are.
    pub(crate) boot: String,
    /// The workspace root that it was made with.
    pub(crate) root: PathBuf,
}

impl Lasting {
    /// Of a sandbox that is made now.
    pub(crate) fn now(root: &Path) -> Self {
        Self { version: VERSION, boot: boot_id().to_owned(), root: root.to_owned() }
    }
}

impl Record {
    pub(crate) fn handle(&self) -> SandboxHandle {
        let mut handle = SandboxHandle::new(&self.id, NAME).with_state(json!({ "incarnation": self.incarnation }));
        handle.generation = GENERATION;
        handle
    }

    /// Whether the handle is of this very sandbox.
    pub(crate) fn is_meant_by(&self, handle: &SandboxHandle) -> bool {
        incarnation(handle) == Some(&self.incarnation)
    }

    /// Running as long as the process that holds it lives.
    pub(crate) fn status(&self) -> SandboxStatus {
        match self.life() {
            Life::Alive => match &self.inside {
                Some(inside) if !inside.is_alive() => SandboxStatus::Stopped,
                Some(inside) if inside.is_frozen() => SandboxStatus::Paused,
                _ => SandboxStatus::Running,
            },
            Life::Gone => SandboxStatus::Stopped,
            Life::Unknown => SandboxStatus::Unknown,
        }
    }

    /// What is known of its holder.
    pub(crate) fn life(&self) -> Life {
        match (&self.lasting, life(&self.holder)) {
            (Some(lasting), Life::Alive) if lasting.boot != boot_id() => Life::Gone,
            (_, life) => life,
        }
    }

    /// The workspace root that it belongs to; `own` for one that is found below it.
    pub(crate) fn root(&self, own: &Root) -> Root {
        self.lasting.as_ref().map_or_else(|| own.clone(), |lasting| Root::new(lasting.root.clone()))
    }

    /// Whether its time to live has passed.
    pub(crate) fn is_expired(&self) -> bool {
        self.identity.expires_at_ms.is_some_and(|expiry| expiry <= now_ms())
    }

    /// Whether nobody answers for it any more.
    pub(crate) fn is_stale(&self) -> bool {
        match &self.identity.owner {
            // One of another machine is for a sweep there.
            Owner::Lease => match self.life() {
                Life::Gone => true,
                Life::Alive => self.is_expired(),
                Life::Unknown => false,
            },
            owner => life(owner) == Life::Gone,
        }
    }

    pub(crate) fn into_public(self) -> SandboxRecord {
        SandboxRecord {
            handle: self.handle(),
            status: self.status(),
            name: self.name,
            image: None,
            metadata: self.metadata,
            identity: Some(self.identity),
        }
    }
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a text can be the id of a sandbox of this provider, and so a file name.
pub(crate) fn is_id(id: &str) -> bool {
    id.strip_prefix("local-").is_some_and(|hex| hex.len() == 12 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
pub(crate) mod tests {
    use sandbox_core::{ByteString, Owner, SandboxIdentity};

    use super::{Lasting, Record, is_id, now_ms};
    use sandbox_agent_client::this_process;

    pub(crate) fn record(owner: Owner, expires_at_ms: Option<u64>) -> Record {
        let identity = SandboxIdentity {
            run_id: "run".to_owned(),
            owner,
            created_at_ms: now_ms(),
            expires_at_ms,
            attribution: Default::default(),
        };
        Record {
            id: "local-0123456789ab".to_owned(),
            incarnation: "i".to_owned(),
            name: None,
            metadata: Default::default(),
            identity,
            holder: this_process(),
            workspace: ByteString::new(b"/w\xff".as_slice()),
            is_owned: true,
            inside: None,
            lasting: None,
            ports: Vec::new(),
            image_key: None,
            volumes: Vec::new(),
            networks: Vec::new(),
            hosts: Default::default(),
            token: None,
        }
    }

    #[test]
    fn only_a_dead_owner_or_a_past_lease_makes_it_stale() {
        assert!(!record(this_process(), Some(1)).is_stale());
        assert!(!record(Owner::Lease, None).is_stale());
        assert!(!record(Owner::Lease, Some(now_ms() + 60_000)).is_stale());
        assert!(record(Owner::Lease, Some(now_ms() - 1)).is_stale());
        let Owner::Process { host, pid, start_time } = this_process() else { panic!("a process") };
        assert!(record(Owner::Process { host, pid, start_time: start_time + 1 }, None).is_stale());
        let elsewhere = Owner::Process { host: "elsewhere".to_owned(), pid, start_time };
        assert!(!record(elsewhere.clone(), None).is_stale());
        let mut lasting = record(Owner::Lease, Some(now_ms() + 60_000));
        lasting.lasting = Some(Lasting::now("/".as_ref()));
        assert!(!lasting.is_stale());
        lasting.lasting = Some(Lasting { boot: "another one".to_owned(), ..Lasting::now("/".as_ref()) });
        assert!(lasting.is_stale(), "nothing runs on when the machine starts again");
        let mut foreign = record(Owner::Lease, Some(1));
        foreign.holder = elsewhere;
        assert!(!foreign.is_stale(), "its machine sweeps it");
    }

    #[test]
    fn ids_are_what_this_provider_makes() {
        assert!(is_id("local-0123456789ab"));
        for bad in ["local-0123456789a", "local-0123456789a/", "docker-0123456789ab", "", "local-../../../../"] {
            assert!(!is_id(bad), "{bad}");
        }
    }
}
