//! Patterns of names: `*`, `?`, `[a-z]`, `[!a]`, `{a,b}`, and `\` before a character that means itself.

/// Whether a name fits a pattern.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    let name: Vec<char> = name.chars().collect();
    alternatives(pattern).iter().any(|pattern| fits_one(&pattern.chars().collect::<Vec<_>>(), &name))
}

/// The patterns without braces that a pattern stands for; at most so many.
const ALTERNATIVES_MAX: usize = 1024;

fn alternatives(pattern: &str) -> Vec<String> {
    let (mut waiting, mut done) = (vec![pattern.to_owned()], Vec::new());
    while let Some(pattern) = waiting.pop() {
        let inner = pattern.find('{').and_then(|open| Some((open, open + pattern[open..].find('}')?)));
        match inner.filter(|_| waiting.len() + done.len() < ALTERNATIVES_MAX) {
            None => done.push(pattern),
            Some((open, shut)) => {
                for part in pattern[open + 1..shut].split(',') {
                    waiting.push(format!("{}{part}{}", &pattern[..open], &pattern[shut + 1..]));
                }
            }
        }
    }
    done
}

/// Tries the last star again where the rest does not fit: no pattern takes more than pattern times name steps.
fn fits_one(pattern: &[char], name: &[char]) -> bool {
    let (mut at, mut in_name, mut star) = (0, 0, None);
    while in_name < name.len() {
        if pattern.get(at) == Some(&'*') {
            star = Some((at + 1, in_name));
            at += 1;
            continue;
        }
        match one(&pattern[at..], name[in_name]) {
            Some(length) => {
                at += length;
                in_name += 1;
            }
            None => match star {
                Some((after, from)) => {
                    (at, in_name) = (after, from + 1);
                    star = Some((after, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

/// How much of the pattern this character fits; none: it does not.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match pattern {
        ['?', ..] => Some(1),
        ['\\', escaped, ..] => (*escaped == c).then_some(2),
        ['[', rest @ ..] => {
            let is_not = matches!(rest.first(), Some('!' | '^'));
            let set = &rest[usize::from(is_not)..];
            // A bracket that is the first of the set is one of it.
            let length = set.iter().skip(1).position(|c| *c == ']')? + 1;
            let set = &set[..length];
            let mut at = 0;
            let mut is_in = false;
            while at < set.len() {
                match set.get(at + 1..at + 3) {
                    Some(['-', to]) => {
                        is_in |= (set[at]..=*to).contains(&c);
                        at += 3;
                    }
                    _ => {
                        is_in |= set[at] == c;
                        at += 1;
                    }
                }
            }
            (is_in != is_not).then_some(length + 2 + usize::from(is_not))
        }
        [same, ..] if *same == c => Some(1),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn names_fit_what_the_pattern_means_and_nothing_else() {
        for (pattern, name, expected) in [
            ("**", "a.txt", true),
            ("*", "", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "a.txt.bak", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("*.{rs,toml}", "Cargo.toml", true),
            ("*.{rs,toml}", "a.rb", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[a", "[a", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
        assert!(!fits(&"*a".repeat(40), &"a".repeat(39)), "it ends, too");
    }
}
