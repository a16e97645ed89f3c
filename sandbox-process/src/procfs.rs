//! Reads `/proc` with fixed buffers only. Usable between `fork` and `exec`.

use std::ffi::CStr;

use libc::pid_t;

use crate::raw;

/// A path below `/proc` in a fixed buffer, always NUL-terminated.
pub(crate) struct ProcPath {
    bytes: [u8; 64],
    length: usize,
}

impl ProcPath {
    pub(crate) fn new() -> ProcPath {
        ProcPath { bytes: [0; 64], length: 0 }.text(b"/proc")
    }

    /// Appends text. What does not fit is cut off, which makes the path one that does not exist.
    pub(crate) fn text(mut self, text: &[u8]) -> ProcPath {
        for &byte in text {
            if self.length < 63
                && let Some(slot) = self.bytes.get_mut(self.length)
            {
                *slot = byte;
                self.length += 1;
            }
        }
        self
    }

    /// Appends a slash and a number.
    pub(crate) fn number(self, number: pid_t) -> ProcPath {
        let mut digits = [0u8; 12];
        let mut at = digits.len();
        let mut rest = number.unsigned_abs();
        loop {
            at = at.saturating_sub(1);
            if let Some(slot) = digits.get_mut(at) {
                *slot = b'0' + (rest % 10) as u8;
            }
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        self.text(b"/").text(digits.get(at..).unwrap_or(&[]))
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

/// The directory entry at `at` of a `getdents64` buffer: its name as a number, if it is one, and where the next
/// one starts.
pub(crate) fn next_numeric_entry(buffer: &[u8], at: usize, length: usize) -> Option<(Option<pid_t>, usize)> {
    // u64 inode, i64 offset, u16 record length, u8 type, then the name.
    let record = buffer.get(at..length)?;
    let size = u16::from_ne_bytes(record.get(16..18)?.try_into().ok()?);
    if size < 20 {
        return None;
    }
    let mut number: Option<pid_t> = None;
    for &byte in record.get(19..usize::from(size))? {
        match byte {
            0 => break,
            b'0'..=b'9' => {
                number = Some(number.unwrap_or(0).wrapping_mul(10).wrapping_add(pid_t::from(byte - b'0')));
            }
            _ => {
                number = None;
                break;
            }
        }
    }
    Some((number, at.wrapping_add(usize::from(size))))
}

/// The parent of `pid`, or `None` when it is gone.
pub(crate) fn parent_of(pid: pid_t, buffer: &mut [u8]) -> Option<pid_t> {
    let file = raw::open(ProcPath::new().number(pid).text(b"/stat").as_c_str()).ok()?;
    let length = raw::read(file, buffer);
    raw::close(file);
    parse_parent(buffer.get(..length.ok()?)?)
}

/// `pid (name, any bytes) state parent …`: the name ends at the last parenthesis.
fn parse_parent(stat: &[u8]) -> Option<pid_t> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let mut parent: Option<pid_t> = None;
    for &byte in stat.get(name_end.checked_add(4)?..)? {
        if !byte.is_ascii_digit() {
            break;
        }
        parent = Some(parent.unwrap_or(0).wrapping_mul(10).wrapping_add(pid_t::from(byte - b'0')));
    }
    parent
}

#[cfg(test)]
mod tests {
    use super::{ProcPath, next_numeric_entry, parent_of, parse_parent};

    #[test]
    fn paths_are_written_without_allocation_and_never_overflow() {
        let path = ProcPath::new().number(42).text(b"/task").number(0).text(b"/children");
        assert_eq!(path.as_c_str(), c"/proc/42/task/0/children");
        let long = ProcPath::new().text(&[b'x'; 200]);
        assert_eq!(long.as_c_str().to_bytes().len(), 63);
    }

    #[test]
    fn the_parent_is_read_behind_a_hostile_name() {
        assert_eq!(parse_parent(b"12 (a) S 99 (b) R 77 1 1"), Some(77));
        assert_eq!(parse_parent(b"12 (a) S"), None);
        assert_eq!(parse_parent(b""), None);
        assert_eq!(
            parent_of(std::process::id() as i32, &mut [0; 512]),
            Some(std::os::unix::process::parent_id() as i32)
        );
    }

    #[test]
    fn a_cut_off_directory_record_ends_the_listing() {
        let mut record = vec![0u8; 24];
        record[16..18].copy_from_slice(&24u16.to_ne_bytes());
        record[19..22].copy_from_slice(b"731");
        assert_eq!(next_numeric_entry(&record, 0, 24), Some((Some(731), 24)));
        assert_eq!(next_numeric_entry(&record, 24, 24), None);
        assert_eq!(next_numeric_entry(&record, 0, 20), None);
        record[16..18].copy_from_slice(&0u16.to_ne_bytes());
        assert_eq!(next_numeric_entry(&record, 0, 24), None);
    }
}
