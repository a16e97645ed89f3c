//! What the sandboxes of the real server are made from: busybox under all its names, and programs of this machine that the
//! contract looks for and busybox does not have.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Programs of this machine.
const PROGRAMS: [&str; 3] = ["bash", "cksum", "perl"];

/// Where perl looks for what its programs use; the first of these folders that is of its smallest package.
const PERL_FOLDERS: &str = "print for grep { m{/perl-base$} } @INC";

/// Runs a program, which must succeed, and gives its output.
pub(crate) fn run(command: &mut Command) -> io::Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| {
        io::Error::other(format!("{}: {error}: run cargo xtask needs", command.get_program().to_string_lossy()))
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("{} failed: {words}", command.get_program().to_string_lossy())))
}

/// Fills a folder with it.
pub(crate) fn make(base: &Path) -> io::Result<()> {
    for name in ["bin", "etc", "root", "proc", "dev", "sys", "tmp", "var/tmp", "run"] {
        fs::create_dir_all(base.join(name))?;
    }
    fs::set_permissions(base.join("tmp"), fs::Permissions::from_mode(0o1777))?;
    fs::write(base.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nworker:x:1500:1500:w:/tmp:/bin/sh\n")?;
    fs::write(base.join("etc/group"), "root:x:0:\nworker:x:1500:\n")?;
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).is_file());
    let busybox = busybox.ok_or(io::Error::other("busybox is missing: run cargo xtask needs"))?;
    fs::copy(busybox, base.join("bin/busybox"))?;
    let own = |name: &&str| *name != "busybox" && !PROGRAMS.contains(name);
    for applet in run(Command::new(busybox).arg("--list"))?.lines().filter(own) {
        symlink("busybox", base.join("bin").join(applet))?;
    }
    let mut files = BTreeSet::new();
    for name in PROGRAMS {
        let program = PathBuf::from(run(Command::new("sh").args(["-c", &format!("command -v {name}")]))?.trim());
        fs::copy(&program, base.join("bin").join(name))?;
        let libraries = run(Command::new("ldd").arg(&program))?;
        files.extend(libraries.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
    }
    for file in files {
        fs::copy(&file, place(base, &file)?)?;
    }
    let perl = PathBuf::from(run(Command::new("perl").args(["-e", PERL_FOLDERS]))?);
    run(Command::new("cp").arg("-a").arg(&perl).arg(place(base, &perl)?)).map(drop)
}

/// The same path below a folder, which is made up to it.
fn place(base: &Path, path: &Path) -> io::Result<PathBuf> {
    let place = base.join(path.strip_prefix("/").unwrap_or(path));
    fs::create_dir_all(place.parent().unwrap_or(base))?;
    Ok(place)
}
