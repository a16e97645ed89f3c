//! What of a build's context stays here: the patterns of a `.dockerignore` file.

use sandbox_core::{Result, SandboxError};

/// The patterns of a file, in order: the last one that matches decides.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ignored(Vec<Pattern>);

#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    /// Begins with `!`: what it matches is sent all the same.
    is_exception: bool,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Char(char),
    /// `?`: one character, but no slash.
    Any,
    /// `*`: any characters, but no slash.
    Star,
    /// `**/`: any number of folders, also none.
    Folders,
    /// `**` at the end: everything.
    Rest,
    /// `[a-z]`, `[^a-z]`.
    Class {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Ignored {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// `InvalidInput`, with the line of a pattern that is none.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let lines = text.trim_start_matches('\u{feff}').lines().enumerate();
        let kept = lines.filter(|(_, line)| !line.starts_with('#')).map(|(index, line)| (index, line.trim()));
        let patterns = kept.filter(|(_, line)| !line.is_empty()).map(|(index, line)| {
            let pattern = Pattern::parse(line);
            pattern.map_err(|why| {
                let message = format!("line {} of the ignore file {why}", index + 1);
                SandboxError::invalid_input("context", message)
            })
        });
        patterns.collect::<Result<_>>().map(Self)
    }

    /// Whether a path below the context stays here. A path of which a folder above is matched is matched itself.
    pub(super) fn has(&self, path: &str) -> bool {
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        let parents: Vec<Vec<char>> = ends.map(|end| path[..end].chars().collect()).collect();
        let decides = |pattern: &&Pattern| parents.iter().any(|path| pattern.is_match(path));
        self.0.iter().rev().find(decides).is_some_and(|pattern| !pattern.is_exception)
    }

    /// Whether something below a folder that is ignored may be sent all the same.
    pub(super) fn has_exceptions(&self) -> bool {
        self.0.iter().any(|pattern| pattern.is_exception)
    }
}

impl Pattern {
    fn parse(line: &str) -> Result<Self, &'static str> {
        let (is_exception, text) = match line.strip_prefix('!') {
            Some(rest) => (true, rest.trim()),
            None => (false, line),
        };
        if text.is_empty() {
            return Err("is an exception of nothing");
        }
        let mut parts = Vec::new();
        let text = cleaned(text);
        let mut chars = text.chars().peekable();
        while let Some(char) = chars.next() {
            parts.push(match char {
                '*' if chars.next_if_eq(&'*').is_some() => {
                    chars.next_if_eq(&'/');
                    if chars.peek().is_none() { Part::Rest } else { Part::Folders }
                }
                '*' => Part::Star,
                '?' => Part::Any,
                '\\' => Part::Char(chars.next().ok_or("ends with a backslash")?),
                '[' => class(&mut chars)?,
                char => Part::Char(char),
            });
        }
        Ok(Self { is_exception, parts })
    }

    /// From the last part to the first: which ends of the path each of them takes. The work is bounded by the lengths.
    fn is_match(&self, path: &[char]) -> bool {
        let mut behind = vec![false; path.len() + 1];
        behind[path.len()] = true;
        for part in self.parts.iter().rev() {
            let mut takes = vec![false; path.len() + 1];
            let mut has_folder = false;
            for at in (0..=path.len()).rev() {
                let char = path.get(at).copied();
                let is_plain = char.is_some_and(|char| char != '/');
                let after = |states: &[bool]| char.is_some() && states[at + 1];
                has_folder |= char == Some('/') && behind[at + 1];
                takes[at] = match part {
                    Part::Char(wanted) => char == Some(*wanted) && after(&behind),
                    Part::Any => is_plain && after(&behind),
                    Part::Class { is_negated, ranges } => {
                        let is_in = |char| ranges.iter().any(|(low, high)| (*low..=*high).contains(&char));
                        is_plain && char.is_some_and(is_in) != *is_negated && after(&behind)
                    }
                    Part::Star => behind[at] || is_plain && after(&takes),
                    Part::Folders => behind[at] || has_folder,
                    Part::Rest => true,
                };
            }
            behind = takes;
        }
        behind[0]
    }
}

/// Without a slash in front, and without `.`, `..` and doubled slashes.
fn cleaned(text: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in text.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn class(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Part, &'static str> {
    const OPEN: &str = "has a bracket that is not closed";
    let is_negated = chars.next_if_eq(&'^').is_some();
    let mut ranges = Vec::new();
    loop {
        let mut one = || match chars.next().ok_or(OPEN)? {
            '\\' => chars.next().ok_or(OPEN).map(|char| (char, false)),
            char => Ok((char, char == ']')),
        };
        let (low, is_end) = one()?;
        if is_end {
            return if ranges.is_empty() {
                Err("has an empty bracket")
            } else {
                Ok(Part::Class { is_negated, ranges })
            };
        }
        let high = match chars.next_if_eq(&'-') {
            None => low,
            Some(_) => match chars.next().ok_or(OPEN)? {
                '\\' => chars.next().ok_or(OPEN)?,
                ']' => return Err("has a range without an end"),
                char => char,
            },
        };
        ranges.push((low, high));
    }
}

#[cfg(test)]
mod tests {
    use super::Ignored;

    #[test]
    fn patterns_match_as_the_engines_own_client_has_it() {
        for (pattern, matched, other) in [
            ("a", &["a", "a/b"][..], &["b/a", "ab"][..]),
            ("/a/", &["a", "a/b"], &["b/a"]),
            ("./x/../a", &["a"], &["x/a"]),
            ("*/temp*", &["a/temporary.txt", "b/temp"], &["temp", "a/b/temp"]),
            ("temp?", &["tempa"], &["temp", "tempab", "temp/"]),
            ("**/*.go", &["a.go", "a/b.go", "a/b/c.go"], &["a.gox"]),
            ("a/**", &["a/b", "a/b/c"], &["a", "b"]),
            ("**", &["a", "a/b"], &[]),
            ("**/node_modules", &["node_modules", "a/node_modules/b"], &["a_node_modules"]),
            ("a**b", &["ab", "ax/b"], &["axb"]),
            ("[a-c]x[^0-9]", &["axy", "cxz"], &["dxy", "ax1", "ax/"]),
            (r"\*", &["*"], &["a"]),
            ("ä?", &["äö"], &["ä"]),
        ] {
            let ignored = Ignored::parse(pattern).unwrap();
            for path in matched {
                assert!(ignored.has(path), "{pattern} matches {path}");
            }
            for path in other {
                assert!(!ignored.has(path), "{pattern} does not match {path}");
            }
        }
    }

    #[test]
    fn the_last_pattern_that_matches_decides_and_comments_are_none() {
        let ignored = Ignored::parse("\u{feff}# all\n*.md\n\n  !README*.md \nREADME-secret.md\n").unwrap();
        let kept = ["a.md", "README.md", "README-secret.md", "# all"].map(|path| ignored.has(path));
        assert_eq!(kept, [true, false, true, false]);
        assert!(ignored.has_exceptions());
        let folder = Ignored::parse("docs\n!docs/kept").unwrap();
        assert!(folder.has("docs/a") && !folder.has("docs/kept") && !folder.has("docs/kept/deep"));
        assert!(!Ignored::parse("").unwrap().has("a"));
    }

    #[test]
    fn what_is_no_pattern_is_told_with_its_line() {
        for bad in ["!", "a[", "[]", "[a-", "[a-]", "a\\"] {
            let error = Ignored::parse(&format!("ok\n{bad}\n")).unwrap_err();
            assert!(error.field() == Some("context") && error.message().contains("line 2"), "{bad}: {error}");
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let ignored = Ignored::parse(&"*a".repeat(200)).unwrap();
        assert!(ignored.has(&"a".repeat(2000)) && !ignored.has(&"ab".repeat(1000)));
    }
}
