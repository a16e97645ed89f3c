//! The ELF header.

use object::elf;

use super::{broken, image::Image};
use crate::mismatch::Mismatch;

pub(super) fn check(image: &Image<'_>) -> Result<(), Mismatch> {
    let header = &image.header;
    let rule = |holds: bool, rule: &str, found: String| {
        if holds { Ok(()) } else { Err(broken("the ELF header", rule, found)) }
    };
    let version = header.ident[6];
    rule(version == 1 && header.version == 1, "to have the version 1", format!("{version} and {}", header.version))?;
    let system = header.ident[7];
    let known = [elf::ELFOSABI_NONE.0, elf::ELFOSABI_GNU.0];
    rule(known.contains(&system), "to be of System V or GNU", format!("the system {system}"))?;
    rule(header.ident[8..] == [0; 8], "to be zero after the system", format!("{:02x?}", &header.ident[8..]))?;
    let wide = image.word == 8;
    let expected = if wide { (64, 56, 64) } else { (52, 32, 40) };
    let sizes = (header.own_bytes, header.program_header_bytes, header.section_header_bytes);
    let no_sections = image.sections.is_empty() && (sizes.0, sizes.1) == (expected.0, expected.1);
    rule(sizes == expected || no_sections, "to have the usual sizes", format!("{sizes:?}"))?;
    if matches!(header.machine, elf::EM_X86_64 | elf::EM_AARCH64) {
        rule(header.flags == 0, "to have no flags on this machine", format!("{:#x}", header.flags))?;
    }
    let entry = header.entry;
    let runs = entry == 0 || image.in_memory(entry, 1, elf::PF_X.0);
    rule(runs, "to have its start in code, or none", format!("{entry:#x}"))?;
    let (start, bytes) = table(image);
    rule(start >= u64::from(expected.0), "to be before the program headers", format!("these at {start:#x}"))?;
    // One header more or less than there are would overlap what comes next.
    let covers = |offset: u64, length: u64| offset < start + bytes && start < offset.saturating_add(length);
    match image.sections.iter().find(|section| section.kind != elf::SHT_NOBITS && covers(section.offset, section.bytes))
    {
        Some(section) => Err(broken("the program headers", "to be apart from the sections", section.to_string())),
        None => Ok(()),
    }
}

/// Where the program headers are in the file, and how many bytes.
pub(super) fn table(image: &Image<'_>) -> (u64, u64) {
    let each = u64::from(image.header.program_header_bytes);
    (image.header.program_headers, each * image.segments.len() as u64)
}
