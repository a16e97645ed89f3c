//! A launch as one block of bytes, for another process: written by the host, relocated in place by the supervisor.
//!
//! Both are the same binary. Layout, in native 8-byte words: a header of counts, then the tables in the order of
//! [`Header`], then NUL-terminated strings. Pointers are offsets into the block until it is relocated.

use std::ffi::{CStr, CString};

use libc::c_char;

use crate::launch::{Ids, Launch};
use crate::prepare::Prepared;

const WORD: usize = 8;
const HEADER_WORDS: usize = 11;

/// What the first words hold, in this order.
struct Header {
    argv: usize,
    env: usize,
    candidates: usize,
    has_cwd: usize,
    limits: usize,
    has_user: usize,
    uid: usize,
    gid: usize,
    groups: usize,
    no_new_privs: usize,
    terminal: usize,
}

struct Writer {
    words: Vec<u64>,
    strings: Vec<u8>,
    strings_at: usize,
}

impl Writer {
    fn pointers(&mut self, list: &[CString]) {
        for string in list {
            self.words.push((self.strings_at + self.strings.len()) as u64);
            self.strings.extend_from_slice(string.as_bytes_with_nul());
        }
    }
}

/// Writes a checked command.
pub(crate) fn encode(prepared: &Prepared) -> Vec<u8> {
    let user = prepared.user.as_ref();
    let groups: &[u32] = user.map_or(&[], |user| &user.groups);
    let header = [
        prepared.argv.len() as u64,
        prepared.env.len() as u64,
        prepared.candidates.len() as u64,
        u64::from(prepared.cwd.is_some()),
        prepared.limits.len() as u64,
        u64::from(user.is_some()),
        user.map_or(0, |user| u64::from(user.uid)),
        user.map_or(0, |user| u64::from(user.gid)),
        groups.len() as u64,
        u64::from(prepared.no_new_privs),
        u64::from(prepared.terminal),
    ];
    let tables = (prepared.argv.len() + 1)
        + (prepared.env.len() + 1)
        + prepared.candidates.len()
        + usize::from(prepared.cwd.is_some())
        + 3 * prepared.limits.len()
        + groups.len();
    let mut out = Writer { words: header.to_vec(), strings: Vec::new(), strings_at: (HEADER_WORDS + tables) * WORD };
    out.pointers(&prepared.argv);
    out.words.push(0);
    out.pointers(&prepared.env);
    out.words.push(0);
    out.pointers(&prepared.candidates);
    out.pointers(prepared.cwd.as_slice());
    for (resource, limit) in &prepared.limits {
        out.words.extend([u64::from(*resource), limit.rlim_cur, limit.rlim_max]);
    }
    out.words.extend(groups.iter().map(|&group| u64::from(group)));
    let mut bytes: Vec<u8> = out.words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    bytes.extend_from_slice(&out.strings);
    bytes
}

/// Turns offsets into pointers and returns the launch. No allocation, no panic. `None` when the block is not one of
/// ours. The block must be aligned to 8 bytes.
pub(crate) fn relocate(block: &mut [u8]) -> Option<Launch<'_>> {
    let length = block.len();
    let base = block.as_mut_ptr();
    // SAFETY: every bit pattern is a valid u64; the unaligned edges are split off and refused below.
    let (edge, words, _) = unsafe { block.align_to_mut::<u64>() };
    if !edge.is_empty() {
        return None;
    }
    let (head, rest) = words.split_at_mut_checked(HEADER_WORDS)?;
    let header = parse(head)?;
    let (argv, rest) = rest.split_at_mut_checked(header.argv.checked_add(1)?)?;
    let (env, rest) = rest.split_at_mut_checked(header.env.checked_add(1)?)?;
    let (candidates, rest) = rest.split_at_mut_checked(header.candidates)?;
    let (cwd, rest) = rest.split_at_mut_checked(header.has_cwd)?;
    let (limits, rest) = rest.split_at_mut_checked(header.limits.checked_mul(3)?)?;
    let (groups, _) = rest.split_at_mut_checked(header.groups)?;
    for list in [&mut *argv, &mut *env, &mut *candidates, &mut *cwd] {
        for word in list.iter_mut().filter(|word| **word != 0) {
            if usize::try_from(*word).ok()? >= length {
                return None;
            }
            *word = word.wrapping_add(base as u64);
        }
    }
    // SAFETY: relocated above to a string of this block that `encode` has ended with a NUL.
    let cwd = cwd.first().map(|&address| unsafe { CStr::from_ptr(address as *const c_char) });
    let user = (header.has_user > 0).then_some(Ids {
        uid: header.uid as u32,
        gid: header.gid as u32,
        groups: compact(groups),
    });
    Some(Launch {
        candidates,
        argv: argv.as_ptr().cast(),
        envp: env.as_ptr().cast(),
        cwd,
        limits,
        user,
        descriptors: &[],
        targets: &[],
        no_new_privs: header.no_new_privs != 0,
        terminal: header.terminal != 0,
    })
}

fn parse(head: &[u64]) -> Option<Header> {
    let at = |index: usize| head.get(index).and_then(|&word| usize::try_from(word).ok());
    Some(Header {
        argv: at(0)?,
        env: at(1)?,
        candidates: at(2)?,
        has_cwd: at(3)?,
        limits: at(4)?,
        has_user: at(5)?,
        uid: at(6)?,
        gid: at(7)?,
        groups: at(8)?,
        no_new_privs: at(9)?,
        terminal: at(10)?,
    })
}

/// Packs numbers into the 4-byte form the kernel takes, in place.
fn compact(words: &mut [u64]) -> &[u32] {
    let count = words.len();
    let mut index = 0;
    while index < count {
        let Some(&value) = words.get(index) else { break };
        let half = words.as_mut_ptr().cast::<u32>();
        // SAFETY: `index` is below the count of words, so below twice that of halves; it never overtakes the reads.
        let slot = unsafe { half.add(index) };
        // SAFETY: inside the exclusively borrowed words, aligned for u32.
        unsafe { slot.write(value as u32) };
        index += 1;
    }
    // SAFETY: the first `count` halves were written above and lie inside the words.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u32>(), count) }
}
