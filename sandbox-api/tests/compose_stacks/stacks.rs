//! Stacks of the shapes that people have.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    time::Duration,
};

use sandbox_api::compose::{ServiceHealth, ServicePhase};

use crate::backend::{Backend, Kind, by_hand, code, eventually, on_both, text};

on_both! {
    a_web_server_waits_for_its_database_and_is_reached_from_outside: web_and_database;
    a_migration_runs_once_before_the_app: migration;
    two_networks_are_kept_apart_and_an_internal_one_has_no_way_out: two_networks;
    ten_services_reach_each_other: ten_services;
    twenty_stacks_run_beside_each_other: twenty_stacks;
    a_service_that_fails_takes_everything_back: third_fails;
    a_volume_is_filled_from_the_image_and_shared: copy_up;
}

async fn web_and_database(backend: &Backend) {
    let stack = backend
        .up(r#"
services:
  web:
    {IMAGE command: [sh, -c, "mkdir -p /tmp/www && busybox wget -qO /tmp/www/row http://db:5432/row && exec busybox httpd -f -p 8080 -h /tmp/www"],
     depends_on: {db: {condition: service_healthy}}, ports: ["8080"], stop_grace_period: 2s,
     healthcheck: {test: [CMD, busybox, wget, -qO-, "http://127.0.0.1:8080/row"], interval: 200ms, retries: 50}}
  db:
    {IMAGE command: [sh, -c, "mkdir -p /tmp/db && echo $$ROW > /tmp/db/row && exec busybox httpd -f -p 5432 -h /tmp/db"],
     environment: {ROW: a row}, stop_grace_period: 2s,
     healthcheck: {test: "busybox wget -qO- http://127.0.0.1:5432/row", interval: 200ms, retries: 50}}
"#)
        .await;
    for one in stack.status().unwrap() {
        assert_eq!((one.state.phase, one.state.health), (ServicePhase::Running, ServiceHealth::Healthy));
    }
    assert_eq!(text(&stack, "web", "busybox wget -qO- http://db:5432/row").await, "a row");
    let endpoint = stack.endpoint("web", 8080).await.unwrap().endpoint;
    let address = endpoint.split_once("://").unwrap().1.to_owned();
    let answer = tokio::task::spawn_blocking(move || get(&address)).await.unwrap();
    assert!(answer.ends_with("a row\n"), "{endpoint}: {answer}");
    backend.down(stack).await;
}

fn get(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(b"GET /row HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

async fn migration(backend: &Backend) {
    let stack = backend
        .up(r#"
services:
  app:
    {IMAGE command: [sh, -c, "cat /data/schema; exec sleep 600"], volumes: ["data:/data"],
     depends_on: {migrate: {condition: service_completed_successfully}}}
  migrate: {IMAGE command: [sh, -c, "sleep 0.3; echo v2 >> /data/schema"], volumes: ["data:/data"]}
volumes: {data: }
"#)
        .await;
    let of = |name: &str| stack.status().unwrap().into_iter().find(|one| one.service == name).unwrap().state.phase;
    assert_eq!((of("migrate"), of("app")), (ServicePhase::Exited(0), ServicePhase::Running));
    eventually("the app's log", async || stack.logs("app", 1).unwrap().tail(100) == "v2").await;
    backend.down(stack).await;
}

async fn two_networks(backend: &Backend) {
    let stack = backend
        .up(r#"
services:
  edge:
    {IMAGE command: [sh, -c, "mkdir -p /tmp/e && echo edge > /tmp/e/row && exec busybox httpd -f -p 80 -h /tmp/e"],
     networks: [front], healthcheck: {test: "busybox wget -qO- http://127.0.0.1/row", interval: 200ms, retries: 50}}
  web: {IMAGE command: sleep 600, networks: {front: {aliases: [site]}, back: }}
  db:
    {IMAGE command: [sh, -c, "mkdir -p /tmp/db && echo row > /tmp/db/row && exec busybox httpd -f -p 80 -h /tmp/db"],
     networks: {back: {aliases: [store]}}, healthcheck: {test: "busybox wget -qO- http://127.0.0.1/row", interval: 200ms, retries: 50}}
networks: {front: , back: {internal: true}}
"#)
        .await;
    for name in ["db", "store"] {
        assert_eq!(text(&stack, "web", &format!("busybox wget -qO- http://{name}/row")).await, "row");
        assert_ne!(code(&stack, "edge", &format!("busybox wget -T 3 -qO- http://{name}/row")).await, 0, "{name}");
    }
    // By address it must not be reached either.
    let route = "busybox ip -4 -o addr show scope global";
    let db = text(&stack, "db", route).await;
    let address = db.split_whitespace().find_map(|word| word.split_once('/')).unwrap().0.to_owned();
    assert_eq!(text(&stack, "web", &format!("busybox wget -qO- http://{address}/row")).await, "row");
    assert_ne!(code(&stack, "edge", &format!("busybox wget -T 3 -qO- http://{address}/row")).await, 0);
    // Nor does the database reach what is not in its network, in the other direction.
    let edge = text(&stack, "edge", route).await;
    let address = edge.split_whitespace().find_map(|word| word.split_once('/')).unwrap().0.to_owned();
    assert_eq!(text(&stack, "web", &format!("busybox wget -qO- http://{address}/row")).await, "edge");
    assert_ne!(code(&stack, "db", &format!("busybox wget -T 3 -qO- http://{address}/row")).await, 0);
    if backend.kind == Kind::Docker {
        let id = stack.id().unwrap();
        let told = [format!("{id}_back"), format!("{id}_front")];
        let told = told.map(|name| by_hand(&["network", "inspect", "--format", "{{.Internal}}", &name]));
        assert_eq!(told, ["true", "false"]);
    }
    assert_eq!(
        code(&stack, "edge", "busybox nslookup site || busybox ping -c 1 -W 5 site || grep -w site /etc/hosts").await,
        0
    );
    backend.down(stack).await;
}

async fn ten_services(backend: &Backend) {
    let mut document = "services:\n".to_owned();
    for number in 0..10 {
        document.push_str(&format!(
            "  s{number}: {{IMAGE command: [sh, -c, 'mkdir -p /tmp/w && echo {number} > /tmp/w/n && exec busybox httpd -f -p \
             80 -h /tmp/w'], stop_grace_period: 1s}}\n"
        ));
    }
    let stack = backend.up(&document).await;
    assert_eq!(stack.status().unwrap().len(), 10);
    let script = "for n in 0 1 2 3 4 5 6 7 8 9; do \
                  until busybox wget -qO- http://s$n/n 2>/dev/null; do sleep 0.05; done; done";
    let all = tokio::time::timeout(Duration::from_secs(60), text(&stack, "s3", script)).await.unwrap();
    assert_eq!(all.split_whitespace().collect::<String>(), "0123456789");
    backend.down(stack).await;
}

async fn twenty_stacks(backend: &Backend) {
    let document = "services: {a: {IMAGE command: sleep 600, stop_grace_period: 0s}}";
    let stacks: Vec<_> = (0..20).map(|_| backend.stack(document)).collect();
    let mut starting = tokio::task::JoinSet::new();
    for stack in stacks {
        starting.spawn(async move {
            stack.start().await.unwrap();
            stack
        });
    }
    let stacks = starting.join_all().await;
    let ids: std::collections::BTreeSet<String> = stacks.iter().map(|stack| stack.id().unwrap()).collect();
    assert_eq!(ids.len(), 20);
    let mut stopping = tokio::task::JoinSet::new();
    for stack in stacks {
        stopping.spawn(async move { stack.stop().await.unwrap() });
    }
    stopping.join_all().await;
    for id in ids {
        assert_eq!(backend.left(&id).await, Vec::<String>::new());
    }
}

async fn third_fails(backend: &Backend) {
    let stack = backend.project(
        "thirdfails",
        r#"
services:
  a: {IMAGE command: sleep 600, volumes: ["data:/data"], stop_grace_period: 0s}
  b: {IMAGE command: [sh, -c, "echo b is up; touch /tmp/up; exec sleep 600"], depends_on: [a], stop_grace_period: 0s,
      healthcheck: {test: "test -e /tmp/up", interval: 1s}}
  c: {IMAGE command: /no/such/program, depends_on: {b: {condition: service_healthy}}}
volumes: {data: }
"#,
    );
    let error = stack.start().await.unwrap_err();
    assert_eq!(error.field(), Some("services.c"), "{error}");
    assert_eq!(stack.logs("b", 1).unwrap().tail(100), "b is up");
    assert!(stack.status().is_err());
    let left: Vec<_> = backend.names().await.into_iter().filter(|name| name.starts_with("thirdfails")).collect();
    assert_eq!(left, Vec::<String>::new());
}

async fn copy_up(backend: &Backend) {
    // Where the volume hides what the image has, the program of the first service comes out of the volume.
    let image = match backend.kind {
        Kind::Docker => "sandbox-test/busybox:1".to_owned(),
        Kind::Local => format!("tar:{}", system(&backend.folder).display()),
    };
    let stack = backend
        .up(&r#"
services:
  a: {image: "SYSTEM", command: [/bin/busybox, sleep, "600"], volumes: ["tools:/bin"], stop_grace_period: 0s}
  b: {image: "SYSTEM", command: [/bin/busybox, sleep, "600"], volumes: ["tools:/tools:ro"], stop_grace_period: 0s}
volumes: {tools: }
"#
        .replace("SYSTEM", &image))
        .await;
    assert_eq!(text(&stack, "a", "/bin/busybox touch /bin/mark && echo made").await, "made");
    assert_eq!(text(&stack, "b", "/tools/busybox ls /tools/mark /tools/busybox").await, "/tools/busybox\n/tools/mark");
    assert_ne!(code(&stack, "b", "/bin/busybox touch /tools/no").await, 0);
    backend.down(stack).await;
}

/// A whole system of busybox, as a tar file.
fn system(folder: &Path) -> std::path::PathBuf {
    let script = "mkdir -p $0/bin $0/etc $0/tmp $0/dev $0/tools && cp /bin/busybox $0/bin/ && \
                  for name in sh cat id ls cp sleep touch mkdir; do ln -s busybox $0/bin/$name; done; \
                  echo 'root:x:0:0::/root:/bin/sh' > $0/etc/passwd; tar -C $0 --owner=0 --group=0 -cf $1 .";
    let tar = folder.join("system.tar");
    let made = Command::new("sh").args(["-ec", script]).arg(folder.join("system")).arg(&tar).status().unwrap();
    assert!(made.success());
    tar
}
