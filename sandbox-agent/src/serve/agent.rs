//! The agent: what it holds, and which method does what.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{Result, SandboxError, async_trait};
use sandbox_process::ProcessSet;
use sandbox_protocol::{
    Body, FEATURE_FD_PASSING, ReceivedDescriptors, Service, StreamResponder,
    methods::{self, AgentInfo, Nothing, Shutdown, TtlRenew, TtlRenewed},
    parse_request, unknown_method,
};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::{
    config::{CommandLimits, ConfigError, ServeConfig},
    early,
    entrypoint::EntrypointState,
    job::{Job, now_ms},
    jobs::Jobs,
    lifetime::Lifetime,
    listen::Incoming,
    memory::MemoryWatch,
    metrics, port,
    surroundings::Surroundings,
    sys,
};

/// What this agent serves, and announces.
pub(super) const METHODS: &[&str] = &[
    methods::EXEC,
    methods::EXEC_ATTACH,
    methods::EXEC_LIST,
    methods::EXEC_WAIT,
    methods::EXEC_SIGNAL,
    methods::EXEC_LOGS,
    methods::PTY_CREATE,
    methods::PTY_ATTACH,
    methods::PTY_LIST,
    methods::FILE_READ,
    methods::FILE_WRITE,
    methods::FILE_STAT,
    methods::FILE_LIST,
    methods::FILE_REMOVE,
    methods::FILE_MAKE_DIR,
    methods::FEATURE_MAKE_DIR_OWNER,
    methods::FILE_TAR_IN,
    methods::FILE_TAR_OUT,
    methods::FILE_HTTP_GET,
    methods::FILE_HTTP_PUT,
    methods::PORT_OPEN,
    methods::UNIX_OPEN,
    methods::PORT_LISTEN,
    methods::UNIX_LISTEN,
    methods::PORT_ACCEPT,
    methods::HOSTS_SET,
    methods::TTL_RENEW,
    methods::INFO,
    methods::METRICS,
    methods::SHUTDOWN,
];

/// What it serves and announces beside where the client can pass descriptors.
pub(super) const DESCRIPTOR_METHODS: &[&str] = &[FEATURE_FD_PASSING, methods::FILE_WRITE_FD, methods::FILE_READ_FD];

/// How long the end of every process is waited for.
const KILL_DEADLINE: Duration = Duration::from_secs(5);
/// How often old things are looked for.
const TIDY_INTERVAL: Duration = Duration::from_secs(5);
/// The longest time between SIGTERM and SIGKILL at the end.
const SHUTDOWN_GRACE_MAX_S: f64 = 300.0;
/// Archives that are packed or unpacked at once: each holds a thread while its client takes its time.
const ARCHIVES_MAX: usize = 16;

pub(super) struct Agent {
    pub(super) surroundings: Surroundings,
    pub(super) processes: ProcessSet,
    pub(super) execs: Jobs,
    pub(super) terminals: Jobs,
    pub(super) lifetime: Lifetime,
    pub(super) archives: Arc<Semaphore>,
    pub(super) entrypoint: EntrypointState,
    pub(super) incoming: Arc<Incoming>,
    /// One at a time edits the hosts file.
    pub(super) hosts: tokio::sync::Mutex<()>,
    /// Tells which commands the memory limit has ended.
    pub(super) memory: MemoryWatch,
    /// How many requests there were.
    requests: AtomicU64,
    incarnation: String,
    started_at_ms: u64,
}

impl Agent {
    /// An agent with this configuration. `oom_score` is what commands get back; `processes` were made ahead, for commands
    /// that are deprived of nothing more.
    ///
    /// # Errors
    /// A configuration that cannot be meant.
    pub(super) fn new(
        config: ServeConfig,
        oom_score: Option<i16>,
        processes: Option<ProcessSet>,
    ) -> Result<Self, ConfigError> {
        config.validate()?;
        let mut restrictions = early::restrictions(oom_score);
        restrictions.no_new_privs = config.commands.no_new_privs;
        restrictions.seccomp = config.commands.seccomp_program().unwrap_or_default();
        restrictions.capabilities = config
            .commands
            .capabilities
            .as_ref()
            .map(|numbers| numbers.iter().fold(0, |set, number| set | 1u64 << (number & 63)));
        let made_up = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
            format!("{now:x}-{}", std::process::id())
        };
        let processes = processes.filter(|_| config.commands == CommandLimits::default());
        Ok(Self {
            processes: processes.unwrap_or_else(|| ProcessSet::restricted(restrictions)),
            execs: Jobs::default(),
            terminals: Jobs::default(),
            lifetime: Lifetime::new(config.ttl_s.map(Duration::from_secs_f64)),
            archives: Arc::new(Semaphore::new(ARCHIVES_MAX)),
            entrypoint: EntrypointState::default(),
            incoming: Arc::default(),
            hosts: tokio::sync::Mutex::default(),
            memory: MemoryWatch::of_this_process(),
            requests: AtomicU64::new(0),
            incarnation: config.incarnation.clone().unwrap_or_else(made_up),
            started_at_ms: now_ms(),
            surroundings: Surroundings::new(config),
        })
    }

    pub(super) fn check_open(&self) -> Result<()> {
        match self.lifetime.is_closing() {
            true => Err(SandboxError::invalid_state("the sandbox is closing")),
            false => Ok(()),
        }
    }

    fn info(&self) -> AgentInfo {
        let mut info = AgentInfo::default();
        info.incarnation.clone_from(&self.incarnation);
        info.started_at_ms = self.started_at_ms;
        info.expires_at_ms = self.lifetime.expires_at().map(to_ms);
        info.arch = std::env::consts::ARCH.to_owned();
        info.pid = std::process::id();
        info.execs = self.execs.running() as u32;
        info.sessions = self.terminals.running() as u32;
        info.entrypoint = self.entrypoint.info();
        info
    }

    fn renew(&self, request: TtlRenew) -> Result<TtlRenewed> {
        self.check_open()?;
        if !(0.001..=1e9).contains(&request.ttl_s) {
            return Err(SandboxError::invalid_input("ttl_s", "must be 0.001 to 1e9 seconds"));
        }
        let at = self.lifetime.renew(Duration::from_secs_f64(request.ttl_s));
        Ok(TtlRenewed { expires_at_ms: to_ms(at) })
    }

    /// Forgets what is old, and gives memory back when nothing was asked for a while. Never ends.
    pub(super) async fn tidy(&self) {
        let grace = self.surroundings.config.grace();
        let (mut seen, mut is_released) = (u64::MAX, false);
        loop {
            tokio::time::sleep(TIDY_INTERVAL).await;
            self.execs.forget(grace);
            self.terminals.forget(grace);
            let requests = self.requests.load(Ordering::Relaxed);
            // What runs needs little of it, and gets it back.
            let is_idle = requests == seen;
            if is_idle && !is_released {
                // The next command makes it again.
                self.processes.rest();
                sys::release_memory();
            }
            (seen, is_released) = (requests, is_idle);
        }
    }

    /// Ends everything inside: SIGTERM, SIGKILL after the grace. Then nothing starts any more.
    pub(super) async fn end_everything(&self, grace: Duration) {
        self.lifetime.close();
        if !grace.is_zero() {
            let deadline = Instant::now() + grace;
            let jobs: Vec<Arc<Job>> = self.execs.all().into_iter().chain(self.terminals.all()).collect();
            for controller in jobs.iter().filter_map(|job| job.controller()) {
                // One that has ended meanwhile needs none.
                let _ = controller.signal(libc::SIGTERM);
            }
            for job in jobs {
                let _ = tokio::time::timeout_at(deadline.into(), job.ended()).await;
            }
        }
        let left = self.processes.kill_all(KILL_DEADLINE).await;
        if left > 0 {
            tracing::warn!(left, "process trees that do not end");
        }
    }
}

fn to_ms(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The agent as a service; its methods hand it on to tasks.
pub(super) struct Methods {
    pub(super) agent: Arc<Agent>,
    /// Whether anything was ever asked.
    pub(super) is_used: Arc<AtomicBool>,
    /// What the client has sent along, where it can.
    pub(super) descriptors: Option<Arc<ReceivedDescriptors>>,
}

impl Methods {
    fn descriptors(&self, method: &str) -> Result<&ReceivedDescriptors> {
        self.descriptors.as_deref().ok_or_else(|| unknown_method(method))
    }
}

#[async_trait]
impl Service for Methods {
    async fn open(&self, method: &str, request: Value, input: &mut Body) -> Result<StreamResponder> {
        let agent = &self.agent;
        self.is_used.store(true, Ordering::Relaxed);
        agent.requests.fetch_add(1, Ordering::Relaxed);
        match method {
            methods::EXEC => agent.exec(parse_request(request)?),
            methods::EXEC_ATTACH => agent.exec_attach(&parse_request(request)?),
            methods::EXEC_LIST => agent.exec_list(),
            methods::EXEC_WAIT => agent.exec_wait(&parse_request(request)?).await,
            methods::EXEC_LOGS => agent.exec_logs(&parse_request(request)?),
            methods::EXEC_SIGNAL => nothing(agent.exec_signal(&parse_request(request)?).await),
            methods::PTY_CREATE => agent.pty_create(parse_request(request)?),
            methods::PTY_ATTACH => agent.pty_attach(&parse_request(request)?),
            methods::PTY_LIST => agent.pty_list(),
            methods::FILE_READ => agent.file_read(parse_request(request)?).await,
            methods::FILE_WRITE => agent.file_write(parse_request(request)?, input).await,
            methods::FILE_STAT => agent.file_stat(parse_request(request)?).await,
            methods::FILE_LIST => agent.file_list(parse_request(request)?).await,
            methods::FILE_REMOVE => agent.file_remove(parse_request(request)?).await,
            methods::FILE_MAKE_DIR => agent.file_make_dir(parse_request(request)?).await,
            methods::FILE_WRITE_FD => agent.file_write_fd(parse_request(request)?, self.descriptors(method)?).await,
            methods::FILE_READ_FD => agent.file_read_fd(parse_request(request)?, self.descriptors(method)?).await,
            methods::FILE_TAR_IN => agent.tar_in(parse_request(request)?, input).await,
            methods::FILE_TAR_OUT => agent.tar_out(parse_request(request)?).await,
            methods::FILE_HTTP_GET => agent.file_http_get(parse_request(request)?).await,
            methods::FILE_HTTP_PUT => agent.file_http_put(parse_request(request)?).await,
            methods::PORT_OPEN => port::open_port(parse_request(request)?).await,
            methods::UNIX_OPEN => port::open_unix(&agent.surroundings, parse_request(request)?).await,
            methods::PORT_LISTEN => agent.port_listen(parse_request(request)?).await,
            methods::UNIX_LISTEN => agent.unix_listen(&parse_request(request)?),
            methods::PORT_ACCEPT => agent.port_accept(&parse_request(request)?),
            methods::HOSTS_SET => agent.hosts_set(parse_request(request)?).await,
            methods::TTL_RENEW => StreamResponder::reply(&agent.renew(parse_request(request)?)?),
            methods::INFO => StreamResponder::reply(&agent.info()),
            methods::METRICS => StreamResponder::reply(&metrics::metrics()),
            methods::SHUTDOWN => {
                let Shutdown { grace_s } = parse_request(request)?;
                if !(0.0..=SHUTDOWN_GRACE_MAX_S).contains(&grace_s) {
                    return Err(SandboxError::invalid_input("grace_s", "must be 0 to 300 seconds"));
                }
                agent.end_everything(Duration::from_secs_f64(grace_s)).await;
                nothing(Ok(()))
            }
            _ => Err(unknown_method(method)),
        }
    }
}

pub(super) fn nothing(done: Result<()>) -> Result<StreamResponder> {
    done.and_then(|()| StreamResponder::reply(&Nothing {}))
}
