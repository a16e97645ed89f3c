//! Deleting, pausing, finding again, moving the expiry.

use std::time::{Duration, Instant};

use reqwest::Method;
use sandbox_core::{
    Connect, Endpoint, Metrics, PauseResume, Renew, Result, SandboxEndpoint, SandboxError, SandboxHandle,
    SandboxMetrics, async_trait,
};
use serde_json::{Value, json};

use crate::{
    client::Client,
    error::{Failure, NAME, gone},
    labels::{EXPIRES, MANAGED, NONCE, PAUSED, descriptor, now_ms, state},
    provider::{DaytonaProvider, Shared},
    toolbox::{ASK_WITHIN, check, not_running},
    wire::{Link, MetricsDto, Phase, SandboxDto},
};

/// How long a change of state may take.
const CHANGE_WITHIN: Duration = Duration::from_secs(180);

/// The first and the longest wait between looks.
const LOOK_FIRST: Duration = Duration::from_millis(40);
const LOOK_LONGEST: Duration = Duration::from_secs(1);

/// The longest time to live: ten years, in seconds.
const MAX_TTL_S: f64 = 315_360_000.0;

/// Waits that grow.
struct Pace(Duration);

impl Pace {
    fn new() -> Self {
        Self(LOOK_FIRST)
    }

    async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = self.0.mul_f64(1.4).min(LOOK_LONGEST);
    }
}

async fn look(client: &Client, id: &str) -> Result<SandboxDto, Failure> {
    client.call(&client.api(Method::GET, &format!("/sandbox/{id}"), ASK_WITHIN)).await?.json()
}

/// Deletes a sandbox by id or name and confirms that it is gone. While the service is changing its state it refuses;
/// then it is asked again.
pub(crate) async fn delete(client: &Client, key: &str, within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    let mut pace = Pace::new();
    let mut is_accepted = false;
    loop {
        if !is_accepted {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_secs(1));
            match client.call(&client.api(Method::DELETE, &format!("/sandbox/{key}"), left)).await {
                Ok(_) => is_accepted = true,
                Err(failure) if failure.status() == Some(404) => return Ok(()),
                // Pending transitions end; a bad request may be one in other words.
                Err(failure) if matches!(failure.status(), Some(400 | 409)) || failure.is_transient() => {
                    if Instant::now() >= deadline {
                        return Err(failure.into_error("deleting the sandbox").with_help("close it again"));
                    }
                }
                Err(failure) => return Err(failure.into_error("deleting the sandbox")),
            }
        }
        match look(client, key).await {
            Ok(dto) if dto.state() == "destroyed" => return Ok(()),
            Ok(dto) => is_accepted = dto.phase() == Phase::Gone,
            Err(failure) if failure.status() == Some(404) => return Ok(()),
            Err(failure) if Instant::now() >= deadline || !failure.is_transient() => {
                return Err(failure.into_error("looking whether the sandbox is gone"));
            }
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            return Err(SandboxError::timed_out("the service did not delete the sandbox in time")
                .with_provider(NAME)
                .with_help("close it again"));
        }
        pace.wait().await;
    }
}

impl Shared {
    pub(crate) async fn delete(&self, key: &str, within: Duration) -> Result<()> {
        delete(&self.client, key, within).await
    }

    /// The sandbox of a handle, which must not be gone or another one.
    pub(crate) async fn known(&self, handle: &SandboxHandle) -> Result<SandboxDto> {
        check(handle)?;
        let id = &handle.sandbox_id;
        let dto = match self.look(id, ASK_WITHIN).await {
            Ok(dto) => dto,
            Err(failure) if failure.status() == Some(404) => return Err(gone(id)),
            Err(failure) => return Err(failure.into_error("looking at the sandbox")),
        };
        let is_same = state(handle).nonce.is_none_or(|nonce| dto.label(NONCE) == Some(&nonce));
        if dto.phase() == Phase::Gone || !is_same { Err(gone(id)) } else { Ok(dto) }
    }

    async fn post(&self, id: &str, action: &str) -> Result<(), Failure> {
        let call = self.client.api(Method::POST, &format!("/sandbox/{id}/{action}"), CHANGE_WITHIN);
        self.client.call(&call).await.map(drop)
    }

    /// Asks for a change and waits until the phase is there. A transition under way is waited for.
    async fn change(&self, id: &str, action: &str, wanted: Phase) -> Result<(), Failure> {
        let deadline = Instant::now() + CHANGE_WITHIN;
        let mut pace = Pace::new();
        let mut is_accepted = false;
        loop {
            if !is_accepted {
                match self.post(id, action).await {
                    Ok(()) => is_accepted = true,
                    Err(failure) if failure.status() == Some(409) && Instant::now() < deadline => {}
                    // An earlier attempt without an answer may have been the one that counted.
                    Err(failure) if failure.is_ambiguous() && Instant::now() < deadline => {}
                    Err(failure) => return Err(failure),
                }
            }
            let dto = self.look(id, ASK_WITHIN).await?;
            let is_settled = !dto.state().ends_with("ing");
            if dto.phase() == wanted && is_settled {
                return Ok(());
            }
            if matches!(dto.phase(), Phase::Failed | Phase::Gone) || Instant::now() >= deadline {
                return Err(Failure::TimedOut);
            }
            pace.wait().await;
        }
    }

    async fn set_labels(&self, dto: &SandboxDto, change: impl FnOnce(&mut SandboxDto)) -> Result<()> {
        let mut changed = dto.clone();
        change(&mut changed);
        let mut call = self.client.api(Method::PUT, &format!("/sandbox/{}/labels", dto.id), ASK_WITHIN);
        call.body = Some(json!({"labels": changed.labels}));
        self.client.call(&call).await.map(drop).map_err(|failure| failure.into_error("labelling the sandbox"))
    }
}

#[async_trait]
impl PauseResume for DaytonaProvider {
    async fn pause(&self, handle: &SandboxHandle) -> Result<()> {
        let (shared, id) = (&self.shared, &handle.sandbox_id);
        let dto = shared.known(handle).await?;
        if let Some(error) = not_running(id, &dto) {
            return Err(error);
        }
        match shared.change(id, "pause", Phase::Frozen).await {
            Ok(()) => return Ok(()),
            // Only machines can be frozen; the others are stopped, which keeps files and ends processes.
            Err(failure) if failure.status() == Some(422) => {}
            Err(failure) => return Err(failure.into_error("pausing the sandbox")),
        }
        shared.set_labels(&dto, |dto| drop(dto.labels.insert(PAUSED.to_owned(), "stopped".to_owned()))).await?;
        let mut stopped = shared.change(id, "stop", Phase::Halted).await;
        if stopped.is_err() {
            stopped = shared.change(id, "stop", Phase::Halted).await;
        }
        stopped.map_err(|failure| failure.into_error("stopping the sandbox"))
    }

    async fn resume(&self, handle: &SandboxHandle) -> Result<SandboxHandle> {
        let (shared, id) = (&self.shared, &handle.sandbox_id);
        let dto = shared.known(handle).await?;
        if !matches!(dto.phase(), Phase::Frozen | Phase::Halted) {
            return Err(SandboxError::invalid_state(format!("sandbox {id} is not paused")).with_provider(NAME));
        }
        shared.change(id, "start", Phase::Ready).await.map_err(|failure| failure.into_error("resuming the sandbox"))?;
        if dto.label(PAUSED).is_some() {
            shared.set_labels(&dto, |dto| drop(dto.labels.remove(PAUSED))).await?;
        }
        Ok(handle.clone())
    }
}

#[async_trait]
impl Connect for DaytonaProvider {
    async fn serialize_handle(&self, handle: &SandboxHandle, scope: Option<String>) -> Result<Value> {
        check(handle)?;
        match scope.as_deref() {
            None | Some("") => Ok(descriptor(handle)),
            Some(_) => Err(SandboxError::invalid_input("scope", "daytona has no scopes")),
        }
    }

    async fn connect(&self, descriptor: Value) -> Result<SandboxHandle> {
        let text = |key: &str| descriptor.get(key).and_then(Value::as_str);
        let (Some(NAME), Some(id)) = (text("provider"), text("sandbox_id")) else {
            return Err(SandboxError::invalid_input("descriptor", "is not one of provider daytona").with_provider(NAME));
        };
        let mut handle = SandboxHandle::new(id, NAME);
        if let Some(nonce) = text("nonce") {
            handle.state = json!({"nonce": nonce});
        }
        let dto = self.shared.known(&handle).await?;
        if dto.label(MANAGED).is_none() {
            return Err(
                SandboxError::not_found(format!("sandbox {id} was not made by this system")).with_provider(NAME)
            );
        }
        Ok(dto.handle())
    }
}

#[async_trait]
impl Renew for DaytonaProvider {
    async fn renew(&self, handle: &SandboxHandle, ttl_s: f64) -> Result<u64> {
        if !(ttl_s > 0.0 && ttl_s <= MAX_TTL_S) {
            let text = format!("must be above 0 and at most {MAX_TTL_S} seconds");
            return Err(SandboxError::invalid_input("ttl_s", text));
        }
        let asked = Instant::now();
        let dto = self.shared.known(handle).await?;
        let now = now_ms();
        let expires = now.saturating_add((ttl_s * 1000.0) as u64);
        // The service counts whole minutes from the creation on.
        let created = dto.identity().map_or(now, |identity| identity.created_at_ms.min(now));
        let minutes = (expires - created).div_ceil(60_000).max(1);
        // The label first: a sweep must not take what is being renewed.
        self.shared.set_labels(&dto, |dto| drop(dto.labels.insert(EXPIRES.to_owned(), expires.to_string()))).await?;
        match self.shared.post(&handle.sandbox_id, &format!("ttl/{minutes}")).await {
            Ok(()) => {}
            Err(failure) if failure.status() == Some(404) => return Err(gone(&handle.sandbox_id)),
            Err(failure) => return Err(failure.into_error("moving the expiry")),
        }
        self.shared.expire(handle, asked + Duration::from_secs_f64(ttl_s));
        Ok(expires)
    }
}

#[async_trait]
impl Endpoint for DaytonaProvider {
    async fn endpoint(&self, handle: &SandboxHandle, port: u16) -> Result<SandboxEndpoint> {
        check(handle)?;
        if !state(handle).ports.contains(&port) {
            let text = format!("port {port} was not declared: name it in the spec");
            return Err(SandboxError::invalid_input("port", text).with_provider(NAME));
        }
        let path = format!("/sandbox/{}/ports/{port}/preview-url", handle.sandbox_id);
        // Asked for each time: a restart makes the old token worthless.
        let answer = self.shared.client.call(&self.shared.client.api(Method::GET, &path, ASK_WITHIN)).await;
        match answer.and_then(|answer| answer.json::<Link>()) {
            Ok(link) => {
                let mut headers = std::collections::BTreeMap::new();
                if let Some(token) = link.token {
                    headers.insert("X-Daytona-Preview-Token".to_owned(), token);
                }
                headers.insert("X-Daytona-Skip-Preview-Warning".to_owned(), "true".to_owned());
                SandboxEndpoint::new(link.url, headers)
            }
            Err(failure) => Err(self.shared.explain(handle, "the address of a port", failure).await),
        }
    }
}

#[async_trait]
impl Metrics for DaytonaProvider {
    async fn metrics(&self, handle: &SandboxHandle) -> Result<SandboxMetrics> {
        let url = format!("{}/system/metrics", self.shared.toolbox(handle).await?);
        let call = self.shared.tool(Method::GET, url, ASK_WITHIN, Instant::now() + ASK_WITHIN);
        match self.shared.client.call(&call).await.and_then(|answer| answer.json::<MetricsDto>()) {
            Ok(dto) => {
                let bytes = |value: Option<f64>| value.filter(|value| *value >= 0.0).map(|value| value as u64);
                let (memory, disk) = (bytes(dto.mem_used), bytes(dto.disk_used));
                Ok(SandboxMetrics { memory_bytes: memory, disk_bytes: disk, ..SandboxMetrics::default() })
            }
            Err(failure) => Err(self.shared.explain(handle, "what the sandbox uses", failure).await),
        }
    }
}
