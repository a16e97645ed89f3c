//! Programs that the tests use, installed where they are missing.

use std::{
    env,
    fs::{self, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Result, bail};

use crate::command::status;

/// Program, Debian package, and what for.
pub(crate) type Need = (&'static str, &'static str, &'static str);

/// What the tests use.
const NEEDS: &[Need] = &[
    ("gcc", "gcc", "the broken and hostile plugin files are compiled"),
    ("objcopy", "binutils", "plugin files are taken apart"),
    ("python3", "python3", "commands of tests"),
    ("busybox", "busybox-static", "a root file system of one file"),
    ("capsh", "libcap2-bin", "what a sandbox may do is looked at from inside"),
    ("captest", "libcap-ng-utils", "an adversary inside a sandbox: reads what it must not"),
    ("stress-ng", "stress-ng", "an adversary inside a sandbox: uses everything up"),
    ("vim.basic", "vim", "an editor in a terminal"),
    ("top", "procps", "a program that draws in a terminal"),
    ("setpriv", "util-linux", "tests run again as an ordinary user"),
    ("sshd", "openssh-server", "the way into tasks of the double of Fargate"),
    ("ssh", "openssh-client", "somebody else's client of it"),
    ("socat", "socat", "the way of those tasks to a bucket"),
];

/// Makes sure that everything is there that the tests use. Installs with apt-get as root, else says what to install.
pub(crate) fn programs() -> Result<()> {
    install(NEEDS)
}

/// The same for programs that are used by one command.
pub(crate) fn install(needs: &[Need]) -> Result<()> {
    let missing: Vec<_> = needs.iter().filter(|(program, ..)| find(program).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    for (program, package, what) in &missing {
        eprintln!("{program} is missing ({what}): package {package}");
    }
    if find("apt-get").is_none() || !is_root() {
        bail!("programs are missing; install: {}", packages.join(" "));
    }
    apt(&packages)?;
    if let Some((program, ..)) = missing.iter().find(|(program, ..)| find(program).is_none()) {
        bail!("{program} is still missing after its package was installed");
    }
    Ok(())
}

/// Installs a package that has no program of its own.
pub(crate) fn package(package: &str, what: &str) -> Result<()> {
    eprintln!("package {package} is missing ({what})");
    if find("apt-get").is_none() || !is_root() {
        bail!("a package is missing; install: {package}");
    }
    apt(&[package])
}

/// Keeps packages from starting their services: tests start what they use. Somebody else's rule stays.
struct NoServices(bool);

impl NoServices {
    const FILE: &str = "/usr/sbin/policy-rc.d";

    fn set() -> Self {
        let rule = OpenOptions::new().write(true).create_new(true).mode(0o755).open(Self::FILE);
        Self(rule.and_then(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n")).is_ok())
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.0 {
            // It was made by us a moment ago.
            let _ = fs::remove_file(Self::FILE);
        }
    }
}

fn apt(packages: &[&str]) -> Result<()> {
    let _no_services = NoServices::set();
    let install = [&["install", "-y", "-qq", "--no-install-recommends"], packages].concat();
    for arguments in [vec!["update", "-qq"], install] {
        let mut apt = Command::new("apt-get");
        apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive").stdout(Stdio::null());
        if !status(&mut apt)?.success() {
            bail!("apt-get failed, and what it was to install is needed");
        }
    }
    Ok(())
}

/// Where a program is.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    // Administrators' programs are not on everybody's path.
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

pub(crate) fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Uid:")).and_then(|ids| ids.split_whitespace().nth(1)) == Some("0")
}
