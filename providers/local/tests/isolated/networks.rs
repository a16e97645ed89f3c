//! Private networks between sandboxes.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

use sandbox_core::{
    ErrorKind, ExecRequest, Field, ListFilter, ListSweep, Network, NetworkMode, NetworkRequest, Networks,
    PortForwarding, SandboxHandle, SandboxProvider, SandboxSpec, from_json, serde_json::json,
};
use sandbox_provider_local::LocalProvider;

use crate::{
    agent,
    support::{Local, eventually, isolated, provider, remains},
};

/// Where the other program is to make its sandbox. Set in that program only.
const FOLDER: &str = "SANDBOX_TEST_NETWORK_FOLDER";

fn spec(name: &str, network: &str) -> SandboxSpec {
    let mut spec = SandboxSpec::default();
    spec.name = Some(name.to_owned());
    spec.network = Some(NetworkMode::Named(network.to_owned()));
    spec
}

fn request(name: &str) -> NetworkRequest {
    NetworkRequest { name: name.to_owned(), ..NetworkRequest::default() }
}

async fn address_of(local: &Local, handle: &SandboxHandle) -> String {
    local.provider.network_address(handle).await.unwrap()
}

/// This machine's own interfaces.
fn interfaces() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/sys/class/net").unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Listens in a sandbox on every address, and answers each connection with a word.
async fn serve(local: &Local, handle: &SandboxHandle, port: u16, word: &str) {
    let script = format!(
        "cat > /tmp/serve.py <<'END'\nimport socket, sys\ns = socket.create_server((\"0.0.0.0\", {port}))\n\
         open(\"/tmp/ready\", \"w\")\nwhile True:\n  c, _ = s.accept()\n  c.sendall(b\"{word}\")\n  c.close()\nEND\n\
         rm -f /tmp/ready; python3 /tmp/serve.py >/dev/null 2>&1 &\n\
         for i in $(seq 200); do test -e /tmp/ready && break; sleep 0.05; done; test -e /tmp/ready"
    );
    local.text(handle, &script).await;
}

/// What a listener says, or how the connection failed.
async fn ask(local: &Local, handle: &SandboxHandle, host: &str, port: u16) -> String {
    let script = format!(
        "import socket\ntry:\n  print(socket.create_connection((\"{host}\", {port}), timeout=10).recv(99).decode())\n\
         except OSError as e:\n  print(\"failed\", type(e).__name__, e.errno)"
    );
    local.run(handle, ExecRequest::argv(["python3", "-c", &script])).await.stdout_text().trim().to_owned()
}

async fn interfaces_inside(local: &Local, handle: &SandboxHandle) -> usize {
    local.text(handle, "tail -n +3 /proc/net/dev | wc -l").await.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn e03_sandboxes_of_one_network_reach_each_other_by_name_and_those_of_two_do_not() {
    let before = interfaces();
    let local = isolated(json!({}));
    let made = local.provider.create_network(request("app")).await.unwrap();
    assert!(made.subnet.unwrap().starts_with("10.83."));
    local.provider.create_network(request("other")).await.unwrap();
    let db = local.create_with(spec("db", "app")).await;
    let web = local.create_with(spec("web", "app")).await;
    let stranger = local.create_with(spec("stranger", "other")).await;
    let alone = local.create().await;
    serve(&local, &db, 5432, "database").await;
    serve(&local, &web, 80, "web").await;
    assert_eq!(ask(&local, &web, "db", 5432).await, "database");
    assert_eq!(ask(&local, &db, "web", 80).await, "web");
    assert_eq!(ask(&local, &web, &db.sandbox_id, 5432).await, "database");
    // Itself, by its name and its address.
    assert_eq!(ask(&local, &db, "db", 5432).await, "database");
    let address = local.provider.network_address(&db).await.unwrap();
    assert_eq!(ask(&local, &web, &address, 5432).await, "database");
    assert_eq!(ask(&local, &db, &address, 5432).await, "database");
    assert_eq!(ask(&local, &web, "db", 1).await, "failed ConnectionRefusedError 111");
    for handle in [&stranger, &alone] {
        assert_eq!(ask(&local, handle, &address, 5432).await, "failed OSError 101");
        assert!(ask(&local, handle, "db", 5432).await.starts_with("failed gaierror"), "{}", handle.sandbox_id);
    }
    assert_eq!(local.provider.network_address(&alone).await.unwrap_err().kind(), ErrorKind::InvalidState);
    // Internal to the end: no listener of this machine, no gateway, no service of a cloud's.
    let listener = std::net::TcpListener::bind(("0.0.0.0", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    assert_eq!(ask(&local, &web, "127.0.0.1", port).await, "failed ConnectionRefusedError 111");
    let gateway = format!("{}.1", address.rsplit_once('.').unwrap().0);
    for host in [gateway.as_str(), "169.254.169.254"] {
        assert!(ask(&local, &web, host, port).await.starts_with("failed"), "{host}");
    }
    // Nothing of it is in this machine's network, and no way leads there.
    assert_eq!(interfaces(), before);
    assert_eq!(ask(&local, &web, "192.0.2.1", 80).await, "failed OSError 101");
    // Whoever goes is gone at once, and a name leads to nobody.
    local.provider.close(&db).await.unwrap();
    assert!(ask(&local, &web, "db", 5432).await.starts_with("failed gaierror"));
    assert_eq!(ask(&local, &web, &address, 5432).await, "failed OSError 101");
    assert_eq!(interfaces_inside(&local, &web).await, 1);
    // The address is free for the next one.
    let again = local.create_with(spec("db", "app")).await;
    assert_eq!(local.provider.network_address(&again).await.unwrap(), address);
    serve(&local, &again, 5432, "again").await;
    assert_eq!(ask(&local, &web, "db", 5432).await, "again");
    let error = local.provider.remove_network("app".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    for handle in [again, web, stranger, alone] {
        local.provider.close(&handle).await.unwrap();
    }
    for name in ["app", "other", "app"] {
        local.provider.remove_network(name.to_owned()).await.unwrap();
    }
    assert_eq!(local.provider.list_networks().await.unwrap(), []);
    assert_eq!(local.remains(), [".networks"]);
    assert_eq!(interfaces(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_sandbox_is_attached_under_further_names_and_detached() {
    let local = isolated(json!({}));
    for name in ["front", "back"] {
        local.provider.create_network(request(name)).await.unwrap();
    }
    let (web, db) = (local.create_with(spec("web", "front")).await, local.create().await);
    serve(&local, &db, 5432, "database").await;
    let networks: &dyn Networks = &local.provider;
    for name in ["back", "front"] {
        networks.attach_network(&db, name.to_owned(), vec!["store".to_owned()]).await.unwrap();
    }
    assert_eq!(ask(&local, &web, "store", 5432).await, "database");
    // Attaching again changes the names.
    networks.attach_network(&db, "front".to_owned(), vec!["shop".to_owned()]).await.unwrap();
    assert_eq!(ask(&local, &web, "shop", 5432).await, "database");
    assert!(ask(&local, &web, "store", 5432).await.starts_with("failed gaierror"));
    // Names of the caller's come with them, and replace one another.
    let hosts = |name: &str| BTreeMap::from([(name.to_owned(), "192.0.2.7".to_owned())]);
    local.provider.set_hosts(&web, hosts("first.test")).await.unwrap();
    local.provider.set_hosts(&web, hosts("second.test")).await.unwrap();
    let found =
        local.text(&web, "getent hosts second.test; getent hosts first.test || echo none; getent hosts shop").await;
    let lines: Vec<_> = found.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(lines[..2], ["192.0.2.7", "none"], "{found}");
    for (name, address) in [("a b", "192.0.2.7"), ("", "192.0.2.7"), ("x", "no address")] {
        let error = local.provider.set_hosts(&web, [(name.to_owned(), address.to_owned())].into()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.field().unwrap().starts_with("hosts."), "{error}");
    }
    networks.detach_network(&db, "front".to_owned()).await.unwrap();
    assert!(ask(&local, &web, "shop", 5432).await.starts_with("failed gaierror"));
    assert_eq!(interfaces_inside(&local, &web).await, 1);
    let error = networks.detach_network(&db, "front".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = networks.attach_network(&db, "none".to_owned(), vec![]).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("network")), "{error}");
    let error = networks.attach_network(&db, "front".to_owned(), vec!["a b".to_owned()]).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("aliases")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn h13_names_resolve_in_the_first_command_and_an_alias_on_its_network_only() {
    let local = isolated(json!({}));
    for name in ["front", "back"] {
        local.provider.create_network(request(name)).await.unwrap();
    }
    let db = local.create_with(spec("db_main", "back")).await;
    local.provider.attach_network(&db, "back".to_owned(), vec!["db-main".to_owned()]).await.unwrap();
    local.provider.attach_network(&db, "front".to_owned(), vec!["front-db".to_owned()]).await.unwrap();
    for round in 0..5 {
        let app = local.create_with(spec(&format!("app{round}"), "back")).await;
        let found = local.text(&app, "getent hosts db_main db-main; getent hosts front-db || echo none").await;
        assert!(found.contains("db_main") && found.contains("db-main") && found.ends_with("none"), "{found}");
        local.provider.close(&app).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn h10_forty_networks_at_once_are_no_matter() {
    let local = isolated(json!({}));
    for number in 0..40 {
        local.provider.create_network(request(&format!("n{number}"))).await.unwrap();
    }
    let subnets: BTreeSet<_> =
        local.provider.list_networks().await.unwrap().into_iter().map(|network| network.subnet).collect();
    assert_eq!(subnets.len(), 40);
    for number in 0..40 {
        local.provider.remove_network(format!("n{number}")).await.unwrap();
    }
    assert_eq!(local.provider.list_networks().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_cannot_lead_a_change_of_hosts_astray() {
    let local = isolated(json!({}));
    let temp = tempfile::tempdir().unwrap();
    let tar = crate::images::image(temp.path(), "hostile", "cat");
    local.provider.create_network(request("app")).await.unwrap();
    let victim = temp.path().join("victim");
    std::fs::write(&victim, "untouched").unwrap();
    for trick in [
        format!("rm /etc/hosts; ln -s {} /etc/hosts", victim.display()),
        "rm /etc/hosts; busybox mkfifo /etc/hosts".to_owned(),
        "rm /etc/hosts".to_owned(),
        format!("busybox mv /etc /away; ln -s {} /etc", temp.path().display()),
    ] {
        let mut hostile = spec("hostile", "app");
        hostile.image = Some(format!("tar:{}", tar.display()));
        let hostile = local.create_with(hostile).await;
        local.text(&hostile, &trick).await;
        let set = local.provider.set_hosts(&hostile, [("x".to_owned(), "192.0.2.7".to_owned())].into());
        let error = tokio::time::timeout(std::time::Duration::from_secs(20), set).await.unwrap().unwrap_err();
        assert!(
            [ErrorKind::InvalidInput, ErrorKind::NotFound, ErrorKind::InvalidState].contains(&error.kind()),
            "{error}"
        );
        // The others are told all the same.
        let other = local.create_with(spec("other", "app")).await;
        local.text(&other, "getent hosts hostile").await;
        for handle in [hostile, other] {
            local.provider.close(&handle).await.unwrap();
        }
    }
    assert_eq!(std::fs::read_to_string(victim).unwrap(), "untouched");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_setting_private_all_that_name_no_network_share_one() {
    let local = isolated(json!({ "network": "private" }));
    local.provider.validate_networking().await.unwrap();
    let (one, two) = (local.create().await, local.create().await);
    // By its address, a neighbour's port is the own one, and everybody else's.
    let forwarding = local.provider.forward_ports(&two, address_of(&local, &one).await, vec![8000]).await.unwrap();
    let mut alone = SandboxSpec::default();
    alone.network = Some(NetworkMode::None);
    let alone = local.create_with(alone).await;
    serve(&local, &one, 8000, "one").await;
    let address = local.provider.network_address(&one).await.unwrap();
    local.provider.set_hosts(&two, [("service".to_owned(), address.clone())].into()).await.unwrap();
    assert_eq!(ask(&local, &two, "service", 8000).await, "one");
    assert_eq!(ask(&local, &two, "127.0.0.1", 8000).await, "one");
    let far = local.provider.forward_ports(&alone, address.clone(), vec![8000]).await.unwrap();
    assert_eq!(ask(&local, &alone, "127.0.0.1", 8000).await, "one");
    drop((forwarding, far));
    assert_eq!(ask(&local, &alone, &address, 8000).await, "failed OSError 101");
    let error = isolated(json!({})).provider.validate_networking().await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("network")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_network_is_refused_and_bounds_are_kept() {
    let local = isolated(json!({}));
    let networks: &dyn Networks = &local.provider;
    for bad in ["", "..", "a/b", ".lock"] {
        assert_eq!(networks.create_network(request(bad)).await.unwrap_err().field(), Some("name"), "{bad}");
        assert_eq!(networks.remove_network(bad.to_owned()).await.unwrap_err().field(), Some("name"), "{bad}");
    }
    let with = |name: &str, subnet: &str| NetworkRequest { subnet: Some(subnet.to_owned()), ..request(name) };
    let small = networks.create_network(with("small", "192.168.77.0/29")).await.unwrap();
    assert_eq!(small.subnet.as_deref(), Some("192.168.77.0/29"));
    let error = networks.create_network(with("within", "192.168.0.0/16")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("subnet")), "{error}");
    assert_eq!(networks.create_network(request("small")).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    // Made at the same time, everybody gets an address of its own, and there are five.
    let creations = (0..6).map(|number| local.provider.create(spec(&format!("n{number}"), "small")));
    let mut made = Vec::new();
    let mut refused = Vec::new();
    for created in futures(creations).await {
        match created {
            Ok(handle) => made.push(handle),
            Err(error) => refused.push(error),
        }
    }
    assert_eq!((made.len(), refused.len()), (5, 1), "{refused:?}");
    assert_eq!((refused[0].kind(), refused[0].field()), (ErrorKind::Exhausted, Some("network")));
    let mut addresses = BTreeSet::new();
    for handle in &made {
        addresses.insert(local.provider.network_address(handle).await.unwrap());
        // A cable to each of the four others, and the loopback.
        assert_eq!(interfaces_inside(&local, handle).await, 5);
    }
    assert_eq!(addresses.len(), 5);
    let error = local.provider.create(spec("lost", "no-such-network")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("network")), "{error}");
    let mut host = SandboxSpec::default();
    host.network = Some(NetworkMode::Host);
    let host = local.create_with(host).await;
    let before = interfaces();
    let error = networks.attach_network(&host, "small".to_owned(), vec![]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidState, "{error}");
    assert_eq!(interfaces(), before);
}

async fn futures<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(Box::pin).collect();
    let mut done: Vec<Option<T>> = all.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in all.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *done = Some(value);
            }
        }
        if done.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    done.into_iter().flatten().collect()
}

/// Runs as another program: makes a sandbox in a network, tells of it, and waits to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn holder() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let provider = provider(Path::new(&folder), json!({}));
    let handle = provider.create(spec("held", "app")).await.unwrap();
    eprintln!("\nHOLDER {}", handle.sandbox_id);
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_network_is_left_when_a_program_was_killed() {
    let before = interfaces();
    let local = isolated(json!({}));
    local.provider.create_network(request("app")).await.unwrap();
    let stays = local.create_with(spec("stays", "app")).await;
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "networks::holder", "--nocapture"])
        .env(FOLDER, local.temp())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
    let id = lines.find_map(|line| line.unwrap().strip_prefix("HOLDER ").map(str::to_owned)).unwrap();
    // Made by another program, and connected all the same.
    assert_eq!(interfaces_inside(&local, &stays).await, 2);
    local.text(&stays, "getent hosts held").await;
    process.kill().unwrap();
    process.wait().unwrap();
    let removed = std::cell::Cell::new(false);
    eventually("the sandbox of a killed program is not swept", || {
        let report = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(local.provider.sweep(ListFilter::default(), false)).unwrap()
        });
        removed.set(removed.get() || report.removed == [id.clone()]);
        removed.get()
    })
    .await;
    assert_eq!(local.text(&stays, "getent hosts held || echo none").await, "none");
    assert_eq!(interfaces_inside(&local, &stays).await, 1);
    local.provider.close(&stays).await.unwrap();
    local.provider.remove_network("app".to_owned()).await.unwrap();
    assert_eq!(interfaces(), before);
    assert_eq!(remains(local.temp()), [".networks"]);
}

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn networks_as_nobody() {
    if !agent::is_nobody() {
        return;
    }
    let local = isolated(json!({}));
    assert!(local.provider.as_networks().is_none() && local.provider.as_network().is_none());
    let error = local.provider.create(spec("web", "app")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some(Field::NetworkNamed.as_str())), "{error}");
    assert!(error.message().contains("root"), "{error}");
    let settings = json!({ "isolation": "namespaces", "network": "private" });
    let error = LocalProvider::new(from_json(settings, "settings").unwrap()).err().unwrap();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("network")), "{error}");
    assert!(error.message().contains("root"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_privileges_networks_are_refused_by_name() {
    agent::as_nobody("networks::networks_as_nobody");
}
