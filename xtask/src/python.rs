//! Programs of others from PyPI, each in an environment of its own below the target folder.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{
    command::{must, output, status, target},
    needs,
};

/// The control plane of the double of Fargate: environment, packages, the variable that names its program, the program.
pub(crate) const MOTO: (&str, &[&str], &str, &str) =
    ("moto", &["moto[server]==5.2.5", "boto3==1.44.8"], "SANDBOX_TEST_MOTO_PYTHON", "python");

/// The real server of OpenSandbox, in the same way; the official client of the same release is beside it.
pub(crate) const OPENSANDBOX: (&str, &[&str], &str, &str) =
    ("opensandbox", &["opensandbox-server==1.1.1", "opensandbox==1.1.1"], "OPENSANDBOX_SERVER", "opensandbox-server");

/// Makes sure that these packages (`name==version`) are installed in the environment of this name. Returns its folder of
/// programs.
pub(crate) fn environment(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = target().join("python").join(name);
    let programs = folder.join("bin");
    // Written last: what was interrupted is done again.
    let (mark, wanted) = (folder.join("installed"), packages.join("\n"));
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return Ok(programs);
    }
    eprintln!("installing {} for the tests", packages.join(", "));
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(&folder);
    if !status(make.stdout(Stdio::null()).stderr(Stdio::null()))?.success() {
        needs::package("python3-venv", "environments for programs from PyPI are made with it")?;
        if !status(&mut make)?.success() {
            bail!("python3 -m venv failed");
        }
    }
    if packages.is_empty() {
        return Ok(programs);
    }
    keep_compiled(&folder)?;
    let mut pip = Command::new(programs.join("pip"));
    pip.args(["install", "--quiet", "--disable-pip-version-check", "--no-compile"]).args(packages);
    if !status(&mut pip)?.success() {
        bail!("pip could not install {}, which the tests need", packages.join(", "));
    }
    fs::write(&mark, wanted).context("cannot write into the target folder")?;
    Ok(programs)
}

/// Has Python keep what it compiles, whatever `PYTHONDONTWRITEBYTECODE` says: each start would compile thousands of modules
/// again. What is imported is compiled at its first import; most of it never is.
fn keep_compiled(environment: &Path) -> Result<()> {
    let library = environment.join("lib");
    for entry in fs::read_dir(&library).with_context(|| format!("cannot read {}", library.display()))? {
        let packages = entry?.path().join("site-packages");
        if packages.is_dir() {
            // A line of such a file that begins with `import` is run at every start.
            fs::write(packages.join("keep-compiled.pth"), "import sys; sys.dont_write_bytecode = False\n")
                .context("cannot write into the target folder")?;
        }
    }
    Ok(())
}

/// Takes one file out of a package's source archive (`name==version`), without running anything of it. It must have this
/// SHA-256.
pub(crate) fn file(package: &str, member: &str, sha256: &str) -> Result<PathBuf> {
    let folder = target().join("python").join(package.replace("==", "-"));
    let name = Path::new(member).file_name().context("a member has a name")?;
    let file = folder.join(name);
    if file.is_file() && sum(&file)? == sha256 {
        return Ok(file);
    }
    eprintln!("getting {} of {package} for the tests", name.to_string_lossy());
    let tools = environment("pip", &[])?;
    let work = folder.join("work");
    let _ = fs::remove_dir_all(&work);
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let mut pip = Command::new(tools.join("pip"));
    pip.args(["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:", "--dest"]);
    pip.arg(&work).arg(package);
    if !status(&mut pip)?.success() {
        bail!("pip could not get {package}, which the tests need");
    }
    let archive = fs::read_dir(&work)?.next().context("pip got nothing")??.path();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(&archive).arg("-C").arg(&work).args(["--strip-components=1", "--wildcards"]);
    must({
        tar.arg(format!("*/{member}"));
        tar
    })?;
    let taken = work.join(member);
    if sum(&taken)? != sha256 {
        bail!("{member} of {package} is not the file that it was");
    }
    fs::rename(&taken, &file).context("cannot write into the target folder")?;
    fs::remove_dir_all(&work).context("cannot clean the target folder")?;
    Ok(file)
}

fn sum(file: &Path) -> Result<String> {
    let mut command = Command::new("sha256sum");
    command.arg(file);
    let said = output(command)?;
    said.split_whitespace().next().map(str::to_owned).context("sha256sum says nothing")
}
