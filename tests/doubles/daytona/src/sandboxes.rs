//! The sandboxes of the double and the states they go through.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, RwLock};

use crate::{pty::Terminals, sessions::Sessions, world::World};

/// Whose everything is.
pub(crate) const ORGANIZATION: &str = "org-1";

/// How long a step from one state to the next takes.
pub(crate) const STEP: Duration = Duration::from_millis(40);

/// How long a destroyed sandbox can still be asked for, where nothing else is set.
const LINGERS: Duration = Duration::from_millis(150);

/// A change of state under way.
struct Transition {
    to: &'static str,
    at: Instant,
}

/// What the control plane knows of a sandbox.
pub(crate) struct Facts {
    pub(crate) dto: Map<String, Value>,
    transition: Option<Transition>,
    gone_at: Option<Instant>,
    created: Instant,
}

pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) env: Mutex<BTreeMap<String, String>>,
    pub(crate) facts: Mutex<Facts>,
    pub(crate) world: RwLock<Option<World>>,
    pub(crate) terminals: Terminals,
    pub(crate) sessions: Sessions,
    /// What addresses of its files are signed with.
    pub(crate) signing_key: Mutex<String>,
}

/// The time as the service writes it.
pub(crate) fn now() -> String {
    at(SystemTime::now())
}

/// A moment as the service writes it.
pub(crate) fn at(moment: SystemTime) -> String {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, rest) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Days since 1970 to a date of the Gregorian calendar, counted in eras of 400 years from March on.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

impl Facts {
    pub(crate) fn new(dto: Map<String, Value>) -> Self {
        Self { dto, transition: None, gone_at: None, created: Instant::now() }
    }

    pub(crate) fn state(&self) -> &str {
        self.dto.get("state").and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.dto.get("labels")?.get(name)?.as_str()
    }

    /// Goes to a state by way of another one.
    pub(crate) fn go(&mut self, via: &str, to: &'static str, delay: Duration, desired: &str) {
        self.dto.insert("state".to_owned(), via.into());
        self.dto.insert("desiredState".to_owned(), desired.into());
        self.transition = Some(Transition { to, at: Instant::now() + delay });
    }

    pub(crate) fn is_changing(&self) -> bool {
        self.transition.is_some()
    }

    /// What has happened by now. True when it has just been destroyed.
    pub(crate) fn advance(&mut self) -> bool {
        let ttl = self.dto.get("ttlMinutes").and_then(Value::as_u64).filter(|minutes| *minutes > 0);
        if ttl.is_some_and(|minutes| self.created.elapsed() > Duration::from_secs(minutes * 60))
            && self.gone_at.is_none()
        {
            self.go("destroying", "destroyed", Duration::ZERO, "destroyed");
        }
        let Some(transition) = &self.transition else { return false };
        if Instant::now() < transition.at {
            return false;
        }
        let to = transition.to;
        self.transition = None;
        self.dto.insert("state".to_owned(), to.into());
        self.dto.insert("updatedAt".to_owned(), now().into());
        if to == "destroyed" {
            self.gone_at = Some(Instant::now());
        }
        to == "destroyed"
    }

    fn is_forgotten(&self, lingers: Duration) -> bool {
        self.gone_at.is_some_and(|at| at.elapsed() > lingers)
    }
}

/// All of them, by id.
#[derive(Default)]
pub(crate) struct Sandboxes {
    by_id: Mutex<HashMap<String, Arc<Sandbox>>>,
    lingers: OnceLock<Duration>,
}

impl Sandboxes {
    /// Lets destroyed ones be asked for so long. Counts when it is said for the first time.
    pub(crate) fn linger(&self, how_long: Duration) {
        let _ = self.lingers.set(how_long);
    }

    pub(crate) async fn add(&self, sandbox: Sandbox) {
        self.by_id.lock().await.insert(sandbox.id.clone(), Arc::new(sandbox));
    }

    /// The sandbox of an id or a name, with its state brought up to date.
    pub(crate) async fn find(&self, key: &str) -> Option<Arc<Sandbox>> {
        for sandbox in self.all().await {
            let facts = sandbox.facts.lock().await;
            let is_meant = sandbox.id == key || facts.dto.get("name").and_then(Value::as_str) == Some(key);
            if !is_meant {
                continue;
            }
            drop(facts);
            sandbox.shown().await;
            let lingers = self.lingers.get().copied().unwrap_or(LINGERS);
            if !sandbox.facts.lock().await.is_forgotten(lingers) {
                return Some(sandbox);
            }
        }
        None
    }

    pub(crate) async fn all(&self) -> Vec<Arc<Sandbox>> {
        self.by_id.lock().await.values().cloned().collect()
    }
}

impl Sandbox {
    /// What the control plane knows of it, brought up to date.
    pub(crate) async fn shown(&self) -> Map<String, Value> {
        let mut facts = self.facts.lock().await;
        let has_ended = facts.advance();
        let shown = facts.dto.clone();
        drop(facts);
        if has_ended {
            self.end().await;
        }
        shown
    }

    /// Ends what runs inside.
    pub(crate) async fn end(&self) {
        if let Some(mut world) = self.world.write().await.take() {
            world.end().await;
        }
    }
}

/// What a sandbox is when nothing is said.
pub(crate) fn defaults(id: &str, base: &str) -> Map<String, Value> {
    let dto = json!({
        "id": id, "organizationId": ORGANIZATION, "user": "daytona", "env": {}, "labels": {},
        "public": false, "networkBlockAll": false, "kvm": false, "target": "us", "cpu": 1, "gpu": 0, "memory": 1, "disk": 3,
        "state": "creating", "desiredState": "started", "backupState": "None", "autoStopInterval": 15,
        "autoArchiveInterval": 10_080, "autoDeleteInterval": -1, "volumes": [], "createdAt": now(), "updatedAt": now(),
        "lastActivityAt": now(), "sandboxClass": "linux-vm", "daemonVersion": "0.226.1",
        "toolboxProxyUrl": format!("{base}/toolbox"),
    });
    match dto {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
