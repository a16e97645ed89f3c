//! One bit of a sound plugin is wrong: it is refused, or it loads. Each file that is not refused unrun is loaded in a
//! process of its own, which has to survive it.
#![cfg(all(feature = "dynamic", target_os = "linux", target_pointer_width = "64"))]

mod common;

use std::{
    collections::BTreeMap,
    env, fs,
    ops::Range,
    path::Path,
    process::{Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::{CLibrary, fixture, folder, set_mode};
use plugin_host::{Checksum, inspect_bytes, load};
use sandbox_core::{ErrorKind, abi::HostInfo};
use serde_json::json;

/// Tells the child which file to load.
const FILE: &str = "PLUGIN_HOST_TEST_FILE";
const DEADLINE: Duration = Duration::from_secs(20);

/// The part of a test that runs in a process of its own; without a file to load, it is nothing.
#[test]
fn child_loads_a_file() {
    let Some(file) = env::var_os(FILE) else { return };
    let loading = load(Path::new(&file), &Checksum::IfPinned(&BTreeMap::new()), &HostInfo::new());
    let step = loading.steps.last().expect("there is a first step").name;
    match loading.outcome {
        Ok(plugin) => {
            drop(plugin.entry.new_provider(&json!({})));
            println!("ended: loaded");
        }
        Err(_) => println!("ended: refused at {step}"),
    }
}

/// How the child ended, in a word, or how it died.
fn load_in_child(file: &Path) -> Result<String, String> {
    let mut child = Command::new(env::current_exe().expect("Linux knows it"))
        .args(["--exact", "child_loads_a_file", "--nocapture"])
        .env(FILE, file)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("this test can be started again");
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > DEADLINE {
            child.kill().unwrap();
            child.wait().unwrap();
            return Err("hangs".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let output = child.wait_with_output().unwrap().stdout;
    let output = String::from_utf8_lossy(&output).into_owned();
    match output.split("ended: ").nth(1).and_then(|rest| rest.lines().next()) {
        Some(word) if status.success() => Ok(word.to_owned()),
        _ => Err(format!("{status}")),
    }
}

/// The real plugin, without what no loader looks at.
fn sound(folder: &Path) -> Vec<u8> {
    let file = folder.join("sound.so");
    let stripped = Command::new("strip").arg("-s").arg("-o").arg(&file).arg(fixture()).status();
    assert!(stripped.expect("these tests need binutils").success());
    fs::read(file).unwrap()
}

/// ELF header, program headers, dynamic section.
fn places(bytes: &[u8]) -> Vec<(&'static str, Range<usize>)> {
    let number = |at: usize, length: usize| {
        let mut value = [0; 8];
        value[..length].copy_from_slice(&bytes[at..at + length]);
        usize::try_from(u64::from_ne_bytes(value)).unwrap()
    };
    let (start, count) = (number(0x20, 8), number(0x38, 2));
    let mut headers = (0..count).map(|index| start + index * 56);
    let dynamic = headers.find(|at| number(*at, 4) == 2).expect("a library has a dynamic section");
    let (dynamic, size) = (number(dynamic + 8, 8), number(dynamic + 32, 8));
    vec![
        ("ELF header", 0..64),
        ("program headers", start..start + count * 56),
        ("dynamic section", dynamic..dynamic + size),
    ]
}

#[test]
fn a_plugin_with_any_one_bit_of_its_headers_flipped_is_refused_or_loads() {
    let folder = folder();
    let gnu = CLibrary::provider("acme").flag("-fuse-ld=bfd").build(&folder.path().join("gnu.so"));
    for (name, sound) in [("a real plugin", sound(folder.path())), ("a library of GNU ld", fs::read(gnu).unwrap())] {
        println!("{name}, {} bytes:", sound.len());
        try_flips(folder.path(), &sound);
    }
}

fn try_flips(folder: &Path, sound: &[u8]) {
    inspect_bytes(sound).unwrap();
    let flips: Vec<(&str, usize, u32)> = places(sound)
        .into_iter()
        .flat_map(|(name, place)| place.flat_map(move |at| (0..8).map(move |bit| (name, at, bit))))
        .collect();
    let (next, deaths) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let tally = Mutex::new(BTreeMap::<(&str, String), usize>::new());
    std::thread::scope(|scope| {
        for thread in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            let file = folder.join(format!("flipped-{thread}.so"));
            let (flips, next, deaths, tally) = (&flips, &next, &deaths, &tally);
            scope.spawn(move || {
                let mut bytes = sound.to_vec();
                while let Some((name, at, bit)) = flips.get(next.fetch_add(1, Ordering::Relaxed)) {
                    bytes[*at] ^= 1 << bit;
                    let word = if let Err(error) = inspect_bytes(&bytes) {
                        assert_eq!(error.kind(), ErrorKind::Plugin);
                        assert_eq!(error.to_string().lines().count(), 1, "{error}");
                        "refused unrun".to_owned()
                    } else {
                        fs::write(&file, &bytes).unwrap();
                        set_mode(&file, 0o755);
                        load_in_child(&file).unwrap_or_else(|death| {
                            deaths.lock().unwrap().push(format!("bit {bit} of byte {at:#x} in the {name}: {death}"));
                            "ended the process".to_owned()
                        })
                    };
                    bytes[*at] ^= 1 << bit;
                    *tally.lock().unwrap().entry((name, word)).or_default() += 1;
                }
            });
        }
    });
    for ((name, word), count) in tally.into_inner().unwrap() {
        println!("{count:6}  {name}: {word}");
    }
    let deaths = deaths.into_inner().unwrap();
    println!("{} of {} ended the process", deaths.len(), flips.len());
    assert!(flips.len() > 400);
    // Without the check of the structure 2,549 of 9,152 ended the process (x86_64, glibc 2.36). What still loads differs
    // where glibc does not look or does not mind: the value behind the end, flags, alignments, a few zeros more.
    assert!(deaths.is_empty(), "{}:\n{}", deaths.len(), deaths.join("\n"));
}

#[test]
fn extreme_numbers_anywhere_are_accepted_or_refused_but_never_a_panic() {
    let folder = folder();
    let file = CLibrary::provider("acme").build(&folder.path().join("lib.so"));
    let sound = fs::read(file).unwrap();
    for at in (0..sound.len() - 8).step_by(4) {
        for value in [0, 1, u64::MAX, u64::MAX - 7, 1 << 63, i64::MAX.cast_unsigned(), 0xffff_ffff, 0x7fff_f000] {
            let mut bytes = sound.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            let _ = inspect_bytes(&bytes);
            bytes.copy_from_slice(&sound);
            bytes[at..at + 4].copy_from_slice(&(value as u32).to_ne_bytes());
            let _ = inspect_bytes(&bytes);
        }
    }
}

#[test]
fn bytes_are_judged_as_the_file_is() {
    let folder = folder();
    let file = CLibrary::provider("acme").build(&folder.path().join("lib.so"));
    let bytes = fs::read(file).unwrap();
    assert_eq!(inspect_bytes(&bytes).unwrap().name, "acme");
    for (bytes, says) in [(&bytes[..0], "an empty file"), (&bytes[..bytes.len() / 2], "headers"), (b"text", "kind")] {
        let error = inspect_bytes(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Plugin);
        assert!(error.to_string().starts_with("bytes: format: ") && error.to_string().contains(says), "{error}");
    }
}
