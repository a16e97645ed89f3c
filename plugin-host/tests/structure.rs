//! Sound libraries of every linker pass the check of their structure, and the system's own ones do.
#![cfg(all(feature = "dynamic", target_os = "linux"))]

mod common;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use plugin_host::{Checksum, inspect};

/// Folders of the system's libraries: Debian, Fedora, others.
const SYSTEM: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
];

/// What the step says, if the file came as far as that.
fn structure(file: &Path) -> Option<Result<String, String>> {
    let unpinned = BTreeMap::new();
    let steps = inspect(file, &Checksum::IfPinned(&unpinned)).steps;
    steps.into_iter().find(|step| step.name == "structure").map(|step| step.outcome)
}

/// Each library once, whatever the number of its names.
fn system_libraries() -> Vec<PathBuf> {
    let entries = SYSTEM.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().contains(".so"));
    let mut files: Vec<PathBuf> = named.filter_map(|entry| fs::canonicalize(entry.path()).ok()).collect();
    files.sort();
    files.dedup();
    files
}

/// Known to be refused: libnuma, and libraries that were rewritten by BOLT. Their `DT_INIT` is another function than the
/// section .init (`-Wl,-init`), and one wrong bit of an address leads to another function as well.
#[test]
fn the_libraries_of_the_system_fit_together() {
    let (mut sound, mut refused) = (0, Vec::new());
    for file in system_libraries() {
        match structure(&file) {
            Some(Ok(_)) => sound += 1,
            Some(Err(why)) => refused.push(why),
            None => {}
        }
    }
    let all = sound + refused.len();
    println!("{sound} of {all} libraries of the system pass; not these:\n{}", refused.join("\n"));
    if all < 200 {
        println!("too few to tell anything");
        return;
    }
    assert!(sound * 100 >= all * 99, "{} of {all} are refused:\n{}", refused.len(), refused.join("\n"));
}
