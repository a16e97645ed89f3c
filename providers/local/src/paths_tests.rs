use std::{os::unix::fs::symlink, path::Path};

use rustix::fs::OFlags;
use sandbox_core::{ByteString, ErrorKind};

use super::{Make, Paths, split, trim_front};

fn paths(workdir: &Path) -> Paths {
    Paths::new(workdir.canonicalize().unwrap(), None)
}

fn open(paths: &Paths, path: impl Into<ByteString>) -> Result<(), ErrorKind> {
    let opened = paths.place(&path.into()).and_then(|place| place.open(OFlags::RDONLY));
    opened.map(drop).map_err(|error| error.kind())
}

#[test]
fn ways_are_split_at_their_last_name() {
    for (way, expected) in [
        (&b"a"[..], Some((&b"."[..], &b"a"[..]))),
        (b"a/b", Some((b"a", b"b"))),
        (b"a//b//", Some((b"a/", b"b"))),
        (b"-rf", Some((b".", b"-rf"))),
        (b"a\n/\xff", Some((b"a\n", b"\xff"))),
        (b".", None),
        (b"a/..", None),
        (b"a/.", None),
    ] {
        assert_eq!(split(way), expected, "{}", way.escape_ascii());
    }
    assert_eq!(trim_front(b"///a/"), b"a/");
    assert_eq!(trim_front(b"/"), b".");
}

#[test]
fn nothing_confined_leads_out() {
    let temp = tempfile::tempdir().unwrap();
    let work = temp.path().join("work");
    std::fs::create_dir_all(work.join("sub")).unwrap();
    std::fs::write(temp.path().join("secret"), "x").unwrap();
    std::fs::write(work.join("file"), "x").unwrap();
    symlink("../secret", work.join("out")).unwrap();
    symlink("..", work.join("up")).unwrap();
    symlink("/etc/passwd", work.join("absolute")).unwrap();
    symlink("file", work.join("inside")).unwrap();
    symlink("../file", work.join("sub/back")).unwrap();
    symlink(work.join("file"), work.join("absolute-inside")).unwrap();
    symlink("loop", work.join("loop")).unwrap();
    let paths = paths(&work);
    let absolute = |path: &str| format!("{}/{path}", work.display());
    for path in ["../secret", "sub/../../secret", "out", "up/secret", "absolute", "..", "loop"] {
        assert_eq!(open(&paths, path), Err(ErrorKind::InvalidInput), "{path}");
        assert_eq!(open(&paths, absolute(path)), Err(ErrorKind::InvalidInput), "{path}");
    }
    for path in ["file", "./file", "sub/../file", "inside", "sub/back", "absolute-inside", "."] {
        assert_eq!(open(&paths, path), Ok(()), "{path}");
        assert_eq!(open(&paths, absolute(path)), Ok(()), "{path}");
    }
    assert_eq!(open(&paths, ""), Err(ErrorKind::InvalidInput));
    assert_eq!(open(&paths, "a\0b"), Err(ErrorKind::InvalidInput));
    assert_eq!(open(&paths, "/etc/passwd"), Ok(()));
    assert_eq!(open(&paths, "/proc/self/root/etc/passwd"), Err(ErrorKind::InvalidInput));
}

#[test]
fn targets_follow_links_within_the_same_bounds() {
    let temp = tempfile::tempdir().unwrap();
    let work = temp.path().join("work");
    std::fs::create_dir_all(work.join("sub/deep")).unwrap();
    symlink("sub/deep/new", work.join("link")).unwrap();
    symlink("../new", work.join("sub/deep/back")).unwrap();
    symlink("../evil", work.join("out")).unwrap();
    symlink("/evil", work.join("absolute")).unwrap();
    symlink("b", work.join("a")).unwrap();
    symlink("a", work.join("b")).unwrap();
    let paths = paths(&work);
    let make = Make { owner: None };
    let target = |path: &str| {
        let place = paths.place(&path.into())?;
        place.target(make).map(|entry| String::from_utf8(entry.name).unwrap())
    };
    for (path, name) in [("link", "new"), ("sub/deep/back", "new"), ("made/for/it", "it")] {
        assert_eq!(target(path).unwrap(), name, "{path}");
    }
    assert!(work.join("made/for").is_dir());
    for path in ["out", "absolute", "a", "../x", "up/", ".", "sub/..", "made/../../x/y"] {
        assert_eq!(target(path).unwrap_err().kind(), ErrorKind::InvalidInput, "{path}");
    }
    assert!(!temp.path().join("x").exists());
}
