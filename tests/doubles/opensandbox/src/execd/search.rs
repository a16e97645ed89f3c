//! Files that are looked for by name, and text that is replaced in them.

use std::{fs, io, path::Path};

use serde_json::{Map, Value, json};

use super::metadata::{expand, file_info};
use crate::http::{self, Response, empty, failure};

/// Every file below a folder whose own name matches a pattern. Links are listed and not followed.
pub(super) fn search(root: &str, pattern: &str) -> io::Result<Response> {
    fs::symlink_metadata(root)?;
    let (mut found, mut folders) = (Vec::new(), vec![root.trim_end_matches('/').to_owned()]);
    while let Some(folder) = folders.pop() {
        let start = if folder.is_empty() { "/" } else { folder.as_str() };
        let Ok(entries) = fs::read_dir(start) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{folder}/{name}");
            // What goes meanwhile is not found.
            let Ok(data) = fs::symlink_metadata(entry.path()) else { continue };
            if data.is_dir() {
                folders.push(path);
            } else if matches(pattern.as_bytes(), name.as_bytes()) {
                found.push(file_info(&path, &data));
            }
        }
    }
    found.sort_by(|a, b| a["path"].as_str().cmp(&b["path"].as_str()));
    Ok(http::json(200, &Value::Array(found)))
}

/// Whether a name matches a pattern: `*` any characters, `?` one, `[a-c]` one of these, `[^a-c]` one of others, `\\` the
/// next one as it is.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match pattern {
        [] => name.is_empty(),
        [b'*', rest @ ..] => (0..=name.len()).any(|skip| matches(rest, &name[skip..])),
        [b'?', rest @ ..] => !name.is_empty() && matches(rest, &name[character(name)..]),
        [b'[', rest @ ..] => match (class(rest), name) {
            (Some((is_in, after)), [first, name @ ..]) => is_in(*first) && matches(after, name),
            _ => false,
        },
        [b'\\', wanted, rest @ ..] | [wanted, rest @ ..] => name.first() == Some(wanted) && matches(rest, &name[1..]),
    }
}

/// How many bytes the first character has.
fn character(name: &[u8]) -> usize {
    1 + name[1..].iter().take_while(|byte| **byte & 0xc0 == 0x80).count()
}

/// What a set of characters holds, and what stands behind it.
fn class(pattern: &[u8]) -> Option<(impl Fn(u8) -> bool + '_, &[u8])> {
    let (is_other, pattern) = pattern.strip_prefix(b"^").map_or((false, pattern), |rest| (true, rest));
    // A bracket that stands first is one of the set.
    let end = 1 + pattern.iter().skip(1).position(|byte| *byte == b']')?;
    let (set, rest) = (&pattern[..end], &pattern[end + 1..]);
    let is_in = move |byte: u8| {
        let mut set = set;
        let mut found = false;
        while let [first, after @ ..] = set {
            (found, set) = match after {
                [b'-', last, after @ ..] => (found || (*first..=*last).contains(&byte), after),
                _ => (found || *first == byte, after),
            };
        }
        found != is_other
    };
    Some((is_in, rest))
}

/// Replaces text in files, word for word; says how often, if that is asked.
pub(super) fn replace(wanted: &Value, is_verbose: bool) -> io::Result<Response> {
    let mut counts = Map::new();
    for (given, change) in wanted.as_object().into_iter().flatten() {
        let (Some(old), Some(new)) = (change["old"].as_str().filter(|old| !old.is_empty()), change["new"].as_str())
        else {
            return Ok(failure(400, "INVALID_REQUEST_BODY", "old and new are needed, and old must not be empty"));
        };
        let path = expand(given).map_err(io::Error::other)?;
        let text = fs::read(Path::new(&path))?;
        let (changed, count) = replaced(&text, old.as_bytes(), new.as_bytes());
        if count > 0 {
            // In place: it keeps its owner and mode.
            fs::write(&path, changed)?;
        }
        counts.insert(given.clone(), json!({ "replacedCount": count }));
    }
    Ok(if is_verbose { http::json(200, &Value::Object(counts)) } else { empty(200) })
}

fn replaced(mut text: &[u8], old: &[u8], new: &[u8]) -> (Vec<u8>, usize) {
    let (mut changed, mut count) = (Vec::with_capacity(text.len()), 0);
    while let Some(at) = text.windows(old.len()).position(|window| window == old) {
        changed.extend_from_slice(&text[..at]);
        changed.extend_from_slice(new);
        text = &text[at + old.len()..];
        count += 1;
    }
    changed.extend_from_slice(text);
    (changed, count)
}

#[cfg(test)]
mod tests {
    use super::{matches, replaced};

    #[test]
    fn names_match_patterns_as_those_of_a_shell_do() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("**", "a.b", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "a.txt.gz", false),
            ("a?c", "abc", true),
            ("a?c", "a\u{fc}c", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[]-]x", "]x", true),
            ("[a", "[a", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn every_occurrence_is_replaced_once() {
        assert_eq!(replaced(b"aaa", b"aa", b"a"), (b"aa".to_vec(), 1));
        assert_eq!(replaced(b"a.b.c", b".", b"..."), (b"a...b...c".to_vec(), 2));
        assert_eq!(replaced(b"", b"x", b"y"), (Vec::new(), 0));
    }
}
