//! The inside of one sandbox: a root folder of its own, and processes that end together.

use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::OnceLock,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

/// Programs of commands.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Makes the mounts, enters the root and becomes a process that reaps orphans. `$1` is the root.
const INIT: &str = r#"
set -e
for dir in usr bin sbin lib lib32 lib64 etc; do
    [ -e "/$dir" ] || continue
    if [ -L "/$dir" ]; then cp -P "/$dir" "$1/$dir"; continue; fi
    mkdir "$1/$dir" && mount --rbind "/$dir" "$1/$dir"
    mount -o remount,bind,ro "$1/$dir" 2>/dev/null || true
done
mkdir "$1/proc" "$1/dev" "$1/tmp" "$1/home" "$1/root" "$1/run" "$1/var" "$1/var/tmp" "$1/mnt"
chmod 1777 "$1/tmp" "$1/var/tmp"
mkdir "$1/home/daytona"
mount -t proc proc "$1/proc"
mount -t tmpfs -o mode=755 tmpfs "$1/dev"
for node in null zero full random urandom tty; do : > "$1/dev/$node"; mount --bind "/dev/$node" "$1/dev/$node"; done
mkdir "$1/dev/shm" && mount -t tmpfs tmpfs "$1/dev/shm"
ln -s /proc/self/fd "$1/dev/fd"
cd "$1"
exec chroot "$1" /bin/bash -c 'cd /; echo ready; exec >/dev/null; while :; do sleep 100000 & wait $!; done'
"#;

/// Closes what it inherited, but for the first three, and becomes another program.
const SHED: &str = "for f in /proc/$$/fd/*; do n=${f##*/}; [ $n -gt 2 ] && eval \"exec $n>&-\"; done; exec \"$@\"";

/// Whether this process was started with open descriptors that its children would get: a service's daemon has none.
fn has_strays() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let Ok(entries) = std::fs::read_dir("/proc/self/fdinfo") else { return false };
        entries.flatten().any(|entry| {
            let is_above = entry.file_name().to_str().and_then(|name| name.parse().ok()).is_some_and(|fd: u32| fd > 2);
            let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
            let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
            is_above && flags.is_some_and(|flags| flags & 0o2_000_000 == 0)
        })
    })
}

/// The inside of one sandbox. Dropping it ends every process in it and removes its files.
pub(crate) struct World {
    holder: Child,
    pid: u32,
    has_network: bool,
    _root: TempDir,
}

impl World {
    pub(crate) async fn new(has_network: bool) -> Result<Self> {
        let root = tempfile::Builder::new().prefix("daytona-double-").tempdir()?;
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]);
        if !has_network {
            unshare.arg("--net");
        }
        unshare.args(["sh", "-c", INIT, "init"]).arg(root.path());
        unshare.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).process_group(0);
        let mut holder = unshare.spawn().context("cannot start unshare")?;
        let mut lines = BufReader::new(holder.stdout.take().context("no output")?).lines();
        if lines.next_line().await?.as_deref() != Some("ready") {
            bail!("the inside of a sandbox could not be made: the double needs root and util-linux");
        }
        let outer = holder.id().context("unshare has ended")?;
        let children = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"))?;
        let pid = children.split_whitespace().next().context("unshare has no child")?.parse()?;
        Ok(Self { holder, pid, has_network, _root: root })
    }

    /// A program inside, with this environment and no other. Its group is its own.
    pub(crate) fn command(&self, env: &BTreeMap<String, String>, program: &[&str]) -> Command {
        let mut command = if has_strays() {
            let mut bash = Command::new("/bin/bash");
            bash.args(["-c", SHED, "bash", "/usr/bin/nsenter"]);
            bash
        } else {
            Command::new("/usr/bin/nsenter")
        };
        command.args(self.entry()).args(program);
        self.dress(&mut command, env);
        command.process_group(0);
        command
    }

    /// The same with the terminal at its standard input as its controlling one, in a session of its own.
    pub(crate) fn on_terminal(&self, env: &BTreeMap<String, String>, program: &[&str]) -> Command {
        // Whoever started this double may ignore the interrupt; what runs in a terminal must not.
        let mut command = Command::new("/usr/bin/env");
        command.args(["--default-signal=INT,QUIT,HUP,TERM", "/usr/bin/setsid"]);
        command.args(["--ctty", "--wait", "/usr/bin/nsenter"]).args(self.entry()).args(program);
        self.dress(&mut command, env);
        command
    }

    fn entry(&self) -> Vec<String> {
        let mut arguments: Vec<String> =
            ["-t", &self.pid.to_string(), "-m", "-p", "-r", "-w"].iter().map(|part| (*part).to_owned()).collect();
        if !self.has_network {
            arguments.push("-n".to_owned());
        }
        arguments.push("--".to_owned());
        arguments
    }

    fn dress(&self, command: &mut Command, env: &BTreeMap<String, String>) {
        command.env_clear().env("PATH", PATH).env("HOME", "/root").env("USER", "root").envs(env);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    }

    /// Runs a script inside with these arguments and gives its exit code and output.
    pub(crate) async fn script(&self, script: &str, arguments: &[&str]) -> Result<(i32, Vec<u8>)> {
        let program = [&["sh", "-c", script, "sh"], arguments].concat();
        let output = self.command(&BTreeMap::new(), &program).stdout(Stdio::piped()).output().await?;
        Ok((output.status.code().unwrap_or(-1), output.stdout))
    }

    /// Stops or continues every process inside.
    pub(crate) async fn freeze(&self, is_frozen: bool) -> Result<()> {
        self.script(if is_frozen { "kill -STOP -1" } else { "kill -CONT -1" }, &[]).await.map(drop)
    }

    /// Whether the first process is gone, and with it all others. Its zombie is this machine's business, which may take
    /// seconds for it.
    fn has_ended(&self) -> bool {
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)) else { return true };
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start());
        state.is_none_or(|state| state.starts_with(['Z', 'X']))
    }

    /// Ends every process inside; files stay until it is dropped.
    pub(crate) async fn end(&mut self) {
        let _ = self.holder.start_kill();
        let _ = self.holder.wait().await;
        // The kernel kills the namespace when its first process goes; that takes a moment.
        let end = Instant::now() + Duration::from_secs(5);
        while !self.has_ended() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
