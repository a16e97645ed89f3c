//! What goes to standard output (data) and to standard error (everything else).

mod format;
mod table;

use std::io::{self, Write};

use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use format::Format;
pub(crate) use table::Table;

use crate::failure::Failure;

/// The version of every JSON form.
pub(crate) const SCHEMA: &str = "v1";

pub(crate) const RED: &str = "\u{1b}[31m";
pub(crate) const YELLOW: &str = "\u{1b}[33m";
const PLAIN: &str = "\u{1b}[0m";

/// A word in a colour, where colour is wanted.
pub(crate) fn paint(word: &str, colour: &str, is_wanted: bool) -> String {
    if is_wanted { format!("{colour}{word}{PLAIN}") } else { word.to_owned() }
}

/// A line on standard error. There is nobody to tell when that fails.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Text on standard output.
///
/// # Errors
/// A silent failure when the reader is gone; a failure for any other reason.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(|error| write_failure(&error))
}

/// What a failed write to standard output means.
pub(crate) fn write_failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::broken_pipe(),
        _ => Failure::infrastructure(format!("cannot write to standard output: {error}")),
    }
}

/// One JSON document, one line.
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::infrastructure(format!("cannot write the result as JSON: {error}")))?;
    data(&format!("{text}\n"))
}

/// A list in every form: `{"schema":"v1", KEY: [...]}`, one object a line, names alone, or a table.
pub(crate) struct List<'a> {
    /// The key of the list in JSON.
    pub(crate) key: &'a str,
    /// The entries as JSON.
    pub(crate) entries: Vec<Value>,
    /// The names of the entries.
    pub(crate) names: Vec<String>,
    /// The table; the wide one where that is asked for.
    pub(crate) table: Table,
}

impl List<'_> {
    /// Writes it.
    pub(crate) fn print(&self, format: Format) -> Result<(), Failure> {
        match format {
            Format::Json => json_line(&json!({ "schema": SCHEMA, self.key: self.entries })),
            Format::Jsonl => self.entries.iter().try_for_each(json_line),
            Format::Name => data(&self.names.iter().map(|name| format!("{name}\n")).collect::<String>()),
            Format::Table | Format::Wide => data(&self.table.to_string()),
        }
    }
}
