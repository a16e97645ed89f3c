//! What a launcher makes once for many sandboxes, and what each of them has for itself.

mod common;

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;

use common::{AGENT, Bench, Caller};
use sandbox_agent::{Access, Bind, BindOwner, HostEntry, LaunchConfig, Launcher, MemoryFolder};

/// How many file systems are at `/proc`, one above the other: two where the root is the copy of one that was made before.
const PROCS: &str = "awk '$5 == \"/proc\"' /proc/self/mountinfo | wc -l";

fn run(launcher: &Launcher, expected: &LaunchConfig, config: &LaunchConfig, script: &str) -> String {
    let init = |config: &LaunchConfig| LaunchConfig {
        init: Some(["/bin/sh", "-c", script].map(str::to_owned).to_vec()),
        ..config.clone()
    };
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let prepared = launcher.prepare_ahead(&init(expected).basis(), theirs.into()).unwrap();
    let mut launched = prepared.launch(&init(config)).unwrap_or_else(|error| panic!("{error:?}"));
    let mut said = String::new();
    ours.read_to_string(&mut said).unwrap();
    launched.wait().unwrap();
    said
}

#[test]
fn each_sandbox_of_one_root_has_its_own_names_folders_and_processes() {
    let bench = Bench::new(Caller::RootAhead);
    let launcher = Launcher::new(AGENT);
    for name in ["one", "two", "one"] {
        let folder = bench.folder.path().join(name);
        let file = folder.join("file");
        fs::create_dir_all(&folder).unwrap();
        fs::write(&file, name).unwrap();
        let bind = |source, target: &str| Bind {
            source,
            target: target.into(),
            access: Access::ReadOnly,
            owner: BindOwner::Unchanged,
        };
        let address = "192.0.2.1".parse().unwrap();
        let config = LaunchConfig {
            hostname: Some(name.to_owned()),
            hosts: vec![HostEntry { address, names: vec![format!("{name}.test")] }],
            binds: vec![bind(folder, "/data/deep"), bind(file, "/etc/own/file")],
            memory: vec![MemoryFolder { target: "/scratch".into(), mib: 1, access: Access::ReadWrite }],
            ..bench.config()
        };
        let script = format!(
            "{PROCS}; hostname; cat /etc/hostname; getent hosts {name}.test | wc -l; cat /data/deep/file; echo; \
             cat /etc/own/file; echo; find /tmp /scratch /run /dev/shm -mindepth 1; \
             for at in /tmp /scratch /run /dev/shm; do touch $at/left || echo no $at; done; \
             for at in / /etc /dev /var /data; do touch $at/left 2>/dev/null && echo into $at; done; \
             ls -d /proc/[0-9]* | head -1; stat -c '%u:%g' / /etc /etc/passwd /dev /data | sort -u; \
             stat -c '%u:%g' /home/sandbox"
        );
        let said = run(&launcher, &config, &config, &script);
        let expected = format!("2\n{name}\n{name}\n1\n{name}\n{name}\n/run/lock\n/proc/1\n0:0\n1000:1000\n");
        assert_eq!(said, expected, "{name}");
    }
}

#[test]
fn a_sandbox_that_needs_more_than_was_expected_gets_it() {
    let bench = Bench::new(Caller::RootAhead);
    let launcher = Launcher::new(AGENT);
    let expected = bench.config();
    let scratch = MemoryFolder { target: "/scratch/deep".into(), mib: 1, access: Access::ReadWrite };
    let more = LaunchConfig { memory: vec![scratch], ..bench.config() };
    let script = format!("{PROCS}; touch /scratch/deep/x && echo made");
    assert_eq!(run(&launcher, &expected, &more, &script), "1\nmade\n");
    // The other way round there is a folder too many, which nobody minds.
    let script = format!("{PROCS}; ls -A /scratch/deep | wc -l; touch /scratch/deep/x 2>/dev/null || echo refused");
    assert_eq!(run(&launcher, &more, &expected, &script), "2\n0\nrefused\n");
}

#[test]
fn a_target_that_cannot_be_made_fails_as_it_does_without_a_template() {
    let bench = Bench::new(Caller::RootAhead);
    let memory = vec![MemoryFolder { target: "/usr/no/such/folder".into(), mib: 1, access: Access::ReadWrite }];
    let config = LaunchConfig { memory, init: Some(vec!["/bin/true".into()]), ..bench.config() };
    let errors = [true, false].map(|is_ahead| {
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let launcher = Launcher::new(AGENT);
        let prepared = match is_ahead {
            true => launcher.prepare_ahead(&config.basis(), theirs.into()),
            false => launcher.prepare(theirs.into()),
        };
        prepared.and_then(|prepared| prepared.launch(&config)).expect_err("the folder is the host's").to_string()
    });
    assert!(errors[0].contains("/usr/no/such/folder"), "{}", errors[0]);
    assert_eq!(errors[0], errors[1]);
}

#[test]
fn a_launcher_that_may_not_enter_a_template_does_without() {
    let bench = Bench::new(Caller::RootAhead);
    let wrapper = bench.folder.path().join("agent");
    let without = |capability: &str| {
        let script = format!("#!/bin/sh\nexec /usr/bin/setpriv --bounding-set -{capability} {AGENT} \"$@\"\n");
        fs::write(&wrapper, script).unwrap();
        fs::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        run(&Launcher::new(&wrapper), &bench.config(), &bench.config(), PROCS)
    };
    // The control: it is this one that counts.
    assert_eq!(without("audit_write"), "2\n");
    assert_eq!(without("sys_chroot"), "1\n");
}
