//! A Docker Engine for the tests: its own sockets, data and bridge, so that it meddles with nothing; and its images.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{exit_code, must, output, status, target},
    needs,
};

/// The variable in which tests find the engine's address.
pub(crate) const VARIABLE: &str = "SANDBOX_TEST_DOCKER";

/// How long the engine may take to start, and to stop.
const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// What its folder is called, before the number of the command that has started it.
const FOLDER: &str = "sandbox-engine-";

/// Program, Debian package, and what for.
const NEEDS: &[needs::Need] = &[
    ("dockerd", "docker.io", "the engine of the docker provider's tests"),
    ("docker", "docker.io", "images for that engine"),
    ("docker-registry", "docker-registry", "pulls are tested against a registry"),
    ("debootstrap", "debootstrap", "an image with bash and python3"),
    ("busybox", "busybox-static", "an image of one file"),
    ("ip", "iproute2", "a bridge for the engine's containers"),
    ("nsenter", "util-linux", "an engine at another address"),
    ("setpriv", "util-linux", "an engine that ends with the command that has started it"),
    ("podman", "podman", "another engine that speaks the same API"),
    ("catatonit", "catatonit", "podman's first process in a container"),
    ("runc", "runc", "what podman runs containers with"),
    ("openssl", "openssl", "certificates of an engine that is reached by TLS"),
];

/// The engine. Dropped, it is stopped.
pub(crate) enum Engine {
    /// Of a command further out.
    Given(String),
    Started(Box<Started>),
}

pub(crate) struct Started {
    daemon: Child,
    folder: PathBuf,
    address: String,
}

/// Makes sure that an engine can be started.
pub(crate) fn needs() -> Result<()> {
    needs::install(NEEDS)
}

/// Runs a command with the engine.
pub(crate) fn with_engine(words: &[std::ffi::OsString]) -> Result<ExitCode> {
    let Some((program, arguments)) = words.split_first() else { bail!("no command after --") };
    let engine = Engine::start()?;
    let mut command = Command::new(program);
    command.args(arguments).env(VARIABLE, engine.address());
    Ok(exit_code(status(&mut command)?))
}

impl Engine {
    /// The engine of a command further out, else a new one with every image of the tests.
    pub(crate) fn start() -> Result<Self> {
        if let Ok(address) = env::var(VARIABLE) {
            return Ok(Self::Given(address));
        }
        self::needs()?;
        if !needs::is_root() {
            bail!("the engine of the docker provider's tests needs root");
        }
        let started = Started::new()?;
        started.images()?;
        Ok(Self::Started(Box::new(started)))
    }

    pub(crate) fn address(&self) -> &str {
        match self {
            Self::Given(address) => address,
            Self::Started(started) => &started.address,
        }
    }
}

impl Started {
    fn new() -> Result<Self> {
        remove_forgotten()?;
        let number = std::process::id();
        // Short: the socket of a shim lies deep below it.
        let folder = env::temp_dir().join(format!("{FOLDER}{number}"));
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        make_bridge(&bridge(number), number)?;
        let socket = folder.join("docker.sock");
        let address = format!("unix://{}", socket.display());
        fs::write(folder.join("daemon.json"), "{}").context("cannot write the engine's configuration")?;
        let log = fs::File::create(folder.join("log")).context("cannot make the engine's log")?;
        let dockerd = needs::find("dockerd").context("dockerd is not there")?;
        // Killed, this command stops nothing by itself. What it is bound to is the thread that starts it: the first one.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "TERM"])
            .arg(dockerd)
            .args(["--host", &address, "--bridge", &bridge(number), "--log-level", "warn"])
            // Nothing of the machine's own rules is touched; ports are published by a proxy. No pools of addresses are
            // named: with them, an engine that finds an older one's data removes the bridge of the machine's own.
            .args(["--iptables=false", "--ip-forward=false", "--ip-masq=false", "--userland-proxy=true"])
            .arg("--config-file")
            .arg(folder.join("daemon.json"))
            .arg("--data-root")
            .arg(data_root())
            .arg("--exec-root")
            .arg(folder.join("exec"))
            .arg("--pidfile")
            .arg(folder.join("pid"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let daemon = command.spawn().context("cannot start dockerd")?;
        bridged("-I", number);
        let mut started = Self { daemon, folder, address };
        let end = Instant::now() + START_LIMIT;
        while !started.answers() {
            if let Some(ended) = started.daemon.try_wait()? {
                bail!("dockerd ended ({ended}):\n{}", started.log());
            }
            if Instant::now() > end {
                bail!("dockerd does not answer:\n{}", started.log());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(started)
    }

    fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn docker<const N: usize>(&self, arguments: [&str; N]) -> Command {
        let mut command = Command::new(needs::find("docker").unwrap_or_else(|| "docker".into()));
        command.args(["--host", &self.address]).args(arguments).stdin(Stdio::null());
        command
    }

    fn answers(&self) -> bool {
        let mut probe = self.docker(["version"]);
        probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Makes the images that are not there yet, and removes what an earlier run left.
    fn images(&self) -> Result<()> {
        let left = output(self.docker(["ps", "--all", "--quiet"]))?;
        for container in left.split_whitespace() {
            must(self.docker(["rm", "--force", "--volumes", container]))?;
        }
        for (name, make) in [
            ("sandbox-test/busybox:1", busybox as fn(&Path) -> Result<PathBuf>),
            ("sandbox-test/static:1", one_program),
            ("sandbox-test/debian:1", debian),
        ] {
            let mut probe = self.docker(["image", "inspect", name]);
            if probe.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
                continue;
            }
            eprintln!("==> making the image {name}");
            let work = folder().join("work");
            let _ = fs::remove_dir_all(&work);
            fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
            let archive = make(&work)?;
            let path = archive.to_str().context("the path of the target folder is not text")?;
            // What a sidecar of this image does.
            let imported = must(self.docker(["import", "--change", "CMD [\"sleep\", \"3600\"]", path, name]));
            let _ = fs::remove_dir_all(&work);
            imported?;
        }
        Ok(())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let pid = self.daemon.id().to_string();
        // Stops its containers, too.
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let end = Instant::now() + STOP_LIMIT;
        while matches!(self.daemon.try_wait(), Ok(None)) {
            if Instant::now() > end {
                let _ = self.daemon.kill();
                let _ = self.daemon.wait();
                break;
            }
            std::thread::sleep(PAUSE);
        }
        remove_surroundings(std::process::id(), &self.folder);
    }
}

/// Removes what an engine needs beside its data.
fn remove_surroundings(number: u32, folder: &Path) {
    bridged("-D", number);
    let _ = Command::new("ip").args(["link", "delete", &bridge(number)]).stderr(Stdio::null()).status();
    let _ = fs::remove_dir_all(folder);
}

/// Removes what commands that were killed have left, once their engines have ended: the next one takes their data over.
fn remove_forgotten() -> Result<()> {
    let name = |pid: &str| fs::read_to_string(Path::new("/proc").join(pid).join("comm")).unwrap_or_default();
    for entry in fs::read_dir(env::temp_dir()).context("cannot list the folder for temporary files")?.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.strip_prefix(FOLDER)?.parse::<u32>().ok())
        else {
            continue;
        };
        if !name(&number.to_string()).is_empty() {
            continue;
        }
        let daemon = fs::read_to_string(entry.path().join("pid")).unwrap_or_default();
        let end = Instant::now() + STOP_LIMIT;
        while name(daemon.trim()).trim() == "dockerd" {
            if Instant::now() > end {
                bail!("the engine of a command that was killed does not end: end process {}", daemon.trim());
            }
            std::thread::sleep(PAUSE);
        }
        remove_surroundings(number, &entry.path());
    }
    Ok(())
}

fn bridge(number: u32) -> String {
    format!("sbx{number}")
}

/// Where images are kept from run to run.
fn folder() -> PathBuf {
    target().join("engine")
}

/// A folder with busybox under all its names: what the conformance suite runs in an image that has nothing. Made when it
/// is not there.
pub(crate) fn tools() -> Result<PathBuf> {
    let tools = folder().join("tools");
    if !tools.is_dir() {
        let half = folder().join("tools.half");
        let _ = fs::remove_dir_all(&half);
        fs::create_dir_all(&half).with_context(|| format!("cannot make {}", half.display()))?;
        busybox_names(&half)?;
        fs::rename(&half, &tools).with_context(|| format!("cannot make {}", tools.display()))?;
    }
    Ok(tools)
}

fn data_root() -> PathBuf {
    folder().join("data")
}

fn make_bridge(name: &str, number: u32) -> Result<()> {
    let address = format!("10.{}.255.1/24", 64 + number % 64);
    for arguments in [
        vec!["link", "add", "name", name, "type", "bridge"],
        vec!["addr", "add", &address, "dev", name],
        vec!["link", "set", name, "up"],
    ] {
        let mut ip = Command::new(needs::find("ip").context("ip is not there")?);
        ip.args(arguments);
        must(ip)?;
    }
    Ok(())
}

/// The release that this machine has: its keys are here.
fn release() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    name.map_or_else(|| "stable".to_owned(), |name| name.trim_matches('"').to_owned())
}

/// Lets containers of one bridge reach each other (`-I`), or no more (`-D`): another engine of this machine may have
/// forbidden what it does not know. Where there is no such filter, there is nothing to do.
fn bridged(action: &str, number: u32) {
    let Some(program) = needs::find("iptables") else { return };
    let mark = format!("sandbox-engine-{number}");
    let rule = ["-m", "physdev", "--physdev-is-bridged", "-m", "comment", "--comment", &mark, "-j", "ACCEPT"];
    let mut iptables = Command::new(program);
    iptables.args(["-w", "5", action, "FORWARD"]).args(rule).stdout(Stdio::null()).stderr(Stdio::null());
    let _ = iptables.status();
}

/// Packs a folder, whose files belong to root then.
fn pack(root: &Path, archive: &Path, without: &[&str]) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(root).args(["--numeric-owner"]);
    tar.args(without.iter().map(|path| format!("--exclude={path}"))).arg("-cf").arg(archive).arg(".");
    must(tar)
}

/// One static program with its many names, and the files that name users.
fn busybox(work: &Path) -> Result<PathBuf> {
    let root = work.join("root");
    for name in ["bin", "etc", "root", "tmp", "var", "usr/bin"] {
        fs::create_dir_all(root.join(name))?;
    }
    busybox_names(&root.join("bin"))?;
    let users = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n";
    fs::write(root.join("etc/passwd"), users)?;
    fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n")?;
    must({
        let mut chmod = Command::new("chmod");
        chmod.arg("1777").arg(root.join("tmp"));
        chmod
    })?;
    let archive = work.join("busybox.tar");
    pack(&root, &archive, &[])?;
    Ok(archive)
}

/// Puts busybox and its names into a folder.
fn busybox_names(folder: &Path) -> Result<()> {
    let program = needs::find("busybox").context("busybox is not there")?;
    fs::copy(&program, folder.join("busybox")).context("cannot copy busybox")?;
    let mut list = Command::new(&program);
    list.arg("--list");
    for name in output(list)?.lines().filter(|name| *name != "busybox") {
        symlink("busybox", folder.join(name))?;
    }
    Ok(())
}

/// One static program without its other names, and nothing else.
fn one_program(work: &Path) -> Result<PathBuf> {
    let root = work.join("root");
    fs::create_dir_all(root.join("bin"))?;
    fs::copy(needs::find("busybox").context("busybox is not there")?, root.join("bin/busybox"))?;
    let archive = work.join("static.tar");
    pack(&root, &archive, &[])?;
    Ok(archive)
}

/// A small Debian with bash and python3.
fn debian(work: &Path) -> Result<PathBuf> {
    let root = work.join("root");
    let mut bootstrap = Command::new(needs::find("debootstrap").context("debootstrap is not there")?);
    bootstrap.args(["--variant=minbase", "--include=python3-minimal", &release()]).arg(&root).stdout(Stdio::null());
    must(bootstrap)?;
    let archive = work.join("debian.tar");
    pack(&root, &archive, &["./proc/*", "./sys/*", "./dev/*", "./var/cache/apt/archives/*", "./var/lib/apt/lists/*"])?;
    Ok(archive)
}
