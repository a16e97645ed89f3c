//! What runs of a task: its namespaces and its containers (`runtime.py`).

use std::{
    collections::BTreeMap,
    fs, io,
    net::Ipv4Addr,
    net::SocketAddrV4,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    net::TcpListener,
    process::{Child, ChildStdin, Command},
    sync::watch,
    task::JoinSet,
};

use crate::{
    control_plane,
    definition::Condition,
    network::{self, Gate, Inside},
};

const RUNTIME: &str = include_str!("../runtime.py");

/// How much of what a container printed is kept.
const LOG_BYTES: usize = 64 << 10;

/// How long the kernel may take to end what was killed.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// The last bytes that a container printed.
pub(crate) type Log = Arc<Mutex<Vec<u8>>>;

/// The namespaces of a task, and its containers. Dropped, everything in it is killed.
pub(crate) struct Plane {
    /// The first process lives as long as this is open.
    _input: ChildStdin,
    holder: Child,
    pid: u32,
    folder: PathBuf,
    inside: Inside,
    servers: JoinSet<()>,
    containers: Vec<Container>,
    changes: watch::Sender<u64>,
}

/// A started container.
struct Container {
    name: String,
    is_essential: bool,
    pid: Option<Pid>,
    ended: watch::Receiver<Option<i32>>,
}

/// How a container is started.
pub(crate) struct Launch<'a> {
    pub(crate) name: &'a str,
    pub(crate) is_essential: bool,
    pub(crate) image: &'a Path,
    pub(crate) argv: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    /// Source, target, and whether nothing is written there. A source that is relative is in the task.
    pub(crate) mounts: Vec<(PathBuf, String, bool)>,
    pub(crate) files: BTreeMap<&'static str, String>,
    pub(crate) hostname: &'a str,
    pub(crate) working_directory: Option<&'a str>,
    pub(crate) user: &'a str,
    pub(crate) is_read_only: bool,
    pub(crate) log: Log,
}

/// Whether another container is as far as one waits for.
pub(crate) enum Waited {
    NotYet,
    Done,
    /// It never will be; why.
    Never(String),
}

fn runtime(arguments: &[&str]) -> io::Result<Command> {
    let mut command = Command::new(control_plane::python().map_err(io::Error::other)?);
    command.args(["-I", "-S", "-c", RUNTIME]).args(arguments).kill_on_drop(true);
    Ok(command)
}

impl Plane {
    /// Makes the namespaces; `folder` is where the files of the task will be, seen from inside only.
    pub(crate) async fn start(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut command = runtime(&["task", &folder.to_string_lossy()])?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = command.spawn()?;
        let input = holder.stdin.take().ok_or(io::Error::other("no input"))?;
        let output = holder.stdout.take().ok_or(io::Error::other("no output"))?;
        let line = BufReader::new(output).lines().next_line().await?.unwrap_or_default();
        let Some(pid) = line.strip_prefix("ready ").and_then(|pid| pid.parse().ok()) else {
            let mut words = String::new();
            if let Some(mut log) = holder.stderr.take() {
                log.read_to_string(&mut words).await?;
            }
            return Err(io::Error::other(format!(
                "the namespaces of a task could not be made, which needs root: {words}"
            )));
        };
        let inside = Inside::enter(pid)?;
        Ok(Self {
            _input: input,
            holder,
            pid,
            folder: folder.to_owned(),
            inside,
            servers: JoinSet::new(),
            containers: Vec::new(),
            changes: watch::Sender::default(),
        })
    }

    /// Makes ports of the task reachable at its address, and the services' address reachable from inside.
    pub(crate) async fn connect(
        &mut self,
        address: Ipv4Addr,
        ports: impl IntoIterator<Item = u16>,
        gate: &Arc<Gate>,
        services: SocketAddrV4,
    ) -> io::Result<()> {
        for port in ports {
            let there = SocketAddrV4::new(address, port);
            let listener = TcpListener::bind(there).await?;
            self.servers.spawn(network::serve(listener, gate.clone(), self.inside.clone(), there));
        }
        let listener = self.inside.listen(services).await?;
        self.servers.spawn(network::serve_outside(listener, services));
        Ok(())
    }

    /// Starts a container.
    ///
    /// # Errors
    /// Why the program could not be started, in words.
    pub(crate) async fn launch(&mut self, launch: Launch<'_>) -> Result<(), String> {
        self.try_launch(launch).await.map_err(|error| error.to_string())
    }

    async fn try_launch(&mut self, launch: Launch<'_>) -> io::Result<()> {
        let mounts: Vec<_> = launch
            .mounts
            .iter()
            .map(|(source, target, read_only)| {
                json!({ "source": self.folder.join("volumes").join(source), "target": target, "read_only": read_only })
            })
            .collect();
        let spec = json!({
            "folder": self.folder.join("containers").join(launch.name),
            "image": launch.image,
            "argv": launch.argv,
            "environment": launch.environment,
            "mounts": mounts,
            "files": launch.files,
            "hostname": launch.hostname,
            "folder_inside": launch.working_directory,
            "user": launch.user,
            "read_only": launch.is_read_only,
        });
        let file = self.folder.with_extension(format!("{}.json", launch.name));
        fs::write(&file, spec.to_string())?;
        let mut command = runtime(&["container", &self.pid.to_string(), &file.to_string_lossy()])?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or(io::Error::other("no output"))?;
        let printed = child.stderr.take().ok_or(io::Error::other("no log"))?;
        let (end, ended) = watch::channel(None);
        let changes = self.changes.clone();
        let log = launch.log.clone();
        tokio::spawn(async move {
            let keep = keep(printed, &log);
            let (_, status) = tokio::join!(keep, child.wait());
            // 137: it was killed from outside together with whoever waited for it.
            let code = status.ok().and_then(|status| status.code()).unwrap_or(137);
            end.send_replace(Some(code));
            changes.send_modify(|count| *count += 1);
        });
        let line = BufReader::new(output).lines().next_line().await?.unwrap_or_default();
        let Some(pid) = line.strip_prefix("started ").and_then(|pid| pid.parse().ok()) else {
            let words = line.strip_prefix("failed ").map(str::to_owned);
            let printed =
                || String::from_utf8_lossy(&launch.log.lock().unwrap_or_else(PoisonError::into_inner)).into_owned();
            return Err(io::Error::other(words.unwrap_or_else(printed)));
        };
        let name = launch.name.to_owned();
        self.containers.push(Container { name, is_essential: launch.is_essential, pid: Pid::from_raw(pid), ended });
        Ok(())
    }

    /// Names and exit codes of the containers that have been started.
    pub(crate) fn exit_codes(&self) -> impl Iterator<Item = (&str, Option<i32>)> {
        self.containers.iter().map(|container| (container.name.as_str(), *container.ended.borrow()))
    }

    /// How far a container is.
    pub(crate) fn waited(&self, name: &str, condition: Condition) -> Waited {
        let Some((_, code)) = self.exit_codes().find(|(other, _)| *other == name) else { return Waited::NotYet };
        match (condition, code) {
            (Condition::Start, _) | (Condition::Complete, Some(_)) | (Condition::Success, Some(0)) => Waited::Done,
            (Condition::Success, Some(code)) => Waited::Never(format!("{name} exited with {code}")),
            _ => Waited::NotYet,
        }
    }

    /// Whether an essential one has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.containers.iter().any(|container| container.is_essential && container.ended.borrow().is_some())
    }

    /// A receiver that sees when a container ends.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Kills the first process of a container.
    pub(crate) fn kill(&self, name: &str) -> bool {
        self.signal(Signal::KILL, |container| container.name == name)
    }

    fn signal(&self, signal: Signal, which: impl Fn(&Container) -> bool) -> bool {
        let alive = self.containers.iter().filter(|container| which(container) && container.ended.borrow().is_none());
        let pids: Vec<Pid> = alive.filter_map(|container| container.pid).collect();
        // One that has just ended needs no signal.
        pids.iter().filter(|pid| kill_process(**pid, signal).is_ok()).count() > 0
    }

    /// Asks every container to end, and kills after `limit` what did not.
    pub(crate) async fn end(mut self, limit: Duration) -> Vec<(String, i32)> {
        self.signal(Signal::TERM, |_| true);
        let mut changes = self.changes();
        let all_ended = async {
            while self.exit_codes().any(|(_, code)| code.is_none()) {
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(limit, all_ended).await;
        self.signal(Signal::KILL, |_| true);
        self.servers.shutdown().await;
        let _ = self.holder.start_kill();
        let _ = tokio::time::timeout(ENDS_WITHIN, self.holder.wait()).await;
        let mut codes = Vec::new();
        for container in &mut self.containers {
            let ended = tokio::time::timeout(ENDS_WITHIN, container.ended.wait_for(Option::is_some)).await;
            let code = ended.ok().and_then(|ended| ended.ok().and_then(|code| *code));
            codes.push((container.name.clone(), code.unwrap_or(137)));
        }
        let _ = fs::remove_dir(&self.folder);
        codes
    }
}

/// Keeps the last bytes of what is read.
async fn keep(mut from: impl AsyncReadExt + Unpin, log: &Log) {
    let mut chunk = vec![0; 8192];
    while let Ok(bytes @ 1..) = from.read(&mut chunk).await {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.extend_from_slice(&chunk[..bytes]);
        let excess = log.len().saturating_sub(LOG_BYTES);
        log.drain(..excess);
    }
}
