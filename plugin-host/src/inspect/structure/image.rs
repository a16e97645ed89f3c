//! The tables of an ELF file as plain numbers.

use std::fmt;

use object::{
    Endianness, elf,
    read::elf::{ElfFile, FileHeader, ProgramHeader, SectionHeader},
};

use super::broken;
use crate::mismatch::Mismatch;

/// The smallest page there is; what is on one page is mapped together.
pub(super) const PAGE: u64 = 4096;

/// Many times what linkers write; rules that compare each with each stay quick.
const MOST_SEGMENTS: usize = 256;
const MOST_SECTIONS: usize = 1 << 16;
const MOST_ENTRIES: usize = 4096;

/// Everything that the rules look at.
pub(super) struct Image<'a> {
    pub(super) bytes: &'a [u8],
    /// Bytes of an address: 8 or 4.
    pub(super) word: usize,
    pub(super) header: Header,
    pub(super) segments: Vec<Segment>,
    /// None if the section headers were taken away.
    pub(super) sections: Vec<Section>,
    /// The entries before the first `DT_NULL`.
    pub(super) dynamic: Vec<Dynamic>,
}

pub(super) struct Header {
    pub(super) ident: [u8; 16],
    pub(super) machine: elf::Machine,
    pub(super) version: u32,
    pub(super) flags: u32,
    pub(super) entry: u64,
    pub(super) program_headers: u64,
    pub(super) own_bytes: u16,
    pub(super) program_header_bytes: u16,
    pub(super) section_header_bytes: u16,
}

/// A program header.
pub(super) struct Segment {
    pub(super) number: usize,
    pub(super) kind: elf::ProgramType,
    pub(super) flags: u32,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) physical: u64,
    pub(super) file_bytes: u64,
    pub(super) memory_bytes: u64,
    pub(super) align: u64,
}

/// A section header.
pub(super) struct Section {
    pub(super) number: usize,
    pub(super) name: String,
    pub(super) kind: elf::SectionType,
    pub(super) flags: u64,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) info: u32,
    pub(super) align: u64,
}

/// An entry of the dynamic section.
#[derive(Clone, Copy)]
pub(super) struct Dynamic {
    pub(super) tag: elf::DynamicTag,
    pub(super) value: u64,
}

impl<'a> Image<'a> {
    pub(super) fn of<Elf: FileHeader<Endian = Endianness>>(
        file: &ElfFile<'a, Elf>,
        bytes: &'a [u8],
    ) -> Result<Self, Mismatch> {
        let (endian, header) = (file.endian(), file.elf_header());
        let (segments, sections) = (file.elf_program_headers().len(), file.elf_section_table().len());
        if segments > MOST_SEGMENTS || sections > MOST_SECTIONS {
            return Err(broken("the file", "to have few parts", format!("{segments} segments, {sections} sections")));
        }
        let mut ident = [0; 16];
        ident.copy_from_slice(&bytes[..16]);
        let mut image = Self {
            bytes,
            word: if header.is_class_64() { 8 } else { 4 },
            header: Header {
                ident,
                machine: header.e_machine(endian),
                version: header.e_version(endian),
                flags: header.e_flags(endian).0,
                entry: header.e_entry(endian).into(),
                program_headers: header.e_phoff(endian).into(),
                own_bytes: header.e_ehsize(endian),
                program_header_bytes: header.e_phentsize(endian),
                section_header_bytes: header.e_shentsize(endian),
            },
            segments: Vec::new(),
            sections: Vec::new(),
            dynamic: Vec::new(),
        };
        for (number, segment) in file.elf_program_headers().iter().enumerate() {
            image.segments.push(Segment {
                number,
                kind: segment.p_type(endian),
                flags: segment.p_flags(endian).0,
                offset: segment.p_offset(endian).into(),
                address: segment.p_vaddr(endian).into(),
                physical: segment.p_paddr(endian).into(),
                file_bytes: segment.p_filesz(endian).into(),
                memory_bytes: segment.p_memsz(endian).into(),
                align: segment.p_align(endian).into(),
            });
        }
        let table = file.elf_section_table();
        for (index, section) in table.enumerate() {
            let name = table.section_name(endian, section).unwrap_or_default();
            image.sections.push(Section {
                number: index.0,
                name: String::from_utf8_lossy(name).into_owned(),
                kind: section.sh_type(endian),
                flags: section.sh_flags(endian).0,
                offset: section.sh_offset(endian).into(),
                address: section.sh_addr(endian).into(),
                bytes: section.sh_size(endian).into(),
                info: section.sh_info(endian),
                align: section.sh_addralign(endian).into(),
            });
        }
        image.read_dynamic()?;
        Ok(image)
    }

    fn read_dynamic(&mut self) -> Result<(), Mismatch> {
        let mut found = self.segments.iter().filter(|segment| segment.kind == elf::PT_DYNAMIC);
        let (Some(segment), None) = (found.next(), found.next()) else {
            return Err(broken("the program headers", "to have one dynamic section", "none, or several"));
        };
        let table = slice(self.bytes, segment.offset, segment.file_bytes).unwrap_or_default();
        let entries: Vec<Dynamic> = table
            .chunks_exact(self.word * 2)
            .map(|entry| Dynamic {
                tag: elf::DynamicTag(number(&entry[..self.word]).cast_signed()),
                value: number(&entry[self.word..]),
            })
            .collect();
        let Some(end) = entries.iter().position(|entry| entry.tag == elf::DT_NULL) else {
            return Err(broken("the dynamic section", "to end with an empty entry", "none"));
        };
        let (used, rest) = entries.split_at(end);
        // Only the tags: tools that take entries out leave their values behind.
        if let Some(entry) = rest.iter().find(|entry| entry.tag != elf::DT_NULL) {
            let found = format!("the tag {:#x} behind the end", entry.tag.0);
            return Err(broken("the dynamic section", "to end with an empty entry", found));
        }
        if used.len() > MOST_ENTRIES {
            return Err(broken("the dynamic section", "to have few entries", used.len().to_string()));
        }
        self.dynamic = used.to_vec();
        Ok(())
    }

    pub(super) fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| segment.kind == elf::PT_LOAD)
    }

    /// The sections that are in memory while the library is used.
    pub(super) fn allocated(&self) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(|section| section.has(elf::SHF_ALLOC) && section.kind != elf::SHT_NULL)
    }

    /// The value of a tag.
    pub(super) fn value(&self, tag: elf::DynamicTag) -> Option<u64> {
        self.dynamic.iter().find(|entry| entry.tag == tag).map(|entry| entry.value)
    }

    /// The bytes of the file that are mapped there.
    pub(super) fn mapped(&self, address: u64, bytes: u64) -> Option<&'a [u8]> {
        let load = self.loads().find(|load| inside((address, bytes), (load.address, load.file_bytes)))?;
        slice(self.bytes, address - load.address + load.offset, bytes)
    }

    /// Whether these addresses are in a segment that has all of these flags.
    pub(super) fn in_memory(&self, address: u64, bytes: u64, flags: u32) -> bool {
        let mut loads = self.loads().filter(|load| load.flags & flags == flags);
        loads.any(|load| inside((address, bytes), (load.address, load.memory_bytes)))
    }
}

impl Segment {
    /// The segment to load that this one is a part of, in the file and in memory.
    pub(super) fn is_inside(&self, load: &Self) -> bool {
        let shift = self.address.wrapping_sub(self.offset) == load.address.wrapping_sub(load.offset);
        shift
            && inside((self.offset, self.file_bytes), (load.offset, load.file_bytes))
            && inside((self.address, self.memory_bytes), (load.address, load.memory_bytes))
    }
}

impl Section {
    pub(super) fn has(&self, flag: elf::SectionFlags) -> bool {
        self.flags & flag.0 != 0
    }

    pub(super) fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes)
    }

    /// Thread-locals that start as zero: they have no memory but in each thread.
    pub(super) fn is_thread_zeros(&self) -> bool {
        self.has(elf::SHF_TLS) && self.kind == elf::SHT_NOBITS
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "program header {} (type {:#x})", self.number, self.kind.0)
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "section {} ({:?})", self.number, self.name)
    }
}

/// Whether a start and a length lie in another.
pub(super) fn inside((start, bytes): (u64, u64), (outer, outer_bytes): (u64, u64)) -> bool {
    let (end, outer_end) = (start.checked_add(bytes), outer.checked_add(outer_bytes));
    outer <= start && end.zip(outer_end).is_some_and(|(end, outer_end)| end <= outer_end)
}

pub(super) fn slice(bytes: &[u8], offset: u64, length: u64) -> Option<&[u8]> {
    let (start, length) = (usize::try_from(offset).ok()?, usize::try_from(length).ok()?);
    bytes.get(start..start.checked_add(length)?)
}

/// A number in this machine's byte order, which is the file's.
pub(super) fn number(bytes: &[u8]) -> u64 {
    match bytes {
        [a] => u64::from(*a),
        [a, b] => u64::from(u16::from_ne_bytes([*a, *b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([*a, *b, *c, *d])),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
        _ => 0,
    }
}
