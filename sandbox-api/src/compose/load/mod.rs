//! From files to a resolved document.

mod check;
mod dotenv;
mod files;
mod interpolate;
mod keys;
mod merge;
mod node;
mod normal;
mod options;
mod ports;
mod profiles;
mod service;
mod shape;
mod top;
mod values;
mod volumes;
mod yaml;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use self::files::{Loader, Variables};
use super::{
    model::ComposeProject,
    report::{ComposeReport, FindingClass, Log, Place, Source},
};

#[cfg(test)]
pub(crate) use self::keys::service_keys;
pub(crate) use self::{
    node::{Node, Value},
    values::{bytes, duration},
    volumes::lexical,
};
pub use self::{
    options::{COMPOSE_FILE_NAMES, ComposeOptions},
    ports::{ComposePort, HostPort, Protocol},
    volumes::{ComposeMount, MountSource},
};

/// What loading gave: a project, unless something is wrong, and everything there is to say.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ComposeLoaded {
    /// The project; none when the report has errors.
    pub project: Option<ComposeProject>,
    /// What there is to say.
    pub report: ComposeReport,
}

impl ComposeProject {
    /// Loads a document. Reads files only; nothing is started. Every problem is reported in one go.
    pub fn load(options: &ComposeOptions) -> ComposeLoaded {
        let mut log = Log::default();
        let project = load(options, &mut log);
        let report = log.report();
        let project = project.filter(|_| report.is_ok()).map(|project| ComposeProject { log, ..project });
        ComposeLoaded { project, report }
    }
}

fn load(options: &ComposeOptions, log: &mut Log) -> Option<ComposeProject> {
    let here = options.here();
    // What the options themselves are wrong about has no file to point into.
    let file = log.add_source(Source { name: "(options)".into(), text: "".into(), base: here.as_path().into() });
    let nowhere = Place { file, ..Place::default() };
    let mut variables: Variables = options.environment.clone();
    let early = options.project_directory.clone().unwrap_or_else(|| here.clone());
    let early = lexical(&here.join(early));
    let mut loader = Loader::new(log, here.clone());
    // The env file beside the options may say which files there are, so it comes before them.
    let mut has_read_env = false;
    let mut paths = options.paths(&variables, &here, &early);
    if paths.is_empty() || !options.env_files.is_empty() {
        has_read_env = true;
        read_env_files(&mut loader, options, &early, &mut variables, nowhere);
        paths = options.paths(&variables, &here, &early);
    }
    if paths.is_empty() {
        let message = format!("there is no compose file in {}", loader.shown(&early));
        let help = format!("name it with -f, or call it {}", COMPOSE_FILE_NAMES[0]);
        loader.log.error_with_help(nowhere, FindingClass::MissingFile, "", message, help);
        return None;
    }
    let base = match &options.project_directory {
        Some(_) => early,
        None => paths[0].parent().unwrap_or(Path::new("/")).to_owned(),
    };
    if !has_read_env {
        read_env_files(&mut loader, options, &base, &mut variables, nowhere);
    }
    variables = options.with_project_name(variables, &base);
    let document = loader.document(&paths, &base, &variables, nowhere, "")?;
    let name = options.name(&document, &variables, &base, loader.log);
    let mut project = top::read(&mut loader, &document, &variables);
    project.name = name;
    project.directory = base;
    profiles::select(&mut project, options, &variables, loader.log);
    check::check(&mut project, loader.log);
    project.document = document;
    Some(project)
}

/// Variables of env files, for what is not set outside.
fn read_env_files(
    loader: &mut Loader<'_>,
    options: &ComposeOptions,
    base: &Path,
    variables: &mut Variables,
    at: Place,
) {
    let default = base.join(".env");
    let mut files: Vec<PathBuf> = options.env_files.iter().map(|file| lexical(&options.here().join(file))).collect();
    if files.is_empty() && default.is_file() {
        files.push(default);
    }
    let outside = variables.clone();
    let mut added: BTreeMap<String, String> = BTreeMap::new();
    for file in files {
        let mut known = outside.clone();
        known.extend(added.clone().into_iter().filter(|(name, _)| !outside.contains_key(name)));
        // The later file wins over the earlier, and what is set outside over both.
        added.extend(loader.variables_of(&file, &known, at, "").unwrap_or_default());
    }
    for (name, value) in added {
        variables.entry(name).or_insert(value);
    }
}
