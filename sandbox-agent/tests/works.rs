//! What must work inside.

mod common;

use std::fs;

use common::{Bench, CALLERS, Caller, host_network};
use sandbox_agent::HostEntry;

#[test]
fn a_shell_runs_as_pid_1_in_the_workdir_and_its_code_comes_back() {
    for caller in CALLERS {
        let said = Bench::new(caller).sh("echo $$ $(pwd) $(id -u) $(hostname); exit 7");
        assert_eq!(said.text, "1 /workspace 0 sandbox\n", "{caller:?}");
        assert_eq!(said.code, 7, "{caller:?}");
    }
}

#[test]
fn ordinary_programs_find_what_they_need() {
    let script = r#"set -e
        head -c 4 /dev/zero | wc -c
        cat /dev/null; echo x > /dev/null
        head -c 8 /dev/urandom | wc -c
        if echo x > /dev/full; then exit 1; fi 2>/dev/null
        echo shm > /dev/shm/x && cat /dev/shm/x
        echo tmp > /tmp/x && echo vartmp > /var/tmp/x && echo run > /run/x && cat /tmp/x
        echo home > ~/x && cat ~/x
        test -s /etc/ssl/certs/ca-certificates.crt
        grep -c BEGIN /etc/ssl/certs/ca-certificates.crt > /dev/null
        getent passwd sandbox | cut -d: -f1
        getent passwd 0 | cut -d: -f1
        getent hosts localhost > /dev/null
        locale | grep -c C.UTF-8 > /dev/null
        (echo err > /dev/stderr) 2> /tmp/err; grep -q err /tmp/err
        (exec 3< /dev/fd/0)
        test -c /dev/ptmx -o -L /dev/ptmx
        nproc > /dev/null; ls / > /dev/null; ps > /dev/null; date > /dev/null; awk 'BEGIN { print "awk" }'
        cat /proc/meminfo > /dev/null; cat /proc/cpuinfo > /dev/null
        ls /sys/devices/system/cpu > /dev/null
        echo done"#;
    for caller in CALLERS {
        let said = Bench::new(caller).sh(script);
        assert_eq!(said.text, "4\n8\nshm\ntmp\nhome\nsandbox\nroot\nawk\ndone\n", "{caller:?}");
        assert_eq!(said.code, 0);
    }
}

#[test]
fn python_opens_terminals_threads_and_a_local_server() {
    let script = r#"
import multiprocessing, os, pty, socket, ssl, threading
a, b = pty.openpty(); os.write(b, b"pty"); assert os.read(a, 3) == b"pty"
assert os.ttyname(b).startswith("/dev/pts/")
s = socket.socket(); s.bind(("127.0.0.1", 80)); s.listen()
t = threading.Thread(target=lambda: s.accept()[0].sendall(b"hello")); t.start()
c = socket.create_connection(("localhost", 80)); assert c.recv(5) == b"hello"; t.join()
s6 = socket.socket(socket.AF_INET6); s6.bind(("::1", 0))
p = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
p.settimeout(5); p.connect(("127.0.0.1", 0)); p.send(b"\x08\x00\x00\x00\x00\x00\x00\x01ping"); assert b"ping" in p.recv(64)
assert len(ssl.create_default_context().get_ca_certs()) > 10
assert multiprocessing.Lock()
print("python")
"#;
    assert!(fs::exists("/usr/bin/python3").unwrap(), "apt-get install python3");
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let said = bench.run(bench.config(), &["/usr/bin/python3", "-c", script]);
        assert_eq!(said.text, "python\n", "{caller:?}");
    }
}

#[test]
fn names_are_resolved_by_what_the_configuration_says() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let mut config = bench.config();
        config.hostname = Some("box-7".into());
        config.hosts =
            vec![HostEntry { address: "10.9.8.7".parse().unwrap(), names: vec!["db".into(), "db.local".into()] }];
        let script = "hostname; getent hosts db.local | awk '{ print $1 }'; ls /etc/resolv.conf 2>/dev/null; true";
        assert_eq!(bench.run(config.clone(), &["/bin/sh", "-c", script]).text, "box-7\n10.9.8.7\n", "{caller:?}");
        let said = bench.run(host_network(config), &["/bin/sh", "-c", "cat /etc/resolv.conf"]);
        assert_eq!(said.text, fs::read_to_string("/etc/resolv.conf").unwrap(), "{caller:?}");
    }
}

#[test]
fn as_root_any_id_can_be_used_inside_and_without_it_one() {
    let mut config = Bench::new(Caller::Root).config();
    config.workdir = None;
    config.capabilities = vec![sandbox_agent::Capability::Setuid, sandbox_agent::Capability::Setgid];
    let script = "import os; os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000); open('/home/sandbox/x', 'w'); print(os.getuid())";
    let said = Bench::new(Caller::Root).run(config, &["/usr/bin/python3", "-c", script]);
    assert_eq!(said.text, "1000\n");

    let bench = Bench::new(Caller::Nobody);
    let mut config = bench.config();
    (config.ids.inside_uid, config.ids.inside_gid) = (1000, 100);
    let said =
        bench.run(config, &["/bin/sh", "-c", "id -u; id -g; id -un; echo x > /workspace/x; echo x > ~/x; echo $?"]);
    assert_eq!(said.text, "1000\n100\nsandbox\n0\n");
}

#[test]
fn the_range_of_ids_can_be_chosen_but_not_over_accounts() {
    let bench = Bench::new(Caller::Root);
    let mut config = bench.config();
    config.ids.host_base = Some(1_879_048_192 + 5 * 65536);
    let said = bench.run(config, &["/bin/sh", "-c", "echo x > made"]);
    assert_eq!(said.report.ids.outside_uid, 1_879_048_192 + 5 * 65536, "{}", said.text);

    let bench = Bench::new(Caller::Nobody);
    let mut config = bench.config();
    config.ids.host_base = Some(1_879_048_192);
    config.init = Some(vec!["/bin/true".into()]);
    let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let error = bench.launch(&config, theirs.into()).expect_err("an unprivileged caller has no range");
    assert_eq!(error.stage(), sandbox_agent::Stage::Ids);
}

#[test]
fn sizes_of_private_folders_are_limits() {
    for caller in CALLERS {
        let bench = Bench::new(caller);
        let mut config = bench.config();
        config.sizes.tmp_mib = 1;
        let script = "head -c 2000000 /dev/zero > /tmp/big; wc -c < /tmp/big; i=0; while echo > /tmp/f$i; do i=$((i+1)); done; test $i -lt 300 && echo few";
        let said = bench.run(config, &["/bin/sh", "-c", &format!("({script}) 2>/dev/null")]);
        assert_eq!(said.text, "1048576\nfew\n", "{caller:?}");
    }
}
