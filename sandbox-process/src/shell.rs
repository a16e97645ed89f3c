//! Scripts of any length for `shell -c`.

use std::os::fd::{OwnedFd, RawFd};

use crate::error::StartError;
use crate::prepare::STRING_BYTES_MAX;
use crate::raw::Errno;
use crate::sys;
use crate::wire::Stage;

/// Where a long script's file is. One digit, because dash redirects no larger numbers.
pub(crate) const SCRIPT_FD: RawFd = 9;
/// Sources the script. The shell opens the file a second time, so descriptor 9 itself can be closed at once.
const SOURCE_TEXT: &[u8] = b". /proc/self/fd/9";
/// In front of the script, on its first line so that line numbers stay right.
const CLOSE_TEXT: &[u8] = b"exec 9<&-; ";

/// The argument behind `-c`, and the file it needs on [`SCRIPT_FD`].
pub(crate) fn script_argument(script: &[u8]) -> Result<(Vec<u8>, Option<OwnedFd>), StartError> {
    if script.contains(&0) {
        return Err(StartError::invalid("script", "has a NUL byte"));
    }
    if script.len() <= STRING_BYTES_MAX {
        return Ok((script.to_vec(), None));
    }
    let content = [CLOSE_TEXT, script].concat();
    let file = sys::memory_file(c"script", &content)
        .map_err(|error| StartError::from_errno(Stage::Prepare, Errno(error.raw_os_error().unwrap_or(libc::EIO))))?;
    Ok((SOURCE_TEXT.to_vec(), Some(file)))
}

#[cfg(test)]
mod tests {
    use super::script_argument;
    use crate::prepare::STRING_BYTES_MAX;

    #[test]
    fn a_script_goes_into_a_file_exactly_when_it_does_not_fit() {
        let fits = vec![b':'; STRING_BYTES_MAX];
        let (text, file) = script_argument(&fits).expect("fits");
        assert_eq!(text, fits);
        assert!(file.is_none());
        let (text, file) = script_argument(&vec![b':'; STRING_BYTES_MAX + 1]).expect("goes into a file");
        assert!(text.len() < 100);
        assert!(file.is_some());
        assert!(script_argument(b"echo \0").is_err());
    }
}
