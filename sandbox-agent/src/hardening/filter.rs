//! The seccomp filter for commands.

use std::sync::{Arc, OnceLock};

use libc::{ENOSYS, EPERM, sock_filter};
use rustix::io::Errno;

use super::bpf::{self, Rule, Segment};
use super::calls::{ARCH, FIRST_UNKNOWN, JUDGED, REFUSED, REFUSED_HERE};
use crate::sys;

/// An assembled filter.
#[derive(Clone)]
pub(super) struct Filter {
    program: Arc<[sock_filter]>,
    refused: usize,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "a filter of {} instructions", self.program.len())
    }
}

impl Filter {
    /// The one filter that there is. A launcher has assembled it for what it forks.
    pub(super) fn get() -> Filter {
        static ASSEMBLED: OnceLock<Filter> = OnceLock::new();
        ASSEMBLED.get_or_init(Filter::new).clone()
    }

    fn new() -> Filter {
        let refused = REFUSED.iter().chain(REFUSED_HERE).map(|number| (*number, Rule::Refuse(EPERM)));
        let mut rules: Vec<_> = refused.chain(JUDGED.iter().cloned()).collect();
        rules.sort_by_key(|(number, _)| *number);
        let count = rules.len();
        let mut segments = vec![Segment { from: 0, rule: Rule::Allow }];
        for (number, rule) in rules {
            let number = number as u32;
            push(&mut segments, number, rule);
            push(&mut segments, number + 1, Rule::Allow);
        }
        push(&mut segments, FIRST_UNKNOWN, Rule::Refuse(ENOSYS));
        Filter { program: bpf::assemble(ARCH, &segments).into(), refused: count }
    }

    pub(super) fn install(&self) -> Result<(), Errno> {
        sys::install_seccomp(&self.program)
    }

    /// The kernel's array of `struct sock_filter`.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let instruction = |one: &sock_filter| {
            let ([code0, code1], [k0, k1, k2, k3]) = (one.code.to_ne_bytes(), one.k.to_ne_bytes());
            [code0, code1, one.jt, one.jf, k0, k1, k2, k3]
        };
        self.program.iter().flat_map(instruction).collect()
    }

    pub(super) fn refused(&self) -> usize {
        self.refused
    }
}

/// Appends a segment, and keeps neighbours with one rule together.
fn push(segments: &mut Vec<Segment>, from: u32, rule: Rule) {
    while segments.last().is_some_and(|last| last.from == from) {
        segments.pop();
    }
    if segments.last().is_none_or(|last| last.rule != rule) {
        segments.push(Segment { from, rule });
    }
}

#[cfg(test)]
mod tests {
    use super::bpf::machine::{Verdict, run};
    use super::*;

    fn verdict(number: i64, args: [u64; 6]) -> Verdict {
        run(&Filter::new().program, ARCH, number as u32, args)
    }

    #[test]
    fn exactly_the_listed_calls_are_refused() {
        for number in 0..i64::from(FIRST_UNKNOWN) {
            let listed = REFUSED.iter().chain(REFUSED_HERE).any(|refused| *refused == number);
            if JUDGED.iter().any(|(judged, _)| *judged == number) {
                continue;
            }
            let expected = if listed { Verdict::Errno(EPERM) } else { Verdict::Allow };
            assert_eq!(verdict(number, [0; 6]), expected, "call {number}");
        }
    }

    #[test]
    fn unknown_calls_and_the_x32_ones_do_not_exist() {
        for number in [i64::from(FIRST_UNKNOWN), 1000, 0x4000_0000, 0x4000_0000 + 165, 0xffff_ffff] {
            assert_eq!(verdict(number, [0; 6]), Verdict::Errno(ENOSYS), "call {number:#x}");
        }
    }

    #[test]
    fn another_architecture_is_killed() {
        assert_eq!(run(&Filter::new().program, 0x4000_0003, 1, [0; 6]), Verdict::Kill);
    }

    #[test]
    fn namespaces_are_refused_and_threads_are_not() {
        let threads = (libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;
        assert_eq!(verdict(libc::SYS_clone, [threads, 0, 0, 0, 0, 0]), Verdict::Allow);
        assert_eq!(verdict(libc::SYS_clone3, [0; 6]), Verdict::Errno(ENOSYS));
        for flag in [
            libc::CLONE_NEWNS,
            libc::CLONE_NEWCGROUP,
            libc::CLONE_NEWUTS,
            libc::CLONE_NEWIPC,
            libc::CLONE_NEWUSER,
            libc::CLONE_NEWPID,
            libc::CLONE_NEWNET,
        ] {
            let args = [flag as u64 | 0xdead_0000_0000_0011, 0, 0, 0, 0, 0];
            assert_eq!(verdict(libc::SYS_clone, args), Verdict::Errno(EPERM), "clone {flag:#x}");
            assert_eq!(verdict(libc::SYS_unshare, [flag as u64, 0, 0, 0, 0, 0]), Verdict::Errno(EPERM));
        }
        assert_eq!(verdict(libc::SYS_unshare, [0x80, 0, 0, 0, 0, 0]), Verdict::Errno(EPERM));
        assert_eq!(verdict(libc::SYS_unshare, [libc::CLONE_FILES as u64, 0, 0, 0, 0, 0]), Verdict::Allow);
    }

    #[test]
    fn arguments_are_judged_by_the_half_that_the_kernel_looks_at() {
        let ioctl = |command: u64| verdict(libc::SYS_ioctl, [0, command, 0, 0, 0, 0]);
        assert_eq!(ioctl(0x5412), Verdict::Errno(EPERM));
        assert_eq!(ioctl(0x541c), Verdict::Errno(EPERM));
        assert_eq!(ioctl(0x1_0000_5412), Verdict::Errno(EPERM));
        assert_eq!(ioctl(0x5413), Verdict::Allow);
        let personality = |value: u64| verdict(libc::SYS_personality, [value, 0, 0, 0, 0, 0]);
        assert_eq!(personality(0), Verdict::Allow);
        assert_eq!(personality(0xffff_ffff), Verdict::Allow);
        assert_eq!(personality(0x0040_0000), Verdict::Errno(EPERM));
        let socket = |family: u64| verdict(libc::SYS_socket, [family, 0, 0, 0, 0, 0]);
        assert_eq!(socket(1), Verdict::Allow);
        assert_eq!(socket(10), Verdict::Allow);
        assert_eq!(socket(40), Verdict::Errno(libc::EAFNOSUPPORT));
    }
}
