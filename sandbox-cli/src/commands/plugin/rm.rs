use std::path::PathBuf;

use plugin_host::Origin;
use sandbox_core::near_match;
use serde_json::json;

use crate::{
    app::App,
    environment,
    failure::Failure,
    output::{self, SCHEMA},
    providers,
};

/// Removes the plugin's file from the user's folder. Files elsewhere are somebody else's.
pub(super) fn run(app: &App, name: &str) -> Result<(), Failure> {
    let mut listings = providers::host(&app.config()?)?.list_providers();
    listings.retain(|listing| listing.origin == Origin::Discovered);
    let folder = environment::plugin_folder();
    let is_ours = |path: &PathBuf| path.parent() == folder.as_deref();
    let found = listings.iter().filter(|listing| listing.name == name).filter_map(|listing| listing.path.clone());
    let (ours, others): (Vec<PathBuf>, Vec<PathBuf>) = found.partition(is_ours);
    if let ([], Some(other)) = (ours.as_slice(), others.first()) {
        return Err(Failure::failed("plugin.not_ours", format!("{} is not in your plugin folder", other.display()))
            .with_help(format!("rm {}", crate::usage::quote(other.as_os_str()))));
    }
    if ours.is_empty() {
        let failure = Failure::failed("plugin.not_found", format!("no plugin {name:?} is installed"));
        let near = near_match(name, listings.iter().map(|listing| listing.name.as_str()));
        return Err(failure.with_help(match near {
            Some(near) => format!("did you mean {near:?}?"),
            None => "see which ones are there with: sandboxctl plugin ls".to_owned(),
        }));
    }
    for path in &ours {
        std::fs::remove_file(path).map_err(|error| {
            Failure::failed("plugin.rm", format!("cannot remove {}", path.display())).because(error)
        })?;
    }
    if app.format.is_json() {
        return output::json_line(&json!({ "schema": SCHEMA, "name": name, "removed": ours }));
    }
    let lines: String = ours.iter().map(|path| format!("removed {}\n", path.display())).collect();
    output::data(&lines)
}
