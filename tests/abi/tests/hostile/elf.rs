//! Changes to the headers of a sound library.

use crate::corpus::{Action, Corpus, Verdict};

const HEADER_BYTES: usize = 64;
const E_PHOFF: usize = 0x20;
const E_SHOFF: usize = 0x28;
const E_PHNUM: usize = 0x38;
const E_SHNUM: usize = 0x3c;
const PROGRAM_HEADER_BYTES: usize = 56;
const SECTION_HEADER_BYTES: usize = 64;
const PT_DYNAMIC: u64 = 2;

fn number(bytes: &[u8], position: usize, length: usize) -> usize {
    let mut value = [0; 8];
    value[..length].copy_from_slice(&bytes[position..position + length]);
    usize::try_from(u64::from_le_bytes(value)).expect("a small number")
}

/// The parts of the file that decide what dlopen does: name, first byte, size.
fn places(bytes: &[u8]) -> Vec<(&'static str, usize, usize)> {
    let (program, sections) = (number(bytes, E_PHOFF, 8), number(bytes, E_SHOFF, 8));
    let count = number(bytes, E_PHNUM, 2);
    let dynamic = (0..count).map(|index| program + index * PROGRAM_HEADER_BYTES);
    let dynamic = dynamic.into_iter().find(|at| number(bytes, *at, 4) as u64 == PT_DYNAMIC);
    let dynamic = dynamic.expect("a shared library has a dynamic section");
    vec![
        ("ELF header", 0, HEADER_BYTES),
        ("program headers", program, count * PROGRAM_HEADER_BYTES),
        ("section headers", sections, number(bytes, E_SHNUM, 2) * SECTION_HEADER_BYTES),
        ("dynamic section", number(bytes, dynamic + 8, 8), number(bytes, dynamic + 32, 8)),
        ("rest", 0, bytes.len()),
    ]
}

/// Which bits are flipped: the same ones in every run.
pub(crate) fn flips(bytes: &[u8]) -> Vec<(&'static str, usize, u32)> {
    const EACH: usize = 16;
    let mut random = Random(0x05ee_d0fa_b100);
    let mut flips = Vec::new();
    for (name, start, size) in places(bytes) {
        for _ in 0..EACH {
            flips.push((name, start + random.below(size), random.below(8) as u32));
        }
    }
    flips
}

/// xorshift: the quality does not matter, that it is the same does.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(256) as u8).collect()
    }
}

/// Headers that say something else.
pub(crate) fn add(corpus: &mut Corpus) {
    let changes: [(&str, usize, &[u8], Verdict); 17] = [
        ("another magic", 0, b"\x7fELG", Verdict::refused("format", "another kind")),
        ("32 bit", 4, &[1], Verdict::RefusedUnrun),
        ("no class", 4, &[0], Verdict::RefusedUnrun),
        ("class 9", 4, &[9], Verdict::RefusedUnrun),
        ("big endian", 5, &[2], Verdict::refused("format", "byte order")),
        ("no byte order", 5, &[0], Verdict::RefusedUnrun),
        ("ELF version 0", 6, &[0], Verdict::RefusedUnrun),
        ("an object file", 16, &[1, 0], Verdict::refused("format", "an object file")),
        ("a program", 16, &[2, 0], Verdict::refused("format", "a program")),
        ("a core dump", 16, &[4, 0], Verdict::refused("format", "a core dump")),
        ("type 0", 16, &[0, 0], Verdict::refused("format", "type 0")),
        ("aarch64", 18, &[183, 0], Verdict::refused("format", "Aarch64")),
        ("i386", 18, &[3, 0], Verdict::RefusedUnrun),
        ("machine 65535", 18, &[255, 255], Verdict::RefusedUnrun),
        ("program headers far away", E_PHOFF, &[255; 8], Verdict::RefusedUnrun),
        ("section headers far away", E_SHOFF, &[255; 8], Verdict::RefusedUnrun),
        ("65535 program headers", E_PHNUM, &[255, 255], Verdict::RefusedUnrun),
    ];
    for (name, position, change, verdict) in changes {
        let mut bytes = corpus.sound.to_vec();
        bytes[position..position + change.len()].copy_from_slice(change);
        corpus.bytes("headers", name, bytes, Action::Load, verdict);
    }
    // Each program header in turn promises more than the file has.
    let program = number(corpus.sound, E_PHOFF, 8);
    let too_many = (corpus.sound.len() as u64 * 2).to_le_bytes();
    for index in 0..number(corpus.sound, E_PHNUM, 2) {
        let size = program + index * PROGRAM_HEADER_BYTES + 32;
        if number(corpus.sound, size, 8) > 0 {
            let mut bytes = corpus.sound.to_vec();
            bytes[size..size + 8].copy_from_slice(&too_many);
            let name = format!("program header {index} longer than the file");
            corpus.bytes("headers", name, bytes, Action::Load, Verdict::refused("bounds", "segment"));
        }
    }
}
