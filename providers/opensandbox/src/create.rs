//! Making a sandbox: asked for, waited for, prepared, tried, and removed again if any of it fails.

use std::{sync::Arc, time::Duration};

use reqwest::Method;
use sandbox_core::{
    ErrorKind, ExecOutcome, ExecRequest, Result, SandboxError, SandboxHandle, SandboxSpec, SandboxStatus,
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    config::seconds,
    create_request::Plan,
    daemon::Seen,
    error::{Failure, NAME, short},
    exec::{Found, exec_as, quote, token},
    labels,
    renewal::Renewal,
    retry::Backoff,
    shared::Shared,
};

/// The shortest pause between two looks at a sandbox that is on its way.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// When a create whose answer was lost is looked for again.
const LATE_LOOKS: [Duration; 3] = [Duration::from_secs(2), Duration::from_secs(15), Duration::from_secs(60)];

/// The shortest life that a server gives.
const SHORTEST_TTL: Duration = Duration::from_secs(60);

/// Makes a sandbox. It goes on when nobody waits any more, and removes then what it made.
pub(crate) async fn create(shared: &Arc<Shared>, spec: SandboxSpec) -> Result<SandboxHandle> {
    let plan = Plan::new(&spec, &shared.config)?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let task = shared.clone();
    tokio::spawn(async move {
        let made = Creation { shared: task.clone(), spec, plan }.run().await;
        if let Err(Ok(handle)) = sender.send(made) {
            remove(&task, &handle.sandbox_id).await;
        }
    });
    // Dropped here, before the task is done, the receiver is gone and the sandbox is removed.
    receiver.await.unwrap_or_else(|_| Err(SandboxError::internal("the creation panicked").with_provider(NAME)))
}

/// Removes what was made; what cannot be removed ends with its time.
async fn remove(shared: &Arc<Shared>, id: &str) {
    shared.stop_renewal(Some(id));
    if let Err(error) = shared.remove(id).await {
        tracing::warn!(sandbox_id = id, kind = %error.kind(), "a sandbox that was not wanted could not be removed");
    }
    shared.forget(id);
}

struct Creation {
    shared: Arc<Shared>,
    spec: SandboxSpec,
    plan: Plan,
}

/// Whether another try can help.
fn may_help(error: &SandboxError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Exhausted
            | ErrorKind::Unavailable
            | ErrorKind::TimedOut
            | ErrorKind::Lost
            | ErrorKind::CreateVerification
    )
}

impl Creation {
    async fn run(&self) -> Result<SandboxHandle> {
        let config = &self.shared.config.create;
        let backoff = Backoff {
            retries: config.retries,
            delay: seconds(config.retry_delay_s),
            max: seconds(config.retry_max_delay_s),
        };
        let end = self.spec.ready_timeout().map(|limit| Instant::now() + limit);
        let mut attempt = 0;
        loop {
            let tried = tokio::time::timeout(self.shared.config.create.timeout(), self.attempt(end)).await;
            let error = match tried {
                Ok(Ok(handle)) => return Ok(handle),
                Ok(Err(error)) => error,
                // What it made is removed by its guard.
                Err(_) => SandboxError::timed_out(format!(
                    "the sandbox was not made within {:.1} s",
                    self.shared.config.create.timeout().as_secs_f64()
                )),
            };
            let pause = backoff.pause(attempt).max(error.retry_after().unwrap_or_default());
            let is_late = end.is_some_and(|end| Instant::now() + pause >= end);
            if attempt >= backoff.retries || !may_help(&error) || is_late {
                return Err(error.with_provider(NAME));
            }
            tracing::debug!(attempt, kind = %error.kind(), "a create is tried again");
            tokio::time::sleep(pause).await;
            attempt += 1;
        }
    }

    async fn attempt(&self, end: Option<Instant>) -> Result<SandboxHandle> {
        let guard = Made { shared: self.shared.clone(), id: self.submit().await?, armed: true };
        let id = guard.id.clone();
        let limit = end.unwrap_or_else(|| Instant::now() + seconds(self.shared.config.create.ready_timeout_s));
        let skip = self.plan.skip_health_check;
        self.wait_until_running(&id, limit).await?;
        if !skip {
            self.wait_until_it_answers(&id, limit).await?;
            // One with a daemon that the settings refuse is not handed out.
            self.shared.native(&id).await?;
        }
        self.prepare(&id).await.map_err(|error| error.context(format!("preparing sandbox {id}")))?;
        if !skip {
            self.probe(&id, limit).await?;
        }
        if let Some(ttl) = self.spec.ttl().filter(|ttl| *ttl < SHORTEST_TTL || ttl.subsec_nanos() > 0) {
            // From now on: such a life may be shorter than the making of it.
            self.shared.renew_for(&id, ttl).await.map_err(|error| {
                error.context("the server gives no life this short").with_field("ttl_s").with_help("60 s or more")
            })?;
        }
        if let (Some(interval), Some(ttl)) = (self.shared.config.create.renew_interval_s, self.spec.ttl()) {
            self.shared.set_renewal(&id, Renewal::start(&self.shared, &id, ttl, seconds(interval)));
        }
        Ok(guard.keep(&self.plan))
    }

    /// Asks for a sandbox and gives its id.
    async fn submit(&self) -> Result<String> {
        const WHAT: &str = "creating a sandbox";
        let create = token();
        let mut pending = Pending { shared: Some(self.shared.clone()), create: create.clone() };
        let mut call = self.shared.control_call(Method::POST, "/sandboxes").json(&self.plan.body(&create));
        call.timeout = self.shared.config.create.request_timeout();
        let answer = self.shared.control(&call, crate::retry::Operation::Once).await;
        let failure = match answer {
            Ok(answer) => {
                let value: Value = answer.json(WHAT)?;
                if let Some(id) = value["id"].as_str().filter(|id| !id.is_empty()) {
                    pending.shared = None;
                    return Ok(id.to_owned());
                }
                Failure::Broke("the answer names no sandbox".to_owned())
            }
            Err(failure) => failure,
        };
        let is_open = match &failure {
            Failure::Broke(_) | Failure::TimedOut(_) => true,
            Failure::NeverReached(_) => false,
            Failure::Refused(refusal) => matches!(refusal.status, 502 | 504) && !refusal.is_unreached(),
        };
        if is_open {
            // It may have been made: its label tells.
            if let Some(id) = self.shared.made_by(&create).await?.into_iter().next() {
                pending.shared = None;
                return Ok(id);
            }
        } else {
            pending.shared = None;
        }
        let is_image = failure.refusal().is_some_and(|one| one.code.ends_with("SANDBOX_IMAGE_PULL_FAILED"));
        let error = failure.error(WHAT);
        Err(match error.kind() {
            _ if is_image => error.with_kind(ErrorKind::NotFound).with_field("image"),
            ErrorKind::Internal => error.with_kind(ErrorKind::Create),
            _ => error,
        })
    }

    async fn wait_until_running(&self, id: &str, limit: Instant) -> Result<()> {
        let longest = seconds(self.shared.config.create.connect_poll_s);
        let mut pause = FIRST_LOOK.min(longest);
        loop {
            let seen = self.shared.look(id).await.map_err(|failure| failure.error("waiting for the sandbox"))?;
            match seen.status {
                SandboxStatus::Running => return Ok(()),
                SandboxStatus::Stopped | SandboxStatus::Error => return Err(died(id, &seen)),
                _ => {}
            }
            if Instant::now() + pause >= limit {
                let why = [&seen.state, &seen.reason, &seen.message].map(String::as_str).join(" ");
                return Err(not_ready(id, &format!("it is {}", short(&why))));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    async fn wait_until_it_answers(&self, id: &str, limit: Instant) -> Result<()> {
        let config = &self.shared.config.create;
        let longest = seconds(config.connect_poll_s);
        let mut pause = FIRST_LOOK.min(longest);
        loop {
            let left = limit.saturating_duration_since(Instant::now()).max(FIRST_LOOK);
            let one = seconds(config.connect_attempt_timeout_s).min(left);
            let asked = async {
                let daemon = self.shared.daemon(id).await?;
                daemon.ping(one).await.map_err(|failure| failure.error("reaching the daemon of the new sandbox"))
            };
            let error = match tokio::time::timeout(one, asked).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) => error,
                Err(_) => SandboxError::timed_out("it does not answer"),
            };
            let is_final = matches!(error.kind(), ErrorKind::Unauthorized | ErrorKind::PermissionDenied);
            if is_final {
                return Err(error);
            }
            self.shared.forget_target(id);
            if let Ok(seen) = self.shared.look(id).await
                && matches!(seen.status, SandboxStatus::Stopped | SandboxStatus::Error)
            {
                return Err(died(id, &seen));
            }
            if Instant::now() + pause >= limit {
                return Err(not_ready(id, error.message()).with_source(error));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// What the server does not do: working directory, names that resolve.
    async fn prepare(&self, id: &str) -> Result<()> {
        let daemon = self.shared.daemon(id).await?;
        let mut script = String::new();
        if let Some(workdir) = &self.spec.workdir {
            let folder = quote(workdir);
            script += &format!("if [ ! -d {folder} ]; then mkdir -p -- {folder} || exit 1;");
            if let Some(user) = &self.spec.user {
                match daemon.user(user).await? {
                    Found::User(user) => script += &format!("chown {}:{} -- {folder} || exit 1;", user.uid, user.gid),
                    Found::Unknown(why) => {
                        return Err(SandboxError::invalid_input("user", why));
                    }
                }
            }
            script += "fi;";
        }
        for entry in &self.spec.extra_hosts {
            script +=
                &format!("printf '%s %s\\n' {} {} >>/etc/hosts || exit 1;", quote(&entry.address), quote(&entry.name));
        }
        if script.is_empty() {
            return Ok(());
        }
        daemon.script(&self.shared, script, "making the working directory and names").await.map(drop)
    }

    /// Runs the probe until it has succeeded often enough in a row.
    async fn probe(&self, id: &str, limit: Instant) -> Result<()> {
        let config = &self.shared.config.probe;
        let Some(command) = &config.command else { return Ok(()) };
        let all = seconds(config.deadline_s.unwrap_or(config.timeout_s));
        let end = (Instant::now() + all).min(limit.max(Instant::now() + Duration::from_secs(1)));
        let pause = seconds(self.shared.config.create.connect_poll_s);
        let (mut in_a_row, mut last) = (0, String::from("it was not run"));
        loop {
            match self.probe_once(id, command, end).await {
                Ok(()) => in_a_row += 1,
                Err(why) => (in_a_row, last) = (0, why),
            }
            if in_a_row >= config.stable_count {
                return Ok(());
            }
            let next = Instant::now() + if in_a_row > 0 { seconds(config.stable_delay_s) } else { pause };
            if next >= end {
                let seen = self.shared.look(id).await;
                if let Ok(seen) = seen
                    && matches!(seen.status, SandboxStatus::Stopped | SandboxStatus::Error)
                {
                    return Err(died(id, &seen));
                }
                let text = format!("sandbox {id} did not answer the probe within {:.1} s: {last}", all.as_secs_f64());
                return Err(SandboxError::create_verification(text));
            }
            tokio::time::sleep_until(next).await;
        }
    }

    async fn probe_once(&self, id: &str, command: &str, end: Instant) -> Result<(), String> {
        let config = &self.shared.config.probe;
        let left = end.saturating_duration_since(Instant::now()).as_secs_f64().max(0.1);
        let limit = config.timeout_s.min(left);
        let mut request = ExecRequest::shell(command).with_timeout_s(limit);
        request.user = config.user.clone();
        let run = async {
            exec_as(&self.shared, id, &self.plan.kept.state, request).await?.collect(Default::default()).await
        };
        let result = tokio::time::timeout(seconds(limit + 1.0), run)
            .await
            .map_err(|_| "it did not end".to_owned())?
            .map_err(|error| error.message().to_owned())?;
        match result.outcome() {
            ExecOutcome::Exited(0) => {}
            outcome => return Err(format!("it ended with {}", outcome.return_code())),
        }
        match &config.expected_stdout {
            Some(text) if !result.stdout_text().contains(text.as_str()) => {
                Err("its output does not hold probe.expected_stdout".to_owned())
            }
            _ => Ok(()),
        }
    }
}

fn not_ready(id: &str, why: &str) -> SandboxError {
    SandboxError::timed_out(format!("sandbox {id} was not ready in time: {why}"))
        .with_help("give it more with ready_timeout_s of the spec, or create.ready_timeout_s")
}

/// A sandbox that ended before it was ready.
fn died(id: &str, seen: &Seen) -> SandboxError {
    let text = format!("{}: {}", seen.reason, seen.message).to_ascii_lowercase();
    let plain = SandboxError::create_verification(format!("sandbox {id} ended before it was ready"));
    if ["imagepull", "image pull", "errimage"].iter().any(|word| text.contains(word)) {
        let why = short(&format!("{}: {}", seen.reason, seen.message));
        let told = SandboxError::not_found(format!("the image of sandbox {id} cannot be pulled: {why}"));
        return told.with_field("image");
    }
    let told = seen.explain(id, plain);
    if told.kind() == ErrorKind::NotFound { told.with_kind(ErrorKind::CreateVerification) } else { told }
}

/// A create whose answer has not come: should it be given up, what it makes is looked for and removed.
struct Pending {
    shared: Option<Arc<Shared>>,
    create: String,
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        let create = std::mem::take(&mut self.create);
        tokio::spawn(async move {
            for wait in LATE_LOOKS {
                tokio::time::sleep(wait).await;
                for id in shared.made_by(&create).await.unwrap_or_default() {
                    remove(&shared, &id).await;
                }
            }
        });
    }
}

/// A sandbox that is removed unless it is kept.
struct Made {
    shared: Arc<Shared>,
    id: String,
    armed: bool,
}

impl Made {
    fn keep(mut self, plan: &Plan) -> SandboxHandle {
        self.armed = false;
        plan.kept.state.handle(&self.id)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if self.armed {
            let (shared, id) = (self.shared.clone(), std::mem::take(&mut self.id));
            tokio::spawn(async move { remove(&shared, &id).await });
        }
    }
}

impl Shared {
    /// The sandboxes that one create has made.
    async fn made_by(&self, create: &str) -> Result<Vec<String>> {
        let found = self.find(&[(labels::CREATE_KEY.to_owned(), create.to_owned())]).await?;
        Ok(found.iter().filter_map(|one| one["id"].as_str().map(str::to_owned)).collect())
    }
}
