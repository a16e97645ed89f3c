use std::{
    ffi::{OsStr, OsString},
    fmt,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

use sandbox_core::ByteString;

use crate::{environment, failure::Failure};

/// `KEY=VALUE`, or `KEY` for a copy of ours. Any bytes but NUL.
#[derive(Clone)]
pub(crate) struct EnvArgument {
    name: String,
    value: Option<ByteString>,
}

impl fmt::Debug for EnvArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EnvArgument({})", self.name)
    }
}

impl EnvArgument {
    /// Name and value; none for a copy of a variable that we do not have.
    pub(crate) fn resolve(self) -> Option<(String, ByteString)> {
        let value = self.value.or_else(|| environment::raw(&self.name).map(ByteString::from))?;
        Some((self.name, value))
    }

    /// Reads one. Not a value parser of clap, whose errors would repeat the value.
    ///
    /// # Errors
    /// Says which form is taken, never what was given.
    pub(crate) fn parse(text: &OsStr) -> Result<Self, String> {
        let bytes = text.as_bytes();
        let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
            Some(at) => (&bytes[..at], Some(ByteString::new(&bytes[at + 1..]))),
            None => (bytes, None),
        };
        let name = std::str::from_utf8(name).map_err(|_| "the name is not UTF-8".to_owned())?;
        if name.is_empty() {
            return Err("expected KEY=VALUE, or KEY for a copy of your own".to_owned());
        }
        Ok(Self { name: name.to_owned(), value })
    }
}

/// Variables in a file: `KEY=VALUE`, or `KEY` for a copy; empty lines and those that start with `#` are left out. As with
/// docker, nothing is quoted and nothing is expanded.
///
/// # Errors
/// Usage, naming the file and the line, never what stands there.
pub(crate) fn read_env_file(path: &Path) -> Result<Vec<EnvArgument>, Failure> {
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::usage(format!("cannot read the env file {}", path.display())).because(error).with_field("--env-file")
    })?;
    let mut variables = Vec::new();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let line = line.trim_ascii_start();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let variable = EnvArgument::parse(&OsString::from_vec(line.to_vec())).map_err(|message| {
            Failure::usage(format!("{}, line {}: {message}", path.display(), index + 1)).with_field("--env-file")
        })?;
        variables.push(variable);
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::read_env_file;

    #[test]
    fn an_env_file_is_read_line_by_line_and_its_errors_show_no_value() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("env");
        std::fs::write(&path, "# note\nA=1\r\n\n  B=x=y # z\nHOME\nNOT_SET_ANYWHERE\n").unwrap();
        let variables: Vec<_> = read_env_file(&path).unwrap().into_iter().filter_map(|v| v.resolve()).collect();
        assert_eq!(variables[0].0, "A");
        assert_eq!(variables[0].1, "1");
        assert_eq!(variables[1].1, "x=y # z");
        assert_eq!(variables.len(), 2 + usize::from(std::env::var_os("HOME").is_some()));
        std::fs::write(&path, "A=1\n=canary\n").unwrap();
        let failure = read_env_file(&path).unwrap_err();
        assert!(failure.message().contains("line 2") && !format!("{failure:?}").contains("canary"));
    }
}
