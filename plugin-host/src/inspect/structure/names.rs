//! The names of other libraries, and the versions that are asked of them.

use object::elf;

use super::{
    broken,
    image::{Image, number},
    tables::entry,
};
use crate::mismatch::Mismatch;

/// More than any library asks for.
const MOST_VERSIONS: u64 = 1 << 16;

pub(super) fn check(image: &Image<'_>) -> Result<(), Mismatch> {
    let strings = strings(image);
    if strings.last() != Some(&0) {
        return Err(entry(elf::DT_STRTAB, "to end with a zero", "another byte".to_owned()));
    }
    let mut needed = Vec::new();
    for item in &image.dynamic {
        let is_name = matches!(
            item.tag,
            elf::DT_NEEDED | elf::DT_SONAME | elf::DT_RPATH | elf::DT_RUNPATH | elf::DT_AUXILIARY | elf::DT_FILTER
        );
        if !is_name {
            continue;
        }
        let Some(name) = string(strings, item.value) else {
            return Err(entry(item.tag, "to be a string", format!("{:#x} of {:#x}", item.value, strings.len())));
        };
        if matches!(item.tag, elf::DT_NEEDED | elf::DT_AUXILIARY | elf::DT_FILTER) {
            if name.is_empty() {
                return Err(entry(item.tag, "to be a name", "none".to_owned()));
            }
            needed.push(name);
        }
    }
    check_versions(image, strings, &needed)
}

fn strings<'a>(image: &Image<'a>) -> &'a [u8] {
    let place = image.value(elf::DT_STRTAB).zip(image.value(elf::DT_STRSZ));
    place.and_then(|(address, bytes)| image.mapped(address, bytes)).unwrap_or_default()
}

fn string(strings: &[u8], start: u64) -> Option<&[u8]> {
    let rest = strings.get(usize::try_from(start).ok()?..)?;
    rest.split(|byte| *byte == 0).next().filter(|_| !rest.is_empty())
}

/// Walks the versions. glibc ends the process if one is asked of a library that is not there.
fn check_versions(image: &Image<'_>, strings: &[u8], needed: &[&[u8]]) -> Result<(), Mismatch> {
    let place = image.value(elf::DT_VERNEED).zip(image.value(elf::DT_VERNEEDNUM));
    let Some((mut address, count)) = place else { return Ok(()) };
    let wrong = |rule: &str, found: String| Err(broken("the table of needed versions", rule, found));
    let mut budget = MOST_VERSIONS;
    for left in (0..count).rev() {
        let Some(record) = image.mapped(address, 16) else {
            return wrong("to be in the file", format!("{address:#x}"));
        };
        let (versions, file) = (number(&record[2..4]), number(&record[4..8]));
        let (first, next) = (number(&record[8..12]), number(&record[12..16]));
        match string(strings, file) {
            Some(name) if needed.contains(&name) => {}
            name => {
                let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
                return wrong("to name libraries that are needed", format!("{name:?}"));
            }
        }
        budget = budget.saturating_sub(1 + versions);
        if budget == 0 {
            return wrong("to be short", format!("{count} libraries"));
        }
        let mut version = address.saturating_add(first);
        for left in (0..versions).rev() {
            let Some(record) = image.mapped(version, 16) else {
                return wrong("to be in the file", format!("{version:#x}"));
            };
            let (name, next) = (number(&record[8..12]), number(&record[12..16]));
            if string(strings, name).is_none_or(<[u8]>::is_empty) {
                return wrong("to have names", format!("{name:#x}"));
            }
            if (next == 0) != (left == 0) {
                return wrong("to be as long as it says", format!("{left} versions left"));
            }
            version = version.saturating_add(next);
        }
        if (next == 0) != (left == 0) {
            return wrong("to be as long as it says", format!("{left} libraries left"));
        }
        address = address.saturating_add(next);
    }
    Ok(())
}
