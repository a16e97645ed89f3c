//! `/etc/hosts` of sandboxes: who is reached under which name.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    io::{Read, Seek, Write},
    net::IpAddr,
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use sandbox_agent_client::start_time;
use sandbox_core::{Result, SandboxError, tracing};

use super::{members::is_in, store::Locked};
use crate::{error::os, isolated::Leftover, record::Record, records::Records};

/// What follows this line is written here, and is written anew with each change.
const MARK: &str = "# the networks of this sandbox";

/// The name for itself that is written where there is no network.
const OWN_NAME: &str = "127.0.1.1 ";

/// The most that is read and written. The file is the sandbox's, and may hold anything.
const HOSTS_MAX: u64 = 1 << 20;

pub(super) fn is_host_name(name: &str) -> bool {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=253).contains(&name.len()) && name.bytes().all(is_good)
}

/// Checks names and addresses that a caller gave.
pub(super) fn check(hosts: &BTreeMap<String, String>) -> Result<()> {
    for (name, address) in hosts {
        let field = format!("hosts.{}", name.escape_debug());
        if !is_host_name(name) {
            return Err(SandboxError::invalid_input(field, "is no host name"));
        }
        if address.parse::<IpAddr>().is_err() {
            return Err(SandboxError::invalid_input(field, "must be an address"));
        }
    }
    match hosts.iter().map(|(name, address)| name.len() + address.len() + 2).sum::<usize>() as u64 {
        length if length > HOSTS_MAX / 2 => Err(SandboxError::invalid_input("hosts", "are more than 512 KiB")),
        _ => Ok(()),
    }
}

/// Writes the hosts of everybody in a network. One that cannot be told does not keep the others from it.
pub(super) fn tell(records: &Records, locked: &Locked, network: &str) {
    let Ok(all) = records.read_all() else { return };
    for record in all.iter().filter(|record| is_in(record, network)) {
        put_logged(record, &all, locked);
    }
}

/// Writes the hosts of one sandbox.
pub(super) fn tell_one(records: &Records, locked: &Locked, record: &Record) {
    if let Ok(all) = records.read_all() {
        put_logged(record, &all, locked);
    }
}

fn put_logged(record: &Record, all: &[Record], locked: &Locked) {
    if let Err(error) = put(record, all, locked) {
        tracing::debug!(sandbox_id = record.id, kind = %error.kind(), "the hosts of a sandbox could not be written");
    }
}

/// Writes the hosts of one sandbox.
pub(super) fn put(record: &Record, all: &[Record], _locked: &Locked) -> Result<()> {
    let Some(inside) = &record.inside else { return Ok(()) };
    let mut file = open(inside)?;
    let failed = |error| SandboxError::io("/etc/hosts of the sandbox", error);
    let mut before = Vec::new();
    (&file).take(HOSTS_MAX).read_to_end(&mut before).map_err(failed)?;
    let text = text(&String::from_utf8_lossy(&before), record, all);
    file.rewind().and_then(|()| file.write_all(text.as_bytes())).map_err(failed)?;
    file.set_len(text.len() as u64).map_err(failed)
}

fn text(before: &str, record: &Record, all: &[Record]) -> String {
    let mut text = String::new();
    let is_own = |line: &&str| record.networks.is_empty() || !line.starts_with(OWN_NAME);
    for line in before.lines().take_while(|line| *line != MARK).filter(is_own) {
        text.push_str(line);
        text.push('\n');
    }
    text.push_str(MARK);
    text.push('\n');
    let mut line = |address: &dyn std::fmt::Display, names: &[&str]| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{address} {}", names.join(" "));
    };
    for (name, address) in &record.hosts {
        line(address, &[name]);
    }
    for own in &record.networks {
        for other in std::iter::once(record).chain(all.iter().filter(|other| other.id != record.id)) {
            for attachment in other.networks.iter().filter(|attachment| attachment.network == own.network) {
                let names: Vec<&str> = other
                    .name
                    .as_deref()
                    .into_iter()
                    .chain(attachment.names.iter().map(String::as_str))
                    .chain([other.id.as_str()])
                    .collect();
                line(&attachment.address, &names);
            }
        }
    }
    text
}

/// Opens a sandbox's own file, whatever its root has there: no link is followed, and only a regular file is taken.
fn open(inside: &Leftover) -> Result<File> {
    let (pid, start_ticks) = inside.process();
    let failed = |errno| os("/etc/hosts of the sandbox", errno);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(CWD, format!("/proc/{pid}/root"), flags, Mode::empty()).map_err(failed)?;
    // Compared after it was opened, so it is of the very process.
    if start_time(pid) != Some(start_ticks) {
        return Err(SandboxError::not_found("the sandbox has ended"));
    }
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(openat2(root, "etc/hosts", flags, Mode::empty(), resolve).map_err(failed)?);
    match file.metadata() {
        Ok(found) if found.is_file() => Ok(file),
        _ => Err(SandboxError::invalid_state("/etc/hosts of the sandbox is no regular file")),
    }
}
