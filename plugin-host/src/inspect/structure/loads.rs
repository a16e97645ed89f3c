//! The segments that are mapped.

use object::elf;

use super::{
    broken,
    image::{Image, PAGE, Section, Segment},
};
use crate::mismatch::Mismatch;

/// More than any linker asks for: huge pages.
const MAX_ALIGN: u64 = 2 << 20;
/// Zeros that a library without section headers may ask for.
const MAX_ZEROS: u64 = 1 << 30;

pub(super) fn check(image: &Image<'_>) -> Result<(), Mismatch> {
    let mut before: Option<&Segment> = None;
    for load in image.loads() {
        check_one(load)?;
        if let Some(before) = before {
            // Pages are mapped as a whole: the later segment would replace a page of the earlier one.
            let start = load.address & !(PAGE - 1);
            let end = before.address.saturating_add(before.memory_bytes);
            if start < end {
                return Err(broken(
                    load,
                    "to be behind the one before",
                    format!("{start:#x}, and {end:#x} as its end"),
                ));
            }
        }
        before = Some(load);
    }
    let Some((first, last)) = image.loads().next().zip(before) else {
        return Err(broken("the program headers", "to have a segment to load", "none"));
    };
    check_span(image, first, last)
}

fn check_one(load: &Segment) -> Result<(), Mismatch> {
    let rule = |holds: bool, rule: &str, found: String| if holds { Ok(()) } else { Err(broken(load, rule, found)) };
    let Segment { flags, align, address, offset, physical, .. } = *load;
    let known = (elf::PF_R | elf::PF_W | elf::PF_X).0;
    rule(flags & !known == 0 && flags & elf::PF_R.0 != 0, "to be readable", format!("the flags {flags:#x}"))?;
    let both = (elf::PF_W | elf::PF_X).0;
    rule(flags & both != both, "not to be writable and code at once", format!("the flags {flags:#x}"))?;
    let usual = align.is_power_of_two() && (PAGE..=MAX_ALIGN).contains(&align);
    rule(usual, "to have an alignment between a page and 2 MiB", format!("{align:#x}"))?;
    let congruent = address.wrapping_sub(offset) & (align - 1) == 0;
    rule(congruent, "to be aligned alike in file and memory", format!("{offset:#x} and {address:#x}"))?;
    rule(physical == address || physical == 0, "to have one address", format!("{address:#x} and {physical:#x}"))?;
    let (file, memory) = (load.file_bytes, load.memory_bytes);
    rule(0 < memory && file <= memory, "to be in memory as a whole", format!("{memory} of {file} bytes"))?;
    let end = address.checked_add(memory).filter(|end| *end < 1 << 46);
    rule(end.is_some(), "to have an address", format!("{address:#x} and {memory:#x} bytes"))
}

/// So much address space is reserved at once.
fn check_span(image: &Image<'_>, first: &Segment, last: &Segment) -> Result<(), Mismatch> {
    let span = last.address + last.memory_bytes - first.address;
    let sections = image.allocated().filter(|section| !section.is_thread_zeros());
    let most = match sections.map(Section::end).max() {
        Some(end) => end.saturating_sub(first.address).saturating_add(last.align),
        None => (image.bytes.len() as u64).saturating_add(MAX_ZEROS),
    };
    if span <= most {
        return Ok(());
    }
    Err(broken("the segments", &format!("to take at most {most:#x} bytes of memory"), format!("{span:#x}")))
}
