use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{Capability, Result, SandboxError, SandboxProvider, SandboxSidecarSpec, SandboxSpec, from_json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::{
    AsyncSandbox,
    state::{Cell, Live, Origin, State},
};
use crate::{ControlTimeouts, checks, timeouts::within};

/// The keys of a descriptor that are this object's own and not the provider's. `workdir`, `ports` and `sidecars` are
/// shared: they are the model's, and a provider may read them.
const OWN_KEYS: [&str; 3] = ["default_user", "default_workdir", "expires_at_ms"];

/// What this object reads out of a descriptor.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Carried {
    workdir: Option<String>,
    ports: Option<Vec<Value>>,
    sidecars: Option<Vec<Value>>,
    default_user: Option<String>,
    default_workdir: Option<String>,
    expires_at_ms: Option<u64>,
}

impl Carried {
    /// The spec that a connected object goes by.
    fn spec(&self) -> Result<SandboxSpec> {
        let ports = self.ports.clone().unwrap_or_default();
        let sidecars = self.sidecars.clone().unwrap_or_default();
        SandboxSpec::from_json(serde_json::json!({ "workdir": self.workdir, "ports": ports, "sidecars": sidecars }))
    }

    /// Checks the defaults that were set on the live sandbox.
    fn check_defaults(&self) -> Result<()> {
        let defaults =
            SandboxSpec::from_json(serde_json::json!({ "user": self.default_user, "workdir": self.default_workdir }));
        defaults.map(drop)
    }
}

impl AsyncSandbox {
    /// A JSON object from which [`connect`](Self::connect) finds the sandbox again, also from another process. It
    /// carries the workdir, the declared ports and sidecars, the expiry and the defaults set on the live sandbox; it holds
    /// no secret. `scope` matters only to providers that mint leases.
    ///
    /// # Errors
    /// `Unsupported`, then `InvalidState` when it is not started; `TimedOut`; the provider's.
    pub async fn serialize(&self, scope: Option<&str>) -> Result<Value> {
        let provider = checks::require(self.provider.name(), self.provider.as_connect(), Capability::Connect)?;
        let live = self.cell.live()?;
        let scope = scope.map(str::to_owned);
        let call = provider.serialize_handle(&live.handle, scope);
        let Value::Object(mut descriptor) = self.call("serialize", self.timeouts.query, call).await? else {
            return Err(SandboxError::internal("the provider returned a descriptor that is no object")
                .with_provider(self.provider.name()));
        };
        if descriptor.get("workdir").is_none_or(Value::is_null) {
            descriptor.insert("workdir".to_owned(), live.spec.workdir.clone().into());
        }
        if !live.spec.ports.is_empty() {
            descriptor.insert("ports".to_owned(), live.spec.ports.clone().into());
        }
        if !live.spec.sidecars.is_empty() {
            // Nothing of their environment or limits.
            let named =
                |sidecar: &SandboxSidecarSpec| serde_json::json!({ "name": sidecar.name, "image": sidecar.image });
            descriptor.insert("sidecars".to_owned(), live.spec.sidecars.iter().map(named).collect());
        }
        let expires_at_ms = live.remaining().map(|remaining| unix_ms() + remaining.as_millis() as u64);
        let own = [live.default_user.clone().into(), live.default_workdir.clone().into(), expires_at_ms.into()];
        for (key, value) in OWN_KEYS.into_iter().zip(own) {
            if value != Value::Null {
                descriptor.insert(key.to_owned(), value);
            }
        }
        Ok(Value::Object(descriptor))
    }

    /// Finds the sandbox of a descriptor. The object owns `provider`, unless
    /// [`with_ownership`](Self::with_ownership) says otherwise afterwards.
    ///
    /// [`stop`](Self::stop) on it removes the real sandbox; [`disconnect`](Self::disconnect) and dropping it do not.
    ///
    /// # Errors
    /// `Unsupported`; `InvalidInput` for something that is no descriptor (checked before the provider hears of it);
    /// `TimedOut`; the provider's. The provider is not ended.
    pub async fn connect(provider: Arc<dyn SandboxProvider>, descriptor: Value) -> Result<Self> {
        let interface = checks::require(provider.name(), provider.as_connect(), Capability::Connect)?;
        let Value::Object(mut descriptor) = descriptor else {
            return Err(SandboxError::invalid_input("descriptor", "must be an object"));
        };
        let carried: Carried = from_json(Value::Object(pick(&descriptor)), "descriptor")?;
        let spec = carried.spec()?;
        carried.check_defaults()?;
        for key in OWN_KEYS {
            descriptor.remove(key);
        }
        let timeouts = ControlTimeouts::default();
        let handle = within("connect", timeouts.connect, interface.connect(Value::Object(descriptor)))
            .await
            .map_err(|error| error.with_provider(provider.name()))?;
        let live = Live {
            handle,
            spec: Arc::new(spec),
            origin: Origin::Connected,
            slot: None,
            default_user: carried.default_user,
            default_workdir: carried.default_workdir,
            expires_at: carried
                .expires_at_ms
                .and_then(|end| Instant::now().checked_add(Duration::from_millis(end.saturating_sub(unix_ms())))),
        };
        let mut sandbox = Self::new(provider);
        sandbox.cell = Cell::new(State::Live(Arc::new(live)));
        Ok(sandbox)
    }
}

fn pick(descriptor: &Map<String, Value>) -> Map<String, Value> {
    let keys = ["workdir", "ports", "sidecars"].into_iter().chain(OWN_KEYS);
    keys.filter_map(|key| Some((key.to_owned(), descriptor.get(key)?.clone()))).collect()
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
