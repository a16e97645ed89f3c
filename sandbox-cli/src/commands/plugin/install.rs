use std::{
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use clap::Args;
use plugin_host::{Checksum, Inspection, LoadedPlugin, Origin, inspect, load};
use sandbox_api::BUILTIN_PROVIDERS;
use sandbox_core::abi::HostInfo;
use serde_json::json;

use super::verify::{absolute, refused};
use crate::{
    app::App,
    environment, exit,
    failure::Failure,
    output::{self, SCHEMA},
    providers,
};

#[derive(Args)]
pub(crate) struct InstallArgs {
    /// The plugin file
    file: PathBuf,
    /// Refuse every file but the one with this checksum
    #[arg(long, value_name = "HEX")]
    sha256: Option<String>,
    /// Replace an installed plugin of the same name
    #[arg(long)]
    force: bool,
}

/// Checks the file, copies it beside its place, loads the copy, and renames it.
pub(super) fn run(app: &App, args: &InstallArgs) -> Result<(), Failure> {
    let path = absolute(&args.file)?;
    let checksum = args.sha256.as_deref().map_or(Checksum::Compute, Checksum::Expect);
    let Inspection { outcome, .. } = inspect(&path, &checksum);
    let found = outcome.map_err(|error| refused(&error))?;
    let name = found.manifest.name.clone();
    let sha256 = found.sha256.clone().unwrap_or_default();
    if BUILTIN_PROVIDERS.contains(&name.as_str()) {
        return Err(Failure::failed("plugin.builtin_name", format!("{name:?} is the name of a built-in provider"))
            .with_help("give the plugin another name in its provider.toml"));
    }
    let folder = environment::plugin_folder().ok_or_else(|| {
        Failure::usage("there is no plugin folder: neither XDG_DATA_HOME nor HOME is an absolute path")
    })?;
    let target =
        folder.join(format!("libsandbox_provider_{}.{}", name.replace('-', "_"), std::env::consts::DLL_EXTENSION));
    check_free(app, &name, &target, args.force)?;
    // What gets loaded is the copy that gets installed: nobody can exchange the file in between.
    let copy = Copy::make(&path, &folder)?;
    let plugin = load_copy(&copy.0, &sha256)?;
    copy.rename_to(&target)?;
    if app.format.is_json() {
        return output::json_line(&json!({
            "schema": SCHEMA, "name": name, "version": plugin.manifest.version, "path": target, "sha256": sha256,
        }));
    }
    output::data(&format!("installed {name} {} at {}\nsha256 {sha256}\n", plugin.manifest.version, target.display()))?;
    if !app.is_quiet {
        output::note(&format!("try it with: sandboxctl run --provider {name} -- echo hello"));
    }
    Ok(())
}

/// Refuses what would leave two files of one provider, and a replacement that nobody asked for.
fn check_free(app: &App, name: &str, target: &Path, is_forced: bool) -> Result<(), Failure> {
    let listings = providers::host(&app.config()?)?.list_providers();
    let taken = listings
        .into_iter()
        .filter(|listing| listing.origin == Origin::Discovered && listing.name == name)
        .filter_map(|listing| listing.path)
        .find(|path| path != target);
    if let Some(other) = taken {
        return Err(Failure::failed("already_exists", format!("{} provides {name:?} already", other.display()))
            .with_help(format!("remove it first: rm {}", crate::usage::quote(other.as_os_str()))));
    }
    if target.symlink_metadata().is_ok() && !is_forced {
        return Err(Failure::failed(
            "already_exists",
            format!("{name:?} is installed already at {}", target.display()),
        )
        .with_help("replace it with --force"));
    }
    Ok(())
}

fn load_copy(copy: &Path, sha256: &str) -> Result<LoadedPlugin, Failure> {
    load(copy, &Checksum::Expect(sha256), &HostInfo::new()).outcome.map_err(|error| refused(&error))
}

/// A copy beside the place of a plugin, removed unless it gets renamed.
struct Copy(PathBuf);

impl Copy {
    fn make(source: &Path, folder: &Path) -> Result<Self, Failure> {
        let failed = |what: &str, error: io::Error| {
            Failure::new(exit::FAILED, "plugin.install", format!("{what} {}", folder.display())).because(error)
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(folder)
            .map_err(|error| failed("cannot make the plugin folder", error))?;
        // No discovery takes it: it does not end as a library does.
        let path = folder.join(format!(".install-{}.tmp", std::process::id()));
        let copy = || {
            let mut from = fs::File::open(source)?;
            let mut to = OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(&path)?;
            io::copy(&mut from, &mut to)?;
            to.set_permissions(fs::Permissions::from_mode(0o755))?;
            to.sync_all()
        };
        let guard = Self(path.clone());
        copy().map_err(|error| failed("cannot copy the plugin into", error))?;
        Ok(guard)
    }

    fn rename_to(self, target: &Path) -> Result<(), Failure> {
        fs::rename(&self.0, target).map_err(|error| {
            Failure::new(exit::FAILED, "plugin.install", format!("cannot put the plugin at {}", target.display()))
                .because(error)
        })
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // After the rename there is nothing of that name.
        let _ = fs::remove_file(&self.0);
    }
}
