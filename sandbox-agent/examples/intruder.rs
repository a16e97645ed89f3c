//! Tries what a sandbox must not allow, one attempt for each argument, and prints `attempt=ok` or `attempt=ERRNO`.
//!
//! An attempt is `name` or `name:argument`. The tests run it inside, and the harmless ones outside as a control.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::{fs, process, ptr};

fn main() {
    for attempt in std::env::args().skip(1) {
        let (name, argument) = attempt.split_once(':').unwrap_or((&attempt, ""));
        let answer = match perform(name, argument) {
            Ok(()) => "ok".to_owned(),
            Err(error) => error.raw_os_error().map_or_else(|| error.to_string(), |errno| errno.to_string()),
        };
        println!("{attempt}={answer}");
    }
}

fn perform(name: &str, argument: &str) -> io::Result<()> {
    let pid = || argument.parse::<i32>().map_err(io::Error::other);
    match name {
        "read" => OpenOptions::new().read(true).open(argument)?.read(&mut [0; 16]).map(drop),
        "write" => OpenOptions::new().write(true).open(argument)?.write_all(b"x"),
        "create" => OpenOptions::new().write(true).create_new(true).open(argument).map(drop),
        "list" => fs::read_dir(argument).map(drop),
        "link" => fs::read_link(argument).map(drop),
        "connect-path" => UnixStream::connect(argument).map(drop),
        "connect-abstract" => UnixStream::connect_addr(&SocketAddr::from_abstract_name(argument)?).map(drop),
        "connect-tcp" => TcpStream::connect(format!("127.0.0.1:{argument}")).map(drop),
        // SAFETY: signal 0 is sent, which only asks.
        "signal" => check(unsafe { libc::kill(pid()?, 0) }.into()),
        // SAFETY: no pointer is passed.
        "kill" => check(unsafe { libc::kill(pid()?, libc::SIGKILL) }.into()),
        // SAFETY: PTRACE_ATTACH takes no pointers.
        "ptrace" => check(unsafe { libc::ptrace(libc::PTRACE_ATTACH, pid()?, 0, 0) }),
        "mount" | "remount" => mount(name, argument),
        "umount" => {
            let path = CString::new(argument)?;
            // SAFETY: the path is NUL-terminated.
            check(unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) }.into())
        }
        // SAFETY: no pointer is passed.
        "unshare-user" => check(unsafe { libc::unshare(libc::CLONE_NEWUSER) }.into()),
        // SAFETY: no pointer is passed.
        "unshare-mount" => check(unsafe { libc::unshare(libc::CLONE_NEWNS) }.into()),
        "clone-user" => clone(),
        "setns" => {
            let namespace = fs::File::open(argument)?;
            // SAFETY: no pointer is passed.
            check(unsafe { libc::setns(std::os::fd::AsRawFd::as_raw_fd(&namespace), 0) }.into())
        }
        "setuid" => {
            let id = pid()? as u32;
            // SAFETY: no pointer is passed.
            check(unsafe { libc::setresuid(id, id, id) }.into())
        }
        "mknod" => {
            let path = CString::new(argument)?;
            // SAFETY: the path is NUL-terminated.
            check(unsafe { libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, libc::makedev(1, 3)) }.into())
        }
        "tiocsti" => {
            // SAFETY: TIOCSTI reads one byte.
            check(unsafe { libc::ioctl(0, libc::TIOCSTI, c"x".as_ptr()) }.into())
        }
        "vsock" => check(call(libc::SYS_socket, [40, libc::SOCK_STREAM.into(), 0, 0, 0])),
        "module" => check(call(libc::SYS_init_module, [0; 5])),
        "bpf" => check(call(libc::SYS_bpf, [0; 5])),
        "perf" => check(call(libc::SYS_perf_event_open, [0; 5])),
        "userfaultfd" => check(call(libc::SYS_userfaultfd, [0; 5])),
        "io_uring" => check(call(libc::SYS_io_uring_setup, [0; 5])),
        "keyctl" => check(call(libc::SYS_keyctl, [0, -3, 0, 0, 0])),
        "handle" => check(call(libc::SYS_open_by_handle_at, [-1, 0, 0, 0, 0])),
        "pivot" => check(call(libc::SYS_pivot_root, [0; 5])),
        "open_tree" => check(call(libc::SYS_open_tree, [-100, c"/".as_ptr() as i64, 1, 0, 0])),
        "fsopen" => check(call(libc::SYS_fsopen, [c"tmpfs".as_ptr() as i64, 0, 0, 0, 0])),
        "kexec" => check(call(libc::SYS_kexec_load, [0; 5])),
        "reboot" => check(call(libc::SYS_reboot, [0; 5])),
        "personality" => check(call(libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0])),
        "fds" => fds(),
        "processes" => processes(),
        "status" => status(argument),
        "memory" => memory(pid()?),
        "fork" => fork(pid()?),
        _ => Err(io::Error::other("no such attempt")),
    }
}

fn call(number: i64, a: [i64; 5]) -> i64 {
    // SAFETY: the callers pass nulls, numbers, or static NUL-terminated strings: whatever the kernel makes of them,
    // it writes to no memory of this process.
    unsafe { libc::syscall(number, a[0], a[1], a[2], a[3], a[4]) }
}

fn check(result: i64) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn mount(name: &str, argument: &str) -> io::Result<()> {
    let path = CString::new(argument)?;
    let flags = if name == "mount" { 0 } else { libc::MS_REMOUNT | libc::MS_BIND };
    let (source, kind) = (c"tmpfs".as_ptr(), c"tmpfs".as_ptr());
    // SAFETY: the strings are NUL-terminated, and no data is passed.
    check(unsafe { libc::mount(source, path.as_ptr(), kind, flags, ptr::null()) }.into())
}

fn clone() -> io::Result<()> {
    let flags = i64::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
    let child = call(libc::SYS_clone, [flags, 0, 0, 0, 0]);
    if child == 0 {
        process::exit(0);
    }
    check(child)
}

/// Fails with the number of descriptors above 2 that were inherited.
fn fds() -> io::Result<()> {
    let open: Vec<_> = fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.file_name()).collect();
    let above = open.iter().filter_map(|name| name.to_str()?.parse::<u32>().ok()).filter(|fd| *fd > 2).count();
    // One of them reads the folder.
    if above == 1 { Ok(()) } else { Err(io::Error::other(format!("{} inherited", above - 1))) }
}

/// Fails with the numbers of the processes that can be seen, other than this one and PID 1.
fn processes() -> io::Result<()> {
    let own = process::id();
    let seen = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let others: Vec<_> = seen.filter(|pid| *pid != own && *pid != 1).collect();
    if others.is_empty() { Ok(()) } else { Err(io::Error::other(format!("{others:?}"))) }
}

/// Fails with a line of this process's status.
fn status(key: &str) -> io::Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    Err(io::Error::other(value.unwrap_or("none").trim().to_owned()))
}

/// Uses memory, MiB by MiB.
fn memory(mib: i32) -> io::Result<()> {
    let mut held = Vec::new();
    for _ in 0..mib {
        held.push(std::hint::black_box(vec![1_u8; 1 << 20]));
    }
    Ok(())
}

/// Starts children that wait until this process ends; fails with how many there are when no more can be.
fn fork(count: i32) -> io::Result<()> {
    let mut ends = [0; 2];
    // SAFETY: `ends` takes two descriptors.
    check(unsafe { libc::pipe(ends.as_mut_ptr()) }.into())?;
    let mut started = 0;
    let mut refused = None;
    while started < count && refused.is_none() {
        // SAFETY: this program has one thread.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: no pointer is passed.
                unsafe { libc::close(ends[1]) };
                let mut byte = 0_u8;
                // SAFETY: one byte is read into one byte; it ends when the parent's end is closed.
                unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) };
                process::exit(0);
            }
            child if child > 0 => started += 1,
            _ => refused = io::Error::last_os_error().raw_os_error(),
        }
    }
    // SAFETY: no pointer is passed.
    unsafe { libc::close(ends[1]) };
    for _ in 0..started {
        // SAFETY: a null status is allowed.
        unsafe { libc::wait(ptr::null_mut()) };
    }
    match refused {
        None => Ok(()),
        Some(errno) => Err(io::Error::other(format!("{started} started, then {errno}"))),
    }
}
