//! What the dynamic linker writes where.

use std::{collections::BTreeMap, ops::Range};

use object::elf;

use super::{
    broken,
    image::{Image, Segment, inside, number},
};
use crate::mismatch::Mismatch;

/// What came of the pass over all of them.
pub(super) struct Relocated {
    pub(super) count: usize,
    /// Address of a function in one of the arrays of functions → what it becomes, if that can be told.
    pub(super) functions: BTreeMap<u64, Option<u64>>,
}

/// What a type does.
#[derive(PartialEq)]
enum Kind {
    Nothing,
    /// The load address and the addend.
    Relative,
    /// The value of a symbol, or a part of it.
    Symbol,
    /// What a function of this library says.
    Call,
}

struct Pass<'a> {
    image: &'a Image<'a>,
    symbols: u64,
    writable: Vec<&'a Segment>,
    arrays: Vec<Range<u64>>,
    found: Relocated,
}

pub(super) fn check(image: &Image<'_>, symbols: u64) -> Result<Relocated, Mismatch> {
    let array = |tag, size| {
        let (start, bytes) = image.value(tag).zip(image.value(size))?;
        Some(start..start.saturating_add(bytes))
    };
    let arrays = [array(elf::DT_INIT_ARRAY, elf::DT_INIT_ARRAYSZ), array(elf::DT_FINI_ARRAY, elf::DT_FINI_ARRAYSZ)];
    let mut pass = Pass {
        image,
        symbols,
        writable: image.loads().filter(|load| load.flags & elf::PF_W.0 != 0).collect(),
        arrays: arrays.into_iter().flatten().collect(),
        found: Relocated { count: 0, functions: BTreeMap::new() },
    };
    let with_addend = image.value(elf::DT_PLTREL) == Some(elf::DT_RELA.0.cast_unsigned());
    for (tag, size, with_addend) in [
        (elf::DT_RELA, elf::DT_RELASZ, true),
        (elf::DT_REL, elf::DT_RELSZ, false),
        (elf::DT_JMPREL, elf::DT_PLTRELSZ, with_addend),
    ] {
        let table = image.value(tag).zip(image.value(size)).and_then(|(at, bytes)| image.mapped(at, bytes));
        let table = table.unwrap_or_default();
        let count = if tag == elf::DT_RELA { elf::DT_RELACOUNT } else { elf::DT_RELCOUNT };
        let relative = if tag == elf::DT_JMPREL { None } else { image.value(count) };
        pass.table(table, with_addend, relative.unwrap_or_default())?;
    }
    pass.packed()?;
    Ok(pass.found)
}

impl Pass<'_> {
    /// The first `relative` ones are handled without looking at their type.
    fn table(&mut self, table: &[u8], with_addend: bool, relative: u64) -> Result<(), Mismatch> {
        let word = self.image.word;
        let each = if with_addend { 3 * word } else { 2 * word };
        let entries = table.chunks_exact(each);
        if relative > entries.len() as u64 {
            let found = format!("{relative} of {}", entries.len());
            return Err(broken("the relocations", "to be as many as are relative", found));
        }
        for (index, entry) in entries.enumerate() {
            let (offset, info) = (number(&entry[..word]), number(&entry[word..2 * word]));
            let (symbol, kind) = if word == 8 { (info >> 32, info & 0xffff_ffff) } else { (info >> 8, info & 0xff) };
            let addend = if with_addend { Some(number(&entry[2 * word..])) } else { None };
            self.found.count += 1;
            let wrong = |rule: &str, found: String| {
                Err(broken(format_args!("the relocation {index} at {offset:#x}"), rule, found))
            };
            let Some((action, bytes)) = self.kind(kind) else {
                return wrong("to be of a type for libraries", format!("the type {kind}"));
            };
            if (index as u64) < relative && !(action == Kind::Relative && symbol == 0) {
                return wrong("to be relative", format!("the type {kind}"));
            }
            if action == Kind::Nothing {
                continue;
            }
            if symbol >= self.symbols {
                return wrong("to be for a symbol", format!("{symbol} of {}", self.symbols));
            }
            if !self.is_writable(offset, bytes) {
                return wrong("to change what is writable", "an address that is not".to_owned());
            }
            match addend {
                Some(addend) if action == Kind::Call && !self.image.in_memory(addend, 1, elf::PF_X.0) => {
                    return wrong("to ask a function", format!("{addend:#x}"));
                }
                _ => {}
            }
            if self.arrays.iter().any(|array| array.contains(&offset)) {
                let value = addend.filter(|_| action == Kind::Relative);
                self.found.functions.insert(offset, value);
            }
        }
        Ok(())
    }

    /// `DT_RELR`: an address, then bits for the words behind it.
    fn packed(&mut self) -> Result<(), Mismatch> {
        let (image, word) = (self.image, self.image.word as u64);
        let table = image.value(elf::DT_RELR).zip(image.value(elf::DT_RELRSZ));
        let table = table.and_then(|(at, bytes)| image.mapped(at, bytes)).unwrap_or_default();
        let mut next = None;
        for entry in table.chunks_exact(image.word).map(number) {
            if entry & 1 == 0 {
                self.packed_one(entry)?;
                next = entry.checked_add(word);
                continue;
            }
            let Some(base) = next else {
                return Err(broken("the packed relocations", "to start with an address", format!("{entry:#x}")));
            };
            for bit in (1..word * 8).filter(|bit| entry >> bit & 1 == 1) {
                self.packed_one(base.wrapping_add((bit - 1) * word))?;
            }
            next = base.checked_add((word * 8 - 1) * word);
        }
        Ok(())
    }

    fn packed_one(&mut self, address: u64) -> Result<(), Mismatch> {
        let word = self.image.word as u64;
        self.found.count += 1;
        if !self.is_writable(address, word) {
            return Err(broken("the packed relocations", "to change what is writable", format!("{address:#x}")));
        }
        if self.arrays.iter().any(|array| array.contains(&address)) {
            self.found.functions.insert(address, self.image.mapped(address, word).map(number));
        }
        Ok(())
    }

    fn is_writable(&self, address: u64, bytes: u64) -> bool {
        self.writable.iter().any(|load| inside((address, bytes), (load.address, load.memory_bytes)))
    }

    /// What a type does, and how many bytes it writes. Every type is taken as known on other machines.
    fn kind(&self, kind: u64) -> Option<(Kind, u64)> {
        let kind = u32::try_from(kind).ok()?;
        match self.image.header.machine {
            elf::EM_X86_64 => Some(match elf::RelocationType(kind) {
                elf::R_X86_64_NONE => (Kind::Nothing, 0),
                elf::R_X86_64_RELATIVE | elf::R_X86_64_RELATIVE64 => (Kind::Relative, 8),
                elf::R_X86_64_IRELATIVE => (Kind::Call, 8),
                elf::R_X86_64_64
                | elf::R_X86_64_GLOB_DAT
                | elf::R_X86_64_JUMP_SLOT
                | elf::R_X86_64_DTPMOD64
                | elf::R_X86_64_DTPOFF64
                | elf::R_X86_64_TPOFF64
                | elf::R_X86_64_SIZE64 => (Kind::Symbol, 8),
                elf::R_X86_64_TLSDESC => (Kind::Symbol, 16),
                elf::R_X86_64_32 | elf::R_X86_64_PC32 | elf::R_X86_64_SIZE32 => (Kind::Symbol, 4),
                _ => return None,
            }),
            elf::EM_AARCH64 => Some(match elf::RelocationType(kind) {
                elf::R_AARCH64_NONE => (Kind::Nothing, 0),
                elf::R_AARCH64_RELATIVE => (Kind::Relative, 8),
                elf::R_AARCH64_IRELATIVE => (Kind::Call, 8),
                elf::R_AARCH64_ABS64
                | elf::R_AARCH64_GLOB_DAT
                | elf::R_AARCH64_JUMP_SLOT
                | elf::R_AARCH64_TLS_DTPMOD
                | elf::R_AARCH64_TLS_DTPREL
                | elf::R_AARCH64_TLS_TPREL => (Kind::Symbol, 8),
                elf::R_AARCH64_TLSDESC => (Kind::Symbol, 16),
                elf::R_AARCH64_ABS32 | elf::R_AARCH64_PREL32 => (Kind::Symbol, 4),
                _ => return None,
            }),
            _ => Some((if kind == 0 { Kind::Nothing } else { Kind::Symbol }, 1)),
        }
    }
}
