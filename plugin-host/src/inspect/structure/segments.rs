//! The program headers that describe a part of what is mapped.

use object::elf;

use super::{
    broken, header,
    image::{Image, PAGE, Section, Segment, inside, number, slice},
};
use crate::mismatch::Mismatch;

/// Each of them at most once.
const SINGLE: [elf::ProgramType; 8] = [
    elf::PT_DYNAMIC,
    elf::PT_INTERP,
    elf::PT_PHDR,
    elf::PT_TLS,
    elf::PT_GNU_EH_FRAME,
    elf::PT_GNU_STACK,
    elf::PT_GNU_RELRO,
    elf::PT_GNU_PROPERTY,
];

pub(super) fn check(image: &Image<'_>) -> Result<(), Mismatch> {
    for (position, segment) in image.segments.iter().enumerate() {
        let rule = |holds, rule: &str, found: String| if holds { Ok(()) } else { Err(broken(segment, rule, found)) };
        let again = image.segments[..position].iter().any(|other| other.kind == segment.kind);
        rule(!(again && SINGLE.contains(&segment.kind)), "to be the only one of its type", "another".to_owned())?;
        match segment.kind {
            elf::PT_LOAD | elf::PT_NULL => continue,
            elf::PT_GNU_STACK => {
                // What it does is in the flags: without W and R, or with X, it changes every thread's stack.
                let expected = (elf::PF_R | elf::PF_W).0;
                rule(segment.flags == expected, "to be a plain stack", format!("the flags {:#x}", segment.flags))?;
                let place = segment.offset | segment.address | segment.physical | segment.file_bytes;
                rule(place == 0, "to have no place", format!("{place:#x}"))?;
                rule(segment.memory_bytes == 0, "to ask for no size", format!("{:#x}", segment.memory_bytes))?;
                continue;
            }
            _ => check_shape(segment)?,
        }
        match segment.kind {
            elf::PT_DYNAMIC => check_dynamic(image, segment)?,
            elf::PT_PHDR => {
                let found = (segment.offset, segment.file_bytes);
                rule(found == header::table(image), "to be the program headers", format!("{found:x?}"))?;
            }
            elf::PT_INTERP => {
                let name = slice(image.bytes, segment.offset, segment.file_bytes).unwrap_or_default();
                rule(name.first() == Some(&b'/') && name.ends_with(&[0]), "to be a path", format!("{name:?}"))?;
            }
            elf::PT_NOTE | elf::PT_GNU_PROPERTY => check_notes(image, segment)?,
            elf::PT_TLS => check_thread_locals(image, segment)?,
            elf::PT_GNU_RELRO => {
                check_read_only(image, segment)?;
                continue;
            }
            elf::PT_GNU_EH_FRAME => check_named(image, segment, ".eh_frame_hdr")?,
            elf::PT_GNU_SFRAME => check_named(image, segment, ".sframe")?,
            other => return rule(false, "to be of a known type", format!("{:#x}", other.0)),
        }
        let place = format!("{:#x} and {:#x} bytes at {:#x}", segment.offset, segment.memory_bytes, segment.address);
        rule(image.loads().any(|load| segment.is_inside(load)), "to be a part of a loaded segment", place)?;
    }
    check_present(image)
}

fn check_shape(segment: &Segment) -> Result<(), Mismatch> {
    let rule = |holds, rule: &str, found: String| if holds { Ok(()) } else { Err(broken(segment, rule, found)) };
    let physical = segment.physical;
    let alike = physical == segment.address || physical == 0;
    rule(alike, "to have one address", format!("{:#x} and {physical:#x}", segment.address))?;
    let align = segment.align;
    rule(align == 0 || align.is_power_of_two(), "to have an alignment", format!("{align:#x}"))?;
    rule(align <= 1 || segment.address.is_multiple_of(align), "to be aligned", format!("{:#x}", segment.address))?;
    let known = (elf::PF_R | elf::PF_W | elf::PF_X).0;
    let plain = segment.flags & !known == 0 && segment.flags & elf::PF_R.0 != 0;
    rule(plain, "to be readable", format!("the flags {:#x}", segment.flags))
}

/// Without a header for the stack, every stack gets executable; without the others, code finds nothing.
fn check_present(image: &Image<'_>) -> Result<(), Mismatch> {
    let has = |kind| image.segments.iter().any(|segment| segment.kind == kind);
    let section = |holds: fn(&Section) -> bool| image.allocated().any(|section| section.bytes > 0 && holds(section));
    for (needed, kind, name) in [
        (true, elf::PT_GNU_STACK, "a plain stack"),
        (section(|section| section.has(elf::SHF_TLS)), elf::PT_TLS, "the thread-locals"),
        (section(|section| section.name == ".eh_frame_hdr"), elf::PT_GNU_EH_FRAME, "the section .eh_frame_hdr"),
    ] {
        if needed && !has(kind) {
            return Err(broken("the program headers", &format!("to have one for {name}"), "none"));
        }
    }
    Ok(())
}

fn check_dynamic(image: &Image<'_>, segment: &Segment) -> Result<(), Mismatch> {
    let (file, memory) = (segment.file_bytes, segment.memory_bytes);
    if file != memory {
        return Err(broken(segment, "to be in memory as in the file", format!("{memory} of {file} bytes")));
    }
    // glibc writes there, unless this header says that it is read-only.
    let writable = segment.flags & elf::PF_W.0;
    if !image.in_memory(segment.address, memory, writable) {
        return Err(broken(segment, "to have the flags of its memory", format!("{:#x}", segment.flags)));
    }
    match image.sections.iter().find(|section| section.kind == elf::SHT_DYNAMIC) {
        Some(section) => check_same(segment, section),
        None => Ok(()),
    }
}

fn check_named(image: &Image<'_>, segment: &Segment, name: &str) -> Result<(), Mismatch> {
    image.sections.iter().find(|section| section.name == name).map_or(Ok(()), |section| check_same(segment, section))
}

fn check_same(segment: &Segment, section: &Section) -> Result<(), Mismatch> {
    let found = (segment.offset, segment.address, segment.file_bytes, segment.memory_bytes);
    if found == (section.offset, section.address, section.bytes, section.bytes) {
        return Ok(());
    }
    Err(broken(segment, &format!("to be the {section}"), format!("{found:x?}")))
}

/// Walks the notes as the dynamic linker does, which trusts their sizes.
fn check_notes(image: &Image<'_>, segment: &Segment) -> Result<(), Mismatch> {
    let mut rest = slice(image.bytes, segment.offset, segment.file_bytes).unwrap_or_default();
    let align = segment.align;
    if !matches!(align, 0 | 1 | 4 | 8) || segment.memory_bytes != segment.file_bytes {
        return Err(broken(segment, "to be notes", format!("the alignment {align}, {} bytes", segment.memory_bytes)));
    }
    let up = |size: u64| size.next_multiple_of(align.max(4));
    while !rest.is_empty() {
        let size = |at: usize| rest.get(at..at + 4).map(number);
        let next = size(0).zip(size(4)).map(|(name, text)| up(12 + name) + up(text));
        match next.filter(|next| *next <= up(rest.len() as u64)).and_then(|next| usize::try_from(next).ok()) {
            Some(next) => rest = rest.get(next..).unwrap_or_default(),
            None => return Err(broken(segment, "to be notes", "one that does not end in it")),
        }
    }
    Ok(())
}

/// Exactly the sections of thread-locals, from the first to the last.
fn check_thread_locals(image: &Image<'_>, segment: &Segment) -> Result<(), Mismatch> {
    let rule = |holds, rule: &str, found: String| if holds { Ok(()) } else { Err(broken(segment, rule, found)) };
    let Segment { address, file_bytes, memory_bytes, align, .. } = *segment;
    rule(file_bytes <= memory_bytes, "to be in memory as a whole", format!("{memory_bytes} of {file_bytes} bytes"))?;
    rule(align <= PAGE && memory_bytes < 1 << 30, "to be small", format!("{memory_bytes} bytes, aligned to {align}"))?;
    // Its zeros are in no memory: only what is in the file has to be a part.
    let shift = |load: &Segment| address.wrapping_sub(segment.offset) == load.address.wrapping_sub(load.offset);
    let held = |load: &Segment| shift(load) && inside((segment.offset, file_bytes), (load.offset, load.file_bytes));
    rule(image.loads().any(held), "to be a part of a loaded segment", format!("{address:#x}"))?;
    let mut sections: Vec<&Section> = image.allocated().filter(|section| section.has(elf::SHF_TLS)).collect();
    sections.sort_by_key(|section| (section.address, section.end()));
    let Some((first, last)) = sections.first().zip(sections.last()) else { return Ok(()) };
    let in_file = sections.iter().filter(|section| section.kind != elf::SHT_NOBITS);
    let file_end = in_file.map(|section| section.end()).max().unwrap_or(first.address);
    let expected = (first.address, file_end - first.address);
    rule((address, file_bytes) == expected, "to be the thread-locals", format!("{file_bytes} bytes at {address:#x}"))?;
    let least = last.end() - first.address;
    let most = least.checked_next_multiple_of(align.max(1)).unwrap_or(least);
    rule((least..=most).contains(&memory_bytes), "to be the thread-locals", format!("{memory_bytes} bytes"))?;
    let needed = sections.iter().map(|section| section.align).max().unwrap_or_default();
    rule(align == needed, "to be aligned as the thread-locals are", format!("{align}, not {needed}"))
}

/// What is made read-only after relocation. If that is too much, the first write to a variable ends the process.
fn check_read_only(image: &Image<'_>, segment: &Segment) -> Result<(), Mismatch> {
    let (start, end) = (segment.address, segment.address.saturating_add(segment.memory_bytes));
    // To the end of the last page, of which the segment to load may have less (lld before 17).
    let whole = |load: &Segment| {
        let bytes = load.address.saturating_add(load.memory_bytes).next_multiple_of(load.align.max(1)) - load.address;
        let shift = start.wrapping_sub(segment.offset) == load.address.wrapping_sub(load.offset);
        shift && load.flags & elf::PF_W.0 != 0 && inside((start, segment.memory_bytes), (load.address, bytes))
    };
    if !image.loads().any(whole) {
        return Err(broken(segment, "to be a part of writable memory", format!("{start:#x} to {end:#x}")));
    }
    let protected = (start & !(PAGE - 1), end & !(PAGE - 1));
    let touched = image.allocated().filter(|section| {
        let overlaps = section.address < protected.1 && protected.0 < section.end();
        overlaps && section.bytes > 0 && !section.is_thread_zeros()
    });
    for section in touched {
        let name = section.name.as_str();
        let stays = (name.starts_with(".data") && !name.starts_with(".data.rel.ro"))
            || (name.starts_with(".bss") && !name.starts_with(".bss.rel.ro"));
        if stays || !section.has(elf::SHF_WRITE) {
            return Err(broken(segment, "to leave variables writable", section.to_string()));
        }
    }
    // It is made of whole sections; and, with lazy binding, of the three words of .got.plt that are not bound lazily.
    let cut = |at: u64| {
        let mut sections = image.allocated().filter(|section| !section.is_thread_zeros());
        sections.find(|section| section.address < at && at < section.end())
    };
    let reserved = |section: &Section| section.name == ".got.plt" && end - section.address == 3 * image.word as u64;
    match cut(start).or_else(|| cut(end)).filter(|section| !reserved(section)) {
        Some(section) => Err(broken(segment, "to be made of whole sections", format!("a part of {section}"))),
        None => Ok(()),
    }
}
