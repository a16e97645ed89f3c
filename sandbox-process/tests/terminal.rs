//! Terminals, and what every command of a set is deprived of.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use common::{collect, eventually, marked, millis, run, seconds, sh, within};
use sandbox_process::{
    ControlErrorKind, Ending, Event, Limits, Process, ProcessSet, Restrictions, StartErrorKind, TerminalSize,
};

const SIZE: TerminalSize = TerminalSize { rows: 43, cols: 132 };

async fn until(process: &mut Process, text: &str) {
    let mut seen = String::new();
    while !seen.contains(text) {
        match within(seconds(10), process.next_event()).await {
            Some(Event::Stdout(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} after {seen:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_terminal_is_the_commands_own_with_its_size_from_the_start() {
    let set = ProcessSet::new();
    for _ in 0..50 {
        let command = sh("stty size; tty; ps -o tpgid= -p $$ | tr -d ' '; echo $$; echo e >&2").terminal(SIZE);
        let done = run(&set, command, Limits::new()).await.expect("starts");
        assert_eq!(done.ending(), Ending::Exited(0));
        let text = String::from_utf8(done.stdout).expect("is text");
        let lines: Vec<&str> = text.split("\r\n").collect();
        assert_eq!(lines[0], "43 132", "{text}");
        assert!(lines[1].starts_with("/dev/pts/"), "{text}");
        assert_eq!((lines[2], lines[4]), (lines[3], "e"), "{text}");
    }
    eventually("nobody is left", || set.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_and_keys_reach_the_foreground_and_a_resize_is_told() {
    let set = ProcessSet::new();
    let script = "trap 'stty size' WINCH; echo up; cat; echo end; while :; do sleep 0.05; done";
    let mut process = set.spawn(sh(script).terminal(SIZE), Limits::new()).await.expect("starts");
    until(&mut process, "up\r\n").await;
    let controller = process.controller();
    controller.write_stdin(b"line\n").await.expect("is read");
    until(&mut process, "line\r\nline\r\n").await;
    controller.close_stdin().await;
    until(&mut process, "end\r\n").await;
    controller.resize(TerminalSize { rows: 10, cols: 20 }).expect("runs");
    until(&mut process, "10 20\r\n").await;
    controller.signal(2).expect("runs");
    assert_eq!(collect(&mut process).await.ending(), Ending::Signalled(2));
    let error = controller.resize(SIZE).expect_err("is over");
    assert_eq!(error.kind(), ControlErrorKind::Ended);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_with_grace_hangs_up_first_and_spares_nobody() {
    let set = ProcessSet::new();
    let (command, mark) =
        marked("trap 'echo hung-up; exit 0' HUP; setsid sleep 300 & echo up; while :; do sleep 0.05; done");
    let limits = Limits::new().kill_grace(seconds(20));
    let mut process = set.spawn(command.terminal(SIZE), limits).await.expect("starts");
    until(&mut process, "up\r\n").await;
    process.controller().kill_tree();
    let done = within(seconds(10), collect(&mut process)).await;
    // The shell may tell of its child's hang-up first.
    assert!(done.stdout.ends_with(b"hung-up\r\n"));
    eventually("nobody is left", || set.is_empty() && mark.alive() == 0).await;
    let mut plain = set.spawn(sh("sleep 300"), Limits::new()).await.expect("starts");
    let error = plain.controller().resize(SIZE).expect_err("has no terminal");
    assert_eq!(error.kind(), ControlErrorKind::NoTerminal);
    plain.controller().kill_tree();
    assert_eq!(collect(&mut plain).await.ending(), Ending::Killed);
}

#[tokio::test(flavor = "multi_thread")]
async fn megabytes_through_a_terminal_lose_no_byte() {
    let set = ProcessSet::new();
    let script = "stty raw; head -c 3000000 /dev/zero";
    let done = run(&set, sh(script).terminal(SIZE), Limits::new().drain_grace(millis(2000))).await.expect("starts");
    assert_eq!(done.stdout.len(), 3_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restriction_holds_for_every_command_or_none_starts() {
    let mut restrictions = Restrictions::default();
    restrictions.no_new_privs = true;
    restrictions.capabilities = Some(1 << 5);
    // One instruction: everything is allowed.
    restrictions.seccomp = vec![0x06, 0, 0, 0, 0, 0, 0xff, 0x7f];
    restrictions.oom_score_adj = Some(7);
    let set = ProcessSet::restricted(restrictions.clone());
    for _ in 0..3 {
        let done =
            run(&set, sh("cat /proc/self/status /proc/self/oom_score_adj"), Limits::new()).await.expect("starts");
        let text = String::from_utf8(done.stdout).expect("is text");
        for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t0000000000000020", "CapInh:\t0000000000000000", "7"] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
    }
    for broken in [vec![0xff; 8], vec![0; 7]] {
        restrictions.seccomp = broken;
        let set = ProcessSet::restricted(restrictions.clone());
        let error = run(&set, sh("true"), Limits::new()).await.err().expect("is refused");
        assert_eq!(error.kind(), StartErrorKind::UserRefused);
    }
}
