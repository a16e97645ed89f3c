//! What the build service is sent: a zip archive, as it takes no other, of stored files. The context is in it as the archive
//! that the builder takes, so that modes and links are kept.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
};

use ring::digest::{Context, SHA256};

use crate::key::hex;

/// The most that an archive without further headers holds, in bytes.
pub(super) const CONTEXT_MAX_BYTES: u64 = (4 << 30) - (1 << 20);

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
/// 1980-01-01, the first day that such an archive knows.
const DATE: u16 = 0x21;

/// Writes an archive into a file.
pub(super) struct Archive {
    file: File,
    entries: Vec<Entry>,
    digest: Context,
}

struct Entry {
    name: &'static str,
    at: u32,
    size: u32,
    crc: u32,
}

impl Archive {
    pub(super) fn new(file: File) -> Self {
        Self { file, entries: Vec::new(), digest: Context::new(&SHA256) }
    }

    /// Adds a file with everything that a reader gives.
    pub(super) fn add(&mut self, name: &'static str, mut from: impl Read) -> io::Result<()> {
        let at = self.file.stream_position()?;
        let mut entry = Entry { name, at: small(at)?, size: 0, crc: 0 };
        self.file.write_all(&entry.local())?;
        let (mut crc, mut size) = (u32::MAX, 0_u64);
        let mut chunk = vec![0; 256 << 10];
        self.digest.update(name.as_bytes());
        loop {
            let count = match from.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            size += count as u64;
            if size > CONTEXT_MAX_BYTES {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "has more than an archive of builds holds"));
            }
            crc = chunk[..count].iter().fold(crc, |crc, byte| step(crc, *byte));
            self.digest.update(&chunk[..count]);
            self.file.write_all(&chunk[..count])?;
        }
        self.digest.update(&size.to_le_bytes());
        (entry.size, entry.crc) = (small(size)?, !crc);
        // Now that both are known.
        self.file.seek(SeekFrom::Start(at))?;
        self.file.write_all(&entry.local())?;
        self.file.seek(SeekFrom::End(0))?;
        self.entries.push(entry);
        Ok(())
    }

    /// The SHA-256 of names and contents so far, in hexadecimal digits.
    pub(super) fn digest(&self) -> String {
        hex(self.digest.clone().finish().as_ref())
    }

    /// Ends it.
    pub(super) fn finish(mut self) -> io::Result<()> {
        let begin = self.file.stream_position()?;
        let mut directory = Vec::new();
        for entry in &self.entries {
            entry.central(&mut directory);
        }
        let count = self.entries.len() as u16;
        let mut end = Vec::new();
        put32(&mut end, END);
        put16(&mut end, &[0, 0, count, count]);
        put32(&mut end, small(directory.len() as u64)?);
        put32(&mut end, small(begin)?);
        put16(&mut end, &[0]);
        self.file.write_all(&directory)?;
        self.file.write_all(&end)?;
        self.file.flush()
    }
}

impl Entry {
    /// From the version that is needed to the length of what is additional.
    fn facts(&self, to: &mut Vec<u8>) {
        put16(to, &[20, 0, 0, 0, DATE]);
        for number in [self.crc, self.size, self.size] {
            put32(to, number);
        }
        put16(to, &[self.name.len() as u16, 0]);
    }

    fn local(&self) -> Vec<u8> {
        let mut header = Vec::new();
        put32(&mut header, LOCAL);
        self.facts(&mut header);
        header.extend_from_slice(self.name.as_bytes());
        header
    }

    fn central(&self, to: &mut Vec<u8>) {
        put32(to, CENTRAL);
        // Made on Unix.
        put16(to, &[(3 << 8) | 20]);
        self.facts(to);
        put16(to, &[0, 0, 0]);
        put32(to, 0o100_644 << 16);
        put32(to, self.at);
        to.extend_from_slice(self.name.as_bytes());
    }
}

fn small(number: u64) -> io::Result<u32> {
    u32::try_from(number)
        .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "is too large for an archive of builds"))
}

fn put16(to: &mut Vec<u8>, numbers: &[u16]) {
    numbers.iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
}

fn put32(to: &mut Vec<u8>, number: u32) {
    to.extend_from_slice(&number.to_le_bytes());
}

/// One byte more of a CRC-32.
fn step(crc: u32, byte: u8) -> u32 {
    (crc >> 8) ^ TABLE[((crc ^ u32::from(byte)) & 0xff) as usize]
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let (mut value, mut bit) = (index as u32, 0);
        while bit < 8 {
            value = if value & 1 == 1 { 0xedb8_8320 ^ (value >> 1) } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Archive, step};

    #[test]
    fn the_checksum_is_that_of_its_published_check() {
        assert_eq!(!b"123456789".iter().fold(u32::MAX, |crc, byte| step(crc, *byte)), 0xcbf4_3926);
    }

    #[test]
    fn somebody_elses_program_reads_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.zip");
        let make = |second: &[u8]| {
            let mut archive = Archive::new(std::fs::File::create(&path).unwrap());
            archive.add("argv", &b"a\0b\0"[..]).unwrap();
            archive.add("context.tar", second).unwrap();
            let digest = archive.digest();
            archive.finish().unwrap();
            digest
        };
        let other = make(b"x");
        let large = vec![7_u8; 1_000_000];
        let digest = make(&large);
        assert_eq!((digest.len(), digest == other, digest == make(&large)), (64, false, true));
        let read = "import sys, zipfile\nz = zipfile.ZipFile(sys.argv[1])\nassert z.testzip() is None\n\
                    print(z.namelist(), z.read('argv'), len(z.read('context.tar')))";
        let output = Command::new("python3").args(["-c", read]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(said, "['argv', 'context.tar'] b'a\\x00b\\x00' 1000000\n");
    }
}
