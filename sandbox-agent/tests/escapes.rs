//! What must not work inside. Each attempt has a target that was planted for it, and where it is harmless a control
//! outside that shows that the attempt can succeed.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command, Stdio};

use common::{Bench, CALLERS, Caller, NOBODY, host_network, intrude_outside};
use sandbox_agent::{Access, Bind, BindOwner, Capability, Landlock};

const EPERM: &str = "1";
const ENOENT: &str = "2";
const ESRCH: &str = "3";
const EACCES: &str = "13";
const EINVAL: &str = "22";
const EROFS: &str = "30";
const EAFNOSUPPORT: &str = "97";
const ECONNREFUSED: &str = "111";

fn attempts(list: &[&str]) -> Vec<String> {
    list.iter().map(|attempt| (*attempt).to_owned()).collect()
}

fn assert_answers(caller: Caller, answers: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
    for (attempt, errno) in expected {
        assert_eq!(answers.get(*attempt).map(String::as_str), Some(*errno), "{caller:?}: {attempt} in {answers:?}");
    }
    assert_eq!(answers.len(), expected.len(), "{answers:?}");
}

/// Runs every attempt inside and compares what it answers.
fn refused(caller: Caller, expected: &[(&str, &str)]) {
    let bench = Bench::new(caller);
    let list: Vec<_> = expected.iter().map(|(attempt, _)| *attempt).collect();
    let answers = bench.intrude(bench.config(), &attempts(&list));
    assert_answers(caller, &answers, expected);
}

/// A process of the host, owned by the caller, that ends with this value.
struct Victim(Child);

impl Victim {
    fn start(caller: Caller) -> Victim {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("/bin/cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        if caller == Caller::Nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        Victim(command.spawn().unwrap())
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_secret_outside_the_allowed_folders_cannot_be_read() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let secret = bench.folder.path().join("secret");
        fs::write(&secret, "canary").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        bench.give(&secret);
        let read = format!("read:{}", secret.display());
        assert_eq!(intrude_outside(std::slice::from_ref(&read))[&read], "ok", "the control");
        let answers = bench.intrude(
            bench.config(),
            &[read.clone(), "read:/etc/shadow".into(), "read:/etc/gshadow".into(), "list:/etc/ssl/private".into()],
        );
        let expected = [
            (&*read, ENOENT),
            ("read:/etc/shadow", ENOENT),
            ("read:/etc/gshadow", ENOENT),
            ("list:/etc/ssl/private", ENOENT),
        ];
        assert_answers(caller, &answers, &expected);
    }
}

#[test]
fn root_files_in_a_visible_folder_stay_shut() {
    // The trap of mapping host root: the folder is visible, and only the ids protect the file.
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let secret = bench.workdir().join("root-only");
        fs::write(&secret, "canary").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let mut config = bench.config();
        config.capabilities = vec![Capability::DacOverride, Capability::Chown, Capability::Fowner];
        let answers = bench.intrude(config, &attempts(&["read:/workspace/root-only", "write:/workspace/root-only"]));
        let expected = [("read:/workspace/root-only", EACCES), ("write:/workspace/root-only", EACCES)];
        assert_answers(caller, &answers, &expected);
        assert_eq!(fs::read_to_string(secret).unwrap(), "canary");
    }
}

#[test]
fn files_in_the_callers_home_are_not_there() {
    for caller in CALLERS {
        let home = tempfile::Builder::new().prefix(".canary-").tempdir_in("/root").unwrap();
        fs::write(home.path().join("id_canary"), "canary").unwrap();
        let read = format!("read:{}/id_canary", home.path().display());
        assert_eq!(intrude_outside(std::slice::from_ref(&read))[&read], "ok", "the control");
        let bench = Bench::new(caller);
        let answers = bench.intrude(bench.config(), std::slice::from_ref(&read));
        assert_answers(caller, &answers, &[(&read, ENOENT)]);
    }
}

#[test]
fn nothing_of_the_host_can_be_written_outside_the_workdir() {
    for caller in CALLERS {
        refused(
            caller,
            &[
                ("create:/usr/bin/canary", EROFS),
                ("create:/etc/canary", EROFS),
                ("write:/etc/passwd", EROFS),
                ("write:/etc/ssl/certs/ca-certificates.crt", EACCES),
                ("create:/etc/ssl/certs/canary", EROFS),
                ("create:/dev/canary", EROFS),
                ("create:/canary", EROFS),
                ("create:/sys/canary", EROFS),
                ("create:/workspace/canary", "ok"),
                ("create:/tmp/canary", "ok"),
            ],
        );
        assert!(!std::path::Path::new("/tmp/canary").exists());
    }
}

#[test]
fn a_read_only_bind_is_read_only_and_a_writable_one_is_not() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        for name in ["ro", "rw"] {
            let folder = bench.folder.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("file"), "as it was").unwrap();
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
            fs::set_permissions(folder.join("file"), fs::Permissions::from_mode(0o666)).unwrap();
        }
        let bind = |name: &str, access| Bind {
            source: bench.folder.path().join(name),
            target: format!("/opt/{name}").into(),
            access,
            owner: BindOwner::default(),
        };
        let mut config = bench.config();
        config.binds = vec![bind("ro", Access::ReadOnly), bind("rw", Access::ReadWrite)];
        let tried = attempts(&["read:/opt/ro/file", "write:/opt/ro/file", "write:/opt/rw/file", "remount:/opt/ro"]);
        let answers = bench.intrude(config, &tried);
        let expected = [
            ("read:/opt/ro/file", "ok"),
            ("write:/opt/ro/file", EROFS),
            ("write:/opt/rw/file", "ok"),
            ("remount:/opt/ro", EPERM),
        ];
        assert_answers(caller, &answers, &expected);
    }
}

#[test]
fn a_source_behind_a_link_is_refused() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let link = bench.folder.path().join("link");
        std::os::unix::fs::symlink("/root", &link).unwrap();
        let mut config = bench.config();
        config.init = Some(vec!["/bin/true".into()]);
        for source in [link.clone(), link.join("below")] {
            config.binds =
                vec![Bind { source, target: "/opt/x".into(), access: Access::ReadOnly, owner: BindOwner::default() }];
            let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
            let error = bench.launch(&config, theirs.into()).expect_err("links are not followed");
            assert_eq!((error.stage(), error.errno()), (sandbox_agent::Stage::Source, Some(libc::ELOOP)), "{error}");
            assert!(error.hint().unwrap().contains("links"), "{error:?}");
        }
    }
}

#[test]
fn processes_of_the_host_can_be_neither_seen_nor_signalled_nor_traced() {
    for caller in CALLERS {
        let mut victim = Victim::start(caller);
        let pid = victim.0.id();
        let signal = format!("signal:{pid}");
        assert_eq!(intrude_outside(std::slice::from_ref(&signal))[&signal], "ok", "the control");
        let tried = [signal.clone(), format!("kill:{pid}"), format!("ptrace:{pid}"), format!("list:/proc/{pid}")];
        let bench = Bench::new(caller);
        let answers = bench.intrude(bench.config(), &tried);
        let expected = [(&*tried[0], ESRCH), (&*tried[1], ESRCH), (&*tried[2], ESRCH), (&*tried[3], ENOENT)];
        assert_answers(caller, &answers, &expected);
        assert!(victim.is_alive(), "{caller:?}");
        let seen = bench.intrude(bench.config(), &attempts(&["processes"]));
        assert_answers(caller, &seen, &[("processes", "ok")]);
    }
}

#[test]
fn mounts_and_namespaces_cannot_be_made_or_joined() {
    for caller in CALLERS {
        refused(
            caller,
            &[
                ("mount:/tmp", EPERM),
                ("remount:/usr", EPERM),
                ("remount:/", EPERM),
                ("umount:/proc/sys", EPERM),
                ("umount:/usr", EPERM),
                ("unshare-user", EPERM),
                ("unshare-mount", EPERM),
                ("clone-user", EPERM),
                ("setns:/proc/self/ns/user", EPERM),
                ("setns:/proc/self/ns/mnt", EPERM),
                ("pivot", EPERM),
                ("open_tree", EPERM),
                ("fsopen", EPERM),
            ],
        );
    }
}

#[test]
fn the_kernels_wider_surface_is_refused() {
    for caller in CALLERS {
        refused(
            caller,
            &[
                ("module", EPERM),
                ("bpf", EPERM),
                ("perf", EPERM),
                ("userfaultfd", EPERM),
                ("io_uring", EPERM),
                ("keyctl", EPERM),
                ("handle", EPERM),
                ("kexec", EPERM),
                ("reboot", EPERM),
                ("personality", EPERM),
                ("tiocsti", EPERM),
                ("vsock", EAFNOSUPPORT),
            ],
        );
    }
}

#[test]
fn devices_can_be_neither_opened_nor_made() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let mut config = bench.config();
        // Even with every capability that can be had.
        config.capabilities = vec![Capability::DacOverride, Capability::Setfcap, Capability::Chown];
        let tried =
            ["read:/dev/mem", "read:/dev/kmsg", "read:/dev/vda", "read:/dev/kvm", "read:/dev/vsock", "mknod:/tmp/null"];
        let answers = bench.intrude(config, &attempts(&tried));
        let mut expected: Vec<_> = tried[..5].iter().map(|attempt| (*attempt, ENOENT)).collect();
        expected.push(("mknod:/tmp/null", EPERM));
        assert_answers(caller, &answers, &expected);
    }
}

#[test]
fn proc_neither_tells_about_the_host_nor_changes_it() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let mut config = bench.config();
        config.capabilities = vec![Capability::DacOverride];
        let read_only = [
            "write:/proc/sys/kernel/core_pattern",
            "write:/proc/sys/net/ipv4/ip_forward",
            "write:/proc/sys/kernel/hostname",
        ];
        let answers = bench.intrude(config.clone(), &attempts(&read_only));
        assert_answers(caller, &answers, &read_only.map(|attempt| (attempt, EACCES)));
        // The ids refuse it already; the mount would too.
        let mounts =
            bench.sh("grep -cE ' /proc/(sys|irq|bus|fs) ro,' /proc/self/mountinfo; test ! -w /proc/sys && echo shut");
        assert_eq!(mounts.text, "4\nshut\n", "{caller:?}");
        let said = bench.run(
            config,
            &["/bin/sh", "-c", "for f in kallsyms kcore keys kmsg sysrq-trigger timer_list; do
                if [ -e /proc/$f ]; then printf '%s %s\\n' $f $(cat /proc/$f | wc -c); (echo b > /proc/$f) 2>/dev/null && echo wrote $f; fi
              done; ls /proc/acpi /proc/scsi 2>/dev/null | grep -v :; true"],
        );
        assert!(said.text.contains("kallsyms 0"), "{caller:?}: {}", said.text);
        assert!(said.text.lines().filter(|line| !line.is_empty()).all(|line| line.ends_with(" 0")), "{}", said.text);
        assert!(said.report.masked_paths.iter().any(|path| path == "/proc/kallsyms"));
    }
}

#[test]
fn sockets_of_the_host_cannot_be_reached() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let name = bench.marker();
        let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let path = bench.folder.path().join("docker.sock");
        let _path = UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let tried = [
            format!("connect-abstract:{name}"),
            format!("connect-path:{}", path.display()),
            format!("connect-tcp:{port}"),
        ];
        for (attempt, answer) in intrude_outside(&tried) {
            assert_eq!(answer, "ok", "the control {attempt}");
        }
        let answers = bench.intrude(bench.config(), &tried);
        let expected = [(&*tried[0], ECONNREFUSED), (&*tried[1], ENOENT), (&*tried[2], ECONNREFUSED)];
        assert_answers(caller, &answers, &expected);
        let docker = bench.intrude(bench.config(), &attempts(&["connect-path:/run/docker.sock"]));
        assert_answers(caller, &docker, &[("connect-path:/run/docker.sock", ENOENT)]);
    }
}

#[test]
fn with_the_hosts_network_tcp_is_reached_and_abstract_sockets_are_fenced() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let name = bench.marker();
        let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tried =
            [format!("connect-abstract:{name}"), format!("connect-tcp:{}", listener.local_addr().unwrap().port())];
        let config = host_network(bench.config());
        let said = bench.run(config.clone(), &["/bin/true"]);
        assert_eq!(said.report.landlock, Landlock::InForce, "this kernel has Landlock's scopes");
        let answers = bench.intrude(config, &tried);
        assert_answers(caller, &answers, &[(&*tried[0], EPERM), (&*tried[1], "ok")]);
    }
}

#[test]
fn a_setuid_program_gains_nothing() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let planted = bench.workdir().join("setuid-id");
        fs::copy("/usr/bin/id", &planted).unwrap();
        std::os::unix::fs::chown(&planted, Some(0), Some(0)).unwrap();
        fs::set_permissions(&planted, fs::Permissions::from_mode(0o6755)).unwrap();
        let said = bench.sh("/workspace/setuid-id -u; grep -E 'NoNewPrivs|CapEff|CapBnd' /proc/self/status");
        let expected = "0\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n";
        assert_eq!(said.text, expected, "{caller:?}: 0 is the inside's root, before and after");
    }
}

#[test]
fn every_thread_is_under_the_filter_and_holds_no_capability() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let said = bench
            .sh("grep -hE '^(Seccomp|NoNewPrivs|CapEff|CapPrm|CapBnd|CapAmb|CapInh):' /proc/*/task/*/status | sort -u");
        let none = "0000000000000000";
        let expected = format!(
            "CapAmb:\t{none}\nCapBnd:\t{none}\nCapEff:\t{none}\nCapInh:\t{none}\nCapPrm:\t{none}\nNoNewPrivs:\t1\nSeccomp:\t2\n"
        );
        assert_eq!(said.text, expected, "{caller:?}");
        let status = bench.intrude(bench.config(), &attempts(&["setuid:1234"]));
        let errno = if caller != Caller::Nobody { EPERM } else { EINVAL };
        assert_eq!(status["setuid:1234"], errno);
    }
}

#[test]
fn no_group_of_the_host_is_left() {
    let bench = Bench::new(Caller::Root);
    let mut config = bench.config();
    config.init = Some(["/bin/sh", "-c", "grep Groups /proc/self/status"].map(str::to_owned).to_vec());
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = Command::new("/usr/bin/setpriv");
    command.args(["--groups", "4,27", common::AGENT]);
    let launcher = sandbox_agent::Launcher::new(common::AGENT).prepare_as(command, theirs.into()).unwrap();
    let mut launched = launcher.launch(&config).unwrap();
    assert_eq!(std::io::read_to_string(ours).unwrap(), "Groups:\t \n");
    launched.wait().unwrap();
}

#[test]
fn no_descriptor_is_inherited() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let secret = fs::File::open("/etc/hostname").unwrap();
        // Inheritable on purpose: a careless program around the provider.
        let leaked = rustix::io::dup(&secret).unwrap();
        rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).unwrap();
        let answers = bench.intrude(bench.config(), &attempts(&["fds"]));
        drop(leaked);
        assert_answers(caller, &answers, &[("fds", "ok")]);
    }
}

#[test]
fn killing_pid_1_from_inside_is_ignored() {
    for caller in CALLERS {
        let said = Bench::new(caller).sh("sh -c 'kill -9 1; kill -15 1'; echo alive");
        assert_eq!((said.text.as_str(), said.code), ("alive\n", 0), "{caller:?}");
    }
}

#[test]
fn ids_inside_are_never_host_root() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let said = bench.sh("cat /proc/self/uid_map /proc/self/gid_map");
        for line in said.text.lines() {
            let numbers: Vec<u64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
            assert!(numbers[1] >= 65534, "{caller:?}: {line}");
        }
        assert_eq!(said.text.lines().count(), 2);
        assert!(said.report.ids.outside_uid != 0 && said.report.ids.outside_gid != 0);
    }
}

#[test]
fn files_made_in_the_workdir_belong_to_the_mapped_id_outside() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let said = bench.sh("echo x > made && chmod 4755 made");
        assert_eq!(said.code, 0, "{}", said.text);
        let made = fs::metadata(bench.workdir().join("made")).unwrap();
        let ids = said.report.ids;
        assert_eq!((made.uid(), made.gid()), (ids.outside_uid, ids.outside_gid), "{caller:?}");
        assert_ne!(made.uid(), 0);
    }
}

#[test]
fn host_root_without_a_range_to_map_is_refused() {
    // uid 0 of the host without the capabilities to map anything else.
    let bench = Bench::new(Caller::Root);
    let mut config = bench.config();
    config.init = Some(vec!["/bin/true".into()]);
    config.die_with_parent = None;
    let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = Command::new("/sbin/capsh");
    command.args([
        "--drop=cap_setuid,cap_sys_admin",
        "--shell=/bin/sh",
        "--",
        "-c",
        "exec \"$0\" \"$@\"",
        common::AGENT,
    ]);
    let launched = sandbox_agent::Launcher::new(common::AGENT)
        .prepare_as(command, theirs.into())
        .and_then(|launcher| launcher.launch(&config));
    let error = launched.expect_err("host root must not be mapped");
    assert_eq!(error.stage(), sandbox_agent::Stage::Ids, "{error:?}");
    assert!(error.hint().unwrap().contains("CAP_SETUID"), "{error:?}");
}
