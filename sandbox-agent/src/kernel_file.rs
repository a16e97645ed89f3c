//! Short files that the kernel makes up.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

const LENGTH: usize = 4096;

/// What is in one. Such a file has no size, so the standard library would begin with a few bytes and ask for ever more.
pub(crate) fn read(path: impl AsRef<Path>) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::with_capacity(LENGTH);
    let mut buffer = [0; LENGTH];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_reads_what_the_standard_library_reads() {
        for path in ["/proc/self/cgroup", "/proc/self/mountinfo", "/proc/self/limits", "/proc/kallsyms"] {
            assert_eq!(super::read(path).unwrap(), std::fs::read_to_string(path).unwrap(), "{path}");
        }
        assert!(super::read("/proc/self/none").is_err());
    }
}
