//! `sandboxctl version`.

use sandbox_core::{CONTRACT_VERSION, ProviderManifest};
use serde_json::json;

use crate::{
    app::App,
    failure::Failure,
    output::{self, SCHEMA},
};

/// Shows the versions of this program and of the contract, and the target that plugins must be built for.
pub(crate) fn run(app: &App) -> Result<(), Failure> {
    let (version, target) = (env!("CARGO_PKG_VERSION"), ProviderManifest::host_target());
    if app.format.is_json() {
        return output::json_line(
            &json!({ "schema": SCHEMA, "version": version, "contract": CONTRACT_VERSION, "target": target }),
        );
    }
    output::data(&format!("sandboxctl {version}\ncontract {CONTRACT_VERSION}\ntarget {target}\n"))
}
