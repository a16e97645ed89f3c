//! The program, each command a process of its own.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use sandbox_core::{SandboxProvider, serde_json::json};

use crate::{
    engine,
    registry::{Registry, push, push_new, slowly},
    support::{Docker, by_hand, docker, spec},
};

/// The program, with nothing of this process's configuration, on the tests' engine.
fn sandboxctl(docker: &Docker, arguments: &[&str]) -> Command {
    let providers = engine::agent().parent().unwrap().to_owned();
    let program: PathBuf = providers.with_file_name("sandboxctl");
    assert!(program.is_file(), "{} is missing: cargo xtask run -- version", program.display());
    let place = docker.temp.path();
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", "/usr/bin:/bin").current_dir(place).stdin(Stdio::null());
    command.env("HOME", place).env("XDG_STATE_HOME", place.join("state")).env("SANDBOX_PROVIDER_DIR", providers);
    for (key, value) in [("HOST", engine::host()), ("RUN_DIR", place.join("run").display().to_string())] {
        command.env(format!("SANDBOX_PROVIDER__DOCKER__{key}"), value);
    }
    command
}

/// What it writes, when it ends with this code.
fn ctl(docker: &Docker, code: i32, arguments: &[&str]) -> String {
    let output = sandboxctl(docker, arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_docker_sandbox_is_made_used_and_stopped_by_different_processes() {
    let docker = docker(json!({}));
    let ok = |arguments: &[&str]| ctl(&docker, 0, arguments);
    // One static program and no shell.
    assert_eq!(ok(&["create", "--provider", "docker", "--name", "bare", "--ttl", "10m", engine::STATIC]), "bare");
    assert_eq!(
        ok(&["create", "--provider", "docker", "--name", "box", "--ttl", "10m", "-e", "A=b", engine::BUSYBOX]),
        "box"
    );
    assert_eq!(ok(&["exec", "box", "--", "sh", "-c", "echo $A > /f; cat /f"]), "b");
    assert_eq!(ctl(&docker, 7, &["exec", "box", "--", "sh", "-c", "exit 7"]), "");
    std::fs::write(docker.temp.path().join("local"), b"bytes\0").unwrap();
    for name in ["bare", "box"] {
        ok(&["cp", "local", &format!("{name}:/copied")]);
        ok(&["cp", &format!("{name}:/copied"), &format!("back-{name}")]);
        assert_eq!(std::fs::read(docker.temp.path().join(format!("back-{name}"))).unwrap(), b"bytes\0");
        assert!(ok(&["status", name, "-o", "json"]).contains("running"));
        ok(&["stats", name]);
        ok(&["renew", name, "20m"]);
        ok(&["pause", name]);
        ok(&["resume", name]);
    }
    assert_eq!(ctl(&docker, 127, &["exec", "bare", "--", "/no-such-program"]), "");
    let job = ok(&["exec", "-d", "box", "--", "sh", "-c", "echo from a job; exit 5"]);
    assert_eq!(ctl(&docker, 5, &["wait", "box", "--job", &job]), "");
    assert_eq!(ok(&["logs", "box", "--job", &job]), "from a job");
    let mut names: Vec<_> = ok(&["ls", "-q"]).lines().map(str::to_owned).collect();
    names.sort();
    assert_eq!(names, ["bare", "box"]);
    for name in &names {
        ok(&["stop", name]);
    }
    assert_eq!(ok(&["ls", "-q"]), "");
    docker.ensure_no_folders();
}

/// Where the child below finds what it needs.
const CHILD: &str = "SANDBOX_TEST_CLI_CHILD";
const SANDBOXES: usize = 20;

/// Runs as another process, for the test below: makes sandboxes and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_to_be_killed() {
    let Ok(run_dir) = std::env::var(CHILD) else { return };
    let settings = engine::settings(json!({ "run_dir": run_dir }));
    let config = sandbox_core::from_json(settings, "settings").unwrap();
    let provider = std::sync::Arc::new(sandbox_provider_docker::DockerProvider::new(config).unwrap());
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..SANDBOXES {
        let provider = provider.clone();
        let spec = spec().with_metadata("killed-by-gc", std::process::id().to_string());
        all.spawn(async move { provider.create(spec).await.unwrap() });
    }
    all.join_all().await;
    println!("made all");
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread")]
async fn c01_gc_removes_what_a_killed_client_left_and_nothing_of_a_live_one() {
    let docker = docker(json!({}));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cli::a_client_that_waits_to_be_killed", "--nocapture"])
        .env(CHILD, docker.temp.path().join("run"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id().to_string();
    let own = docker.create(spec().with_metadata("killed-by-gc", pid.as_str())).await;
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let made = tokio::task::spawn_blocking(move || lines.any(|line| line.is_ok_and(|line| line == "made all")));
    assert!(made.await.unwrap(), "the child did not make its sandboxes");
    let label = format!("killed-by-gc={pid}");
    let gc = |more: &[&str]| ctl(&docker, 0, &[&["gc", "--provider", "docker", "--label", &label], more].concat());
    assert_eq!(gc(&[]), "", "all of them have a living owner");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(gc(&["--dry-run"]).lines().count(), SANDBOXES);
    assert_eq!(gc(&[]).lines().filter(|line| line.starts_with("removed docker ")).count(), SANDBOXES);
    let left = by_hand(["ps", "--all", "--format", "{{.Names}}", "--filter", &format!("label={label}")]);
    assert_eq!(left, own.sandbox_id, "more or less than the live one's own is left");
    assert_eq!(docker.text(&own, "echo lives").await, "lives");
    docker.provider.close(&own).await.unwrap();
    docker.ensure_no_folders();
}

/// What it writes to standard error when it is to make a sandbox of an image, and whether it has.
fn make(docker: &Docker, image: &str, settings: &[(&str, &str)]) -> (bool, String) {
    let mut create = sandboxctl(docker, &["--log", "info", "create", "--provider", "docker", "--name", "made", image]);
    let path = format!("{}:/usr/bin:/bin", docker.temp.path().join("bin").display());
    let output = create.env("PATH", path).envs(settings.iter().copied()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        ctl(docker, 0, &["stop", "made"]);
        by_hand(["rmi", image]);
    }
    (output.status.success(), said)
}

#[tokio::test(flavor = "multi_thread")]
async fn c09_a_slow_pull_has_a_limit_of_its_own_and_is_told_of_on_its_way() {
    const READY: (&str, &str) = ("SANDBOX_PROVIDER__DOCKER__READY_TIMEOUT_S", "5");
    const PULL: &str = "SANDBOX_PROVIDER__DOCKER__PULL_TIMEOUT_S";
    let registry = Registry::start(false);
    let docker = docker(json!({}));
    push_new(&registry.image("tests/slow:1"), 600 << 10);
    let image = format!("{}/tests/slow:1", slowly(registry.address, 100 << 10));
    let (made, said) = make(&docker, &image, &[READY, (PULL, "2")]);
    assert!(!made && said.contains("pull_timeout_s = 2: "), "{said}");
    let (_, bytes) = said.rsplit_once("pull_timeout_s = 2: ").unwrap();
    let numbers: Vec<u64> = bytes.split(' ').filter_map(|word| word.parse().ok()).take(2).collect();
    assert!(numbers[0] > 0 && numbers[0] < numbers[1], "{said}");
    // Slower than a start may be.
    let before = std::time::Instant::now();
    let (made, said) = make(&docker, &image, &[READY, (PULL, "60")]);
    assert!(made && before.elapsed().as_secs() >= 5, "{:?}: {said}", before.elapsed());
    let told = said.lines().filter(|line| line.contains("pulling") && line.contains("of_bytes")).count();
    assert!(told >= 3, "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c08_credentials_come_from_the_docker_config_and_the_helpers_that_it_names() {
    let registry = Registry::start(true);
    let docker = docker(json!({}));
    let place = docker.temp.path();
    let host = registry.address.to_string();
    let write_config = |config: sandbox_core::serde_json::Value| {
        std::fs::create_dir_all(place.join(".docker")).unwrap();
        std::fs::write(place.join(".docker/config.json"), config.to_string()).unwrap();
    };
    // base64 of user:secret-of-tests
    let in_file = json!({ "auths": { &host: { "auth": "dXNlcjpzZWNyZXQtb2YtdGVzdHM=" } } });
    write_config(in_file.clone());
    let image = registry.image("tests/kept:1");
    push(&image, &place.join(".docker"));
    // It knows this registry only, and says so as those of docker do.
    let helper = format!(
        "#!/bin/sh\nread -r address\n\
         if [ \"$1\" = get ] && [ \"$address\" = {host} ]; then\n\
         printf '{{\"ServerURL\":\"%s\",\"Username\":\"user\",\"Secret\":\"secret-of-tests\"}}' \"$address\"\n\
         else echo 'credentials not found in native keychain'; exit 1; fi\n"
    );
    std::fs::create_dir(place.join("bin")).unwrap();
    for (name, script) in [("tests", helper.as_str()), ("broken", "#!/bin/sh\necho secret-canary; exit 3\n")] {
        let path = place.join(format!("bin/docker-credential-{name}"));
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    for (config, works) in [
        (json!({}), false),
        (in_file.clone(), true),
        (json!({ "credHelpers": { &host: "tests" } }), true),
        (json!({ "auths": { &host: {} }, "credsStore": "tests" }), true),
        (json!({ "credHelpers": { "r.example": "tests" } }), false),
        (json!({ "credsStore": "broken" }), false),
        (json!({ "credsStore": "no-such-helper" }), false),
        // What a helper does not have may still be in the file.
        (json!({ "auths": in_file["auths"], "credHelpers": { &host: "broken" } }), true),
    ] {
        write_config(config.clone());
        let (made, said) = make(&docker, &image, &[]);
        assert_eq!(made, works, "{config}: {said}");
        assert!(made || said.contains("the registry refused access"), "{config}: {said}");
        assert!(!said.contains("secret"), "{config}: {said}");
        for name in ["broken", "no-such-helper"].iter().filter(|name| config.to_string().contains(*name)) {
            assert!(said.contains("the credential helper") && said.contains(name), "{config}: {said}");
        }
    }
}

/// An address on which every connection is taken, counted and closed.
fn counted() -> (std::net::SocketAddr, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let count = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counting = count.clone();
    std::thread::spawn(move || {
        for _ in listener.incoming() {
            counting.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    });
    (address, count)
}

/// The engine by TCP. What is sent to it is kept.
fn by_tcp() -> (std::net::SocketAddr, std::sync::Arc<std::sync::Mutex<Vec<u8>>>) {
    use std::{io::Read, io::Write, net::TcpListener, os::unix::net::UnixStream, sync::Arc, sync::Mutex};
    let engine = engine::host().strip_prefix("unix://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let sent = kept.clone();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = UnixStream::connect(&engine).unwrap();
            let (mut near_in, mut far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (mut near_out, mut far_in, sent) = (near, far, sent.clone());
            std::thread::spawn(move || {
                let mut chunk = [0; 4096];
                while let Ok(count @ 1..) = near_in.read(&mut chunk) {
                    sent.lock().unwrap().extend_from_slice(&chunk[..count]);
                    if far_out.write_all(&chunk[..count]).is_err() {
                        break;
                    }
                }
                let _ = far_out.shutdown(std::net::Shutdown::Write);
            });
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut far_in, &mut near_out);
                let _ = near_out.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (address, kept)
}

#[tokio::test(flavor = "multi_thread")]
async fn e04_proxies_of_the_environment_reach_neither_the_engine_nor_a_sandbox() {
    let docker = docker(json!({}));
    let (stub, count) = counted();
    let proxy = format!("http://user:canary@{stub}");
    let (tcp, sent) = by_tcp();
    for host in [engine::host(), format!("tcp://{tcp}")] {
        let mut run = sandboxctl(&docker, &["run", "--provider", "docker", engine::BUSYBOX, "--", "env"]);
        run.env("SANDBOX_PROVIDER__DOCKER__HOST", &host);
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            run.env(name, &proxy).env(name.to_uppercase(), &proxy);
        }
        let output = run.output().unwrap();
        assert!(output.status.success(), "{host}: {}", String::from_utf8_lossy(&output.stderr));
        let environment = String::from_utf8_lossy(&output.stdout).to_lowercase();
        assert!(environment.contains("path=") && !environment.contains("proxy"), "{host}: {environment}");
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 0, "requests went to the proxy");
    let sent = String::from_utf8_lossy(&sent.lock().unwrap()).to_lowercase();
    assert!(sent.contains("/containers/create") && !sent.contains("proxy-authorization") && !sent.contains("canary"));
}
