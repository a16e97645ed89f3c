//! Durations, sizes and command lines.

use std::time::Duration;

/// `1h30m`, `10s`, `1.5s`, `500ms`: numbers with units, one after the other.
pub(crate) fn duration(text: &str) -> Result<Duration, &'static str> {
    const NEEDS_UNIT: &str = "must be a duration with units, such as 30s, 1m30s or 500ms";
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.is_empty() {
        return Err(NEEDS_UNIT);
    }
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(NEEDS_UNIT)?;
        let number: f64 = rest[..digits].parse().map_err(|_| NEEDS_UNIT)?;
        rest = &rest[digits..];
        let length = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..length] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(NEEDS_UNIT),
        };
        seconds += number * unit;
        rest = &rest[length..];
    }
    // A year is beyond every sensible one, and still fits everywhere.
    if seconds > 366.0 * 86_400.0 {
        return Err("must be at most a year");
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Bytes: `1024`, `64m`, `1.5G`, `512kb`, `2GiB`. Units are powers of 1024, as docker has them.
pub(crate) fn bytes(text: &str) -> Result<u64, &'static str> {
    const FORM: &str = "must be a size in bytes or with a unit, such as 512m or 1.5g";
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().map_err(|_| FORM)?;
    let unit = text[digits..].trim().to_ascii_lowercase();
    let power = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return Err(FORM),
    };
    let bytes = number * 1024_f64.powi(power);
    if bytes > (1_u64 << 60) as f64 {
        return Err("must be at most 2^60 bytes");
    }
    Ok(bytes as u64)
}

/// MiB, rounded up.
pub(crate) fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Splits a command line into words as a shell does, without expanding anything.
pub(crate) fn words(text: &str) -> Result<Vec<String>, &'static str> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            ' ' | '\t' | '\n' | '\r' => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err("a single quote is opened and not closed"),
                    }
                }
            }
            '"' => double_quoted(&mut characters, word.get_or_insert_default())?,
            '\\' => match characters.next() {
                Some('\n') => {}
                Some(c) => word.get_or_insert_default().push(c),
                None => return Err("a backslash stands at the end"),
            },
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

fn double_quoted(characters: &mut std::str::Chars<'_>, word: &mut String) -> Result<(), &'static str> {
    const OPEN: &str = "a double quote is opened and not closed";
    loop {
        match characters.next() {
            Some('"') => return Ok(()),
            Some('\\') => match characters.next() {
                Some('\n') => {}
                Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                Some(c) => word.extend(['\\', c]),
                None => return Err(OPEN),
            },
            Some(c) => word.push(c),
            None => return Err(OPEN),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{bytes, duration, words};

    #[test]
    fn durations_need_units_and_may_be_compound() {
        let good = [("1m30s", 90.0), ("1.5s", 1.5), ("500ms", 0.5), ("0", 0.0), ("0s", 0.0), ("1h", 3600.0)];
        for (text, seconds) in good {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for bad in ["10", "", "s", "1x", "1m 30s", "-1s", "1.2.3s", "99999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        let good =
            [("64m", 64 << 20), ("1.5G", 3 << 29), ("512kb", 512 << 10), ("2GiB", 2 << 30), ("17", 17), ("1b", 1)];
        for (text, expected) in good {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for bad in ["", "m", "1x", "-1", "1 2", "1e9g"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn h14_a_command_line_is_split_without_a_shell() {
        let cases: [(&str, &[&str]); 7] = [
            ("echo \"a b\" $HOME 'c'", &["echo", "a b", "$HOME", "c"]),
            ("", &[]),
            ("''", &[""]),
            ("a\\ b  c", &["a b", "c"]),
            ("--sql-mode=\"A,B\"", &["--sql-mode=A,B"]),
            ("sh -c \"echo \\\"x\\\" \\n\"", &["sh", "-c", "echo \"x\" \\n"]),
            ("a#b # c", &["a#b", "#", "c"]),
        ];
        for (text, expected) in cases {
            assert_eq!(words(text).unwrap(), expected, "{text:?}");
        }
        for bad in ["'a", "\"a", "a\\"] {
            assert!(words(bad).is_err(), "{bad:?}");
        }
    }
}
