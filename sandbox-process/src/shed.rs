//! Gives the host's memory back after a fork: the copy is not needed, would keep the host's old pages (and
//! secrets) alive, would make every further fork as dear as the host is large, and would be counted as the peak
//! memory of each command.

use std::os::fd::RawFd;

use crate::raw;

/// Smaller mappings are kept: they are cheap to copy, and the C library's own data is among them.
const SHED_BYTES_MIN: usize = 1 << 20;

/// Unmaps every large, private, anonymous mapping but those this thread stands on. No allocation, no panic.
///
/// The code that runs afterwards uses its stack, its thread-local error number, constants and mappings of its own.
pub(crate) fn shed_host_memory() {
    let Ok(maps) = raw::open(c"/proc/self/maps") else { return };
    let here = 0u8;
    let keep = [std::ptr::from_ref(&here) as usize, raw::errno_address()];
    // Unmapping changes the list under the reader, so it starts again after each.
    while let Some((start, end)) = next_large(maps, &keep) {
        if !raw::unmap(start, end) {
            break;
        }
        raw::rewind(maps);
    }
    raw::close(maps);
    raw::reset_peak_memory();
}

fn next_large(maps: RawFd, keep: &[usize; 2]) -> Option<(usize, usize)> {
    let mut buffer = [0u8; 4096];
    let mut line = Line::new();
    while let Ok(length @ 1..) = raw::read(maps, &mut buffer) {
        for &byte in buffer.iter().take(length) {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            if line.is_sheddable() && !keep.iter().any(|&address| line.start <= address && address < line.end) {
                return Some((line.start, line.end));
            }
            line = Line::new();
        }
    }
    None
}

/// `start-end rwxp offset device inode name`, parsed byte by byte.
struct Line {
    field: u8,
    in_field: u8,
    start: usize,
    end: usize,
    writable: bool,
    private: bool,
    inode: usize,
    /// The first bytes of the name.
    name: [u8; 6],
    name_length: u8,
}

impl Line {
    fn new() -> Line {
        Line {
            field: 0,
            in_field: 0,
            start: 0,
            end: 0,
            writable: false,
            private: false,
            inode: 0,
            name: [0; 6],
            name_length: 0,
        }
    }

    fn push(&mut self, byte: u8) {
        let separator = if self.field == 0 { b'-' } else { b' ' };
        if self.field < 6 && byte == separator {
            self.field += 1;
            self.in_field = 0;
            return;
        }
        let hex = |value: usize| value.wrapping_mul(16).wrapping_add((byte as char).to_digit(16).unwrap_or(0) as usize);
        match self.field {
            0 => self.start = hex(self.start),
            1 => self.end = hex(self.end),
            2 if self.in_field == 1 => self.writable = byte == b'w',
            2 if self.in_field == 3 => self.private = byte == b'p',
            5 => self.inode = self.inode.wrapping_mul(10).wrapping_add(usize::from(byte.wrapping_sub(b'0'))),
            6 if byte != b' ' => {
                if let Some(slot) = self.name.get_mut(usize::from(self.name_length)) {
                    *slot = byte;
                    self.name_length += 1;
                }
            }
            _ => {}
        }
        self.in_field = self.in_field.saturating_add(1);
    }

    fn is_sheddable(&self) -> bool {
        let named = self.name.get(..usize::from(self.name_length)).unwrap_or(&[]);
        let anonymous = named.is_empty() || named == b"[heap]" || named == b"[anon:";
        self.writable
            && self.private
            && self.inode == 0
            && anonymous
            && self.end.wrapping_sub(self.start) >= SHED_BYTES_MIN
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    fn line(text: &str) -> Line {
        let mut line = Line::new();
        text.bytes().for_each(|byte| line.push(byte));
        line
    }

    #[test]
    fn only_large_private_anonymous_memory_is_given_back() {
        for (text, wanted) in [
            ("7f0000000000-7f0000200000 rw-p 00000000 00:00 0 ", true),
            ("7f0000000000-7f0000200000 rw-p 00000000 00:00 0", true),
            ("5500000000-5500200000 rw-p 00000000 00:00 0                          [heap]", true),
            ("7f0000000000-7f0000200000 rw-p 00000000 00:00 0                    [anon: x y]", true),
            ("7f0000000000-7f0000200000 rw-s 00000000 00:00 0 ", false),
            ("7f0000000000-7f0000200000 r--p 00000000 00:00 0 ", false),
            ("7f0000000000-7f00000ff000 rw-p 00000000 00:00 0 ", false),
            ("7f0000000000-7f0000200000 rw-p 00000000 08:01 77 /usr/lib/libc.so.6", false),
            ("7f0000000000-7f0000200000 rw-p 00000000 00:00 0                          [stack]", false),
        ] {
            assert_eq!(line(text).is_sheddable(), wanted, "{text}");
        }
        let parsed = line("7f00000000ab-7f0000200000 rw-p 00000000 00:00 0 ");
        assert_eq!((parsed.start, parsed.end), (0x7f00_0000_00ab, 0x7f00_0020_0000));
    }
}
