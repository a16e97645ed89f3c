//! Making a sandbox, or nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use reqwest::Method;
use sandbox_core::{Env, ErrorKind, Result, SandboxError, SandboxHandle, SandboxSpec, tracing};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    client::{Backoff, Call, Retry},
    config::seconds,
    error::{Failure, NAME},
    gate::Throttle,
    job::export,
    labels::NONCE,
    options::{Wanted, is_plain_name, wanted},
    provider::Shared,
    random::random_hex,
    script::{quote, word},
    toolbox::{ASK_WITHIN, Script},
    wire::{Phase, SandboxDto, VolumeDto},
};

/// The service may hold the request until the sandbox runs, for 30 seconds.
const CREATE_WITHIN: Duration = Duration::from_secs(75);

/// How long an answer is waited for when a spec gives less time than that.
const ANSWER_WITHIN: Duration = Duration::from_secs(35);

/// The first and the longest wait between looks at a sandbox that is on its way.
const LOOK_FIRST: Duration = Duration::from_millis(50);
const LOOK_LONGEST: Duration = Duration::from_secs(1);

/// Makes a sandbox. What was made goes again when nobody waits for it any more.
pub(crate) async fn create(shared: &Arc<Shared>, spec: SandboxSpec) -> Result<SandboxHandle> {
    let nonce = random_hex(12)?;
    // Everything that can be wrong is found before anything is sent.
    let wanted = wanted(&spec, &shared.config.create, shared.access.target.as_deref(), &nonce)?;
    let (sender, receiver) = oneshot::channel();
    let shared = shared.clone();
    // A task of its own: a dropped future must not leave a request half-way, and a sandbox that nobody knows of.
    tokio::spawn(async move {
        let mut making = Making { shared: &shared, nonce: &nonce, sender, may_exist: AtomicBool::new(false) };
        let made = making.make(&spec, wanted).await;
        let may_exist = making.may_exist.load(Ordering::Relaxed);
        let failed = match made {
            Ok(handle) => match making.sender.send(Ok(handle)) {
                Ok(()) => return,
                Err(_) => None,
            },
            Err(error) => Some((error, making.sender)),
        };
        // By name: it is known before the service has answered.
        let removed = if may_exist { remove(&shared, &format!("sandbox-{nonce}")).await } else { Ok(()) };
        if let Err(left) = &removed {
            tracing::warn!(kind = %left.kind(), "a sandbox that did not become ready could not be removed");
        }
        if let Some((error, sender)) = failed {
            let error = match removed {
                Ok(()) => error,
                Err(left) => error.with_help(format!("a sandbox is left: {}; remove it with gc", left.message())),
            };
            let _ = sender.send(Err(error));
        }
    });
    receiver.await.unwrap_or_else(|_| Err(SandboxError::internal("creation panicked")))
}

async fn remove(shared: &Shared, name: &str) -> Result<()> {
    shared.delete(name, seconds(shared.config.operations.close_timeout_s)).await
}

struct Making<'a> {
    shared: &'a Shared,
    nonce: &'a str,
    sender: oneshot::Sender<Result<SandboxHandle>>,
    /// Whether the service has made something, or may have.
    may_exist: AtomicBool,
}

/// A failure of the service while a sandbox is made.
fn as_create(error: SandboxError) -> SandboxError {
    match error.kind() {
        ErrorKind::Lost | ErrorKind::Internal | ErrorKind::InvalidState => error.with_kind(ErrorKind::Create),
        _ => error,
    }
}

impl Making<'_> {
    async fn make(&mut self, spec: &SandboxSpec, mut wanted: Wanted) -> Result<SandboxHandle> {
        let _turn = self.shared.creating.acquire().await;
        let within = spec.ready_timeout().unwrap_or_else(|| seconds(self.shared.config.create.timeout_s));
        let started = Instant::now();
        let deadline = started + within;
        self.add_volumes(&mut wanted).await?;
        let dto = self.request(Value::Object(wanted.body), deadline, within).await?;
        let dto = self.ready(dto, deadline, within).await?;
        let handle = dto.handle();
        self.prepare(&handle, spec).await?;
        if let Some(ttl) = spec.ttl() {
            self.shared.expire(&handle, started + ttl);
        }
        tracing::debug!(sandbox_id = handle.sandbox_id, "sandbox was made");
        Ok(handle)
    }

    fn ensure_wanted(&self) -> Result<()> {
        if self.sender.is_closed() { Err(SandboxError::invalid_state("nobody waits for the sandbox")) } else { Ok(()) }
    }

    /// Asks for the ids of named volumes.
    async fn add_volumes(&self, wanted: &mut Wanted) -> Result<()> {
        let mut volumes = wanted.body.remove("volumes").and_then(|value| value.as_array().cloned()).unwrap_or_default();
        for (name, target) in &wanted.named {
            let call = self.shared.client.api(Method::GET, &format!("/volumes/by-name/{name}"), ASK_WITHIN);
            let answer = self.shared.client.call(&call).await.and_then(|answer| answer.json::<VolumeDto>());
            let volume = answer.map_err(|failure| failure.into_error(&format!("the volume {name:?}")))?;
            if volume.state.as_deref().is_some_and(|state| state != "ready") {
                return Err(SandboxError::invalid_state(format!("the volume {name:?} is not ready")));
            }
            volumes.push(json!({"volumeId": volume.id, "mountPath": target}));
        }
        if !volumes.is_empty() {
            wanted.body.insert("volumes".to_owned(), volumes.into());
        }
        Ok(())
    }

    /// Makes the request until it is known what became of it. The name is the same each time, so there is never a twin.
    async fn request(&self, body: Value, deadline: Instant, within: Duration) -> Result<SandboxDto> {
        let settings = &self.shared.config.create;
        let backoff = Backoff {
            retries: settings.retries,
            first: seconds(settings.retry_delay_s),
            longest: seconds(settings.retry_max_delay_s),
        };
        let call = Call {
            method: Method::POST,
            url: format!("{}/sandbox", self.shared.client.api),
            query: Vec::new(),
            body: Some(body),
            retry: Retry::Unsent,
            throttle: Throttle::Create,
            attempt: CREATE_WITHIN,
            // A request that is given up early may still be done: its answer is waited for, and then it is undone.
            deadline: deadline.max(Instant::now() + ANSWER_WITHIN),
        };
        let mut attempt = 0;
        loop {
            self.ensure_wanted()?;
            let failure = match self.shared.client.call(&call).await.and_then(|answer| answer.json()) {
                Ok(dto) => {
                    self.may_exist.store(true, Ordering::Relaxed);
                    return Ok(dto);
                }
                Err(failure) => failure,
            };
            if failure.is_ambiguous() {
                self.may_exist.store(true, Ordering::Relaxed);
            }
            let is_taken = failure.status() == Some(409);
            if (failure.is_ambiguous() || is_taken)
                && let Some(dto) = self.adopt().await?
            {
                tracing::debug!(sandbox_id = dto.id, "a sandbox of an unanswered request was found");
                return Ok(dto);
            }
            let wait = backoff.wait(attempt);
            let may = failure.is_ambiguous() || matches!(failure, Failure::NotSent(_));
            if !may || attempt >= backoff.retries || Instant::now() + wait >= deadline {
                return Err(match failure {
                    Failure::TimedOut if Instant::now() >= deadline => not_ready(within),
                    failure if is_taken => failure.into_error("making a sandbox").with_kind(ErrorKind::AlreadyExists),
                    failure => as_create(failure.into_error("making a sandbox")),
                });
            }
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    /// The sandbox that an unanswered request made, if it did.
    async fn adopt(&self) -> Result<Option<SandboxDto>> {
        match self.shared.look(&format!("sandbox-{}", self.nonce), ASK_WITHIN).await {
            Ok(dto) if dto.label(NONCE) == Some(self.nonce) && dto.phase() != Phase::Gone => Ok(Some(dto)),
            Ok(_) => Ok(None),
            Err(failure) if failure.status() == Some(404) => Ok(None),
            Err(failure) => Err(as_create(failure.into_error("looking for the sandbox of an unanswered request"))),
        }
    }

    /// Waits until the service says that it runs.
    async fn ready(&mut self, mut dto: SandboxDto, deadline: Instant, within: Duration) -> Result<SandboxDto> {
        let mut wait = LOOK_FIRST;
        loop {
            self.ensure_wanted()?;
            match dto.phase() {
                Phase::Ready => return self.with_proxy(dto).await,
                Phase::OnTheWay => {}
                _ => {
                    let reason = dto.error_reason.as_deref().unwrap_or("no reason was given");
                    let reason: String = reason.chars().take(300).collect();
                    let text = format!("the sandbox ended as {} instead of running: {reason}", dto.state());
                    return Err(SandboxError::create(text).with_provider(NAME));
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(not_ready(within));
            }
            tokio::select! {
                () = tokio::time::sleep(wait.min(left)) => {}
                () = self.sender.closed() => {}
            }
            wait = wait.mul_f64(1.4).min(LOOK_LONGEST);
            dto = match self.shared.look(&dto.id, left.max(LOOK_LONGEST)).await {
                Ok(dto) => dto,
                Err(failure) => return Err(as_create(failure.into_error("waiting for the sandbox"))),
            };
        }
    }

    /// The address of the toolbox, asked for where it did not come with the sandbox.
    async fn with_proxy(&self, mut dto: SandboxDto) -> Result<SandboxDto> {
        if dto.toolbox_proxy_url.as_deref().is_none_or(str::is_empty)
            && self.shared.config.connection.toolbox_url.is_none()
        {
            let path = format!("/sandbox/{}/toolbox-proxy-url", dto.id);
            let call = self.shared.client.api(Method::GET, &path, ASK_WITHIN);
            let answer = self.shared.client.call(&call).await.and_then(|answer| answer.json::<crate::wire::Link>());
            let link = answer.map_err(|failure| as_create(failure.into_error("the address of the toolbox")))?;
            dto.toolbox_proxy_url = Some(link.url);
        }
        Ok(dto)
    }

    /// Makes what commands need inside, which also shows that commands run.
    async fn prepare(&mut self, handle: &SandboxHandle, spec: &SandboxSpec) -> Result<()> {
        let shared = self.shared;
        let probe = &shared.config.probe;
        let toolbox = shared.toolbox(handle).await?;
        let deadline = Instant::now() + seconds(probe.deadline_s);
        let text = preparation(&shared.config.operations.job_folder, spec);
        let mut wait = LOOK_FIRST;
        loop {
            self.ensure_wanted()?;
            let script = Script { text: &text, within: seconds(probe.timeout_s), deadline };
            let problem = match shared.script_at(&toolbox, script).await {
                Ok(said) if said.code == 0 && said.output.contains("sandbox-is-ready") => return Ok(()),
                Ok(said) if said.code == 41 => {
                    let text = "cannot be made in the sandbox by its user";
                    return Err(SandboxError::invalid_input("workdir", text).with_provider(NAME));
                }
                Ok(said) if said.code == 42 => {
                    "the sandbox needs sh, base64, grep, head and tail for exec_mode job".to_owned()
                }
                Ok(said) => format!("a command ended with {}", said.code),
                // Running does not mean reachable yet.
                Err(failure) if failure.is_transient() || matches!(failure.status(), Some(400 | 404)) => {
                    failure.into_error("a first command").message().to_owned()
                }
                Err(failure) => return Err(failure.into_error("a first command")),
            };
            if Instant::now() + wait >= deadline {
                let text = format!("commands do not run in the new sandbox: {problem}");
                return Err(SandboxError::create_verification(text).with_provider(NAME));
            }
            tokio::time::sleep(wait).await;
            wait = wait.mul_f64(1.5).min(LOOK_LONGEST);
        }
    }
}

fn not_ready(within: Duration) -> SandboxError {
    let text = format!("the sandbox was not ready within {} s", within.as_secs_f64());
    SandboxError::timed_out(text).with_provider(NAME).with_help("set ready_timeout_s, or create.timeout_s")
}

/// The script that makes the folder of jobs, the variables that the service cannot carry, and the working directory.
fn preparation(root: &str, spec: &SandboxSpec) -> String {
    let mut text = format!("umask 077\nmkdir -p '{root}' && chmod 711 '{root}'\n");
    let odd = odd_variables(&spec.env);
    if !odd.is_empty() {
        let made = word("v", &odd);
        text += &format!("{}printf %s {} > '{root}/env'; chmod 644 '{root}/env'\n", made.before, made.word);
    }
    if let Some(workdir) = &spec.workdir {
        text += &format!("umask 022\nmkdir -p -- {} || exit 41\n", quote(workdir));
    }
    text + "for n in base64 grep head tail; do command -v $n >/dev/null 2>&1 || exit 42; done\necho sandbox-is-ready\n"
}

/// Those that the service refuses: values that are no text. Names that no shell can set stay with the commands that
/// give them.
fn odd_variables(env: &Env) -> Vec<u8> {
    let mut text = Vec::new();
    let mut ignored = Vec::new();
    for (name, value) in env.iter() {
        if is_plain_name(name) && value.as_str().is_none() {
            export(&mut text, &mut ignored, name, value);
        }
    }
    text
}

/// Refuses variables of the spec that nothing can carry.
pub(crate) fn check_env(env: &Env) -> Result<()> {
    match env.iter().find(|(name, _)| !is_plain_name(name)) {
        Some((name, _)) => {
            let text = "the service takes names of letters, digits and _ only";
            Err(SandboxError::invalid_input(format!("env.{name}"), text).with_help("set it on each command"))
        }
        None => Ok(()),
    }
}
