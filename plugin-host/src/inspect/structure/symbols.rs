//! The dynamic symbols and the hash tables that lead to them.

use object::elf;

use super::{
    broken,
    image::{Image, number},
    tables::entry,
};
use crate::mismatch::Mismatch;

/// Gives the count of symbols.
pub(super) fn check(image: &Image<'_>) -> Result<u64, Mismatch> {
    let each: usize = if image.word == 8 { 24 } else { 16 };
    let section = image.allocated().find(|section| section.kind == elf::SHT_DYNSYM);
    let Some(section) = section else {
        // Without section headers nothing but the hash table tells how many there are.
        return Ok(count_by_hash(image).unwrap_or(u64::from(u32::MAX)));
    };
    let count = section.bytes / each as u64;
    let table = image.mapped(section.address, section.bytes).unwrap_or_default();
    let strings = image.value(elf::DT_STRSZ).unwrap_or_default();
    let start = image.loads().map(|load| load.address).min().unwrap_or_default();
    let end = image.loads().map(|load| load.address + load.memory_bytes).max().unwrap_or_default();
    for (index, symbol) in table.chunks_exact(each).enumerate() {
        let (name, value, kind, place) = if each == 24 {
            (number(&symbol[..4]), number(&symbol[8..16]), symbol[4] & 15, number(&symbol[6..8]))
        } else {
            (number(&symbol[..4]), number(&symbol[4..8]), symbol[12] & 15, number(&symbol[14..16]))
        };
        if name >= strings {
            return Err(broken(format_args!("symbol {index}"), "to have a name", format!("{name:#x} of {strings:#x}")));
        }
        let (undefined, absolute) = (place == 0, place == 0xfff1);
        let in_memory = (start..=end).contains(&value) || kind == elf::STT_TLS.0;
        if !undefined && !absolute && !in_memory {
            return Err(broken(format_args!("symbol {index}"), "to be in memory", format!("{value:#x}")));
        }
        // It is called to find out where it leads.
        if kind == elf::STT_GNU_IFUNC.0 && !undefined && !image.in_memory(value, 1, elf::PF_X.0) {
            return Err(broken(format_args!("symbol {index}"), "to be code", format!("{value:#x}")));
        }
    }
    if let Some(versions) = image.allocated().find(|section| section.kind == elf::SHT_GNU_VERSYM)
        && versions.bytes != 2 * count
    {
        return Err(broken(versions, &format!("to be of {count} symbols"), format!("{} bytes", versions.bytes)));
    }
    check_hash(image, count)?;
    check_gnu_hash(image, count)?;
    Ok(count)
}

fn count_by_hash(image: &Image<'_>) -> Option<u64> {
    image.mapped(image.value(elf::DT_HASH)? + 4, 4).map(number)
}

/// The old table: lists, which have to end.
fn check_hash(image: &Image<'_>, count: u64) -> Result<(), Mismatch> {
    let Some(address) = image.value(elf::DT_HASH) else { return Ok(()) };
    let words = |first: u64, words: u64| image.mapped(address.checked_add(4 * first)?, words.checked_mul(4)?);
    let wrong = |found: &str| Err(entry(elf::DT_HASH, "to be a hash table of the symbols", found.to_owned()));
    let Some(head) = words(0, 2) else { return wrong("a part of one") };
    let (buckets, chains) = (number(&head[..4]), number(&head[4..]));
    if buckets == 0 || chains != count {
        return wrong(&format!("{buckets} buckets, {chains} symbols"));
    }
    let Some((buckets, chains)) = words(2, buckets).zip(words(2 + buckets, chains)) else {
        return wrong("a part of one");
    };
    let mut left = count;
    for bucket in buckets.chunks_exact(4) {
        let mut symbol = number(bucket);
        while symbol != 0 {
            let next = usize::try_from(symbol * 4).ok().and_then(|at| chains.get(at..at + 4));
            let Some(next) = next.filter(|_| left > 0) else { return wrong("a list that leaves it") };
            left -= 1;
            symbol = number(next);
        }
    }
    Ok(())
}

/// The new table: the last of each list is marked.
fn check_gnu_hash(image: &Image<'_>, count: u64) -> Result<(), Mismatch> {
    let Some(address) = image.value(elf::DT_GNU_HASH) else { return Ok(()) };
    let at = |offset: u64, bytes: u64| image.mapped(address.checked_add(offset)?, bytes);
    let wrong = |found: &str| Err(entry(elf::DT_GNU_HASH, "to be a hash table of the symbols", found.to_owned()));
    let Some(head) = at(0, 16) else { return wrong("a part of one") };
    let word = |index: usize| number(&head[4 * index..4 * index + 4]);
    let (buckets, first, filter, shift) = (word(0), word(1), word(2), word(3));
    if buckets == 0 || !filter.is_power_of_two() || shift >= 32 {
        return wrong(&format!("{buckets} buckets, a filter of {filter}, a shift of {shift}"));
    }
    let start = 16 + filter * image.word as u64;
    let lists = count.saturating_sub(first);
    let Some((buckets, lists)) = at(start, 4 * buckets).zip(at(start + 4 * buckets, 4 * lists)) else {
        return wrong("a part of one");
    };
    let mut used = false;
    for bucket in buckets.chunks_exact(4).map(number).filter(|bucket| *bucket != 0) {
        used = true;
        if !(first..count).contains(&bucket) {
            return wrong(&format!("the symbol {bucket} of {count}"));
        }
    }
    match lists.chunks_exact(4).next_back() {
        Some(last) if used && number(last) & 1 == 0 => wrong("a list without an end"),
        _ => Ok(()),
    }
}
