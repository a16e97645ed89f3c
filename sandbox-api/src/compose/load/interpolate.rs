//! `$NAME`, `${NAME}` and the forms with defaults, in every scalar value of a document.

use super::node::{Node, Value};
use crate::compose::report::{FindingClass, Log, Place, Say, Severity};

/// How deep defaults may be nested in each other.
const MAX_DEPTH: usize = 16;

/// The longest text that a value may become.
const MAX_BYTES: usize = 1 << 20;

/// Where values of variables come from.
pub(crate) type Lookup<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// What is wrong with a reference.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// Not of any form, for this reason.
    Malformed(&'static str),
    /// Must be set and is not; with the document's own words.
    Required { name: String, message: String },
}

impl Problem {
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Malformed(why) => format!("malformed variable: {why}"),
            Self::Required { name, message } if message.is_empty() => format!("variable {name} must be set"),
            Self::Required { name, message } => format!("variable {name} must be set: {message}"),
        }
    }

    pub(crate) fn help(&self) -> String {
        match self {
            Self::Malformed(_) => "write $$ for a dollar sign".to_owned(),
            Self::Required { name, .. } => format!("set {name} in the environment or in a file given by --env-file"),
        }
    }
}

/// A value with its variables filled in.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Filled {
    pub(crate) text: String,
    /// Variables that are not set and have no default.
    pub(crate) unset: Vec<String>,
    pub(crate) problems: Vec<Problem>,
}

/// Fills the variables of one text in.
pub(crate) fn fill(text: &str, lookup: &Lookup<'_>) -> Filled {
    let mut filled = Filled::default();
    let value = expand(text, lookup, &mut filled, 0);
    filled.text = value;
    if filled.text.len() > MAX_BYTES {
        filled.text.clear();
        filled.problems.push(Problem::Malformed("the value becomes longer than 1 MiB"));
    }
    filled
}

fn expand(text: &str, lookup: &Lookup<'_>, filled: &mut Filled, depth: usize) -> String {
    if depth > MAX_DEPTH {
        filled.problems.push(Problem::Malformed("defaults are nested too deep"));
        return String::new();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        let after = &rest[dollar + 1..];
        if let Some(next) = after.strip_prefix('$') {
            out.push('$');
            rest = next;
        } else if let Some(inner) = after.strip_prefix('{') {
            let Some(end) = closing_brace(inner) else {
                filled.problems.push(Problem::Malformed("${ without }"));
                return out;
            };
            out.push_str(&braced(&inner[..end], lookup, filled, depth));
            rest = &inner[end + 1..];
        } else {
            let length = name_length(after);
            if length == 0 {
                filled.problems.push(Problem::Malformed("a dollar sign without a name"));
                rest = after;
                continue;
            }
            let name = &after[..length];
            out.push_str(&plain(name, lookup, filled));
            rest = &after[length..];
        }
        if out.len() > MAX_BYTES {
            return out;
        }
    }
    out.push_str(rest);
    out
}

fn plain(name: &str, lookup: &Lookup<'_>, filled: &mut Filled) -> String {
    lookup(name).unwrap_or_else(|| {
        filled.unset.push(name.to_owned());
        String::new()
    })
}

/// What stands between `${` and `}`.
fn braced(inner: &str, lookup: &Lookup<'_>, filled: &mut Filled, depth: usize) -> String {
    let length = name_length(inner);
    if length == 0 {
        filled.problems.push(Problem::Malformed("${…} without a name"));
        return String::new();
    }
    let (name, operator) = inner.split_at(length);
    if operator.is_empty() {
        return plain(name, lookup, filled);
    }
    let value = lookup(name);
    // With a colon an empty value counts as unset.
    let (form, counts_empty) = match operator.strip_prefix(':') {
        Some(rest) if !rest.is_empty() => (rest, false),
        _ => (operator, true),
    };
    let mut rest = form.chars();
    let kind = rest.next();
    let word = rest.as_str();
    let is_set = value.as_ref().is_some_and(|value| counts_empty || !value.is_empty());
    match kind {
        Some('-') if is_set => value.unwrap_or_default(),
        Some('-') => expand(word, lookup, filled, depth + 1),
        Some('+') if is_set => expand(word, lookup, filled, depth + 1),
        Some('+') => String::new(),
        Some('?') if is_set => value.unwrap_or_default(),
        Some('?') => {
            let message = expand(word, lookup, filled, depth + 1);
            filled.problems.push(Problem::Required { name: name.to_owned(), message });
            String::new()
        }
        _ => {
            filled.problems.push(Problem::Malformed("after the name only }, :-, -, :?, ?, :+ or + may follow"));
            String::new()
        }
    }
}

/// Where the brace that was opened before this text is closed. Braces inside are counted, unless they do not match.
fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth == 0 => return Some(index),
            b'}' => depth -= 1,
            _ => {}
        }
    }
    text.find('}')
}

fn name_length(text: &str) -> usize {
    let is_start = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !is_start {
        return 0;
    }
    text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len())
}

/// Fills in the variables of every value of a tree. Keys stay as they are.
pub(crate) fn fill_tree(node: &mut Node, key: &mut String, lookup: &Lookup<'_>, log: &mut Log) {
    match &mut node.value {
        Value::Null => {}
        Value::Scalar { text, .. } => {
            if text.contains('$') {
                let filled = fill(text, lookup);
                tell(&filled, text, node.place, key, log);
                *text = filled.text;
            }
        }
        Value::List(list) => {
            for (index, item) in list.iter_mut().enumerate() {
                let length = key.len();
                key.push_str(&format!("[{index}]"));
                fill_tree(item, key, lookup, log);
                key.truncate(length);
            }
        }
        Value::Map(map) => {
            for (name, entry) in &mut map.0 {
                let length = key.len();
                if !key.is_empty() {
                    key.push('.');
                }
                key.push_str(name);
                fill_tree(&mut entry.node, key, lookup, log);
                key.truncate(length);
            }
        }
    }
}

fn tell(filled: &Filled, text: &str, place: Place, key: &str, log: &mut Log) {
    for problem in &filled.problems {
        let at = match problem {
            Problem::Required { name, .. } => reference(log, place, name),
            Problem::Malformed(_) => dollar(text, place),
        };
        log.error_with_help(at, FindingClass::Interpolation, key, problem.message(), problem.help());
    }
    let mut told: Vec<&str> = Vec::new();
    for name in &filled.unset {
        if !told.contains(&name.as_str()) {
            told.push(name);
            let say = Say {
                severity: Severity::Warning,
                class: FindingClass::Interpolation,
                key,
                message: format!("variable {name} is not set and counts as empty"),
                help: Some(format!("set it, or write a default: ${{{name}:-}}")),
            };
            log.say(reference(log, place, name), say);
        }
    }
}

/// The place of a reference to a variable, where it is on the line of its node.
fn reference(log: &Log, place: Place, name: &str) -> Place {
    let text = log.source(place.file).text.clone();
    let Some(line) = text.lines().nth((place.line as usize).saturating_sub(1)) else { return place };
    let start: usize = line.chars().take(place.column.saturating_sub(1) as usize).map(char::len_utf8).sum();
    for (form, extra) in [(format!("${{{name}"), 2), (format!("${name}"), 1)] {
        if let Some(offset) = line[start..].find(&form) {
            let column = line[..start + offset].chars().count() as u32 + 1;
            return Place { column, length: name.len() as u32 + extra, ..place };
        }
    }
    place
}

fn dollar(text: &str, place: Place) -> Place {
    if text.contains('\n') { Place { length: 1, ..place } } else { place }
}

#[cfg(test)]
mod tests {
    use super::{Problem, fill};

    fn lookup(name: &str) -> Option<String> {
        match name {
            "B" => Some(String::new()),
            "C" => Some("c".to_owned()),
            _ => None,
        }
    }

    #[test]
    fn h01_nested_and_braced_interpolation() {
        let good = [
            ("${A:-x}", "x"),
            ("${A-x}", "x"),
            ("${B:-x}", "x"),
            ("${B-x}", ""),
            ("${C:+y}", "y"),
            ("${A+y}", ""),
            ("${B+y}", "y"),
            ("${B:+y}", ""),
            ("${A:-${C}}", "c"),
            ("${A:-${D:-z}}", "z"),
            ("${A:-{\"k\":1}}", "{\"k\":1}"),
            ("$$C", "$C"),
            ("$${C}", "${C}"),
            ("$C", "c"),
            ("x${C}y$C-z", "xcyc-z"),
            ("${B?msg}", ""),
            ("${C:?msg}", "c"),
            ("${A:-a b: c}", "a b: c"),
            ("${A:-é}ü", "éü"),
            ("${A:-{}", "{"),
            ("$$$$", "$$"),
        ];
        for (text, expected) in good {
            let filled = fill(text, &lookup);
            assert_eq!((filled.text.as_str(), &filled.problems), (expected, &Vec::new()), "{text}");
        }
        let required = |name: &str, message: &str| Problem::Required { name: name.into(), message: message.into() };
        assert_eq!(fill("${A:?msg}", &lookup).problems, [required("A", "msg")]);
        assert_eq!(fill("${A?}", &lookup).problems, [required("A", "")]);
        assert_eq!(fill("${B:?m $C}", &lookup).problems, [required("B", "m c")]);
        for bad in ["$1", "${}", "a$", "$ x", "${A", "${A!x}", "${1}", "${A:}", "${A:é}", "${-x}"] {
            let problems = fill(bad, &lookup).problems;
            assert!(matches!(problems[..], [Problem::Malformed(_)]), "{bad}: {problems:?}");
        }
    }

    #[test]
    fn what_is_unset_is_named_and_a_bomb_of_defaults_ends() {
        assert_eq!(fill("$A ${A} $C", &lookup).unset, ["A", "A"]);
        let bomb = "${A:-".repeat(1000) + &"}".repeat(1000);
        assert!(!fill(&bomb, &lookup).problems.is_empty());
    }
}
