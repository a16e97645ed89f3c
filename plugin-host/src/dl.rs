//! dlopen and dlsym: the only unsafe code of this crate.

#![allow(unsafe_code)]

use std::{error::Error, ffi::c_void, fs::File, path::Path};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use sandbox_core::{Result, abi::PluginEntry};

/// A library that stays for as long as the process does: code, threads and thread-locals of it may be in use.
pub(crate) struct ForeverLibrary {
    library: &'static Library,
    /// Never closed either: glibc knows the library as `/proc/self/fd/N`, and would give it out again for the next file that
    /// gets the number N. While it is open, its inode number is not used again.
    file: &'static File,
}

/// Loads the library at `path`, which is the open `file`, and which passed every check of `inspect`. Its
/// constructors run now. Every symbol is bound at once, so that a missing one is an error here and not the end of the
/// process later; none of its symbols is seen by others.
///
/// # Errors
/// What the dynamic linker said.
pub(crate) fn open(path: &Path, file: File) -> Result<ForeverLibrary, String> {
    // SAFETY: constructors of the library run. It is a whole ELF file for this machine, says that it is a provider built
    // for this contract, and only root or the user could write it: it is trusted as the user's own programs are.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    let library = Box::leak(Box::new(library.map_err(|error| linker_text(&error))?));
    Ok(ForeverLibrary { library, file: Box::leak(Box::new(file)) })
}

impl ForeverLibrary {
    /// The file that it was loaded from.
    pub(crate) fn file(&self) -> &File {
        self.file
    }

    /// Where its entry symbol is.
    ///
    /// # Errors
    /// What the dynamic linker said.
    pub(crate) fn symbol(&self, name: &str) -> Result<EntryAddress, String> {
        // SAFETY: the type is a pointer, and for a data symbol it is the symbol's address; it is not followed here.
        let symbol = unsafe { self.library.get::<*const c_void>(name) };
        Ok(EntryAddress(symbol.map_err(|error| linker_text(&error))?.as_raw_ptr()))
    }
}

/// The address of an entry symbol in a library that is never unloaded.
pub(crate) struct EntryAddress(*const c_void);

impl EntryAddress {
    /// The entry point that is there, after the checks of its own.
    pub(crate) fn entry(&self) -> Result<PluginEntry> {
        // SAFETY: the manifest, which only `export_provider!` writes, names this symbol as its entry static; it lies inside
        // a loaded segment, and the library is leaked and never unloaded.
        unsafe { PluginEntry::from_symbol(self.0) }
    }
}

/// libloading's own text is "dlopen failed"; the reason is its source.
fn linker_text(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}
