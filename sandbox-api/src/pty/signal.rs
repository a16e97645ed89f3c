use sandbox_core::{Result, SandboxError};

/// The signals of Linux that programs are sent on purpose, and their numbers there.
const SIGNALS: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ABRT", 6),
    ("KILL", 9),
    ("USR1", 10),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("WINCH", 28),
];

/// The number for a name: `INT`, `SIGINT`, in any case.
pub(super) fn number(name: &str) -> Result<i32> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    SIGNALS.iter().find(|(known, _)| *known == bare).map(|(_, number)| *number).ok_or_else(|| {
        let known: Vec<&str> = SIGNALS.iter().map(|(known, _)| *known).collect();
        SandboxError::invalid_input("signal", format!("{name:?} is no signal; signals: {}", known.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn a_signal_has_its_name_with_and_without_its_prefix_in_any_case() {
        for (name, expected) in [("INT", 2), ("SIGINT", 2), ("sigterm", 15), ("Kill", 9), ("WINCH", 28)] {
            assert_eq!(number(name).unwrap(), expected);
        }
        for name in ["", "SIG", "2", "SIGSIGINT", "INTERRUPT"] {
            let error = number(name).unwrap_err();
            assert_eq!(error.field(), Some("signal"));
            assert!(error.to_string().contains("TERM"), "{error}");
        }
    }
}
