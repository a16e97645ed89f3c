//! Archives of strangers.

use std::{
    fs::{File, Permissions},
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use sandbox_core::ErrorKind;
use tar::{Builder, EntryType, Header};

use super::{cache::Images, unpack::unpack};
use crate::{config::LocalConfig, folder::host_folder, records::Records, state::State, workspace::Root};

const LIMIT: u64 = 64 << 20;

struct Entry<'a> {
    kind: EntryType,
    path: &'a str,
    /// Contents, or where a link leads.
    data: &'a str,
    mode: u32,
}

fn file<'a>(path: &'a str, data: &'a str) -> Entry<'a> {
    Entry { kind: EntryType::Regular, path, data, mode: 0o644 }
}

fn of<'a>(kind: EntryType, path: &'a str, data: &'a str) -> Entry<'a> {
    Entry { kind, path, data, mode: 0o755 }
}

/// An archive with names as they are given, which no library would write.
fn archive(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for entry in entries {
        let is_link = matches!(entry.kind, EntryType::Symlink | EntryType::Link);
        let mut header = Header::new_gnu();
        header.as_mut_bytes()[..entry.path.len()].copy_from_slice(entry.path.as_bytes());
        if is_link {
            header.as_mut_bytes()[157..157 + entry.data.len()].copy_from_slice(entry.data.as_bytes());
        }
        header.set_entry_type(entry.kind);
        header.set_mode(entry.mode);
        header.set_mtime(1_000_000);
        header.set_uid(7);
        header.set_gid(8);
        header.set_size(if is_link { 0 } else { entry.data.len() as u64 });
        header.set_cksum();
        builder.append(&header, if is_link { b"".as_slice() } else { entry.data.as_bytes() }).unwrap();
    }
    builder.into_inner().unwrap()
}

struct Bench {
    temp: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self { temp: tempfile::tempdir().unwrap() }
    }

    fn put(&self, bytes: &[u8]) -> PathBuf {
        let path = self.temp.path().join("image.tar");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn unpack(&self, bytes: &[u8], limit: u64) -> Result<PathBuf, sandbox_core::SandboxError> {
        let path = self.put(bytes);
        let target = tempfile::tempdir_in(self.temp.path()).unwrap().keep();
        let owners = crate::user::is_privileged();
        unpack(File::open(path).unwrap(), "image.tar", host_folder(&target)?, limit, owners).map(|_| target)
    }

    fn refusal(&self, entries: &[Entry<'_>]) -> String {
        let error = self.unpack(&archive(entries), LIMIT).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("image")), "{error}");
        error.to_string()
    }
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path).unwrap()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

#[test]
fn what_an_archive_holds_is_there_with_its_modes_owners_and_times() {
    let plain = archive(&[
        of(EntryType::Directory, "./", ""),
        of(EntryType::Directory, "usr/", ""),
        Entry { kind: EntryType::Directory, path: "closed", data: "", mode: 0o500 },
        file("closed/f", "in a folder that cannot be written to"),
        of(EntryType::Directory, "usr/lib", ""),
        of(EntryType::Symlink, "lib", "usr/lib"),
        file("/lib/deep/file", "through a link, its folders unnamed"),
        Entry { kind: EntryType::Regular, path: "usr/su", data: "x", mode: 0o4755 },
        of(EntryType::Link, "usr/hard", "./usr/su"),
        of(EntryType::Symlink, "abs", "/usr"),
        file("abs/by-absolute-link", "inside"),
        of(EntryType::Fifo, "run/pipe", ""),
        of(EntryType::Char, "dev/null", ""),
        file("twice", "first"),
        file("twice", "second"),
    ]);
    let two_frames = [zstd(&plain[..1024]), vec![0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3], zstd(&plain[1024..])];
    for bytes in [plain.clone(), gzip(&plain), zstd(&plain), two_frames.concat()] {
        let bench = Bench::new();
        let root = bench.unpack(&bytes, LIMIT).unwrap();
        assert_eq!(read(root.join("usr/lib/deep/file")), "through a link, its folders unnamed");
        assert_eq!(read(root.join("usr/by-absolute-link")), "inside");
        assert_eq!(read(root.join("twice")), "second");
        let found = std::fs::metadata(root.join("usr/su")).unwrap();
        assert_eq!((found.mode() & 0o7777, found.mtime(), found.nlink()), (0o755, 1_000_000, 2));
        if crate::user::is_privileged() {
            assert_eq!((found.uid(), found.gid()), (7, 8));
        }
        assert_eq!(std::fs::metadata(root.join("closed")).unwrap().mode() & 0o7777, 0o500);
        assert!(!root.join("dev/null").exists() && root.join("run/pipe").symlink_metadata().is_ok());
        // As nobody the folder could not be removed.
        std::fs::set_permissions(root.join("closed"), Permissions::from_mode(0o700)).unwrap();
    }
}

#[test]
fn nothing_leads_out_of_the_folder() {
    let bench = Bench::new();
    let outside = bench.temp.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("secret"), "secret").unwrap();
    let out = outside.to_str().unwrap();
    for path in ["../x", "a/../../x", "/../x"] {
        assert!(bench.refusal(&[file(path, "x")]).contains("leads out"), "{path}");
    }
    assert!(bench.refusal(&[of(EntryType::Link, "x", "../outside/secret")]).contains("leads out"));
    // Links count as the sandbox would see them: what they name is made inside, or is not there.
    let root = bench.unpack(&archive(&[of(EntryType::Symlink, "a", "../../.."), file("a/f", "x")]), LIMIT).unwrap();
    assert_eq!(read(root.join("f")), "x");
    for entries in [
        [of(EntryType::Symlink, "a", out), file("a/planted", "x")],
        [of(EntryType::Symlink, "a", out), of(EntryType::Directory, "a/folder", "")],
        [of(EntryType::Symlink, "a", out), of(EntryType::Link, "b", "a/secret")],
        [of(EntryType::Symlink, "a", out), of(EntryType::Symlink, "a/link", "/")],
    ] {
        bench.unpack(&archive(&entries), LIMIT).unwrap_err();
    }
    // A folder in place of a link, and a file in place of one, leave what the link names alone.
    let replaced = [of(EntryType::Symlink, "a", out), of(EntryType::Directory, "a", ""), file("a/planted", "x")];
    bench.unpack(&archive(&replaced), LIMIT).unwrap();
    let secret = format!("{out}/secret");
    bench.unpack(&archive(&[of(EntryType::Symlink, "a", &secret), file("a", "changed")]), LIMIT).unwrap();
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
    assert_eq!(read(outside.join("secret")), "secret");
}

#[test]
fn devices_other_archives_and_broken_ones_are_refused() {
    let bench = Bench::new();
    assert!(bench.refusal(&[of(EntryType::Block, "disk", "")]).contains("is a device"));
    assert!(bench.refusal(&[file("manifest.json", "[]"), file("layer.tar", "x")]).contains("layers"));
    assert!(bench.refusal(&[]).contains("nothing"));
    let good = archive(&[file("bin/sh", &"x".repeat(5000)), file("etc/f", "y")]);
    let mut wrong_sum = good.clone();
    wrong_sum[3] ^= 1;
    let packed = gzip(&good);
    let broken = [
        b"not a tar file".to_vec(),
        b"x".repeat(4096),
        wrong_sum,
        good[..3000].to_vec(),
        // At the end of an entry, where nothing else shows it.
        good[..good.len() - 1024].to_vec(),
        packed[..packed.len() - 20].to_vec(),
        packed[..packed.len() - 3].to_vec(),
        zstd(&good)[..60].to_vec(),
        b"\x1f\x8bgarbage".to_vec(),
    ];
    for (index, bytes) in broken.iter().enumerate() {
        let error = bench.unpack(bytes, LIMIT).expect_err(&index.to_string());
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("image")), "{index}: {error}");
    }
    let xz = bench.unpack(b"\xfd7zXZ\0......", LIMIT).unwrap_err();
    assert!(xz.to_string().contains("xz") && xz.help().unwrap().contains("gzip"), "{xz}");
}

#[test]
fn an_archive_is_bounded_however_well_it_is_packed() {
    let bench = Bench::new();
    let zeros = "\0".repeat(2 << 20);
    let bomb = gzip(&archive(&[file("zeros", &zeros)]));
    assert!(bomb.len() < 64 << 10);
    let error = bench.unpack(&bomb, 1 << 20).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Exhausted, Some("image")), "{error}");
    assert!(error.help().unwrap().contains("image_cache_mib"));
    // What follows the end counts, too.
    let tail = gzip(&[archive(&[file("f", "x")]), vec![0; 2 << 20]].concat());
    assert_eq!(bench.unpack(&tail, 1 << 20).unwrap_err().kind(), ErrorKind::Exhausted);
    // A sparse file is as long as it says, not as what is in the archive.
    let mut header = Header::new_gnu();
    header.set_path("sparse").unwrap();
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(EntryType::GNUSparse);
    header.set_mode(0o644);
    header.set_size(0);
    let gnu = header.as_gnu_mut().unwrap();
    gnu.set_real_size(1 << 40);
    gnu.sparse[0].set_offset(1 << 40);
    gnu.sparse[0].set_length(0);
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, b"".as_slice()).unwrap();
    let error = bench.unpack(&builder.into_inner().unwrap(), 1 << 20).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    // A long name is held in memory.
    let long = archive(&[of(EntryType::GNULongName, "././@LongLink", &"n".repeat(3 << 20)), file("f", "x")]);
    assert!(bench.unpack(&long, LIMIT).unwrap_err().to_string().contains("headers"));
}

fn images(bench: &Bench, limit: u64) -> Images {
    let root = Root::new(bench.temp.path().join("root"));
    root.prepare().unwrap();
    Images::new(&root, Records::new(&root, State::new(&LocalConfig::default())), limit)
}

fn remains(bench: &Bench) -> Vec<String> {
    let entries = std::fs::read_dir(bench.temp.path().join("root/.images")).into_iter().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn whoever_asks_at_the_same_time_gets_the_same_folder_that_was_made_once() {
    let bench = Bench::new();
    let tar = bench.put(&archive(&[file("bin/sh", &"x".repeat(1 << 20))]));
    let images = Arc::new(images(&bench, LIMIT));
    let inodes: Vec<u64> = std::thread::scope(|scope| {
        let ask = || {
            let held = images.take(&tar).unwrap();
            assert_eq!(read(held.folder().join("bin/sh")).len(), 1 << 20);
            std::fs::metadata(held.folder().join("bin/sh")).unwrap().ino()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(inodes.iter().all(|inode| *inode == inodes[0]));
    assert_eq!(remains(&bench).len(), 2);
    // Another content is another image; a broken one leaves nothing.
    bench.put(&archive(&[file("bin/sh", "other")]));
    assert_eq!(read(images.take(&tar).unwrap().folder().join("bin/sh")), "other");
    bench.put(b"broken");
    images.take(&tar).err().unwrap();
    assert_eq!(remains(&bench).len(), 4);
}

#[test]
fn the_longest_unused_image_makes_room_and_one_in_use_stays() {
    let bench = Bench::new();
    let images = images(&bench, 5 << 20);
    let half = |name: &str| {
        let tar = bench.temp.path().join(name);
        std::fs::write(&tar, archive(&[file(name, &"x".repeat(2 << 20))])).unwrap();
        images.take(&tar)
    };
    let first = half("first").unwrap();
    let second = half("second").unwrap();
    let refused = half("third").err().unwrap();
    assert_eq!((refused.kind(), refused.field()), (ErrorKind::Exhausted, Some("image")), "{refused}");
    let (first, second) = ((first.folder().to_owned(), first), second.folder().to_owned());
    drop(first.1);
    half("third").unwrap();
    assert!(!first.0.exists() || !second.exists());
    let third = half("third").unwrap();
    assert!(third.folder().is_dir());
    assert_eq!(remains(&bench).len(), 4);
}

#[test]
fn a_sweep_takes_what_was_not_finished_and_what_is_long_unused() {
    let bench = Bench::new();
    let images = images(&bench, LIMIT);
    let tar = bench.put(&archive(&[file("bin/sh", "x")]));
    let held = images.take(&tar).unwrap();
    let folder = bench.temp.path().join("root/.images");
    std::fs::create_dir_all(folder.join("tar-1.partial/deep")).unwrap();
    std::fs::write(folder.join("tar-1.lock"), "").unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(30 * 86_400);
    let lock = File::options().write(true).open(held.folder().with_extension("lock"));
    // The key holds dots.
    let lock = lock.or_else(|_| File::options().write(true).open(format!("{}.lock", held.folder().display()))).unwrap();
    lock.set_modified(old).unwrap();
    images.sweep().unwrap();
    assert_eq!(remains(&bench).len(), 2, "{:?}", remains(&bench));
    drop(held);
    images.sweep().unwrap();
    assert_eq!(remains(&bench), Vec::<String>::new());
}
