//! Programs of others from npm, each in a folder of its own below the target folder.

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};

use crate::{
    command::{status, target},
    needs::{self, Need},
};

const NPM: Need = ("npm", "npm", "installs programs of others that the tests use");

/// Makes sure that these packages (`name@version`) are installed in the folder of this name. Returns its folder of
/// programs.
pub(crate) fn programs(name: &str, packages: &[&str]) -> Result<PathBuf> {
    let folder = target().join("npm").join(name);
    let programs = folder.join("node_modules/.bin");
    // Written last: what was interrupted is done again.
    let (mark, wanted) = (folder.join("installed"), packages.join("\n"));
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == wanted) {
        return Ok(programs);
    }
    needs::install(&[NPM])?;
    eprintln!("installing {} for the tests", packages.join(", "));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]);
    // Nothing of them runs before a test does.
    npm.args(["--ignore-scripts", "--prefix"]).arg(&folder).args(packages);
    if !status(npm.stdout(std::process::Stdio::null()))?.success() {
        bail!("npm could not install {}, which the tests need", packages.join(", "));
    }
    fs::write(&mark, wanted).context("cannot write into the target folder")?;
    Ok(programs)
}
