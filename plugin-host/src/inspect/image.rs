//! Whether the bytes are a whole shared library for this machine. dlopen does not ask: a file that was cut short ends
//! the process with SIGBUS.

use object::{
    Architecture, Endianness, File, FileKind, Object, ObjectKind, ObjectSection, ObjectSegment, ObjectSymbol,
    SymbolKind, elf,
    read::elf::{ElfFile, FileHeader, ProgramHeader, SectionHeader},
};

use crate::mismatch::Mismatch;

const WHAT: &str = "format";
const INCOMPLETE: &str = "copy or build the file again; it is not whole";

/// Reads the headers: the right format, word size, byte order and machine, and a library.
pub(crate) fn parse(bytes: &[u8]) -> Result<(File<'_>, String), Mismatch> {
    let expected = format!("{} shared library for {}", expected_format(), std::env::consts::ARCH);
    let wrong = |found: String| Mismatch::new(WHAT, expected.clone(), found);
    if bytes.is_empty() {
        return Err(wrong("an empty file".to_owned()));
    }
    let kind = FileKind::parse(bytes).map_err(|_| wrong("a file of another kind".to_owned()))?;
    match kind {
        FileKind::Elf32 | FileKind::Elf64 if cfg!(target_os = "macos") => return Err(wrong("an ELF file".to_owned())),
        FileKind::MachO32 | FileKind::MachO64 if !cfg!(target_os = "macos") => {
            return Err(wrong("a Mach-O file".to_owned()));
        }
        FileKind::Elf32 | FileKind::Elf64 | FileKind::MachO32 | FileKind::MachO64 => {}
        FileKind::MachOFat32 | FileKind::MachOFat64 => {
            return Err(
                wrong("a Mach-O file for several machines".to_owned()).with_help("take this machine's part with lipo")
            );
        }
        other => return Err(wrong(format!("a {other:?} file"))),
    }
    let bits = if matches!(kind, FileKind::Elf64 | FileKind::MachO64) { 64 } else { 32 };
    if bits != usize::BITS {
        return Err(wrong(format!("a {bits}-bit file")));
    }
    // EI_DATA comes before everything else: with it changed, every number below reads as nonsense.
    if matches!(kind, FileKind::Elf64 | FileKind::Elf32) {
        check_byte_order(bytes).and_then(|()| check_elf_type(bytes)).map_err(wrong)?;
    }
    let file = File::parse(bytes).map_err(|error| {
        wrong(format!("{} bytes of which the headers cannot be read ({error})", bytes.len())).with_help(INCOMPLETE)
    })?;
    if let Some(machine) = this_machine()
        && file.architecture() != machine
    {
        return Err(wrong(format!("one for {:?}", file.architecture())));
    }
    if file.kind() != ObjectKind::Dynamic {
        return Err(wrong(format!("a file of the kind {:?}", file.kind())).with_help("build with crate-type cdylib"));
    }
    let detail = format!("{kind:?}, {:?}, shared library", file.architecture());
    Ok((file, detail))
}

fn check_byte_order(bytes: &[u8]) -> Result<(), String> {
    let order = bytes.get(5).copied().map(elf::DataEncoding);
    let (here, elsewhere) = match cfg!(target_endian = "little") {
        true => (elf::ELFDATA2LSB, elf::ELFDATA2MSB),
        false => (elf::ELFDATA2MSB, elf::ELFDATA2LSB),
    };
    match order {
        Some(order) if order == here => Ok(()),
        Some(order) if order == elsewhere => Err("a file of the other byte order".to_owned()),
        _ => Err("a broken ELF header (unknown byte order)".to_owned()),
    }
}

/// The type, read before the tables are: a program or an object file is to be called that.
fn check_elf_type(bytes: &[u8]) -> Result<(), String> {
    fn read<Elf: FileHeader<Endian = Endianness>>(bytes: &[u8]) -> Result<(), String> {
        let header = Elf::parse(bytes).map_err(|error| format!("a broken ELF header ({error})"))?;
        let endian = header.endian().map_err(|error| format!("a broken ELF header ({error})"))?;
        match header.e_type(endian) {
            elf::ET_DYN => Ok(()),
            elf::ET_EXEC => Err("a program".to_owned()),
            elf::ET_REL => Err("an object file".to_owned()),
            elf::ET_CORE => Err("a core dump".to_owned()),
            other => Err(format!("an ELF file of the type {}", other.0)),
        }
    }
    if cfg!(target_pointer_width = "64") {
        read::<elf::FileHeader64<Endianness>>(bytes)
    } else {
        read::<elf::FileHeader32<Endianness>>(bytes)
    }
}

fn expected_format() -> &'static str {
    if cfg!(target_os = "macos") { "a Mach-O" } else { "an ELF" }
}

fn this_machine() -> Option<Architecture> {
    Some(match std::env::consts::ARCH {
        "x86_64" => Architecture::X86_64,
        "aarch64" => Architecture::Aarch64,
        "x86" => Architecture::I386,
        "arm" => Architecture::Arm,
        "riscv64" => Architecture::Riscv64,
        "powerpc64" => Architecture::PowerPc64,
        "s390x" => Architecture::S390x,
        "loongarch64" => Architecture::LoongArch64,
        _ => return None,
    })
}

/// Checks that every segment and every section lies inside the file, and that it is no program.
pub(crate) fn check_whole(file: &File<'_>, bytes: &[u8]) -> Result<String, Mismatch> {
    match file {
        File::Elf64(elf) => check_whole_elf(elf, bytes),
        File::Elf32(elf) => check_whole_elf(elf, bytes),
        other => {
            let mut parts = 0;
            for segment in other.segments() {
                inside("a segment", segment.file_range(), bytes)?;
                parts += 1;
            }
            for section in other.sections() {
                inside("a section", section.file_range().unwrap_or_default(), bytes)?;
                parts += 1;
            }
            Ok(format!("{parts} parts inside {} bytes", bytes.len()))
        }
    }
}

fn check_whole_elf<Elf: FileHeader<Endian = Endianness>>(
    file: &ElfFile<'_, Elf>,
    bytes: &[u8],
) -> Result<String, Mismatch> {
    let endian = file.endian();
    let segments = file.elf_program_headers();
    for segment in segments {
        inside("a segment", segment.file_range(endian), bytes)?;
    }
    if !segments.iter().any(|segment| segment.p_type(endian) == elf::PT_LOAD) {
        return Err(Mismatch::new("bounds", "a segment to load", "none"));
    }
    for section in file.elf_section_table().iter() {
        // Sections without bytes in the file (.bss) have no range.
        inside("a section", section.file_range(endian).unwrap_or_default(), bytes)?;
    }
    let dynamic = file
        .elf_dynamic_table()
        .map_err(|error| Mismatch::new("bounds", "a dynamic table", format!("a broken one ({error})")))?;
    let flags = dynamic.iter().find(|entry| entry.tag == elf::DT_FLAGS_1).map_or(0, |entry| entry.val);
    if flags & elf::DF_1_PIE.0 != 0 {
        return Err(Mismatch::new(WHAT, "a shared library", "a program").with_help("build with crate-type cdylib"));
    }
    Ok(format!(
        "{} segments and {} sections inside {} bytes",
        segments.len(),
        file.elf_section_table().len(),
        bytes.len()
    ))
}

fn inside(what: &'static str, (offset, size): (u64, u64), bytes: &[u8]) -> Result<(), Mismatch> {
    let end = offset.checked_add(size);
    if size == 0 || end.is_some_and(|end| end <= bytes.len() as u64) {
        return Ok(());
    }
    let needed = end.map_or_else(|| "more bytes than there can be".to_owned(), |end| format!("at least {end} bytes"));
    Err(Mismatch::new("bounds", format!("{needed} for {what}"), format!("a file of {}", bytes.len()))
        .with_help(INCOMPLETE))
}

/// The bytes of the manifest section.
pub(crate) fn manifest_section<'a>(file: &File<'a>) -> Result<&'a [u8], Mismatch> {
    let expected = format!("a section {}", sandbox_core::MANIFEST_SECTION);
    let section = file.section_by_name(sandbox_core::MANIFEST_SECTION).ok_or_else(|| {
        Mismatch::new("manifest", expected.clone(), "none")
            .with_help("this is no sandbox provider; one is made with sandbox_core::export_provider!")
    })?;
    section.data().map_err(|error| Mismatch::new("manifest", expected, format!("a broken one ({error})")))
}

/// Checks that the library defines the entry point that its manifest names.
pub(crate) fn check_entry(file: &File<'_>, entry: &str) -> Result<String, Mismatch> {
    let expected = format!("the data symbol {entry:?} among the exported ones");
    let symbol = file
        .dynamic_symbols()
        .chain(file.symbols().filter(|_| !matches!(file, File::Elf32(_) | File::Elf64(_))))
        .find(|symbol| {
            symbol.is_definition() && symbol.is_global() && exported_name(file, symbol.name()) == Some(entry)
        })
        .ok_or_else(|| {
            Mismatch::new("entry-symbol", expected.clone(), "none of that name")
                .with_help("build the plugin as a cdylib with export_provider!")
        })?;
    if symbol.kind() == SymbolKind::Text {
        return Err(Mismatch::new("entry-symbol", expected, "a function of that name"));
    }
    // The host is going to read there.
    let (start, end) = (symbol.address(), symbol.address().checked_add(symbol.size().max(1)));
    let holds = |segment: object::Segment<'_, '_>| {
        let last = segment.address().checked_add(segment.size());
        segment.address() <= start && end.zip(last).is_some_and(|(end, last)| end <= last)
    };
    if !file.segments().any(holds) {
        return Err(Mismatch::new("entry-symbol", expected, "one outside of what is loaded").with_help(INCOMPLETE));
    }
    Ok(entry.to_owned())
}

/// Mach-O puts an underscore before every name.
fn exported_name<'a>(file: &File<'_>, name: object::Result<&'a str>) -> Option<&'a str> {
    let name = name.ok()?;
    match file {
        File::Elf32(_) | File::Elf64(_) => Some(name),
        _ => name.strip_prefix('_'),
    }
}
