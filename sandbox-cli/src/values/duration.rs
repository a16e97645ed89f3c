/// Seconds in a text such as `90s`, `5m`, `1h30m`, `500ms` or `1.5` (seconds). Units fall from left to right, each at
/// most once.
///
/// # Errors
/// Says which forms are taken.
pub(crate) fn duration(text: &str) -> Result<f64, String> {
    const UNITS: [(&str, f64); 5] = [("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)];
    let bad = || "expected a duration such as 90s, 5m, 1h30m, 500ms or 1.5 (seconds), above zero".to_owned();
    let seconds = if let Some(seconds) = number(text) {
        seconds
    } else {
        let (mut rest, mut total, mut next_unit) = (text, 0.0, 0);
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
            let value = number(&rest[..digits]).ok_or_else(bad)?;
            rest = &rest[digits..];
            let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            let unit = UNITS.iter().position(|(unit, _)| *unit == &rest[..letters]).ok_or_else(bad)?;
            if unit < next_unit {
                return Err(bad());
            }
            total += value * UNITS[unit].1;
            next_unit = unit + 1;
            rest = &rest[letters..];
        }
        total
    };
    if seconds > 0.0 && seconds.is_finite() { Ok(seconds) } else { Err(bad()) }
}

/// Plain digits with at most one point: no sign, no exponent.
fn number(text: &str) -> Option<f64> {
    let is_plain = text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.')
        && !text.ends_with('.');
    if is_plain { text.parse().ok() } else { None }
}

/// A duration as it would be written: `90` is `1m30s`.
pub(crate) fn show_seconds(seconds: f64) -> String {
    let milliseconds = (seconds * 1000.0).round() as u64;
    if milliseconds < 1000 {
        return format!("{milliseconds}ms");
    }
    let (whole, rest) = (milliseconds / 1000, milliseconds % 1000);
    let (hours, minutes, left) = (whole / 3600, whole / 60 % 60, whole % 60);
    let mut text = String::new();
    if hours > 0 {
        text.push_str(&format!("{hours}h"));
    }
    if minutes > 0 {
        text.push_str(&format!("{minutes}m"));
    }
    match (left, rest) {
        (0, 0) => {}
        (left, 0) => text.push_str(&format!("{left}s")),
        (left, rest) => text.push_str(format!("{left}.{rest:03}").trim_end_matches('0')),
    }
    if rest > 0 {
        text.push('s');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{duration, show_seconds};

    #[test]
    fn the_usual_forms_are_taken() {
        for (text, seconds) in [
            ("90s", 90.0),
            ("5m", 300.0),
            ("1h30m", 5400.0),
            ("500ms", 0.5),
            ("1.5", 1.5),
            ("2d", 172_800.0),
            ("1m2s3ms", 62.003),
        ] {
            assert!((duration(text).unwrap() - seconds).abs() < 1e-9, "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "", "0", "0s", "-1", "+1", "1e3", "s", "5x", "5 m", "1m1h", "1s1s", "1.", ".5", "1..2s", "nan", "inf",
            "1µs", "5m ",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seconds_are_shown_normalised() {
        for (seconds, text) in
            [(0.5, "500ms"), (2.0, "2s"), (90.0, "1m30s"), (3600.0, "1h"), (1.25, "1.25s"), (61.5, "1m1.5s")]
        {
            assert_eq!(show_seconds(seconds), text);
        }
    }
}
