//! From files to one document: variables, shapes, extends, include, merging.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    dotenv::{self, Format},
    interpolate::fill_tree,
    keys,
    merge::{import, merge_documents, merge_services, settle},
    node::{Entry, Map, Node, Value},
    normal::normalise,
    shape::check,
    volumes::{lexical, resolve},
    yaml,
};
use crate::compose::report::{FindingClass, Log, Place, Source};

/// How many files one document may be made of.
const MAX_FILES: usize = 256;

/// How large a file may be.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Variables, by name.
pub(crate) type Variables = BTreeMap<String, String>;

/// Reads files into documents.
pub(crate) struct Loader<'l> {
    pub(crate) log: &'l mut Log,
    /// Below this folder paths are shown relative.
    pub(crate) shown_below: PathBuf,
    files: usize,
    /// The files that are being read, innermost last.
    stack: Vec<PathBuf>,
}

/// What one set of files is read with.
struct Scope<'s> {
    base: &'s Path,
    variables: &'s Variables,
}

impl<'l> Loader<'l> {
    pub(crate) fn new(log: &'l mut Log, shown_below: PathBuf) -> Self {
        Self { log, shown_below, files: 0, stack: Vec::new() }
    }

    /// Reads a file into the log. `at` is what asked for it.
    pub(crate) fn read(&mut self, path: &Path, base: &Path, at: Place, key: &str, what: &str) -> Option<u32> {
        self.files += 1;
        if self.files > MAX_FILES {
            self.log.error(at, FindingClass::Invalid, key, format!("more than {MAX_FILES} files"));
            return None;
        }
        let shown = self.shown(path);
        match read_text(path) {
            Ok(text) => Some(self.log.add_source(Source { name: shown, text: text.into(), base: Arc::from(base) })),
            Err(error) => {
                let is_absent =
                    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory);
                let (class, why) = match is_absent {
                    true => (FindingClass::MissingFile, "does not exist".to_owned()),
                    false => (FindingClass::Invalid, format!("cannot be read: {error}")),
                };
                self.log.error(at, class, key, format!("{what} {shown} {why}"));
                None
            }
        }
    }

    /// A path as it is shown.
    pub(crate) fn shown(&self, path: &Path) -> String {
        path.strip_prefix(&self.shown_below).unwrap_or(path).display().to_string()
    }

    /// Reads several files, each laid over the ones before it.
    pub(crate) fn document(
        &mut self,
        paths: &[PathBuf],
        base: &Path,
        variables: &Variables,
        at: Place,
        key: &str,
    ) -> Option<Node> {
        let scope = Scope { base, variables };
        let mut merged: Option<Node> = None;
        for path in paths {
            for document in self.file(path, &scope, at, key) {
                merged = Some(match merged {
                    None => document,
                    Some(base) => merge_documents(base, document),
                });
            }
        }
        let mut merged = merged?;
        settle(&mut merged);
        Some(merged)
    }

    /// The documents of one file, with what they include and extend.
    fn file(&mut self, path: &Path, scope: &Scope<'_>, at: Place, key: &str) -> Vec<Node> {
        if self.stack.iter().any(|open| open == path) {
            let shown = self.shown(path);
            self.log.error(at, FindingClass::Reference, key, format!("{shown} includes itself"));
            return Vec::new();
        }
        let Some(file) = self.read(path, scope.base, at, key, "compose file") else { return Vec::new() };
        self.stack.push(path.to_owned());
        let mut documents = self.prepared(file, scope);
        if documents.is_empty() && !self.log.has_errors() {
            let place = Place { file, ..Place::default() };
            self.log.error(place, FindingClass::Invalid, "", "the file is empty");
        }
        for document in &mut documents {
            self.extend_services(document, path, scope);
            self.include(document, scope);
        }
        self.stack.pop();
        documents
    }

    /// The documents of a file with variables filled in, checked and written out.
    fn prepared(&mut self, file: u32, scope: &Scope<'_>) -> Vec<Node> {
        let mut documents = yaml::parse(self.log, file);
        documents.retain(|document| !document.is_null());
        for document in &mut documents {
            hide_values(document);
            let variables = scope.variables;
            fill_tree(document, &mut String::new(), &|name| variables.get(name).cloned(), self.log);
            check(&keys::DOCUMENT, document, "", self.log);
            normalise(document);
        }
        documents.retain(|document| document.as_map().is_some());
        documents
    }

    fn extend_services(&mut self, document: &mut Node, path: &Path, scope: &Scope<'_>) {
        let Some(names) = services(document).map(|map| map.0.keys().cloned().collect::<Vec<_>>()) else { return };
        let mut resolved = BTreeMap::new();
        for name in names {
            let mut chain = Vec::new();
            if let Some(node) = self.extended(document, path, &name, scope, &mut chain) {
                resolved.insert(name, node);
            }
        }
        let Some(services) = services_mut(document) else { return };
        for (name, node) in resolved {
            if let Some(entry) = services.0.get_mut(&name) {
                entry.node = node;
            }
        }
    }

    /// A service with what it extends under it. None when it extends nothing, or something that is wrong.
    fn extended(
        &mut self,
        document: &Node,
        path: &Path,
        name: &str,
        scope: &Scope<'_>,
        chain: &mut Vec<(PathBuf, String)>,
    ) -> Option<Node> {
        let mut service = services(document)?.get(name)?.clone();
        let Value::Map(map) = &mut service.value else { return None };
        let Some(extends) = map.0.remove("extends") else { return Some(service) };
        let key = format!("services.{name}.extends");
        let place = extends.node.place;
        let Some(base_name) = extends.node.get("service").and_then(Node::as_text).map(str::to_owned) else {
            return Some(service);
        };
        chain.push((path.to_owned(), name.to_owned()));
        let base = match extends.node.get("file") {
            None => self.base_service(document, path, &base_name, scope, chain, (place, &key)),
            Some(file) => {
                let file_place = file.place;
                let text = file.as_text()?.to_owned();
                let folder = self.log.base(file_place);
                let home = scope.variables.get("HOME").map(String::as_str);
                let other = match resolve(&text, &folder, home) {
                    Ok(other) => other,
                    Err(why) => {
                        self.log.error(file_place, FindingClass::Invalid, &key, why);
                        chain.pop();
                        return Some(service);
                    }
                };
                self.other_file(&other, &base_name, scope, chain, (file_place, &key))
            }
        };
        chain.pop();
        Some(match base {
            Some(base) => merge_services(base, service),
            None => service,
        })
    }

    fn base_service(
        &mut self,
        document: &Node,
        path: &Path,
        name: &str,
        scope: &Scope<'_>,
        chain: &mut Vec<(PathBuf, String)>,
        (place, key): (Place, &str),
    ) -> Option<Node> {
        if chain.iter().any(|(open, service)| open == path && service == name) {
            self.log.error(place, FindingClass::Reference, key, format!("services extend each other: {name} again"));
            return None;
        }
        let known = services(document);
        if known.and_then(|services| services.get(name)).is_none() {
            let names: Vec<_> = known.into_iter().flat_map(Map::iter).map(|(name, _)| name).collect();
            let message = format!("{} has no service {name:?}", self.shown(path));
            let help = format!("it has: {}", if names.is_empty() { "none".to_owned() } else { names.join(", ") });
            self.log.error_with_help(place, FindingClass::Reference, key, message, help);
            return None;
        }
        self.extended(document, path, name, scope, chain)
    }

    fn other_file(
        &mut self,
        path: &Path,
        name: &str,
        scope: &Scope<'_>,
        chain: &mut Vec<(PathBuf, String)>,
        (place, key): (Place, &str),
    ) -> Option<Node> {
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        let file = self.read(path, &folder, place, key, "extended file")?;
        let scope = Scope { base: &folder, variables: scope.variables };
        // Only one service of that file is wanted, so what is wrong elsewhere in it is told all the same: it is the
        // same document for whoever wrote it.
        let document = self.prepared(file, &scope).into_iter().reduce(merge_documents)?;
        self.base_service(&document, path, name, &scope, chain, (place, key))
    }

    fn include(&mut self, document: &mut Node, scope: &Scope<'_>) {
        let Value::Map(map) = &mut document.value else { return };
        let Some(include) = map.0.remove("include") else { return };
        for (index, item) in include.node.as_list().unwrap_or_default().iter().enumerate() {
            let key = format!("include[{index}]");
            if let Some(included) = self.included(item, &key, scope)
                && let Value::Map(included) = included.value
            {
                for (section, name) in import(map, included) {
                    let message = format!("{section} {name:?} is defined differently here and in the included file");
                    self.log.error(item.place, FindingClass::Reference, &key, message);
                }
            }
        }
    }

    fn included(&mut self, item: &Node, key: &str, scope: &Scope<'_>) -> Option<Node> {
        let home = scope.variables.get("HOME").map(String::as_str);
        let texts = |node: &Node| -> Vec<(String, Place)> {
            let one = |node: &Node| Some((node.as_text()?.to_owned(), node.place));
            node.as_list().map_or_else(|| one(node).into_iter().collect(), |list| list.iter().filter_map(one).collect())
        };
        let paths = match item.as_map() {
            None => texts(item),
            Some(map) => map.get("path").map(texts).unwrap_or_default(),
        };
        let base = self.log.base(item.place);
        let mut resolved = Vec::new();
        for (text, place) in &paths {
            match resolve(text, &base, home) {
                Ok(path) => resolved.push(path),
                Err(why) => self.log.error(*place, FindingClass::Invalid, key, why),
            }
        }
        if resolved.is_empty() {
            if paths.is_empty() {
                self.log.error(item.place, FindingClass::Invalid, key, "path is missing");
            }
            return None;
        }
        let folder = match item.get("project_directory").and_then(Node::as_text) {
            Some(folder) => lexical(&base.join(folder)),
            None => resolved[0].parent().unwrap_or(Path::new("/")).to_owned(),
        };
        let files = item.get("env_file").map(texts).unwrap_or_default();
        let mut variables = scope.variables.clone();
        let mut env_files: Vec<(PathBuf, Place)> =
            files.iter().map(|(text, place)| (lexical(&base.join(text)), *place)).collect();
        let default = folder.join(".env");
        if files.is_empty() && default.is_file() {
            env_files.push((default, item.place));
        }
        for (path, place) in env_files {
            // What is known outside wins.
            for (name, value) in self.variables_of(&path, &variables, place, key).unwrap_or_default() {
                variables.entry(name).or_insert(value);
            }
        }
        self.document(&resolved, &folder, &variables, paths[0].1, key)
    }

    /// The variables of an env file.
    pub(crate) fn variables_of(
        &mut self,
        path: &Path,
        outside: &Variables,
        at: Place,
        key: &str,
    ) -> Option<Vec<(String, String)>> {
        let file = self.read(path, path.parent().unwrap_or(Path::new("/")), at, key, "env file")?;
        Some(assignments(self.log, file, Format::Dotenv, outside))
    }
}

/// The variables of an env file that was read; one without a value comes from outside.
pub(crate) fn assignments(log: &mut Log, file: u32, format: Format, outside: &Variables) -> Vec<(String, String)> {
    let text = log.source(file).text.clone();
    let (assignments, problems) = dotenv::parse(&text, format, &|name| outside.get(name).cloned());
    for problem in problems {
        let place = Place { file, line: problem.line, column: 1, length: 1, hidden: true };
        log.error(place, FindingClass::Invalid, "", problem.message);
    }
    let value = |assignment: dotenv::Assignment| {
        let value = assignment.value.or_else(|| outside.get(&assignment.name).cloned())?;
        Some((assignment.name, value))
    };
    assignments.into_iter().filter_map(value).collect()
}

fn services(document: &Node) -> Option<&Map> {
    document.get("services")?.as_map()
}

fn services_mut(document: &mut Node) -> Option<&mut Map> {
    let Value::Map(map) = &mut document.value else { return None };
    match map.0.get_mut("services") {
        Some(Entry { node: Node { value: Value::Map(services), .. }, .. }) => Some(services),
        _ => None,
    }
}

/// Values that are nobody's business are hidden before anything is said about them.
fn hide_values(document: &mut Node) {
    const HIDDEN: [&str; 7] = ["environment", "command", "entrypoint", "args", "content", "test", "dockerfile_inline"];
    match &mut document.value {
        Value::Map(map) => {
            for (key, entry) in &mut map.0 {
                if HIDDEN.contains(&key.as_str()) {
                    entry.node.hide();
                } else {
                    hide_values(&mut entry.node);
                }
            }
        }
        Value::List(list) => list.iter_mut().for_each(hide_values),
        Value::Null | Value::Scalar { .. } => {}
    }
}

fn read_text(path: &Path) -> std::io::Result<String> {
    let invalid = |what: &str| std::io::Error::new(std::io::ErrorKind::InvalidData, what.to_owned());
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(invalid("it is no regular file"));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(invalid("it is larger than 4 MiB"));
    }
    let bytes = std::fs::read(path)?;
    String::from_utf8(bytes).map_err(|_| invalid("it is no UTF-8"))
}
