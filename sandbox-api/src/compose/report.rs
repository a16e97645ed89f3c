//! What there is to say about a compose document, and how that is shown.

use std::{collections::BTreeSet, fmt, path::Path, sync::Arc};

use sandbox_core::{ErrorKind, SandboxError};
use serde::Serialize;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The stack would not be what the document says. Nothing is started.
    Error,
    /// The stack runs, but something differs in a way that a reader should know.
    Warning,
    /// Something has no effect here and changes nothing.
    Note,
}

impl Severity {
    /// `error`, `warning` or `note`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

/// Why a document was refused, in one word for machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingClass {
    /// The text is no YAML, or YAML that is not safe to read.
    Syntax,
    /// A key, a type or a value that the Compose Specification does not have.
    Invalid,
    /// A variable that must be set is not, or a reference to one is malformed.
    Interpolation,
    /// A file that the document includes, extends or reads is absent.
    MissingFile,
    /// The document refers to something that it does not define.
    Reference,
    /// The provider cannot do it.
    Unsupported,
    /// Refused for the safety of this machine, unless the caller allows it.
    Security,
    /// Has no effect, or another one than written.
    Cosmetic,
}

/// One thing to say, with its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ComposeFinding {
    /// How much it matters.
    pub severity: Severity,
    /// Why, for machines.
    pub class: FindingClass,
    /// Where in the document tree: `services.web.ports[0]`; empty for the document.
    pub key: String,
    /// One line, lower case.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// The file.
    pub file: String,
    /// Line, from 1. 0: the file as a whole.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// How many characters the caret covers.
    pub length: u32,
    /// The line itself, without what may be a secret.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub snippet: String,
}

impl ComposeFinding {
    /// `file:line:column`.
    pub fn place(&self) -> String {
        if self.line == 0 { self.file.clone() } else { format!("{}:{}:{}", self.file, self.line, self.column) }
    }
}

impl fmt::Display for ComposeFinding {
    /// The message, the place, the line with a caret, and the help.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = if self.key.is_empty() { String::new() } else { format!("{}: ", self.key) };
        writeln!(f, "{}: {subject}{}", self.severity.as_str(), self.message)?;
        writeln!(f, "  --> {}", self.place())?;
        if !self.snippet.is_empty() {
            let number = self.line.to_string();
            let margin = " ".repeat(number.len());
            let blanks = " ".repeat(self.column.saturating_sub(1) as usize);
            let carets = "^".repeat(self.length.max(1) as usize);
            writeln!(f, "{margin} |\n{number} | {}\n{margin} | {blanks}{carets}", self.snippet)?;
        }
        if let Some(help) = &self.help {
            writeln!(f, "  = help: {help}")?;
        }
        Ok(())
    }
}

/// Everything there is to say about a document, in the order of files and lines, errors first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ComposeReport {
    findings: Vec<ComposeFinding>,
}

impl ComposeReport {
    /// All findings.
    pub fn findings(&self) -> &[ComposeFinding] {
        &self.findings
    }

    /// Those that keep the stack from running.
    pub fn errors(&self) -> impl Iterator<Item = &ComposeFinding> {
        self.findings.iter().filter(|finding| finding.severity == Severity::Error)
    }

    /// True if nothing keeps the stack from running.
    pub fn is_ok(&self) -> bool {
        self.errors().next().is_none()
    }

    /// How many findings of a severity there are.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }

    /// The findings of both.
    #[must_use]
    pub fn merged(mut self, other: ComposeReport) -> Self {
        self.findings.extend(other.findings);
        self.sort();
        self
    }

    /// The report as one error: how many problems there are and the first of them. None without one.
    pub fn to_error(&self) -> Option<SandboxError> {
        let first = self.errors().next()?;
        let kind = match first.class {
            FindingClass::Unsupported => ErrorKind::Unsupported,
            FindingClass::MissingFile => ErrorKind::NotFound,
            _ => ErrorKind::InvalidInput,
        };
        let others = match self.count(Severity::Error) - 1 {
            0 => String::new(),
            others => format!(" (and {others} more)"),
        };
        let subject = if first.key.is_empty() { String::new() } else { format!("{}: ", first.key) };
        let error = SandboxError::new(kind, format!("{}: {subject}{}{others}", first.place(), first.message));
        let error = if first.key.is_empty() { error } else { error.with_field(&first.key) };
        Some(match &first.help {
            Some(help) => error.with_help(help),
            None => error,
        })
    }

    fn sort(&mut self) {
        let rank = |finding: &ComposeFinding| (finding.severity, finding.file.clone(), finding.line, finding.column);
        self.findings.sort_by_key(rank);
        self.findings.dedup();
    }
}

impl fmt::Display for ComposeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| writeln!(f, "{finding}"))
    }
}

/// A place in one of the files of a [`Log`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Place {
    /// Which file, as an index.
    pub(crate) file: u32,
    /// From 1; 0 is the file as a whole.
    pub(crate) line: u32,
    /// From 1.
    pub(crate) column: u32,
    /// In characters.
    pub(crate) length: u32,
    /// What stands here may be a secret and is never shown.
    pub(crate) hidden: bool,
}

/// A file that was read.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// As it is shown.
    pub(crate) name: String,
    /// Its text.
    pub(crate) text: Arc<str>,
    /// What relative paths in it are relative to, absolute.
    pub(crate) base: Arc<Path>,
}

/// Where findings are collected, with the files that they are about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    sources: Vec<Source>,
    findings: Vec<ComposeFinding>,
    /// Files and lines where a variable is missing.
    unset: BTreeSet<(u32, u32)>,
    /// Places and keys that are wrong already.
    invalid: BTreeSet<(Place, String)>,
}

/// One thing to say, before it has its place.
pub(crate) struct Say<'a> {
    pub(crate) severity: Severity,
    pub(crate) class: FindingClass,
    pub(crate) key: &'a str,
    pub(crate) message: String,
    pub(crate) help: Option<String>,
}

impl Log {
    pub(crate) fn add_source(&mut self, source: Source) -> u32 {
        self.sources.push(source);
        (self.sources.len() - 1) as u32
    }

    pub(crate) fn source(&self, file: u32) -> &Source {
        &self.sources[file as usize]
    }

    /// The folder that relative paths at a place are relative to.
    pub(crate) fn base(&self, place: Place) -> Arc<Path> {
        self.sources.get(place.file as usize).map_or_else(|| Arc::from(Path::new("/")), |source| source.base.clone())
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Error)
    }

    pub(crate) fn say(&mut self, place: Place, say: Say<'_>) {
        // A value whose variable is missing is wrong in other ways too, which nobody needs to hear.
        if say.class == FindingClass::Invalid && self.is_unset(place) {
            return;
        }
        // What was wrong by its shape is not read any further either.
        if say.class == FindingClass::Invalid && !self.invalid.insert((place, say.key.to_owned())) {
            return;
        }
        if say.class == FindingClass::Interpolation && say.severity == Severity::Error {
            self.unset.insert((place.file, place.line));
        }
        let source = self.sources.get(place.file as usize);
        let line = source.and_then(|source| source.text.lines().nth((place.line as usize).checked_sub(1)?));
        let snippet = line.map(|line| if place.hidden { without_value(line, place.column) } else { shown(line) });
        let snippet = snippet.unwrap_or_default();
        // A caret never runs beyond its line.
        let room = (snippet.chars().count() as u32 + 1).saturating_sub(place.column).max(1);
        self.findings.push(ComposeFinding {
            severity: say.severity,
            class: say.class,
            key: say.key.to_owned(),
            message: say.message,
            help: say.help,
            file: source.map(|source| source.name.clone()).unwrap_or_default(),
            line: place.line,
            column: place.column,
            length: place.length.min(room),
            snippet,
        });
    }

    fn is_unset(&self, place: Place) -> bool {
        self.unset.contains(&(place.file, place.line))
    }

    pub(crate) fn error(&mut self, place: Place, class: FindingClass, key: &str, message: impl Into<String>) {
        self.say(place, Say { severity: Severity::Error, class, key, message: message.into(), help: None });
    }

    pub(crate) fn error_with_help(
        &mut self,
        place: Place,
        class: FindingClass,
        key: &str,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let help = Some(help.into());
        self.say(place, Say { severity: Severity::Error, class, key, message: message.into(), help });
    }

    pub(crate) fn warning(&mut self, place: Place, key: &str, message: impl Into<String>) {
        let class = FindingClass::Cosmetic;
        self.say(place, Say { severity: Severity::Warning, class, key, message: message.into(), help: None });
    }

    pub(crate) fn note(&mut self, place: Place, key: &str, message: impl Into<String>) {
        let class = FindingClass::Cosmetic;
        self.say(place, Say { severity: Severity::Note, class, key, message: message.into(), help: None });
    }

    /// What was said so far, in order.
    pub(crate) fn report(&self) -> ComposeReport {
        let mut report = ComposeReport { findings: self.findings.clone() };
        report.sort();
        report
    }

    /// Forgets what was said, keeps the files.
    pub(crate) fn without_findings(&self) -> Self {
        Self { sources: self.sources.clone(), ..Self::default() }
    }
}

/// The longest line that is shown.
const SHOWN_CHARACTERS: usize = 160;

fn shown(line: &str) -> String {
    line.chars().take(SHOWN_CHARACTERS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The key in front of a value, and nothing else.
fn without_value(line: &str, column: u32) -> String {
    let before: String = line.chars().take(column.saturating_sub(1) as usize).collect();
    let is_key = |c: char| c.is_alphanumeric() || "_-. :".contains(c);
    if before.chars().all(is_key) {
        return format!("{before}…");
    }
    let indent = before.len() - before.trim_start().len();
    format!("{}…", " ".repeat(indent.max(before.chars().count())))
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use super::{FindingClass, Log, Place, Source};

    #[test]
    fn a_finding_shows_its_line_with_a_caret_and_a_secret_only_its_key() {
        let mut log = Log::default();
        let text = "services:\n  web:\n    image: Bad Image\n    environment:\n      TOKEN: canary\n";
        let base: Arc<Path> = Arc::from(Path::new("/"));
        let file = log.add_source(Source { name: "c.yaml".into(), text: text.into(), base });
        let place = Place { file, line: 3, column: 12, length: 9, hidden: false };
        log.error_with_help(place, FindingClass::Invalid, "services.web.image", "is no image", "name one");
        let secret = Place { file, line: 5, column: 14, length: 6, hidden: true };
        log.error(secret, FindingClass::Invalid, "services.web.environment.TOKEN", "is wrong");
        let report = log.report();
        let text = report.to_string();
        assert!(
            text.contains("c.yaml:3:12\n  |\n3 |     image: Bad Image\n  |            ^^^^^^^^^\n  = help: name one")
        );
        assert!(text.contains("5 |       TOKEN: …\n"), "{text}");
        assert!(!text.contains("canary"));
        let error = report.to_error().unwrap();
        assert_eq!(error.to_string(), "c.yaml:3:12: services.web.image: is no image (and 1 more)");
    }
}
