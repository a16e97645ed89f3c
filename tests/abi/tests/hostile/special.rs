//! What is no library at all, and paths that others could change.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, chown, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    process::Command,
};

use crate::corpus::{Action, Corpus, Make, Verdict, write};

const NO_FILE: &str = "a regular file";

pub(crate) fn add(corpus: &mut Corpus) {
    contents(corpus);
    kinds(corpus);
    permissions(corpus);
}

/// Regular files of another kind.
fn contents(corpus: &mut Corpus) {
    let random = crate::elf::Random(7).bytes(100_000);
    let contents: [(&str, Vec<u8>); 10] = [
        ("empty", Vec::new()),
        ("text", b"hello\n".to_vec()),
        ("a script", b"#!/bin/sh\ntouch canary\n".to_vec()),
        ("zeros", vec![0; 100_000]),
        ("random", random.clone()),
        ("a magic and random", [b"\x7fELF\x02\x01\x01".to_vec(), random].concat()),
        ("an empty archive", b"!<arch>\n".to_vec()),
        ("an import library", b"/* GNU ld script */ INPUT(libc.so.6)\n".to_vec()),
        ("Mach-O", [vec![0xcf, 0xfa, 0xed, 0xfe, 7, 0, 0, 1], vec![0; 200]].concat()),
        ("a Windows program", [b"MZ".to_vec(), vec![0; 200]].concat()),
    ];
    for (name, bytes) in contents {
        corpus.bytes("contents", name, bytes, Action::Load, Verdict::RefusedUnrun);
    }
    for program in ["/bin/sh", env!("CARGO_BIN_EXE_probe")] {
        let make: Make = Box::new(move |folder| write(folder, &fs::read(program).expect("a program can be read")));
        corpus.add("contents", format!("the program {program}"), make, Verdict::RefusedUnrun);
    }
}

/// What is no regular file.
fn kinds(corpus: &mut Corpus) {
    let mut add = |name: &str, make: fn(&Path) -> PathBuf, verdict| {
        corpus.add("kinds", name, Box::new(make), verdict);
    };
    add("a folder", |folder| folder.to_owned(), Verdict::refused("open", NO_FILE));
    add(
        "a pipe",
        |folder| {
            let path = folder.join("libcase.so");
            assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo is there").success());
            path
        },
        Verdict::refused("open", NO_FILE),
    );
    add(
        "a socket",
        |folder| {
            let path = folder.join("libcase.so");
            drop(UnixListener::bind(&path).expect("a socket can be made"));
            path
        },
        Verdict::refused("open", NO_FILE),
    );
    add("a link to /dev/zero", |folder| link(folder, "/dev/zero"), Verdict::RefusedUnrun);
    add("a link to /dev/null", |folder| link(folder, "/dev/null"), Verdict::RefusedUnrun);
    add("a link to itself", |folder| link(folder, "libcase.so"), Verdict::refused("permissions", "loop"));
    add("a link to nowhere", |folder| link(folder, "nowhere"), Verdict::RefusedUnrun);
    add("a link to a folder", |folder| link(folder, "."), Verdict::RefusedUnrun);
    add("nothing", |folder| folder.join("libcase.so"), Verdict::refused("permissions", "nothing there"));
    add("a file in a file", |folder| write(folder, b"x").join("libcase.so"), Verdict::RefusedUnrun);
    add("a relative path", |_| "libcase.so".into(), Verdict::refused("permissions", "not absolute"));
    add("a file of /proc", |_| "/proc/self/mem".into(), Verdict::RefusedUnrun);
}

fn link(folder: &Path, target: &str) -> PathBuf {
    let path = folder.join("libcase.so");
    symlink(target, &path).expect("a link can be made");
    path
}

/// Sound libraries that somebody else may have written.
fn permissions(corpus: &mut Corpus) {
    let sound = corpus.sound;
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    for bits in [0o777, 0o666, 0o757, 0o602] {
        let make: Make = Box::new(move |folder| {
            let path = write(folder, sound);
            mode(&path, bits);
            path
        });
        let verdict = Verdict::refused("permissions", "writable by everybody");
        corpus.add("permissions", format!("mode {bits:o}"), make, verdict);
    }
    let make: Make = Box::new(move |folder| {
        let path = write(folder, sound);
        mode(folder, 0o777);
        path
    });
    corpus.add("permissions", "a folder of mode 777", make, Verdict::refused("permissions", "writable by everybody"));
    let make: Make = Box::new(move |folder| {
        let open = folder.join("open");
        fs::create_dir(&open).expect("the folder is ours");
        write(&open, sound);
        mode(&open, 0o777);
        link(folder, "open/libcase.so")
    });
    corpus.add(
        "permissions",
        "a link into such a folder",
        make,
        Verdict::refused("permissions", "writable by everybody"),
    );
    let make: Make = Box::new(move |folder| {
        let path = write(folder, sound);
        // Only root can give a file away; for everybody else this is a sound library.
        let _ = chown(&path, Some(65_534), None);
        path
    });
    let is_root = fs::metadata("/proc/self").is_ok_and(|found| std::os::unix::fs::MetadataExt::uid(&found) == 0);
    let verdict = if is_root { Verdict::refused("permissions", "belongs to user 65534") } else { Verdict::Accepted };
    corpus.add("permissions", "a file of another user", make, verdict);
}
