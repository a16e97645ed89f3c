//! The images that tasks are run from: folders, made from programs of this machine.

use std::{
    env, fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// An image of busybox: a shell and the common programs, the users `root` and `user`.
pub const BASE_IMAGE: &str = "sandbox-test/busybox:1";

/// The same with `sshd`, `ssh-keygen`, `socat` and the agent at `/opt/sandbox/sandbox-agent`.
pub const SIDECAR_IMAGE: &str = "sandbox-test/sidecar:1";

/// An image with a shell and no other program.
pub const BARE_IMAGE: &str = "sandbox-test/bare:1";

/// An image without any program.
pub const EMPTY_IMAGE: &str = "sandbox-test/empty:1";

/// Where the sidecar's image has the agent.
pub(crate) const AGENT_PATH: &str = "/opt/sandbox/sandbox-agent";

/// Programs in images.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The target folder.
pub(crate) fn target() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

/// The images, below one folder.
#[derive(Debug)]
pub(crate) struct Images {
    folder: PathBuf,
}

impl Images {
    /// Makes them.
    pub(crate) fn make(folder: PathBuf) -> Result<Self> {
        let images = Self { folder };
        base(&images.path("base"))?;
        sidecar(&images.path("sidecar"))?;
        skeleton(&images.path("empty"))?;
        skeleton(&images.path("bare"))?;
        // Not that of busybox, which has programs in itself.
        with_libraries("dash", &images.path("bare"), "bin/sh")?;
        Ok(images)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The root of an image, if there is one of this name.
    pub(crate) fn find(&self, reference: &str) -> Option<PathBuf> {
        match reference {
            BASE_IMAGE => Some(self.path("base")),
            SIDECAR_IMAGE => Some(self.path("sidecar")),
            BARE_IMAGE => Some(self.path("bare")),
            EMPTY_IMAGE => Some(self.path("empty")),
            _ => None,
        }
    }
}

/// Where a program of this machine is.
fn find(program: &str, package: &str) -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    let found = folders.map(|folder| folder.join(program)).find(|file| file.is_file());
    found.with_context(|| format!("{program} is missing: run cargo xtask needs, or install {package}"))
}

/// Folders and users, and no program.
fn skeleton(root: &Path) -> Result<()> {
    for name in ["bin", "dev", "etc", "home", "opt", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp"] {
        fs::create_dir_all(root.join(name))?;
    }
    for name in ["tmp", "var/tmp"] {
        fs::set_permissions(root.join(name), fs::Permissions::from_mode(0o1777))?;
    }
    fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
    let users = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\n";
    fs::write(root.join("etc/passwd"), users)?;
    fs::write(root.join("etc/group"), "root:x:0:\ntty:x:5:\nuser:x:1000:\n")?;
    Ok(())
}

fn base(root: &Path) -> Result<()> {
    skeleton(root)?;
    let program = find("busybox", "busybox-static")?;
    fs::copy(&program, root.join("bin/busybox"))?;
    let list = Command::new(&program).arg("--list").output()?;
    for name in String::from_utf8_lossy(&list.stdout).lines().filter(|name| *name != "busybox") {
        symlink("busybox", root.join("bin").join(name))?;
    }
    Ok(())
}

fn sidecar(root: &Path) -> Result<()> {
    base(root)?;
    let passwd = root.join("etc/passwd");
    let mut users = fs::read_to_string(&passwd)?;
    users.push_str("sshd:x:74:74:sshd:/run/sshd:/bin/false\n");
    fs::write(&passwd, users)?;
    let group = fs::read_to_string(root.join("etc/group"))?;
    fs::write(root.join("etc/group"), group + "sshd:x:74:\n")?;
    fs::write(root.join("etc/nsswitch.conf"), "passwd: files\ngroup: files\nshadow: files\nhosts: files\n")?;
    for (program, place) in
        [("sshd", "usr/sbin/sshd"), ("ssh-keygen", "usr/bin/ssh-keygen"), ("socat", "usr/bin/socat")]
    {
        with_libraries(program, root, place)?;
    }
    let agent = root.join(AGENT_PATH.trim_start_matches('/'));
    place(&agent_program()?, &agent)?;
    Ok(())
}

/// Puts a program of this machine into an image, and what it is linked with.
fn with_libraries(program: &str, root: &Path, to: &str) -> Result<()> {
    let package = match program {
        "sshd" => "openssh-server",
        "ssh-keygen" => "openssh-client",
        program => program,
    };
    let found = find(program, package)?;
    place(&found, &root.join(to))?;
    for file in libraries(&found)? {
        place(&file, &root.join(file.strip_prefix("/").unwrap_or(&file)))?;
    }
    Ok(())
}

fn place(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().unwrap_or(to))?;
    fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// What a program is linked with.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("ldd is missing: install libc-bin")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    let found: Vec<PathBuf> = paths.map(PathBuf::from).collect();
    if found.is_empty() {
        bail!("{} names no libraries: {text}", program.display());
    }
    Ok(found)
}

/// The static agent: what `SANDBOX_AGENT` names, else the one that `cargo xtask build-plugins` built.
fn agent_program() -> Result<PathBuf> {
    if let Some(agent) = env::var_os("SANDBOX_AGENT") {
        return Ok(agent.into());
    }
    let name = format!("sandbox-agent-{}", env::consts::ARCH);
    let here = env::current_exe().ok();
    let beside = here.iter().flat_map(|program| program.ancestors().skip(1).take(2));
    let profile = target().join("debug");
    let folders = beside.chain([profile.as_path()]).map(|folder| folder.join("providers").join(&name));
    let found = folders.into_iter().find(|file| file.is_file());
    found.ok_or_else(|| {
        let help = "run cargo xtask build-plugins, or name its file by SANDBOX_AGENT";
        io::Error::other(format!("{name} is missing: {help}")).into()
    })
}
