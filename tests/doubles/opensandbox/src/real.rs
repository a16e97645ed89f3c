//! The real server (`opensandbox-server` of PyPI) on a Docker engine of its own, with our daemon inside its sandboxes.
//!
//! The engine has its own socket, folders and bridge, so that nothing else on the machine is touched, and everything goes
//! when it is dropped. It needs root, `dockerd`, `docker`, `ip`, a static `busybox`, and the server's program:
//! `cargo xtask needs` installs them.

use std::{
    env, fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    execd::new_id,
    image::{self, run},
    program::execd_program,
};

/// The image of sandboxes: busybox, and a few programs of this machine.
pub const BASE_IMAGE: &str = "opensandbox-double/base:local";

const EXECD_IMAGE: &str = "opensandbox-double/execd:local";

/// How long the engine and the server may take to be there.
const STARTS_WITHIN: Duration = Duration::from_secs(90);

/// How long the official client may take.
const CLIENT_WITHIN: Duration = Duration::from_secs(180);

/// How long the engine may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(20);

/// A running server with its engine.
#[derive(Debug)]
pub struct RealServer {
    folder: PathBuf,
    bridge: Option<String>,
    children: Vec<Child>,
    /// `host:port`.
    pub address: String,
    /// Its key.
    pub key: String,
}

fn server_program() -> io::Result<PathBuf> {
    if let Some(program) = env::var_os("OPENSANDBOX_SERVER") {
        return Ok(program.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder));
    let program = target.join("python/opensandbox/bin/opensandbox-server");
    if program.is_file() {
        return Ok(program);
    }
    Err(io::Error::other(format!("{} is missing: run cargo xtask needs", program.display())))
}

fn wait(what: &str, log: &Path, mut is_there: impl FnMut() -> bool) -> io::Result<()> {
    let end = Instant::now() + STARTS_WITHIN;
    while !is_there() {
        if Instant::now() > end {
            let text = fs::read_to_string(log).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(15).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            return Err(io::Error::other(format!("{what} did not start; its log ends with:\n{}", tail.join("\n"))));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl RealServer {
    /// Starts an engine and a server. Blocks for some seconds.
    ///
    /// # Errors
    /// What is missing, or what the engine or the server said.
    pub fn start() -> io::Result<Self> {
        let program = server_program()?;
        let folder = tempfile::Builder::new().prefix("opensandbox-real-").tempdir()?.keep();
        let key = new_id();
        let mut this = Self { folder, bridge: None, children: Vec::new(), address: String::new(), key };
        this.start_engine()?;
        this.import_images()?;
        this.start_server(&program)?;
        Ok(this)
    }

    /// The address of its engine.
    pub fn socket(&self) -> String {
        format!("unix://{}", self.folder.join("docker.sock").display())
    }

    fn log(&self, name: &str) -> io::Result<(PathBuf, Stdio, Stdio)> {
        let path = self.folder.join(name);
        let file = fs::File::create(&path)?;
        Ok((path, file.try_clone()?.into(), file.into()))
    }

    fn docker(&self) -> Command {
        let mut docker = Command::new("docker");
        docker.args(["--host", &self.socket()]).env("DOCKER_CONFIG", &self.folder);
        docker
    }

    fn start_engine(&mut self) -> io::Result<()> {
        let number = new_id();
        let bridge = format!("osb{}", &number[..8]);
        let taken = run(Command::new("ip").args(["-4", "-o", "address"]))?;
        let third = u8::from_str_radix(&number[8..10], 16).unwrap_or(77);
        let free = (0..=u8::MAX).map(|step| format!("10.213.{}.", third.wrapping_add(step)));
        let net =
            free.into_iter().find(|net| !taken.contains(net.as_str())).ok_or(io::Error::other("no free network"))?;
        run(Command::new("ip").args(["link", "add", &bridge, "type", "bridge"]))?;
        self.bridge = Some(bridge.clone());
        run(Command::new("ip").args(["address", "add", &format!("{net}1/24"), "dev", &bridge]))?;
        run(Command::new("ip").args(["link", "set", &bridge, "up"]))?;
        let (path, out, err) = self.log("engine.log")?;
        let mut engine = Command::new("dockerd");
        engine.args(["--host", &self.socket(), "--bridge", &bridge]);
        // Nothing of the machine's own is set: others may be testing with it.
        engine.args(["--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false"]);
        // It starts itself anew for most of what it does, half a dozen times for each sandbox; most of that time goes into the
        // collection of garbage, of which there is little.
        engine.args(["--log-level", "warn"]).env("GOGC", "off").env("GOMEMLIMIT", "256MiB");
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "engine.pid")] {
            engine.arg(flag).arg(self.folder.join(name));
        }
        self.children.push(engine.stdin(Stdio::null()).stdout(out).stderr(err).spawn()?);
        wait("the Docker engine", &path, || {
            let mut docker = self.docker();
            docker.args(["version"]).stdout(Stdio::null()).stderr(Stdio::null());
            docker.status().is_ok_and(|status| status.success())
        })
    }

    fn import(&self, folder: &Path, change: &str, name: &str) -> io::Result<()> {
        let archive = folder.with_extension("tar");
        run(Command::new("tar").arg("-C").arg(folder).arg("-cf").arg(&archive).arg("."))?;
        run(self.docker().args(["import", "--change", change]).arg(&archive).arg(name))?;
        fs::remove_file(archive)
    }

    fn import_images(&self) -> io::Result<()> {
        // As it is told of in the documentation.
        let archive = self.folder.join("execd.tar");
        run(Command::new(execd_program()).arg("--image").stdout(fs::File::create(&archive)?))?;
        run(self.docker().args(["import", "--change", "ENTRYPOINT [\"/execd\"]"]).arg(&archive).arg(EXECD_IMAGE))?;
        fs::remove_file(archive)?;
        let base = self.folder.join("image-base");
        image::make(&base)?;
        self.import(&base, "ENV PATH=/usr/local/bin:/usr/bin:/bin", BASE_IMAGE)
    }

    fn start_server(&mut self, program: &Path) -> io::Result<()> {
        let port = free_port()?;
        self.address = format!("127.0.0.1:{port}");
        let config = self.folder.join("server.toml");
        let text = format!(
            "[log]\nlevel = \"WARNING\"\n\
             [server]\nhost = \"127.0.0.1\"\nport = {port}\napi_key = \"{}\"\n\
             [runtime]\ntype = \"docker\"\nexecd_image = \"{EXECD_IMAGE}\"\n\
             [docker]\nnetwork_mode = \"bridge\"\npublish_host = \"127.0.0.1\"\n\
             [store]\ntype = \"sqlite\"\npath = \"{}\"\n\
             [storage]\nallowed_host_paths = [\"{}\"]\n",
            self.key,
            self.folder.join("store.db").display(),
            env::temp_dir().display()
        );
        fs::write(&config, text)?;
        let (path, out, err) = self.log("server.log")?;
        let mut server = Command::new(program);
        server.arg("--config").arg(&config).env("DOCKER_HOST", self.socket()).env("HOME", &self.folder);
        self.children.push(server.stdin(Stdio::null()).stdout(out).stderr(err).spawn()?);
        let address = self.address.clone();
        wait("opensandbox-server", &path, || std::net::TcpStream::connect(&address).is_ok())
    }

    /// A Python that has the official client, which is installed beside the server.
    ///
    /// # Errors
    /// That it is missing.
    pub fn client() -> io::Result<PathBuf> {
        Ok(server_program()?.with_file_name("python"))
    }

    /// Has the official client drive the server and our daemon, through the server or directly.
    ///
    /// # Errors
    /// What it said where it found anything wrong.
    pub fn drive(&self, use_server_proxy: bool) -> io::Result<()> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("official_sdk.py");
        let way = if use_server_proxy { "proxy" } else { "direct" };
        let (path, out, err) = self.log(&format!("client-{way}.log"))?;
        let mut client = Command::new(Self::client()?);
        client.arg(script).args([self.address.as_str(), self.key.as_str(), BASE_IMAGE, way]);
        let mut client = client.stdin(Stdio::null()).stdout(out).stderr(err).spawn()?;
        let end = Instant::now() + CLIENT_WITHIN;
        while client.try_wait()?.is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
        }
        let _ = client.kill();
        let status = client.wait()?;
        let said = fs::read_to_string(&path).unwrap_or_default();
        if status.success() && said.lines().any(|line| line == "all good") {
            return Ok(());
        }
        Err(io::Error::other(format!("the official client ended with {status}:\n{said}")))
    }

    /// How many containers there are, running or not.
    ///
    /// # Errors
    /// What the engine said.
    pub fn containers(&self) -> io::Result<usize> {
        Ok(run(self.docker().args(["ps", "--all", "--quiet"]))?.lines().count())
    }
}

fn terminate(child: &mut Child) {
    let _ = Command::new("kill").arg(child.id().to_string()).stderr(Stdio::null()).status();
    let end = Instant::now() + ENDS_WITHIN;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > end {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Drop for RealServer {
    fn drop(&mut self) {
        // The server first: it makes nothing new then.
        while self.children.len() > 1 {
            self.children.pop().as_mut().into_iter().for_each(terminate);
        }
        if let Ok(ids) = run(self.docker().args(["ps", "--all", "--quiet"])) {
            let ids: Vec<&str> = ids.lines().collect();
            if !ids.is_empty() {
                let _ = run(self.docker().args(["rm", "--force"]).args(ids));
            }
        }
        self.children.iter_mut().for_each(terminate);
        if let Some(bridge) = &self.bridge {
            let _ = run(Command::new("ip").args(["link", "delete", bridge]));
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
