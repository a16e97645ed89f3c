use plugin_host::{Origin, ProviderListing, ProviderState};
use serde_json::{Value, json};

use crate::{
    app::App,
    failure::Failure,
    output::{Format, List, Table},
    providers,
};

/// Lists every provider and every file that would be one.
pub(super) fn run(app: &App) -> Result<(), Failure> {
    let listings = providers::host(&app.config()?)?.list_providers();
    print(app, &listings)
}

/// Prints listings; `plugin ls` does it too.
pub(crate) fn print(app: &App, listings: &[ProviderListing]) -> Result<(), Failure> {
    let format = app.list_format();
    let is_wide = format == Format::Wide;
    let headers = ["NAME", "VERSION", "CONTRACT", "FROM", "STATE"];
    let mut table = Table::new(headers.into_iter().chain(is_wide.then_some("CAPABILITIES")));
    for listing in listings {
        let mut cells = vec![
            listing.name.clone(),
            listing.version.clone().unwrap_or_else(|| "-".to_owned()),
            listing.contract.map_or_else(|| "-".to_owned(), |contract| contract.to_string()),
            from(listing, is_wide),
            state(&listing.state, is_wide),
        ];
        if is_wide {
            let labels: Vec<_> = listing.capabilities.known().map(|capability| capability.label()).collect();
            cells.push(if labels.is_empty() { "-".to_owned() } else { labels.join(",") });
        }
        table.row(cells);
    }
    let entries = listings.iter().map(to_json).collect();
    let names = listings.iter().map(|listing| listing.name.clone()).collect();
    List { key: "providers", entries, names, table }.print(format)
}

fn to_json(listing: &ProviderListing) -> Value {
    let (state, detail) = match &listing.state {
        ProviderState::Ready => ("ready", Value::Null),
        ProviderState::Refused(why) => ("refused", json!(why)),
        ProviderState::Shadowed { by } => ("shadowed", json!(by)),
        ProviderState::NotInstalled { tried } => ("not_installed", json!(tried)),
        _ => ("unknown", Value::Null),
    };
    json!({
        "name": listing.name,
        "version": listing.version,
        "contract": listing.contract.map(|contract| contract.to_string()),
        "origin": listing.origin,
        "path": listing.path,
        "capabilities": listing.capabilities,
        "state": state,
        "detail": detail,
    })
}

fn from(listing: &ProviderListing, is_wide: bool) -> String {
    match (listing.origin, &listing.path) {
        (Origin::BuiltIn, Some(path)) if is_wide => format!("built-in {}", path.display()),
        (Origin::BuiltIn, _) => "built-in".to_owned(),
        (_, Some(path)) => path.display().to_string(),
        (Origin::Explicit, None) => "registered".to_owned(),
        (_, None) => "-".to_owned(),
    }
}

fn state(state: &ProviderState, is_wide: bool) -> String {
    match state {
        ProviderState::Ready => "ready".to_owned(),
        ProviderState::Refused(why) => format!("refused: {why}"),
        ProviderState::Shadowed { by: Origin::BuiltIn } => "not used: the built-in one comes first".to_owned(),
        ProviderState::Shadowed { .. } => "not used: another one comes first".to_owned(),
        ProviderState::NotInstalled { tried } if is_wide => {
            let tried: Vec<_> = tried.iter().map(|path| path.display().to_string()).collect();
            format!("not installed (tried {})", tried.join(", "))
        }
        ProviderState::NotInstalled { .. } => "not installed".to_owned(),
        _ => "unknown".to_owned(),
    }
}
