//! Libraries in C: code that runs by itself, and manifests that lie.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use sandbox_core::{CONTRACT_VERSION, MANIFEST_SECTION, ProviderManifest};

use crate::corpus::{Corpus, Make, Verdict};

const ENTRY: &str = "sandbox_provider_entry_hostile";
const TOML: &str = "name = \"hostile\"\n";

/// The lines of a sound manifest.
fn build_lines() -> String {
    let target = ProviderManifest::host_target();
    format!(
        "sandbox-provider 1\nversion=1.0.0\ncontract={CONTRACT_VERSION}\npanic=unwind\ntarget={target}\nentry={ENTRY}\n"
    )
}

fn manifest() -> String {
    format!("{}\n{TOML}", build_lines())
}

/// An entry point of these bytes.
fn entry_of(bytes: &[u8]) -> String {
    let list: Vec<String> = bytes.iter().map(ToString::to_string).collect();
    format!("const unsigned char {ENTRY}[{}] = {{{}}};\n", bytes.len().max(1), list.join(","))
}

const PRINTS: &str = "
#include <fcntl.h>
__attribute__((constructor)) static void runs(void) { open(CANARY, O_CREAT | O_WRONLY, 0600); }
";
const ABORTS: &str = "
#include <stdlib.h>
__attribute__((constructor)) static void runs(void) { abort(); }
";

/// Compiles a library with this source and, if there is one, this manifest.
fn compile(folder: &Path, source: &str, manifest: Option<&[u8]>, arguments: &[String]) -> PathBuf {
    let (code, section, output) = (folder.join("code.c"), folder.join("manifest"), folder.join("libcase.so"));
    let mut source = source.to_owned();
    if let Some(manifest) = manifest {
        fs::write(&section, manifest).expect("the folder is ours");
        let section = section.display();
        source.push_str(&format!(
            "__asm__(\".section {MANIFEST_SECTION},\\\"a\\\"\\n.incbin \\\"{section}\\\"\\n.previous\\n\");\n"
        ));
    }
    fs::write(&code, source).expect("the folder is ours");
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-Wl,-z,lazy", "-w"]);
    gcc.arg(format!("-DCANARY=\"{}\"", folder.join("canary").display())).arg(&code).arg("-o").arg(&output);
    let compiled = gcc.args(arguments).output().expect("a C compiler is installed");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    output
}

fn library(source: String, manifest: Option<Vec<u8>>) -> Make {
    Box::new(move |folder| compile(folder, &source, manifest.as_deref(), &[]))
}

pub(crate) fn add(corpus: &mut Corpus) {
    constructors(corpus);
    linking(corpus);
    entries(corpus);
    manifests(corpus);
}

/// Code that runs as soon as the library is loaded: it must not be.
fn constructors(corpus: &mut Corpus) {
    let with_entry = entry_of(&[0; 512]);
    let function = format!("void {ENTRY}(void) {{}}\n");
    let cases: [(&str, &str, Option<String>, Verdict); 7] = [
        ("no manifest", "", None, Verdict::refused("section", "none")),
        ("no manifest but an entry", &with_entry, None, Verdict::refused("section", "none")),
        (
            "contract 9.7",
            &with_entry,
            Some(manifest().replace(CONTRACT_VERSION, "9.7")),
            Verdict::refused("contract", "9.7"),
        ),
        ("panic=abort", &with_entry, Some(manifest().replace("=unwind", "=abort")), Verdict::refused("panic", "abort")),
        (
            "another target",
            &with_entry,
            Some(manifest().replace("target=", "target=not-")),
            Verdict::refused("target", "not-"),
        ),
        ("no entry symbol", "", Some(manifest()), Verdict::refused("entry-symbol", "none")),
        ("a function as entry", &function, Some(manifest()), Verdict::refused("entry-symbol", "function")),
    ];
    for (kind, constructor) in [("writes a file", PRINTS), ("aborts", ABORTS)] {
        for (name, entry, manifest, verdict) in &cases {
            let make = library(format!("{entry}{constructor}"), manifest.clone().map(String::into_bytes));
            corpus.add("constructors", format!("{kind}, {name}"), make, verdict.clone());
        }
    }
}

/// What only the dynamic linker can know. Its own words are kept.
fn linking(corpus: &mut Corpus) {
    let entry = entry_of(&[0; 512]);
    let undefined =
        format!("{entry}extern int no_such_function(void);\nint uses(void) {{ return no_such_function(); }}\n");
    let verdict = Verdict::refused("dlopen", "undefined symbol: no_such_function");
    corpus.add("linking", "an undefined symbol", library(undefined, Some(manifest().into_bytes())), verdict);
    let missing = entry.clone();
    let make: Make = Box::new(move |folder| {
        let other = folder.join("other");
        fs::create_dir(&other).expect("the folder is ours");
        let needed = other.join("libnosuch.so");
        let made = compile(&other, "int needed(void) { return 1; }\n", None, &["-Wl,-soname,libnosuch.so".to_owned()]);
        fs::rename(made, &needed).expect("it was made just now");
        let source = format!("{missing}extern int needed(void);\nint uses(void) {{ return needed(); }}\n");
        let file = compile(folder, &source, Some(manifest().as_bytes()), &[needed.display().to_string()]);
        fs::remove_file(needed).expect("it was made just now");
        file
    });
    corpus.add("linking", "a missing library", make, Verdict::refused("dlopen", "libnosuch.so: cannot open"));
}

/// Symbols of the right name that are no entry point.
fn entries(corpus: &mut Corpus) {
    let mut random = crate::elf::Random(11);
    for number in 0..6 {
        let source = entry_of(&random.bytes(512));
        let make = library(source, Some(manifest().into_bytes()));
        corpus.add("entries", format!("random bytes {number}"), make, Verdict::refused("layout", "another ABI"));
    }
    let almost = [b"abi stable library for Rust\0\0\0\0\0\0".as_slice(), &[255; 480]].concat();
    for (name, bytes) in [("zeros", vec![0; 512]), ("ones", vec![255; 512]), ("nearly the magic", almost)] {
        let make = library(entry_of(&bytes), Some(manifest().into_bytes()));
        corpus.add("entries", name, make, Verdict::refused("layout", "another ABI"));
    }
    let local = format!("__thread unsigned char {ENTRY}[512] = {{1}};\n");
    corpus.add("entries", "a thread-local", library(local, Some(manifest().into_bytes())), Verdict::Survived);
}

fn manifests(corpus: &mut Corpus) {
    let sound = manifest();
    let entry = entry_of(&[0; 512]);
    let mut add = |name: String, bytes: Vec<u8>, verdict| {
        corpus.add("manifests", name, library(entry.clone(), Some(bytes)), verdict);
    };
    for part in 0..16 {
        let length = sound.len() * part / 16;
        add(format!("cut to {length} bytes"), sound.as_bytes()[..length].to_vec(), Verdict::RefusedUnrun);
    }
    let mut random = crate::elf::Random(13);
    for _ in 0..8 {
        let mut bytes = sound.clone().into_bytes();
        let position = random.below(bytes.len());
        bytes[position] ^= 0x80;
        add(format!("bit 7 of byte {position} flipped"), bytes, Verdict::RefusedUnrun);
    }
    add("random".to_owned(), random.bytes(1_000), Verdict::refused("manifest", "UTF-8"));
    let huge = format!("{sound}# {}\n", "x".repeat(70_000));
    add("70 kB".to_owned(), huge.into_bytes(), Verdict::refused("manifest", "at most"));
    for (name, from, to) in [
        ("another first line", "sandbox-provider 1", "sandbox-provider 2"),
        ("no version", "version=1.0.0\n", ""),
        ("a contract that is no version", CONTRACT_VERSION, "newest"),
        ("a contract with a huge number", CONTRACT_VERSION, "99999999999999999999.0"),
        ("no panic strategy", "panic=unwind\n", ""),
        ("no target", "target=", "tarjet="),
        ("no entry", "entry=", "entri="),
        ("no name", "name = ", "nom = "),
        ("a name with a path", "\"hostile\"", "\"../hostile\""),
        ("an empty name", "\"hostile\"", "\"\""),
        ("a name of another type", "\"hostile\"", "7"),
        ("no TOML", "name = \"hostile\"", "[[["),
        ("an unknown key", "name = ", "trusted = true\nname = "),
        ("a NUL in the entry", "entry=sandbox", "entry=sand\u{0}box"),
    ] {
        assert!(sound.contains(from), "{name}");
        add(name.to_owned(), sound.replace(from, to).into_bytes(), Verdict::RefusedUnrun);
    }
}
