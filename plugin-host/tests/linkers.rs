//! What any linker makes of a sound plugin passes: each linker that is installed, with and without symbols, and with the
//! options that change the structure of the file.
#![cfg(all(feature = "dynamic", target_os = "linux"))]

mod common;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use common::{CLibrary, ENTRY, Manifest, fixture, folder, set_mode};
use plugin_host::{Checksum, inspect};
use sandbox_core::MANIFEST_SECTION;

/// Has a bit of everything: thread-locals, threads, panics, constructors, vtables.
const CODE: &str = r#"
use std::{cell::RefCell, collections::HashMap, fmt::Debug};
thread_local!(static NUMBERS: RefCell<HashMap<u32, Box<dyn Debug>>> = RefCell::default());
static NAMES: [&str; 3] = ["one", "two", "three"];
#[used]
#[unsafe(link_section = ".init_array")]
static RUNS: extern "C" fn() = runs;
extern "C" fn runs() { NUMBERS.with_borrow_mut(|numbers| { numbers.insert(1, Box::new(NAMES)); }); }
#[unsafe(no_mangle)]
pub extern "C" fn work() -> usize {
    let thread = std::thread::spawn(|| std::panic::catch_unwind(|| panic!("caught")).is_err());
    usize::from(thread.join().unwrap()) + NUMBERS.with_borrow(|numbers| format!("{numbers:?}").len())
}
"#;

#[track_caller]
fn passes(file: &Path, what: &str) {
    if let Err(error) = inspect(file, &Checksum::Compute).outcome {
        panic!("{what}: {error}");
    }
}

/// The file without any symbol that it does not need.
fn stripped(file: &Path) -> PathBuf {
    let output = file.with_extension("stripped.so");
    let status = Command::new("strip").arg("-s").arg("-o").arg(&output).arg(file).status();
    assert!(status.expect("these tests need binutils").success());
    set_mode(&output, 0o755);
    output
}

/// None: the default. The others if they are installed.
fn linkers() -> Vec<Option<&'static str>> {
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = |name: &str| env::split_paths(&path).any(|folder| folder.join(format!("ld.{name}")).exists());
    let others = ["bfd", "gold", "mold", "lld"].into_iter().filter(|name| installed(name));
    [None].into_iter().chain(others.map(Some)).collect()
}

#[test]
fn a_plugin_of_rust_passes_whatever_linked_it() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let manifest = Manifest::named("acme").text();
    let (length, name) = (manifest.len(), MANIFEST_SECTION);
    let code = format!(
        "{CODE}#[used]\n#[unsafe(link_section = {name:?})]\nstatic MANIFEST: [u8; {length}] = *include_bytes!(\"manifest\");\n\
         #[allow(non_upper_case_globals)]\n#[unsafe(no_mangle)]\npub static {ENTRY}: [u8; 512] = [0; 512];\n"
    );
    fs::write(at("code.rs"), code).unwrap();
    fs::write(at("manifest"), &manifest).unwrap();
    let profiles: [(&str, &[&str]); 3] =
        [("debug", &["-g"]), ("release", &["-O"]), ("small release", &["-O", "-Cstrip=symbols", "-Cpanic=abort"])];
    let mut count = 0;
    for linker in linkers() {
        for (profile, flags) in profiles {
            let file = at("plugin.so");
            let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
            rustc.args(["--edition=2024", "--crate-type=cdylib", "-o"]).arg(&file).arg(at("code.rs")).args(flags);
            rustc.args(linker.map(|linker| format!("-Clink-arg=-fuse-ld={linker}")));
            let output = rustc.output().expect("rustc built this test");
            assert!(output.status.success(), "{linker:?}: {}", String::from_utf8_lossy(&output.stderr));
            let what = format!("{}, {profile}", linker.unwrap_or("the default linker"));
            passes(&file, &what);
            passes(&stripped(&file), &format!("{what}, stripped"));
            count += 2;
        }
    }
    println!("{count} plugins of {:?} pass", linkers());
}

#[test]
fn the_real_plugin_passes_with_and_without_symbols() {
    let folder = folder();
    let file = folder.path().join("real.so");
    fs::copy(fixture(), &file).unwrap();
    passes(&file, "as it is");
    passes(&stripped(&file), "stripped");
}

#[test]
fn a_library_passes_whatever_the_linker_was_asked_for() {
    const OPTIONS: [&[&str]; 16] = [
        &[],
        &["-Wl,-z,now"],
        &["-Wl,-z,lazy"],
        &["-Wl,-z,norelro"],
        &["-Wl,-z,separate-code"],
        &["-Wl,-z,noseparate-code"],
        &["-Wl,-z,max-page-size=65536"],
        &["-Wl,-z,max-page-size=2097152"],
        &["-Wl,--hash-style=sysv"],
        &["-Wl,--hash-style=both"],
        &["-Wl,--build-id=none"],
        &["-Wl,-z,pack-relative-relocs"],
        &["-Wl,--pack-dyn-relocs=relr"],
        &["-Wl,-soname,acme.so", "-Wl,-rpath,/opt/acme"],
        &["-Wl,-Bsymbolic", "-Wl,--as-needed", "-Wl,--gc-sections"],
        &["-Wl,-z,nodelete", "-Wl,-z,initfirst", "-Wl,-z,origin"],
    ];
    let folder = folder();
    let library =
        "__thread int local = 3; __thread int zero[100]; static int (*const table[])(const char *, ...) = {0, 0};
        #include <stdio.h>\nstatic int more[9]; static void *names[] = {names, puts, more}; int zeros[10000];
        __attribute__((constructor)) static void run(void) { local = zeros[3]; }
        __attribute__((destructor)) static void end(void) { puts((char *)names + zero[1] + (long)table[1]); }
        static int (*choose(void))(void) { return (int (*)(void))run; }
        int chosen(void) __attribute__((ifunc(\"choose\")));\n";
    let (mut count, mut unknown) = (0, 0);
    for linker in linkers().into_iter().flatten() {
        for options in OPTIONS {
            let mut library = CLibrary::provider("acme").code(library).flag(format!("-fuse-ld={linker}"));
            for option in options {
                library = library.flag(*option);
            }
            let file = folder.path().join("library.so");
            let _ = fs::remove_file(&file);
            // Not every linker knows every option.
            if let Err(text) = library.try_build_with("-shared", &file) {
                println!("{linker} {options:?}: {}", text.lines().next().unwrap_or_default());
                unknown += 1;
                continue;
            }
            passes(&file, &format!("{linker} {options:?}"));
            passes(&stripped(&file), &format!("{linker} {options:?}, stripped"));
            count += 2;
        }
    }
    println!("{count} libraries pass, {unknown} could not be linked");
    assert!(count >= 16);
}
