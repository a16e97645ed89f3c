//! dlopen and nothing else, to measure the checks against. The only unsafe code of this crate.

#![allow(unsafe_code)]

use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// Loads a library and finds a symbol of it, without any check. Never unloads it.
///
/// # Panics
/// When the dynamic linker refuses it.
pub fn open(path: &Path, symbol: &str) {
    // SAFETY: constructors of the library run; the callers give files that they built themselves.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.expect("the fixture can be loaded");
    // SAFETY: the address is looked up and not followed.
    let found = unsafe { library.get::<*const std::ffi::c_void>(symbol) };
    assert!(found.is_ok(), "{symbol} is there");
    // A library with running threads must not be unmapped.
    std::mem::forget(library);
}
