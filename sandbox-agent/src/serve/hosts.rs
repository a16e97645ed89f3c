//! Names that resolve inside: a marked block of the hosts file.

use std::{collections::BTreeMap, net::IpAddr, os::fd::OwnedFd};

use rustix::{
    fs::{FlockOperation, OFlags, flock, ftruncate},
    io::{Errno, pwrite},
};
use sandbox_core::{ByteString, FileKind, Result, SandboxError};
use sandbox_protocol::{StreamResponder, methods::HostsSet};

use super::{
    agent::{Agent, nothing},
    files::work,
    paths::{NewFile, Place, os, stat},
    transfer::check_regular,
};

const HOSTS: &str = "/etc/hosts";
const BEGIN: &[u8] = b"# begin of the sandbox's hosts";
const END: &[u8] = b"# end of the sandbox's hosts";
const NAMES_MAX: usize = 10_000;
const NAME_BYTES_MAX: usize = 253;
/// The largest hosts file that is edited.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

impl Agent {
    pub(super) async fn hosts_set(&self, request: HostsSet) -> Result<StreamResponder> {
        check(&request.hosts)?;
        let _turn = self.hosts.lock().await;
        nothing(work(move || set(&request.hosts)).await)
    }
}

fn check(hosts: &BTreeMap<String, String>) -> Result<()> {
    let bad = |why: String| Err(SandboxError::invalid_input("hosts", why));
    if hosts.len() > NAMES_MAX {
        return bad(format!("holds {} names; at most {NAMES_MAX} are taken", hosts.len()));
    }
    for (name, address) in hosts {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_name) {
            return bad(format!("{} is no host name", name.escape_debug()));
        }
        if address.parse::<IpAddr>().is_err() {
            return bad(format!("the address of {name} is none"));
        }
    }
    Ok(())
}

fn set(hosts: &BTreeMap<String, String>) -> Result<()> {
    let place = Place::new(&ByteString::from(HOSTS), HOSTS.into())?;
    let old = read(&place)?;
    let new = edit(&old, hosts);
    if new == old {
        return Ok(());
    }
    match replace(&place, &new) {
        // A mount of its own cannot be replaced, and its folder may be read-only.
        Err(Errno::BUSY | Errno::ROFS | Errno::ACCESS | Errno::PERM | Errno::XDEV) => overwrite(&place, &new),
        replaced => replaced,
    }
    .map_err(|errno| os(HOSTS, errno))
}

fn read(place: &Place) -> Result<Vec<u8>> {
    let file = match place.open(OFlags::RDONLY | OFlags::NONBLOCK) {
        Err(error) if error.kind() == sandbox_core::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let found = stat(&file, b"").map_err(place.failed())?;
    check_regular(&found, HOSTS)?;
    if found.size > FILE_BYTES_MAX {
        return Err(SandboxError::exhausted(format!("{HOSTS} has {} bytes; too many to edit", found.size)));
    }
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut std::fs::File::from(file), &mut text)
        .map_err(|error| SandboxError::io(HOSTS, error))?;
    Ok(text)
}

/// Everything but the block stays as it is, to the byte.
fn edit(old: &[u8], hosts: &BTreeMap<String, String>) -> Vec<u8> {
    let lines: Vec<&[u8]> = old.split_inclusive(|byte| *byte == b'\n').collect();
    let mut new = Vec::with_capacity(old.len());
    let mut index = 0;
    while let Some(line) = lines.get(index) {
        index += 1;
        if line.trim_ascii_end() != BEGIN {
            new.extend_from_slice(line);
            continue;
        }
        // A block whose end somebody has removed is its first line only.
        let length = lines[index..].iter().position(|line| line.trim_ascii_end() == END);
        index += length.map_or(0, |length| length + 1);
    }
    if hosts.is_empty() {
        return new;
    }
    if new.last().is_some_and(|byte| *byte != b'\n') {
        new.push(b'\n');
    }
    new.extend_from_slice(BEGIN);
    for (name, address) in hosts {
        new.extend_from_slice(format!("\n{address}\t{name}").as_bytes());
    }
    new.push(b'\n');
    new.extend_from_slice(END);
    new.push(b'\n');
    new
}

/// In one step, by a rename.
fn replace(place: &Place, new: &[u8]) -> Result<(), Errno> {
    let entry = place.target_raw()?;
    let old = match stat(&entry.folder, &entry.name) {
        Ok(found) if found.kind == FileKind::File => Some(found),
        Ok(_) => return Err(Errno::BUSY),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(errno),
    };
    let mut file = NewFile::begin_raw(entry)?;
    file.write_raw(new)?;
    let owner = old.as_ref().map(|old| (old.uid, old.gid));
    file.finish_raw(old.map_or(0o644, |old| old.mode), owner)
}

/// In place, so that a reader never finds less than a whole file: the new text is written in one call, filled up with
/// empty lines to the old length, and only then cut.
fn overwrite(place: &Place, new: &[u8]) -> Result<(), Errno> {
    let file: OwnedFd = place.open_raw(OFlags::WRONLY | OFlags::NONBLOCK)?;
    flock(&file, FlockOperation::LockExclusive)?;
    let old = stat(&file, b"")?.size;
    let mut text = new.to_vec();
    text.resize(text.len().max(usize::try_from(old).unwrap_or(0)), b'\n');
    let mut at = 0;
    while at < text.len() {
        match pwrite(&file, &text[at..], at as u64) {
            Ok(count) => at += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    ftruncate(&file, new.len() as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{check, edit};

    fn hosts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, address)| ((*name).to_owned(), (*address).to_owned())).collect()
    }

    #[test]
    fn only_the_block_changes() {
        let own = b"127.0.0.1 localhost\n# mine\n::1 ip6";
        let first = edit(own, &hosts(&[("db", "10.0.0.2"), ("cache", "fd00::1")]));
        let text = String::from_utf8(first.clone()).unwrap();
        assert!(text.starts_with("127.0.0.1 localhost\n# mine\n::1 ip6\n# begin"), "{text}");
        assert!(text.contains("\n10.0.0.2\tdb\n") && text.contains("\nfd00::1\tcache\n"), "{text}");
        let with_more = [first.as_slice(), b"1.2.3.4 later\n"].concat();
        let second = String::from_utf8(edit(&with_more, &hosts(&[("x", "10.0.0.3")]))).unwrap();
        assert!(
            !second.contains("10.0.0.2") && second.contains("10.0.0.3\tx") && second.contains("1.2.3.4 later"),
            "{second}"
        );
        assert_eq!(second.matches("# begin").count(), 1);
        assert_eq!(edit(second.as_bytes(), &hosts(&[])), b"127.0.0.1 localhost\n# mine\n::1 ip6\n1.2.3.4 later\n");
        let cut = b"a\n# begin of the sandbox's hosts\n9.9.9.9 x\nb\n";
        assert_eq!(edit(cut, &hosts(&[])), b"a\n9.9.9.9 x\nb\n", "nothing of others is taken for a cut block");
    }

    #[test]
    fn what_could_be_more_than_a_name_is_refused() {
        for (name, address) in
            [("a b", "10.0.0.1"), ("", "10.0.0.1"), ("a\n1.1.1.1 b", "10.0.0.1"), ("a", "b"), ("a", "")]
        {
            assert!(check(&hosts(&[(name, address)])).is_err(), "{name:?} {address:?}");
        }
        assert!(check(&hosts(&[("a-b_c.d", "::1")])).is_ok());
    }
}
