const NAMES: [(&str, i32); 16] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("FPE", 8),
    ("KILL", 9),
    ("SEGV", 11),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
];

/// A signal by its name (`TERM`, `SIGTERM`, in any case) or its number.
///
/// # Errors
/// Says which forms are taken.
pub(crate) fn signal(text: &str) -> Result<i32, String> {
    if let Ok(number) = text.parse::<i32>() {
        return if (1..=64).contains(&number) { Ok(number) } else { Err("a signal's number is 1 to 64".to_owned()) };
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map(|(_, number)| *number).ok_or_else(|| "expected a signal such as TERM, SIGKILL or 9".to_owned())
}

#[cfg(test)]
mod tests {
    use super::signal;

    #[test]
    fn names_and_numbers_are_taken() {
        for (text, number) in [("TERM", 15), ("sigkill", 9), ("2", 2), ("64", 64)] {
            assert_eq!(signal(text), Ok(number));
        }
        for bad in ["", "0", "65", "SIG", "NOPE", "-9"] {
            assert!(signal(bad).is_err(), "{bad}");
        }
    }
}
