//! The grammar of `.env` files and of `env_file`.

use super::interpolate::{Lookup, Problem, fill};

/// What one line assigns. No value: the variable is taken from outside, if it is there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

/// What is wrong, and in which line, from 1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DotenvProblem {
    pub(crate) line: u32,
    pub(crate) message: String,
}

/// Whether values are taken as they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Quotes, escapes, comments and variables mean something.
    Dotenv,
    /// Everything behind the first `=` is the value.
    Raw,
}

/// Reads a file. Variables in values come from `outside` first, then from earlier lines.
pub(crate) fn parse(text: &str, format: Format, outside: &Lookup<'_>) -> (Vec<Assignment>, Vec<DotenvProblem>) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
    let mut reader = Reader { rest: &text, line: 1, assignments: Vec::new(), problems: Vec::new() };
    while !reader.rest.is_empty() {
        reader.entry(format, outside);
    }
    (reader.assignments, reader.problems)
}

struct Reader<'t> {
    rest: &'t str,
    line: u32,
    assignments: Vec<Assignment>,
    problems: Vec<DotenvProblem>,
}

impl<'t> Reader<'t> {
    /// The rest of the line, which is then behind us.
    fn take_line(&mut self) -> &'t str {
        let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
        self.rest = rest;
        self.line += 1;
        line
    }

    fn problem(&mut self, line: u32, message: impl Into<String>) {
        self.problems.push(DotenvProblem { line, message: message.into() });
    }

    fn entry(&mut self, format: Format, outside: &Lookup<'_>) {
        let line_number = self.line;
        let line = self.rest.split('\n').next().unwrap_or_default();
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            self.take_line();
            return;
        }
        let start = line.trim_start();
        let start = match start.strip_prefix("export") {
            Some(after) if after.starts_with([' ', '\t']) && format == Format::Dotenv => after.trim_start(),
            _ => start,
        };
        let separators: &[char] = if format == Format::Raw { &['='] } else { &['=', ':'] };
        let Some(at) = start.find(separators) else {
            let name = start.split(" #").next().unwrap_or_default().trim().to_owned();
            self.take_line();
            return self.assign(line_number, &name, None);
        };
        let name = start[..at].trim_end().to_owned();
        let offset = line.len() - start.len() + at + 1;
        self.rest = &self.rest[offset..];
        if format == Format::Raw {
            let value = self.take_line().to_owned();
            return self.assign(line_number, &name, Some(value));
        }
        let value = self.value(line_number, outside);
        if let Some(value) = value {
            self.assign(line_number, &name, Some(value));
        }
    }

    fn assign(&mut self, line: u32, name: &str, value: Option<String>) {
        if name.is_empty() {
            return self.problem(line, "there is no name in front of the =");
        }
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_.-[]".contains(c);
        if !name.chars().all(is_name) {
            return self.problem(line, "the name of a variable has only letters, digits and _ . -");
        }
        self.assignments.push(Assignment { name: name.to_owned(), value });
    }

    fn value(&mut self, line: u32, outside: &Lookup<'_>) -> Option<String> {
        let blanks = self.rest.len() - self.rest.trim_start_matches([' ', '\t']).len();
        self.rest = &self.rest[blanks..];
        match self.rest.chars().next() {
            Some('\'') => self.quoted('\'', line),
            Some('"') => {
                let raw = self.quoted('"', line)?;
                let (text, dollars) = unescape(&raw);
                self.filled(&text, dollars, line, outside)
            }
            _ => {
                let text = self.take_line();
                // A comment starts at a # behind a blank.
                let comment = text
                    .char_indices()
                    .find(|(index, c)| *c == '#' && (*index == 0 || text[..*index].ends_with([' ', '\t'])));
                let text = comment.map_or(text, |(index, _)| &text[..index]).trim().to_owned();
                self.filled(&text, false, line, outside)
            }
        }
    }

    /// What stands between quotes, over several lines if need be. The rest of the line must be a comment.
    fn quoted(&mut self, quote: char, line: u32) -> Option<String> {
        let text = &self.rest[1..];
        let mut is_escaped = false;
        let end = text.char_indices().find(|(_, c)| {
            let is_end = *c == quote && !is_escaped;
            is_escaped = *c == '\\' && !is_escaped && quote == '"';
            is_end
        });
        let Some((end, _)) = end else {
            self.problem(line, "a quote is opened and not closed");
            self.take_line();
            return None;
        };
        let value = text[..end].to_owned();
        self.line += value.matches('\n').count() as u32;
        self.rest = &text[end + 1..];
        let behind = self.take_line().trim();
        if !behind.is_empty() && !behind.starts_with('#') {
            self.problem(line, "behind a closing quote only a comment may stand");
            return None;
        }
        Some(value)
    }

    fn filled(&mut self, text: &str, has_escaped_dollars: bool, line: u32, outside: &Lookup<'_>) -> Option<String> {
        let lookup = |name: &str| {
            let earlier = || self.assignments.iter().rev().find(|a| a.name == name).and_then(|a| a.value.clone());
            outside(name).or_else(earlier)
        };
        let filled = fill(text, &lookup);
        if let Some(problem) = filled.problems.into_iter().next() {
            // A dollar that starts no name stands for itself here, as in a shell.
            let is_lone = matches!(problem, Problem::Malformed("a dollar sign without a name"));
            if is_lone && !text.contains("${") {
                return Some(text.to_owned());
            }
            self.problem(line, problem.message());
            return None;
        }
        Some(if has_escaped_dollars { filled.text.replace(ESCAPED_DOLLAR, "$") } else { filled.text })
    }
}

/// Stands for `\$` until variables are filled in; a character that no text has.
const ESCAPED_DOLLAR: &str = "\u{e000}\u{f8ff}";

/// The escapes of double quotes, and whether there was a dollar among them.
fn unescape(text: &str) -> (String, bool) {
    let mut out = String::with_capacity(text.len());
    let mut has_dollars = false;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match characters.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('$') => {
                out.push_str(ESCAPED_DOLLAR);
                has_dollars = true;
            }
            Some(c @ ('"' | '\\' | '\'')) => out.push(c),
            Some(c) => out.extend(['\\', c]),
            None => out.push('\\'),
        }
    }
    (out, has_dollars)
}

#[cfg(test)]
mod tests {
    use super::{Assignment, Format, parse};

    fn read(text: &str) -> Vec<(String, Option<String>)> {
        let outside = |name: &str| (name == "SHELL_A").then(|| "s".to_owned());
        let (assignments, problems) = parse(text, Format::Dotenv, &outside);
        assert_eq!(problems, [], "{text:?}");
        assignments.into_iter().map(|Assignment { name, value }| (name, value)).collect()
    }

    fn one(text: &str) -> String {
        read(text).pop().unwrap().1.unwrap()
    }

    #[test]
    fn h03_env_file_syntax() {
        let cases = [
            ("A=a#b", "a#b"),
            ("B=a #b", "a"),
            ("C=\"a\\nb\"", "a\nb"),
            ("D='a\\nb'", "a\\nb"),
            ("export E=1", "1"),
            ("F=", ""),
            ("F=  ", ""),
            ("G=1\r\nH=2\r\n", "2"),
            ("\u{feff}A=x", "x"),
            ("M='a\nb'", "a\nb"),
            ("M=\"a\nb\" # c", "a\nb"),
            ("Q=\"say \\\"x\\\"\"", "say \"x\""),
            ("A: x", "x"),
            ("A=b=c", "b=c"),
            ("A=x   ", "x"),
            ("A=\"\\$HOME\"", "$HOME"),
            ("A=#c", ""),
            ("A=p$5", "p$5"),
        ];
        for (text, expected) in cases {
            assert_eq!(one(text), expected, "{text:?}");
        }
        let outside = |_: &str| None;
        for (text, line) in [("A=1\n=x\n", 2), ("\nG H=1", 2), ("A='x", 1), ("A=\"x\" y", 1), ("A=${B?no}", 1)] {
            let (_, problems) = parse(text, Format::Dotenv, &outside);
            assert_eq!(problems.iter().map(|problem| problem.line).collect::<Vec<_>>(), [line], "{text:?}");
        }
    }

    #[test]
    fn variables_come_from_outside_then_from_earlier_lines() {
        let all = read("A=d\nB=$A\nC='$A'\nSHELL_A=no\nD=${SHELL_A}\nF\n");
        let expected =
            [("A", Some("d")), ("B", Some("d")), ("C", Some("$A")), ("SHELL_A", Some("no")), ("D", Some("s"))];
        for ((name, value), (expected_name, expected)) in all.iter().zip(expected) {
            assert_eq!((name.as_str(), value.as_deref()), (expected_name, expected));
        }
        assert_eq!(all[5], ("F".to_owned(), None));
    }

    #[test]
    fn a_raw_file_keeps_everything_behind_the_equals_sign() {
        let (assignments, _) = parse("A=\"$x\" #y\nB: c=d\n", Format::Raw, &|_| None);
        assert_eq!(assignments[0].value.as_deref(), Some("\"$x\" #y"));
    }
}
