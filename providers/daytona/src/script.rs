//! Text for the shell inside: quoting, and whole scripts as one command.

use std::fmt::Write;

/// A word for the shell that stands for exactly these bytes. `name` is a variable that the bytes go through where they
/// are no text.
pub(crate) struct Word {
    /// Lines that come first.
    pub(crate) before: String,
    /// The word itself.
    pub(crate) word: String,
}

/// Quotes text.
pub(crate) fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A word for these bytes.
pub(crate) fn word(name: &str, bytes: &[u8]) -> Word {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Word { before: String::new(), word: quote(text) };
    }
    let mut octal = String::new();
    for byte in bytes {
        let _ = write!(octal, "\\{byte:03o}");
    }
    // The full stop keeps line ends at the end, which `$()` would take away.
    Word { before: format!("{name}=$(printf '{octal}.'); {name}=${{{name}%.}}\n"), word: format!("\"${name}\"") }
}

/// A script as one command, whatever the service's own shell is. `mark` must not be in it.
pub(crate) fn command(mark: &str, script: &str) -> String {
    format!("sh <<'{mark}'\n{script}\n{mark}\n")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{quote, word};

    #[test]
    fn every_byte_string_comes_through_every_shell() {
        let cases: [&[u8]; 8] = [b"", b"a b", b"it's", b"$HOME `id` \\n", b"l\n\n", b"x\xffy\n", b"\xfe'%d\\", b"-n"];
        for shell in ["sh", "bash"] {
            for case in cases {
                let made = word("v", case);
                let script = format!("{}printf %s {}", made.before, made.word);
                let output = Command::new(shell).args(["-c", &script]).output().unwrap();
                assert_eq!(output.stdout, case, "{shell}: {script}");
            }
        }
        assert_eq!(quote("a'b"), "'a'\\''b'");
    }
}
