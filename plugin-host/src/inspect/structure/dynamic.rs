//! Which entries the dynamic section has.

use object::elf::{self, DynamicTag};

use super::{broken, image::Image};
use crate::mismatch::Mismatch;

/// Known beyond the numbers below `DT_RELRENT`.
const KNOWN: [DynamicTag; 18] = [
    elf::DT_GNU_HASH,
    elf::DT_GNU_PRELINKED,
    elf::DT_GNU_CONFLICT,
    elf::DT_GNU_CONFLICTSZ,
    elf::DT_GNU_LIBLIST,
    elf::DT_GNU_LIBLISTSZ,
    elf::DT_CHECKSUM,
    elf::DT_TLSDESC_PLT,
    elf::DT_TLSDESC_GOT,
    elf::DT_VERSYM,
    elf::DT_RELACOUNT,
    elf::DT_RELCOUNT,
    elf::DT_FLAGS_1,
    elf::DT_VERDEF,
    elf::DT_VERDEFNUM,
    elf::DT_VERNEED,
    elf::DT_VERNEEDNUM,
    elf::DT_AUXILIARY,
];
/// x86_64: PLT, PLTSZ, PLTENT. aarch64: BTI_PLT, PAC_PLT, VARIANT_PCS.
const OF_PROCESSOR: [i64; 5] = [0x7000_0000, 0x7000_0001, 0x7000_0003, 0x7000_0005, 0x7fff_ffff];
/// Entries that are of use only together.
const TOGETHER: [&[DynamicTag]; 11] = [
    &[elf::DT_STRTAB, elf::DT_STRSZ, elf::DT_SYMTAB, elf::DT_SYMENT],
    &[elf::DT_RELA, elf::DT_RELASZ, elf::DT_RELAENT],
    &[elf::DT_REL, elf::DT_RELSZ, elf::DT_RELENT],
    &[elf::DT_RELR, elf::DT_RELRSZ, elf::DT_RELRENT],
    &[elf::DT_JMPREL, elf::DT_PLTRELSZ, elf::DT_PLTREL],
    &[elf::DT_INIT_ARRAY, elf::DT_INIT_ARRAYSZ],
    &[elf::DT_FINI_ARRAY, elf::DT_FINI_ARRAYSZ],
    &[elf::DT_VERDEF, elf::DT_VERDEFNUM],
    &[elf::DT_VERNEED, elf::DT_VERNEEDNUM],
    &[elf::DT_TLSDESC_PLT, elf::DT_TLSDESC_GOT],
    &[elf::DT_PREINIT_ARRAY, elf::DT_PREINIT_ARRAYSZ],
];
/// ORIGIN, SYMBOLIC, BIND_NOW, STATIC_TLS; not TEXTREL.
const FLAGS: u64 = 0b1_1011;
/// NOW, GLOBAL, GROUP, NODELETE, INITFIRST, ORIGIN, INTERPOSE, NODEFLIB; not NOOPEN, which no plugin can have.
const FLAGS_1: u64 = 0x1 | 0x2 | 0x4 | 0x8 | 0x20 | 0x80 | 0x400 | 0x800;

pub(super) fn check(image: &Image<'_>) -> Result<(), Mismatch> {
    let rule = |holds, rule: &str, found: String| {
        if holds { Ok(()) } else { Err(broken("the dynamic section", rule, found)) }
    };
    for (position, entry) in image.dynamic.iter().enumerate() {
        let tag = entry.tag;
        let low = (1..=elf::DT_RELRENT.0).contains(&tag.0) && tag.0 != 31;
        let known = low || KNOWN.contains(&tag) || OF_PROCESSOR.contains(&tag.0);
        rule(known, "to have known tags", format!("{:#x}", tag.0))?;
        let many = matches!(tag, elf::DT_NEEDED | elf::DT_AUXILIARY | elf::DT_FILTER);
        let again = image.dynamic[..position].iter().any(|other| other.tag == tag);
        rule(many || !again, "to have each tag once", format!("{:#x} twice", tag.0))?;
    }
    rule(image.value(elf::DT_TEXTREL).is_none(), "to leave code as it is", "DT_TEXTREL".to_owned())?;
    let none = image.value(elf::DT_PREINIT_ARRAY).is_none();
    rule(none, "to be that of a library", "DT_PREINIT_ARRAY, which is for programs".to_owned())?;
    for (tag, known) in [(elf::DT_FLAGS, FLAGS), (elf::DT_FLAGS_1, FLAGS_1)] {
        let flags = image.value(tag).unwrap_or_default();
        rule(flags & !known == 0, "to have flags of a library", format!("{flags:#x} for the tag {:#x}", tag.0))?;
    }
    for group in TOGETHER {
        let mut missing = group.iter().filter(|tag| image.value(**tag).is_none());
        if group.iter().any(|tag| image.value(*tag).is_some())
            && let Some(tag) = missing.next()
        {
            return rule(false, "to be complete", format!("no tag {:#x}", tag.0));
        }
    }
    let hash = image.value(elf::DT_HASH).or(image.value(elf::DT_GNU_HASH));
    rule(hash.is_some() && image.value(elf::DT_SYMTAB).is_some(), "to have symbols", "none".to_owned())?;
    let versions = image.value(elf::DT_VERNEED).or(image.value(elf::DT_VERDEF));
    let complete = versions.is_some() == image.value(elf::DT_VERSYM).is_some();
    rule(complete, "to have versions of symbols and their names", "one of them".to_owned())?;
    check_sizes(image)
}

/// Sizes of entries, which the dynamic linker takes for granted.
fn check_sizes(image: &Image<'_>) -> Result<(), Mismatch> {
    let word = image.word as u64;
    let table = image.value(elf::DT_PLTREL);
    let kinds = [elf::DT_RELA.0, elf::DT_REL.0].map(i64::cast_unsigned);
    if let Some(kind) = table.filter(|kind| !kinds.contains(kind)) {
        return Err(broken("the dynamic section", "to say how the PLT is relocated", format!("{kind:#x}")));
    }
    for (tag, each) in [
        (elf::DT_SYMENT, if word == 8 { 24 } else { 16 }),
        (elf::DT_RELAENT, 3 * word),
        (elf::DT_RELENT, 2 * word),
        (elf::DT_RELRENT, word),
    ] {
        if let Some(found) = image.value(tag).filter(|found| *found != each) {
            return Err(broken("the dynamic section", &format!("to have entries of {each} bytes"), format!("{found}")));
        }
    }
    let plt = if table == Some(kinds[0]) { 3 * word } else { 2 * word };
    for (tag, each) in [
        (elf::DT_RELASZ, 3 * word),
        (elf::DT_RELSZ, 2 * word),
        (elf::DT_RELRSZ, word),
        (elf::DT_PLTRELSZ, plt),
        (elf::DT_INIT_ARRAYSZ, word),
        (elf::DT_FINI_ARRAYSZ, word),
    ] {
        if let Some(found) = image.value(tag).filter(|found| !found.is_multiple_of(each)) {
            return Err(broken(
                "the dynamic section",
                &format!("to have tables of {each}-byte entries"),
                format!("{found}"),
            ));
        }
    }
    Ok(())
}
