//! PID 1 is this program itself.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;

use common::{AGENT, Bench, CALLERS, intruder};
use sandbox_agent::{Handover, LaunchConfig, Launched};

fn start(bench: &Bench) -> (Launched, BufReader<UnixStream>, Handover) {
    start_with(bench, &bench.config())
}

fn start_with(bench: &Bench, config: &LaunchConfig) -> (Launched, BufReader<UnixStream>, Handover) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let launched = bench.launch(config, theirs.into()).unwrap();
    let mut socket = BufReader::new(ours);
    let mut line = String::new();
    socket.read_line(&mut line).unwrap();
    (launched, socket, serde_json::from_str(&line).unwrap())
}

#[test]
fn the_agent_is_pid_1_gets_the_handover_and_ends_with_its_socket() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let (mut launched, socket, handover) = start(&bench);
        assert_eq!(handover.ids, launched.report().ids);
        assert!(handover.die_with_parent);
        assert_eq!(handover.workdir, "/workspace");
        let status = std::fs::read_to_string(format!("/proc/{}/status", launched.report().pid)).unwrap();
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap();
        assert_eq!(pids.split_whitespace().last(), Some("1"), "{caller:?}: {pids}");
        assert!(status.contains("NoNewPrivs:\t1"));
        drop(socket);
        assert_eq!(launched.wait().unwrap(), Some(0), "{caller:?}");
    }
}

#[test]
fn the_agent_holds_its_socket_and_nothing_else() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let (mut launched, socket, _) = start(&bench);
        let folder = format!("/proc/{}/fd", launched.report().pid);
        let mut open: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().collect();
        open.sort_by_key(|entry| entry.file_name());
        let open: Vec<_> = open.iter().map(|entry| std::fs::read_link(entry.path()).unwrap()).collect();
        let names: Vec<_> = open.iter().map(|path| path.to_str().unwrap().split(':').next().unwrap()).collect();
        assert_eq!(names, ["/dev/null", "/dev/null", "/dev/null", "socket"], "{caller:?}");
        drop(socket);
        launched.wait().unwrap();
    }
}

#[test]
fn the_keeper_holds_nobodys_descriptor() {
    let bench = Bench::new(common::Caller::Root);
    // Inheritable on purpose: a careless program around the provider.
    let leaked = rustix::io::dup(std::fs::File::open("/etc/hostname").unwrap()).unwrap();
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
    let (mut launched, socket, _) = start(&bench);
    drop(leaked);
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", launched.report().pid)).unwrap();
    let keeper = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().to_owned();
    let held = || -> Vec<String> {
        let open = std::fs::read_dir(format!("/proc/{keeper}/fd")).unwrap().flatten();
        open.filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_str()?.to_owned())).collect()
    };
    // The socket is the one on which it will tell the end.
    let allowed = |path: &String| path == "/dev/null" || path.contains("pidfd") || path.starts_with("socket:");
    // It lets go of what it was configured by right after that.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while !held().iter().all(allowed) && std::time::Instant::now() < deadline {
        std::thread::yield_now();
    }
    assert!(held().iter().all(allowed), "{:?}", held());
    drop(socket);
    launched.wait().unwrap();
}

#[test]
fn what_the_agent_holds_is_shut_to_those_inside() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        std::fs::copy(intruder(), bench.workdir().join("intruder")).unwrap();
        let (mut launched, socket, _) = start(&bench);
        let attempts = [
            "read:/proc/1/mem",
            "read:/proc/1/fd/0",
            "link:/proc/1/fd/0",
            "link:/proc/1/exe",
            "link:/proc/1/root",
            "read:/proc/1/environ",
            "ptrace:1",
            "kill:1",
            "list:/proc/1/task",
        ];
        // A process inside that has no capability, as commands have none.
        let pid = launched.report().pid.to_string();
        let mut command = Command::new("/usr/bin/nsenter");
        command.args(["-t", &pid, "-U", "-m", "-p", "-S", "0", "-G", "0", "/usr/bin/setpriv"]);
        command
            .args(["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "/workspace/intruder"])
            .args(attempts);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let expected = "read:/proc/1/mem=13\nread:/proc/1/fd/0=13\nlink:/proc/1/fd/0=13\nlink:/proc/1/exe=13\nlink:/proc/1/root=13\n\
                        read:/proc/1/environ=13\nptrace:1=1\nkill:1=ok\nlist:/proc/1/task=ok\n";
        assert_eq!(said, expected, "{caller:?}: {}", String::from_utf8_lossy(&output.stderr));
        // The signal was ignored: PID 1 is there until its socket ends.
        drop(socket);
        assert_eq!(launched.wait().unwrap(), Some(0));
        // The control: a PID 1 that does not protect itself is open to its own user.
        let open = bench.intrude(bench.config(), &["link:/proc/1/fd/1".into(), "link:/proc/1/exe".into()]);
        assert_eq!(open["link:/proc/1/fd/1"], "ok");
        assert_eq!(open["link:/proc/1/exe"], "ok");
    }
}

#[test]
fn an_agent_without_capabilities_is_shut_to_its_own_user() {
    let bench = Bench::new(common::Caller::Nobody);
    std::fs::copy(intruder(), bench.workdir().join("intruder")).unwrap();
    let mut config = bench.config();
    // With no more rights than the commands, only its memory's protection sets it apart from them.
    (config.ids.inside_uid, config.ids.inside_gid) = (1000, 1000);
    let (mut launched, socket, _) = start_with(&bench, &config);
    let pid = launched.report().pid.to_string();
    let mut command = Command::new("/usr/bin/nsenter");
    command.args(["-t", &pid, "-U", "-m", "-p", "-S", "1000", "-G", "1000", "/usr/bin/setpriv", "--no-new-privs"]);
    command.args(["--bounding-set=-all", "--inh-caps=-all", "/workspace/intruder"]);
    let output =
        command.args(["read:/proc/1/mem", "link:/proc/1/fd/0", "link:/proc/1/exe", "ptrace:1"]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(said, "read:/proc/1/mem=13\nlink:/proc/1/fd/0=13\nlink:/proc/1/exe=13\nptrace:1=1\n");
    drop(socket);
    launched.wait().unwrap();
}

#[test]
fn the_agents_own_file_cannot_be_changed_through_its_process() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let copy = bench.folder.path().join("agent");
        std::fs::copy(AGENT, &copy).unwrap();
        bench.give(&copy);
        let before = std::fs::read(&copy).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut command = Command::new(&copy);
        if caller == common::Caller::Nobody {
            use std::os::unix::process::CommandExt;
            command.uid(common::NOBODY).gid(common::NOBODY);
        }
        let launcher = sandbox_agent::Launcher::new(&copy);
        let mut launched =
            launcher.prepare_as(command, theirs.into()).and_then(|launcher| launcher.launch(&bench.config())).unwrap();
        // What a process inside could keep of `/proc/PID/exe`, written once nobody executes it any more.
        let exe = std::fs::File::open(format!("/proc/{}/exe", launched.report().pid)).unwrap();
        drop(ours);
        launched.wait().unwrap();
        drop(launched);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let write = |path: String| loop {
            let opened = std::fs::OpenOptions::new().write(true).open(&path);
            match opened.and_then(|mut file| file.write_all(&before[..1])) {
                // Whoever looks at a process that has ended holds its memory, and so its file, for a moment.
                Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) && std::time::Instant::now() < deadline => {
                    std::thread::yield_now();
                }
                written => return written,
            }
        };
        let kept = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&exe));
        // A read-only mount of it, or without the privilege to make one a sealed copy: even host root cannot.
        let refusal = if caller != common::Caller::Nobody { libc::EROFS } else { libc::EPERM };
        assert_eq!(write(kept).unwrap_err().raw_os_error(), Some(refusal), "{caller:?}");
        // The control: the file itself can be written now.
        write(copy.to_str().unwrap().to_owned()).unwrap();
        assert!(std::fs::read(&copy).unwrap() == before);
    }
}

#[test]
fn serve_and_launch_refuse_to_run_without_what_they_need() {
    let serve = Command::new(AGENT).arg("serve").output().unwrap();
    assert_eq!(serve.status.code(), Some(64));
    for arguments in [&["launch"][..], &["launch", "--protected"], &["launch", "--status-fd", "77"]] {
        let launch = Command::new(AGENT).args(arguments).stdin(std::process::Stdio::null()).output().unwrap();
        assert_eq!(launch.status.code(), Some(64), "{arguments:?}");
    }
    let probe = Command::new(AGENT).arg("probe").output().unwrap();
    let found: serde_json::Value = serde_json::from_slice(&probe.stdout).unwrap();
    assert!(found["landlock_abi"].as_u64().unwrap() >= 6, "{found}");
}
