//! Abilities that are a call or two of the lifecycle API each.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Method;
use sandbox_core::{
    Connect, Endpoint, ErrorKind, ExecRequest, Metrics, PauseResume, Renew, Result, SandboxEndpoint, SandboxError,
    SandboxHandle, SandboxMetrics, SandboxStatus, async_trait,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    config::seconds,
    daemon::segment,
    error::NAME,
    provider::OpenSandboxProvider,
    retry::Operation,
    shared::check_provider,
    state::{Kept, State},
};

/// The form of descriptors.
const DESCRIPTOR_VERSION: u64 = 1;

/// The shortest pause between two looks at a state.
const FIRST_LOOK: Duration = Duration::from_millis(20);

#[async_trait]
impl Endpoint for OpenSandboxProvider {
    async fn endpoint(&self, handle: &SandboxHandle, port: u16) -> Result<SandboxEndpoint> {
        let state = self.shared.open(handle)?;
        if !state.ports.contains(&port) {
            let text = format!("{port} was not declared with the sandbox");
            return Err(SandboxError::invalid_input("port", text).with_provider(NAME));
        }
        let through_server = self.shared.config.connection.use_server_proxy;
        let mut endpoint = self.shared.endpoint_of(&handle.sandbox_id, port, through_server).await?;
        // Many servers want the key on the way through them, too. To the sandbox itself it never goes.
        if let Some(key) = self.shared.key.as_ref().filter(|_| through_server) {
            endpoint.headers.insert("OPEN-SANDBOX-API-KEY".to_owned(), key.expose().to_owned());
        }
        Ok(endpoint)
    }
}

#[async_trait]
impl Renew for OpenSandboxProvider {
    async fn renew(&self, handle: &SandboxHandle, ttl_s: f64) -> Result<u64> {
        check_provider(handle)?;
        let ttl = Duration::try_from_secs_f64(ttl_s).ok().filter(|ttl| !ttl.is_zero()).ok_or_else(|| {
            SandboxError::invalid_input("ttl_s", format!("must be above 0, not {ttl_s}")).with_provider(NAME)
        })?;
        self.shared.renew_for(&handle.sandbox_id, ttl).await
    }
}

#[async_trait]
impl Connect for OpenSandboxProvider {
    async fn serialize_handle(&self, handle: &SandboxHandle, scope: Option<String>) -> Result<Value> {
        check_provider(handle)?;
        if let Some(scope) = scope {
            let text = format!("{scope:?} is not known: this provider has one kind of descriptor");
            return Err(SandboxError::invalid_input("scope", text).with_provider(NAME));
        }
        let state = State::read(handle)?;
        Ok(json!({ "version": DESCRIPTOR_VERSION, "sandbox_id": handle.sandbox_id, "state": state }))
    }

    async fn connect(&self, descriptor: Value) -> Result<SandboxHandle> {
        let bad = |key: &str, why: &str| Err(SandboxError::invalid_input(key, why).with_provider(NAME));
        let Some(id) = descriptor["sandbox_id"].as_str().filter(|id| !id.is_empty()) else {
            return bad("sandbox_id", "the descriptor names no sandbox");
        };
        if descriptor["version"].as_u64().is_some_and(|version| version > DESCRIPTOR_VERSION) {
            return bad("version", "the descriptor was written by a newer release");
        }
        let seen = self.shared.look(id).await.map_err(|failure| failure.error("finding the sandbox"))?;
        if seen.described.is_null() || seen.status == SandboxStatus::Stopped {
            return Err(SandboxError::not_found(format!("sandbox {id} is gone")).with_provider(NAME));
        }
        // What the server keeps goes before what the descriptor says; a sandbox of somebody else has neither.
        let state = match (Kept::read(&seen.described), descriptor.get("state")) {
            (_, Some(state)) if !state.is_null() => match serde_json::from_value(state.clone()) {
                Ok(state) => state,
                Err(_) => return bad("state", "was not written by this provider"),
            },
            (Some(kept), _) => kept.state,
            (None, _) => State::default(),
        };
        self.shared.set_paused(id, seen.status == SandboxStatus::Paused);
        if seen.status == SandboxStatus::Running && !self.shared.config.create.skip_health_check {
            self.shared.daemon(id).await?.kind().await?;
        }
        Ok(state.handle(id))
    }
}

#[async_trait]
impl PauseResume for OpenSandboxProvider {
    async fn pause(&self, handle: &SandboxHandle) -> Result<()> {
        self.shared.open(handle)?;
        let id = &handle.sandbox_id;
        let end = Instant::now() + seconds(self.shared.config.operations.pause_resume_timeout_s);
        // Calls that come meanwhile are refused.
        self.shared.set_paused(id, true);
        self.shared.detach_ptys(id);
        let paused = self.change(id, "pause", SandboxStatus::Paused, end).await;
        if paused.is_err() {
            self.shared.set_paused(id, false);
        }
        paused
    }

    async fn resume(&self, handle: &SandboxHandle) -> Result<SandboxHandle> {
        check_provider(handle)?;
        let state = State::read(handle)?;
        let id = &handle.sandbox_id;
        let end = Instant::now() + seconds(self.shared.config.operations.pause_resume_timeout_s);
        self.change(id, "resume", SandboxStatus::Running, end).await?;
        // It may have another address, and another daemon, from now on.
        let state = State { generation: state.generation + 1, ..state };
        self.shared.set_generation(id, state.generation);
        let longest = seconds(self.shared.config.create.connect_poll_s);
        let mut pause = FIRST_LOOK;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let one = seconds(self.shared.config.create.connect_attempt_timeout_s).min(left);
            let asked = async {
                let daemon = self.shared.daemon(id).await?;
                daemon.ping(one).await.map_err(|failure| failure.error("reaching the daemon of the resumed sandbox"))
            };
            let error = match tokio::time::timeout(one, asked).await {
                Ok(Ok(_)) => break,
                Ok(Err(error)) => error,
                Err(_) => SandboxError::timed_out("it does not answer"),
            };
            if Instant::now() + pause >= end {
                let text =
                    format!("sandbox {id} was resumed, but does not answer: connect again and ask for its status");
                return Err(SandboxError::timed_out(text).with_source(error).with_provider(NAME));
            }
            self.shared.forget_target(id);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        self.shared.set_paused(id, false);
        Ok(state.handle(id))
    }
}

impl OpenSandboxProvider {
    /// Asks for a change of state, and waits until it has happened.
    async fn change(&self, id: &str, verb: &str, wanted: SandboxStatus, end: Instant) -> Result<()> {
        let what = format!("{verb} of sandbox {id}");
        let call = self.shared.control_call(Method::POST, &format!("/sandboxes/{}/{verb}", segment(id)));
        if let Err(failure) = self.shared.control(&call, Operation::Once).await {
            let error = failure.error(&what);
            // It may have been taken on: its state tells.
            if !matches!(error.kind(), ErrorKind::Lost | ErrorKind::TimedOut) {
                return Err(error);
            }
        }
        let longest = seconds(self.shared.config.create.connect_poll_s);
        let mut pause = FIRST_LOOK;
        loop {
            let seen = self.shared.look(id).await.map_err(|failure| failure.error(&what))?;
            if seen.status == wanted && !seen.state.eq_ignore_ascii_case("pausing") {
                return Ok(());
            }
            if matches!(seen.status, SandboxStatus::Stopped | SandboxStatus::Error) {
                return Err(seen.explain(id, SandboxError::invalid_state(format!("{what}: it has ended"))));
            }
            if Instant::now() + pause >= end {
                let text = format!("{what}: it is still {}", seen.state);
                return Err(SandboxError::timed_out(text).with_help("ask for its status").with_provider(NAME));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }
}

/// What is asked of the sandbox itself: the daemon's own figures are those of the whole host.
const METRICS_SCRIPT: &str = "m=$(cat /sys/fs/cgroup/memory.current 2>/dev/null); \
    c=$(sed -n 's/^usage_usec //p' /sys/fs/cgroup/cpu.stat 2>/dev/null); \
    p=$(cat /sys/fs/cgroup/pids.current 2>/dev/null || ls -d /proc/[0-9]* | wc -l); \
    n=$(sed -n 's/^ *\\([^l:][^:]*\\): *//p' /proc/net/dev 2>/dev/null | awk '{r+=$1;s+=$9} END {print r+0, s+0}'); \
    echo \"memory=$m\"; echo \"cpu=$c\"; echo \"processes=$p\"; echo \"network=$n\"";

#[async_trait]
impl Metrics for OpenSandboxProvider {
    async fn metrics(&self, handle: &SandboxHandle) -> Result<SandboxMetrics> {
        let state = self.shared.open(handle)?;
        if let Some(agent) = self.shared.native(&handle.sandbox_id).await? {
            return agent.ask(async |client| sandbox_agent_client::metrics(&client).await).await;
        }
        let request = ExecRequest::shell(METRICS_SCRIPT).with_cwd("/").with_timeout_s(20.0);
        let stream =
            crate::exec::exec_as(&self.shared, &handle.sandbox_id, &State { user: None, ..state }, request).await?;
        let result = stream.collect(Default::default()).await?;
        let text = result.stdout_text();
        let told: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
        let number = |key: &str| told.get(key).and_then(|value| value.trim().parse::<u64>().ok());
        let network: Vec<u64> = told
            .get("network")
            .map(|pair| pair.split_whitespace().filter_map(|part| part.parse().ok()).collect())
            .unwrap_or_default();
        Ok(SandboxMetrics {
            cpu_time_s: number("cpu").map(|microseconds| microseconds as f64 / 1e6),
            memory_bytes: number("memory"),
            processes: number("processes"),
            disk_bytes: None,
            received_bytes: network.first().copied(),
            sent_bytes: network.get(1).copied(),
        })
    }
}
