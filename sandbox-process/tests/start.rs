//! Commands that cannot start, and what a command that starts is given.
#![allow(missing_docs, reason = "tests are sentences")]

mod common;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use common::{eventually, millis, run, seconds, sh};
use sandbox_process::{
    Command, ControlErrorKind, Ending, Limits, ProcessSet, ResourceLimit, Stage, StartErrorKind, Stdin, User,
};

fn is_root() -> bool {
    fs::metadata("/proc/self").map(|folder| std::os::unix::fs::MetadataExt::uid(&folder) == 0).unwrap_or(false)
}

fn bytes(path: &Path) -> Vec<u8> {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()).to_vec()
}

fn script(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode set");
}

fn somebody(spec: &str) -> User {
    User::resolve(spec.as_bytes(), b"", b"").expect("a number")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_start_failure_has_its_own_kind() {
    use StartErrorKind::{CwdMissing, CwdNotADirectory, NotExecutable, NotFound, Other, TooLarge};
    let set = ProcessSet::new();
    let temp = tempfile::tempdir().expect("temp folder");
    let at = |name: &str| temp.path().join(name);
    fs::create_dir(at("folder")).expect("made");
    script(&at("plain"), "echo hi", 0o644);
    script(&at("no_header"), "echo hi", 0o755);
    script(&at("no_interpreter"), "#!/no/such/interpreter\n", 0o755);
    let program = |path: &Path| Command::new([bytes(path)]);
    let beyond = ResourceLimit { resource: 7, soft: u64::MAX - 1, hard: u64::MAX - 1 };
    for (command, kind, stage) in [
        (Command::new(["/no/such/bin"]), NotFound, Stage::Exec),
        (Command::new(["no_such_cmd"]), NotFound, Stage::Exec),
        (Command::new(["true"]).env("PATH", "/no/such"), NotFound, Stage::Exec),
        (Command::new([""]), NotFound, Stage::Exec),
        (program(&at("plain").join("x")), NotFound, Stage::Exec),
        (program(&at("folder")), NotExecutable, Stage::Exec),
        (program(&at("plain")), NotExecutable, Stage::Exec),
        (program(&at("no_header")), NotExecutable, Stage::Exec),
        (program(&at("no_interpreter")), NotExecutable, Stage::Interpreter),
        (Command::new(["plain"]).env("PATH", bytes(temp.path())), NotExecutable, Stage::Exec),
        (Command::new(["true"]).cwd("/nope"), CwdMissing, Stage::Directory),
        (Command::new(["no_such_cmd"]).cwd("/nope"), CwdMissing, Stage::Directory),
        (Command::new(["true"]).cwd(bytes(&at("plain"))), CwdNotADirectory, Stage::Directory),
        (Command::new(["true"]).limit(beyond), Other, Stage::Limit),
        (Command::new(["true"]).env("BIG", vec![b'x'; 200_000]), TooLarge, Stage::Prepare),
        (Command::new([vec![b'/'; 5000]]), NotFound, Stage::Exec),
    ] {
        let shown = format!("{command:?}").chars().take(120).collect::<String>();
        let error = run(&set, command, Limits::new()).await.map(|done| done.exit).expect_err(&shown);
        assert_eq!((error.kind(), error.stage()), (kind, stage), "{shown}: {error}");
        assert_eq!(error.errno().is_some(), stage != Stage::Prepare);
        assert!(!error.to_string().contains('\n'));
    }
    eventually("nothing is left", || set.is_empty()).await;
    eventually("no zombie is left", || common::zombies() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_folder_of_the_path_is_remembered_but_not_final() {
    let set = ProcessSet::new();
    let temp = tempfile::tempdir().expect("temp folder");
    script(&temp.path().join("tool"), "", 0o644);
    let good = temp.path().join("good");
    fs::create_dir(&good).expect("made");
    script(&good.join("tool"), "#!/bin/sh\necho good\n", 0o755);
    let path = |folders: &[&Path]| folders.iter().map(|f| bytes(f)).collect::<Vec<_>>().join(&b':');
    let found = Command::new(["tool"]).env("PATH", path(&[temp.path(), &good]));
    assert_eq!(run(&set, found, Limits::new()).await.expect("starts").stdout, b"good\n");
    let refused = Command::new(["tool"]).env("PATH", path(&[temp.path(), Path::new("/no/such")]));
    let error = run(&set, refused, Limits::new()).await.map(|done| done.exit).expect_err("refused");
    assert_eq!(error.kind(), StartErrorKind::NotExecutable);
    let relative = Command::new(["./tool"]).cwd(bytes(&good));
    assert_eq!(run(&set, relative, Limits::new()).await.expect("starts").stdout, b"good\n");
    let empty_folder = Command::new(["tool"]).cwd(bytes(&good)).env("PATH", "/no/such:");
    assert_eq!(run(&set, empty_folder, Limits::new()).await.expect("starts").stdout, b"good\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_environment_and_the_descriptors_are_exactly_what_was_asked_for() {
    let set = ProcessSet::new();
    let done =
        run(&set, Command::new(["/usr/bin/env"]).env("A", "1").env("B", ""), Limits::new()).await.expect("starts");
    assert_eq!(done.stdout, b"A=1\nB=\n");
    // Not close-on-exec in the host, and still not passed on.
    let leak = fs::File::open("/dev/null").expect("opens");
    let leaked = rustix_dup(&leak);
    let list = Command::new(["ls", "/proc/self/fd"]);
    let done = run(&set, list, Limits::new()).await.expect("starts");
    assert_eq!(done.stdout, b"0\n1\n2\n3\n", "3 is the listing itself");
    drop(leaked);
    let temp = tempfile::tempdir().expect("temp folder");
    let file = |name: &str| {
        let path = temp.path().join(name);
        fs::write(&path, name).expect("written");
        fs::File::open(path).expect("opens")
    };
    let command = sh("cat <&5; cat <&3; cat <&7; ls /proc/self/fd | tr '\\n' ' '")
        .extra_fd(file("five"), 5)
        .extra_fd(file("three"), 3)
        .extra_fd(file("seven"), 7);
    let done = run(&set, command, Limits::new()).await.expect("starts");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "fivethreeseven0 1 2 3 4 5 7 ");
}

/// A descriptor without close-on-exec.
fn rustix_dup(file: &fs::File) -> OwnedFd {
    let copy = file.try_clone().expect("cloned");
    let fd = std::os::fd::AsRawFd::as_raw_fd(&copy);
    // SAFETY: clears the flags of a descriptor we own.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, 0) }, 0);
    copy.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_that_cross_each_other_arrive_at_the_right_numbers() {
    let set = ProcessSet::new();
    let temp = tempfile::tempdir().expect("temp folder");
    let files: Vec<fs::File> = (0..6)
        .map(|index| {
            let path = temp.path().join(index.to_string());
            fs::write(&path, index.to_string()).expect("written");
            fs::File::open(path).expect("opens")
        })
        .collect();
    // Every file gets the number that another one has in the host.
    let numbers: Vec<i32> = files.iter().map(std::os::fd::AsRawFd::as_raw_fd).collect();
    let mut command = Command::new(["sh".to_owned(), "-c".to_owned(), {
        let reads: Vec<String> = numbers.iter().map(|number| format!("cat /proc/self/fd/{number}")).collect();
        reads.join("; ")
    }]);
    let count = files.len();
    for (index, file) in files.into_iter().enumerate() {
        command = command.extra_fd(file, numbers[(index + 1) % count]);
    }
    let done = run(&set, command, Limits::new()).await.expect("starts");
    assert_eq!(String::from_utf8_lossy(&done.stdout), "501234");
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_set_and_open_files_are_at_least_1024() {
    let set = ProcessSet::new();
    let done = run(&set, sh("ulimit -n"), Limits::new()).await.expect("starts");
    let files: u64 = String::from_utf8_lossy(&done.stdout).trim().parse().expect("a number");
    assert!(files >= 1024, "{files}");
    let low = ResourceLimit { resource: 7, soft: 100, hard: 200 };
    let done = run(&set, sh("ulimit -Sn; ulimit -Hn").limit(low), Limits::new()).await.expect("starts");
    assert_eq!(done.stdout, b"100\n200\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_new_privs_is_set_only_when_asked_for() {
    let set = ProcessSet::new();
    let status = || Command::new(["grep", "NoNewPrivs", "/proc/self/status"]);
    assert_eq!(run(&set, status(), Limits::new()).await.expect("starts").stdout, b"NoNewPrivs:\t0\n");
    assert_eq!(run(&set, status().no_new_privs(), Limits::new()).await.expect("starts").stdout, b"NoNewPrivs:\t1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_is_exactly_that_user() {
    assert!(is_root(), "this test switches users: run it as root");
    let set = ProcessSet::new();
    let id =
        sh("id -u; id -g; id -G; grep -E '^(Uid|Gid|Groups|CapEff):' /proc/self/status").user(somebody("12345:678"));
    let done = run(&set, id, Limits::new()).await.expect("starts");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(text.starts_with("12345\n678\n678\n"), "{text}");
    assert!(text.contains("Uid:\t12345\t12345\t12345\t12345"), "{text}");
    assert!(text.contains("CapEff:\t0000000000000000"), "{text}");
    let group = b"a:x:44:ann\nb:x:55:ann\n";
    let ann = User::resolve(b"ann", b"ann:x:2000:2001::/home/ann:/bin/sh", group).expect("is listed");
    let done = run(&set, sh("id -G").user(ann), Limits::new()).await.expect("starts");
    assert_eq!(done.stdout, b"2001 44 55\n");
    // The whole tree of another user is ended too.
    let (command, mark) = common::marked("setsid sleep 300 & sleep 300");
    let limits = Limits::new().timeout(millis(300));
    let done = run(&set, command.user(somebody("12345")), limits).await.expect("starts");
    assert_eq!(done.ending(), Ending::TimedOut);
    assert_eq!(mark.alive(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_the_user_may_not_run_is_not_executable() {
    assert!(is_root(), "this test switches users: run it as root");
    let set = ProcessSet::new();
    let temp = tempfile::tempdir().expect("temp folder");
    fs::set_permissions(temp.path(), fs::Permissions::from_mode(0o755)).expect("mode set");
    let tool = temp.path().join("tool");
    script(&tool, "#!/bin/sh\necho ran\n", 0o700);
    let command = Command::new([bytes(&tool)]);
    let error = run(&set, command.user(somebody("12345")), Limits::new()).await.map(|d| d.exit).expect_err("refused");
    assert_eq!(error.kind(), StartErrorKind::NotExecutable);
}

#[tokio::test(flavor = "multi_thread")]
async fn writing_to_a_command_without_stdin_is_a_typed_error() {
    let set = ProcessSet::new();
    let mut process = set.spawn(sh("sleep 0.2"), Limits::new()).await.expect("starts");
    let error = process.controller().write_stdin(b"x").await.expect_err("there is none");
    assert_eq!(error.kind(), ControlErrorKind::StdinClosed);
    assert_eq!(common::collect(&mut process).await.ending(), Ending::Exited(0));
    let process = set.spawn(sh("sleep 300").stdin(Stdin::Stream), Limits::new()).await.expect("starts");
    process.controller().close_stdin().await;
    process.controller().close_stdin().await;
    let error = process.controller().write_stdin(b"x").await.expect_err("it is closed");
    assert_eq!(error.kind(), ControlErrorKind::StdinClosed);
    drop(process);
    assert_eq!(set.kill_all(seconds(5)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_still_being_written_is_tried_again() {
    let set = ProcessSet::new();
    let temp = tempfile::tempdir().expect("temp folder");
    let tool = temp.path().join("tool");
    fs::copy("/bin/true", &tool).expect("copied");
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).expect("mode set");
    let program = || Command::new([bytes(&tool)]);
    let writer = fs::OpenOptions::new().append(true).open(&tool).expect("opens");
    let error = run(&set, program(), Limits::new()).await.map(|done| done.exit).expect_err("it is busy");
    assert_eq!((error.kind(), error.errno()), (StartErrorKind::NotExecutable, Some(libc::ETXTBSY)));
    // A start that takes longer than the limit is given up, and nothing is left of it.
    let error = run(&set, program(), Limits::new().timeout(millis(15))).await.map(|done| done.exit);
    assert_eq!(error.expect_err("it takes longer").kind(), StartErrorKind::TimedOut);
    eventually("nothing is left", || set.is_empty()).await;
    let (done, ()) = tokio::join!(run(&set, program(), Limits::new()), async {
        tokio::time::sleep(millis(15)).await;
        drop(writer);
    });
    assert_eq!(done.expect("starts in the end").ending(), Ending::Exited(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_peak_memory_is_the_commands_and_not_the_hosts() {
    let ballast = vec![1u8; 128 << 20];
    let set = ProcessSet::new();
    let done = run(&set, sh("true"), Limits::new()).await.expect("starts");
    assert!((100_000..16 << 20).contains(&done.exit.peak_memory_bytes), "{}", done.exit.peak_memory_bytes);
    let big = Command::new(["python3", "-c", "x = b'x' * (64 << 20)"]);
    let done = run(&set, big, Limits::new()).await.expect("starts");
    assert!(done.exit.peak_memory_bytes > 64 << 20, "{}", done.exit.peak_memory_bytes);
    drop(ballast);
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_beyond_one_message_arrive_whole() {
    let set = ProcessSet::new();
    let argv: Vec<Vec<u8>> = [b"printf".to_vec(), b"%s".to_vec()]
        .into_iter()
        .chain((0..15u8).map(|index| vec![b'a' + index; 120_000]))
        .collect();
    let wanted = argv[2..].concat();
    let done = run(&set, Command::new(argv), Limits::new()).await.expect("starts");
    assert!(done.stdout == wanted, "not the same bytes");
}
