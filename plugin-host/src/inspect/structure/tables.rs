//! Where the dynamic section says that the tables are, against the sections that hold them.

use object::elf::{self, DynamicTag, SectionType};

use super::{
    broken,
    image::{Image, Section},
};
use crate::mismatch::Mismatch;

/// Type of a section, the tag of its address, and that of its size.
const BY_TYPE: [(SectionType, DynamicTag, Option<DynamicTag>); 9] = [
    (elf::SHT_DYNSYM, elf::DT_SYMTAB, None),
    (elf::SHT_HASH, elf::DT_HASH, None),
    (elf::SHT_GNU_HASH, elf::DT_GNU_HASH, None),
    (elf::SHT_INIT_ARRAY, elf::DT_INIT_ARRAY, Some(elf::DT_INIT_ARRAYSZ)),
    (elf::SHT_FINI_ARRAY, elf::DT_FINI_ARRAY, Some(elf::DT_FINI_ARRAYSZ)),
    (elf::SHT_GNU_VERSYM, elf::DT_VERSYM, None),
    (elf::SHT_GNU_VERDEF, elf::DT_VERDEF, None),
    (elf::SHT_GNU_VERNEED, elf::DT_VERNEED, None),
    (elf::SHT_RELR, elf::DT_RELR, Some(elf::DT_RELRSZ)),
];
/// Tag of a table and its size, and whether it is in memory that is written to.
const BY_SIZE: [(DynamicTag, DynamicTag); 7] = [
    (elf::DT_STRTAB, elf::DT_STRSZ),
    (elf::DT_RELA, elf::DT_RELASZ),
    (elf::DT_REL, elf::DT_RELSZ),
    (elf::DT_JMPREL, elf::DT_PLTRELSZ),
    (elf::DT_RELR, elf::DT_RELRSZ),
    (elf::DT_INIT_ARRAY, elf::DT_INIT_ARRAYSZ),
    (elf::DT_FINI_ARRAY, elf::DT_FINI_ARRAYSZ),
];

pub(super) fn check(image: &Image<'_>) -> Result<(), Mismatch> {
    for (tag, size) in BY_SIZE {
        if let Some((address, bytes)) = image.value(tag).zip(image.value(size))
            && bytes > 0
            && image.mapped(address, bytes).is_none()
        {
            return Err(entry(tag, "to be a table in the file", format!("{bytes} bytes at {address:#x}")));
        }
    }
    for (tag, _) in BY_TYPE.iter().map(|(_, tag, size)| (*tag, size)).filter(|(_, size)| size.is_none()) {
        if let Some(address) = image.value(tag)
            && image.mapped(address, 1).is_none()
        {
            return Err(entry(tag, "to be a table in the file", format!("{address:#x}")));
        }
    }
    if image.sections.is_empty() {
        return Ok(());
    }
    for (kind, tag, size) in BY_TYPE {
        check_section(image, kind, tag, size)?;
    }
    for (tag, kind) in [(elf::DT_VERNEEDNUM, elf::SHT_GNU_VERNEED), (elf::DT_VERDEFNUM, elf::SHT_GNU_VERDEF)] {
        let section = image.allocated().find(|section| section.kind == kind);
        if let Some((count, section)) = image.value(tag).zip(section)
            && count != u64::from(section.info)
        {
            return Err(entry(tag, &format!("to be {}, as {section} says", section.info), count.to_string()));
        }
    }
    check_strings(image)?;
    check_relocations(image)?;
    check_got(image)
}

/// Exactly one section of that type, and its tag, or none of either.
fn check_section(
    image: &Image<'_>,
    kind: SectionType,
    tag: DynamicTag,
    size: Option<DynamicTag>,
) -> Result<(), Mismatch> {
    let sections: Vec<&Section> =
        image.allocated().filter(|section| section.kind == kind && section.bytes > 0).collect();
    let address = image.value(tag);
    let bytes = size.and_then(|size| image.value(size)).unwrap_or_default();
    let same = |section: &Section| address == Some(section.address) && (size.is_none() || bytes == section.bytes);
    match sections.as_slice() {
        [] if address.is_none() || (size.is_some() && bytes == 0) => Ok(()),
        [section] if same(section) => Ok(()),
        [section, ..] => {
            let found = address.map_or("none".to_owned(), |address| format!("{address:#x} and {bytes} bytes"));
            Err(entry(tag, &format!("to be the {section}"), found))
        }
        [] => Err(entry(tag, "to be a section", format!("{:#x} without one", address.unwrap_or_default()))),
    }
}

fn check_strings(image: &Image<'_>) -> Result<(), Mismatch> {
    let (address, bytes) = (image.value(elf::DT_STRTAB), image.value(elf::DT_STRSZ));
    let mut strings = image.allocated().filter(|section| section.kind == elf::SHT_STRTAB);
    if strings.any(|section| address == Some(section.address) && bytes == Some(section.bytes)) {
        return Ok(());
    }
    let found = format!("{:#x} bytes at {:#x}", bytes.unwrap_or_default(), address.unwrap_or_default());
    Err(entry(elf::DT_STRTAB, "to be a section of strings", found))
}

/// A table may be of several sections; each section is of a table.
fn check_relocations(image: &Image<'_>) -> Result<(), Mismatch> {
    let sections: Vec<&Section> = image
        .allocated()
        .filter(|section| matches!(section.kind, elf::SHT_RELA | elf::SHT_REL) && section.bytes > 0)
        .collect();
    let mut covered = Vec::new();
    for (tag, size) in
        [(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_REL, elf::DT_RELSZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)]
    {
        let Some((start, bytes)) = image.value(tag).zip(image.value(size)).filter(|(_, bytes)| *bytes > 0) else {
            continue;
        };
        let end = start.saturating_add(bytes);
        let starts = sections.iter().any(|section| section.address == start);
        if !starts || !sections.iter().any(|section| section.end() == end) {
            return Err(entry(tag, "to be whole sections", format!("{start:#x} to {end:#x}")));
        }
        covered.push(start..end);
    }
    match sections.iter().find(|section| !covered.iter().any(|range| range.contains(&section.address))) {
        Some(section) => Err(broken(section, "to be in the dynamic section", "nothing of it")),
        None => Ok(()),
    }
}

/// glibc writes to the start of the GOT.
fn check_got(image: &Image<'_>) -> Result<(), Mismatch> {
    let Some(address) = image.value(elf::DT_PLTGOT) else { return Ok(()) };
    let mut named = image.allocated().filter(|section| section.name.starts_with(".got") || section.name == ".plt");
    if named.any(|section| section.address == address) {
        return Ok(());
    }
    Err(entry(elf::DT_PLTGOT, "to be the start of .got or .got.plt", format!("{address:#x}")))
}

pub(super) fn entry(tag: DynamicTag, rule: &str, found: String) -> Mismatch {
    broken(format_args!("the dynamic tag {:#x}", tag.0), rule, found)
}
