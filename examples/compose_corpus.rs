//! Loads every compose file of a folder, plans it for the docker provider, and prints
//! what became of it. Nothing is started, no image looked at.
//!
//! ```text
//! cargo xtask compose-corpus FOLDER [--verbose]
//! ```

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use sandbox_api::{
    ProviderInfo,
    compose::{ComposeOptions, ComposeProject, ComposeReport, FindingClass, PlanOptions},
    serde_json::json,
};

/// What the docker provider says of itself without any setting. No engine is asked.
fn engine() -> Option<ProviderInfo> {
    let provider = sandbox_provider_docker::plugin_entry().new_provider(&json!({})).ok()?;
    Some(provider.full_info())
}

/// What became of a file, in a word.
fn outcome(report: &ComposeReport) -> Option<String> {
    let classes: Vec<FindingClass> = report.errors().map(|finding| finding.class).collect();
    let first = classes.first()?;
    // An absent file is why the rest of such a document makes no sense.
    let class = if classes.contains(&FindingClass::MissingFile) { FindingClass::MissingFile } else { *first };
    Some(format!("{class:?}"))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_verbose = arguments.iter().any(|argument| argument == "--verbose");
    let Some(folder) = arguments.iter().find(|argument| !argument.starts_with('-')) else {
        eprintln!("usage: compose_corpus FOLDER [--verbose]");
        return ExitCode::from(2);
    };
    let mut files: Vec<PathBuf> = match std::fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        Err(error) => {
            eprintln!("{folder}: {error}");
            return ExitCode::from(2);
        }
    };
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yml" || extension == "yaml"));
    files.sort();
    let Some(info) = engine() else {
        eprintln!("the docker provider does not take its defaults");
        return ExitCode::from(2);
    };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for path in &files {
        let options = ComposeOptions::file(path);
        let loaded = ComposeProject::load(&options);
        let refused = outcome(&loaded.report);
        let planned = loaded.project.map(|project| project.plan(&info, &PlanOptions::default()));
        let outcome = match (refused, &planned) {
            (Some(class), _) => format!("refused at loading: {class}"),
            (None, Some(planned)) => match outcome(&planned.report) {
                Some(class) => format!("loaded, refused at planning: {class}"),
                None => "loaded and planned".to_owned(),
            },
            (None, None) => "lost".to_owned(),
        };
        if is_verbose && outcome != "loaded and planned" {
            let report = planned.map_or(loaded.report, |planned| planned.report);
            println!("=== {}: {outcome}", path.display());
            report.errors().for_each(|finding| println!("{finding}"));
        }
        *counts.entry(outcome).or_default() += 1;
    }
    println!("files: {}", files.len());
    for (outcome, count) in counts {
        println!("{count:5}  {outcome}");
    }
    ExitCode::SUCCESS
}
