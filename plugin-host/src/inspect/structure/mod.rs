//! Whether the parts of a whole file fit together. dlopen does not ask: it maps, writes and jumps to where the file
//! says, and a file of which one bit is wrong ends the process.
//!
//! What one table says is held against another: the program headers against the sections, the dynamic section against
//! both, relocations against what may be written. Sound files of every linker pass. It is no defence against a file that
//! was made to deceive, whose code would run anyway.

mod arrays;
mod dynamic;
mod header;
mod image;
mod loads;
mod names;
mod relocations;
mod sections;
mod segments;
mod symbols;
mod tables;

use object::File;

use crate::mismatch::Mismatch;
use image::Image;

/// Checks an ELF file that is known to be whole. Mach-O is left to the system, which checks signatures.
pub(crate) fn check(file: &File<'_>, bytes: &[u8]) -> Result<String, Mismatch> {
    let image = match file {
        File::Elf64(elf) => Image::of(elf, bytes)?,
        File::Elf32(elf) => Image::of(elf, bytes)?,
        _ => return Ok("not an ELF file".to_owned()),
    };
    header::check(&image)?;
    loads::check(&image)?;
    segments::check(&image)?;
    sections::check(&image)?;
    dynamic::check(&image)?;
    tables::check(&image)?;
    let symbols = symbols::check(&image)?;
    names::check(&image)?;
    let found = relocations::check(&image, symbols)?;
    arrays::check(&image, &found)?;
    let (entries, relocations) = (image.dynamic.len(), found.count);
    Ok(format!("{entries} dynamic entries, {symbols} symbols and {relocations} relocations fit together"))
}

/// A rule that does not hold: where, what it asks for, what is there.
fn broken(place: impl std::fmt::Display, rule: &str, found: impl Into<String>) -> Mismatch {
    Mismatch::new("structure", format!("{place} {rule}"), found)
        .with_help("copy or build the file again; it is damaged")
}
