//! The sections that are mapped, against the segments.

use object::elf;

use super::{
    broken,
    image::{Image, Section, Segment, inside},
};
use crate::mismatch::Mismatch;

pub(super) fn check(image: &Image<'_>) -> Result<(), Mismatch> {
    for section in image.allocated().filter(|section| section.bytes > 0 && !section.is_thread_zeros()) {
        let Some(load) = image.loads().find(|load| holds(load, section)) else {
            let found = format!("{:#x} bytes at {:#x}, none of theirs", section.bytes, section.address);
            return Err(broken(section, "to be a part of a loaded segment", found));
        };
        for (flag, name, needed) in [(elf::SHF_WRITE, "writable", elf::PF_W), (elf::SHF_EXECINSTR, "code", elf::PF_X)] {
            if section.has(flag) && load.flags & needed.0 == 0 {
                return Err(broken(section, &format!("to be {name} in memory"), format!("flags {:#x}", load.flags)));
            }
        }
    }
    // And the other way round for code. (Tools that edit files put tables that are only read into writable segments.)
    for load in image.loads().filter(|load| load.flags & elf::PF_X.0 != 0 && !image.sections.is_empty()) {
        if !image.allocated().any(|section| section.has(elf::SHF_EXECINSTR) && holds(load, section)) {
            return Err(broken(
                load,
                "to have the flags of its sections",
                format!("code, the flags {:#x}", load.flags),
            ));
        }
    }
    Ok(())
}

fn holds(load: &Segment, section: &Section) -> bool {
    let in_memory = inside((section.address, section.bytes), (load.address, load.memory_bytes));
    if section.kind == elf::SHT_NOBITS {
        // Zeros: behind what is in the file.
        return in_memory && section.address >= load.address.saturating_add(load.file_bytes);
    }
    let shift = section.address.wrapping_sub(section.offset) == load.address.wrapping_sub(load.offset);
    in_memory && shift && inside((section.offset, section.bytes), (load.offset, load.file_bytes))
}
