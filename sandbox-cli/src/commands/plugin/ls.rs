use plugin_host::Origin;

use crate::{app::App, commands::providers::ls, failure::Failure, providers};

/// Lists the plugin files that were found, the refused ones too.
pub(super) fn run(app: &App) -> Result<(), Failure> {
    let mut listings = providers::host(&app.config()?)?.list_providers();
    listings.retain(|listing| listing.origin == Origin::Discovered);
    ls::print(app, &listings)
}
