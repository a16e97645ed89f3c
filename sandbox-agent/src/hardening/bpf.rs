//! Turns rules about system calls into a seccomp program that finds its rule by binary search.
//!
//! seccompiler was the alternative: it compares one number after the other, and with about a hundred numbers the
//! kernel's check at installation (which runs the program for every number) becomes the larger part of an exec.

use libc::sock_filter;

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_AT_LEAST: u16 = 0x35;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_ARGS: u32 = 16;

const KILL_PROCESS: u32 = 0x8000_0000;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// What happens with a range of system calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rule {
    Allow,
    /// Fails with this errno.
    Refuse(i32),
    /// Fails with the errno if the lower half of the argument has any of these bits.
    RefuseBits(u8, u32, i32),
    /// Fails with the errno if the lower half of the argument is one of these.
    RefuseValues(u8, &'static [u32], i32),
    /// Fails with the errno unless the lower half of the argument is one of these.
    AllowValues(u8, &'static [u32], i32),
}

/// The rule of `number` and those after it, up to the next entry's.
#[derive(Debug, Clone)]
pub(super) struct Segment {
    pub(super) from: u32,
    pub(super) rule: Rule,
}

/// The program for `segments`, which are ascending and start at 0.
pub(super) fn assemble(arch: u32, segments: &[Segment]) -> Vec<sock_filter> {
    let mut program = vec![
        instruction(LOAD, 0, 0, OFFSET_ARCH),
        instruction(JUMP_EQUAL, 1, 0, arch),
        instruction(RETURN, 0, 0, KILL_PROCESS),
        instruction(LOAD, 0, 0, OFFSET_NUMBER),
    ];
    program.extend(search(segments));
    program
}

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn search(segments: &[Segment]) -> Vec<sock_filter> {
    if let [only] = segments {
        return leaf(&only.rule);
    }
    let (lower, upper) = segments.split_at(segments.len() / 2);
    let (left, right) = (search(lower), search(upper));
    let middle = upper[0].from;
    let mut program = match u8::try_from(left.len()) {
        Ok(distance) => vec![instruction(JUMP_AT_LEAST, distance, 0, middle)],
        Err(_) => {
            vec![instruction(JUMP_AT_LEAST, 0, 1, middle), instruction(JUMP, 0, 0, left.len() as u32)]
        }
    };
    program.extend(left);
    program.extend(right);
    program
}

fn leaf(rule: &Rule) -> Vec<sock_filter> {
    let refuse = |errno: i32| instruction(RETURN, 0, 0, ERRNO | errno as u32);
    let allow = instruction(RETURN, 0, 0, ALLOW);
    let load = |argument: u8| instruction(LOAD, 0, 0, OFFSET_ARGS + 8 * u32::from(argument));
    let one_of = |argument: u8, values: &[u32], found, other| {
        let tests = values.iter().enumerate();
        // A hit jumps over the remaining tests and the other answer.
        let tests = tests.map(|(at, value)| instruction(JUMP_EQUAL, (values.len() - at) as u8, 0, *value));
        [load(argument)].into_iter().chain(tests).chain([other, found]).collect()
    };
    match rule {
        Rule::Allow => vec![allow],
        Rule::Refuse(errno) => vec![refuse(*errno)],
        Rule::RefuseBits(argument, bits, errno) => {
            vec![load(*argument), instruction(JUMP_ANY_BIT, 0, 1, *bits), refuse(*errno), allow]
        }
        Rule::RefuseValues(argument, values, errno) => one_of(*argument, values, refuse(*errno), allow),
        Rule::AllowValues(argument, values, errno) => one_of(*argument, values, allow, refuse(*errno)),
    }
}

#[cfg(test)]
pub(super) mod machine {
    //! Runs a program as the kernel would, for tests.

    use super::*;

    #[derive(Debug, PartialEq, Eq)]
    pub(in super::super) enum Verdict {
        Allow,
        Kill,
        Errno(i32),
    }

    pub(in super::super) fn run(program: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> Verdict {
        let (mut at, mut accumulator) = (0, 0);
        loop {
            let now = &program[at];
            let jump = |holds: bool| at + 1 + usize::from(if holds { now.jt } else { now.jf });
            at = match now.code {
                LOAD => {
                    accumulator = match now.k {
                        OFFSET_NUMBER => number,
                        OFFSET_ARCH => arch,
                        offset => args[((offset - OFFSET_ARGS) / 8) as usize] as u32,
                    };
                    at + 1
                }
                JUMP => at + 1 + now.k as usize,
                JUMP_EQUAL => jump(accumulator == now.k),
                JUMP_AT_LEAST => jump(accumulator >= now.k),
                JUMP_ANY_BIT => jump(accumulator & now.k != 0),
                RETURN if now.k == ALLOW => return Verdict::Allow,
                RETURN if now.k == KILL_PROCESS => return Verdict::Kill,
                RETURN => return Verdict::Errno((now.k & 0xffff) as i32),
                code => unreachable!("the assembler emits no code {code:#x}"),
            };
        }
    }
}
