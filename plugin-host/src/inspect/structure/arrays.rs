//! The functions that run when a library is loaded and at the end of the process.

use object::elf;

use super::{broken, image::Image, relocations::Relocated, tables::entry};
use crate::mismatch::Mismatch;

pub(super) fn check(image: &Image<'_>, relocated: &Relocated) -> Result<(), Mismatch> {
    for (tag, name) in [(elf::DT_INIT, ".init"), (elf::DT_FINI, ".fini")] {
        let Some(address) = image.value(tag) else { continue };
        if !image.in_memory(address, 1, elf::PF_X.0) {
            return Err(entry(tag, "to be code", format!("{address:#x}")));
        }
        // A linker can be asked for another function (`-init`), which cannot be told from a wrong address.
        let section = image.allocated().find(|section| section.name == name);
        if let Some(section) = section.filter(|section| section.address != address) {
            return Err(entry(tag, &format!("to be the {section}"), format!("{address:#x}")));
        }
    }
    let word = image.word as u64;
    for (tag, size) in [(elf::DT_INIT_ARRAY, elf::DT_INIT_ARRAYSZ), (elf::DT_FINI_ARRAY, elf::DT_FINI_ARRAYSZ)] {
        let (start, bytes) = (image.value(tag).unwrap_or_default(), image.value(size).unwrap_or_default());
        for slot in (0..bytes / word).map(|index| start + index * word) {
            let place = format!("the function at {slot:#x}");
            match relocated.functions.get(&slot) {
                None => return Err(broken(place, "to be relocated", "no relocation")),
                Some(Some(function)) if !image.in_memory(*function, 1, elf::PF_X.0) => {
                    return Err(broken(place, "to be code", format!("{function:#x}")));
                }
                Some(_) => {}
            }
        }
    }
    Ok(())
}
