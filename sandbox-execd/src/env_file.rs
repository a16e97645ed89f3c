//! The file of variables that clients add to, for every later command: a `NAME=VALUE` a line, the last one of a name wins.

/// Reads such a file. Values may be in single quotes, word for word and over several lines; in double quotes, with escapes;
/// or bare, up to the end of the line.
pub(crate) fn read(text: &str) -> Vec<(String, String)> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some((line, _)) = rest.split_once('\n').or_else(|| (!rest.is_empty()).then_some((rest, ""))) {
        let entry = line.trim_start();
        let entry = entry.strip_prefix("export ").unwrap_or(entry);
        let name = entry.split_once('=').map(|(name, _)| name.trim());
        let Some(name) = name.filter(|name| is_name(name)) else {
            // A comment, or nothing that is meant for us.
            rest = rest.get(line.len() + 1..).unwrap_or_default();
            continue;
        };
        let start = line.find('=').map_or(line.len(), |at| at + 1);
        let (value, after) = value(&rest[start..]);
        found.push((name.to_owned(), value));
        // What stands behind a closing quote is no part of anything.
        rest = after.split_once('\n').map_or("", |(_, rest)| rest);
    }
    found
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A value, and what stands behind it.
fn value(text: &str) -> (String, &str) {
    if let Some((value, after)) = text.strip_prefix('\'').and_then(|rest| rest.split_once('\'')) {
        return (value.to_owned(), after);
    }
    if let Some(quoted) = text.strip_prefix('"')
        && let Some(told) = escaped(quoted)
    {
        return told;
    }
    let end = text.find('\n').unwrap_or(text.len());
    (text[..end].trim().to_owned(), &text[end..])
}

fn escaped(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                other => other,
            }),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::read;

    #[test]
    fn every_form_of_a_value_is_read() {
        let text = "# a comment\nA=1\nexport B= two words \nC='it \\n is\n$HOME'\nD=\"it's \\\"so\\\"\\n\"\nno name=x\nE=\nA='3'";
        let expected =
            [("A", "1"), ("B", "two words"), ("C", "it \\n is\n$HOME"), ("D", "it's \"so\"\n"), ("E", ""), ("A", "3")];
        assert_eq!(read(text), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(read(""), []);
        assert_eq!(read("A='open"), [("A".to_owned(), "'open".to_owned())]);
    }
}
