//! Keys without a field in a spec, as docker honours them.

use sandbox_core::ErrorKind;

use crate::backend::{Backend, Kind, by_hand, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn docker_honours_the_options_of_a_document() {
    let backend = Backend::new(Kind::Docker);
    // Nobody else's: a second attempt finds what a failed one left.
    let (one, two) = (std::process::id() / 250 % 250, std::process::id() % 250);
    let stack = backend
        .up(&r#"
services:
  a:
    image: sandbox-test/busybox:1
    command: sleep 600
    stop_grace_period: 0s
    hostname: ahost
    domainname: example.test
    init: true
    platform: linux/amd64
    read_only: true
    tmpfs: [/tmp]
    ulimits: {nofile: 1234, stack: {soft: 4194304, hard: 16777216}}
    sysctls: {net.ipv4.ip_unprivileged_port_start: 99}
    dns: 192.0.2.53
    dns_search: [a.test, b.test]
    dns_opt: ["ndots:3"]
    cpuset: "0"
    mem_limit: 128m
    memswap_limit: 192m
    mem_reservation: 64m
    cpu_shares: 512
    oom_score_adj: 300
    ipc: private
    networks: {one: {ipv4_address: 10.77.251.5}, two: {ipv4_address: 10.77.252.6, aliases: [second]}}
    ports: ["9000", "9001/udp"]
networks:
  one: {ipam: {config: [{subnet: 10.77.251.0/24}]}}
  two: {ipam: {config: [{subnet: 10.77.252.0/24}]}}
"#
        .replace("linux/amd64", machine())
        .replace("10.77.251", &format!("10.77.{one}"))
        .replace("10.77.252", &format!("10.78.{two}")))
        .await;
    assert_eq!(text(&stack, "a", "hostname").await, "ahost");
    assert_eq!(text(&stack, "a", "ulimit -n; ulimit -s; ulimit -Hs").await, "1234\n4096\n16384");
    assert_eq!(text(&stack, "a", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start").await, "99");
    assert_eq!(text(&stack, "a", "touch /no 2>/dev/null || touch /tmp/yes && echo only tmp").await, "only tmp");
    let resolver = text(&stack, "a", "cat /etc/resolv.conf").await;
    assert!(resolver.contains("search a.test b.test") && resolver.contains("ndots:3"), "{resolver}");
    let addresses = text(&stack, "a", "busybox ip -4 -o addr show scope global").await;
    assert!(
        addresses.contains(&format!("10.77.{one}.5/24")) && addresses.contains(&format!("10.78.{two}.6/24")),
        "{addresses}"
    );
    let id = stack.status().unwrap()[0].sandbox_id.clone();
    let format = "{{.HostConfig.Dns}} {{.Config.Domainname}} {{.HostConfig.CpusetCpus}} {{.HostConfig.MemorySwap}} \
                  {{.HostConfig.MemoryReservation}} {{.HostConfig.CpuShares}} {{.HostConfig.OomScoreAdj}} \
                  {{.HostConfig.IpcMode}}";
    let told = by_hand(&["inspect", "--format", format, &id]);
    assert_eq!(told, "[192.0.2.53] example.test 0 201326592 67108864 512 300 private");
    let ports = by_hand(&["port", &id]);
    assert!(ports.contains("9000/tcp -> 127.0.0.1:") && ports.contains("9001/udp -> 127.0.0.1:"), "{ports}");
    assert_eq!(ports.lines().count(), 2, "published once: {ports}");
    let endpoint = stack.endpoint("a", 9000).await.unwrap().endpoint;
    let port = endpoint.rsplit_once(':').unwrap().1;
    assert!(ports.contains(&format!("9000/tcp -> 127.0.0.1:{port}")), "{endpoint}: {ports}");
    backend.down(stack).await;
}

fn machine() -> &'static str {
    if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_external_must_be_there_and_stays() {
    let backend = Backend::new(Kind::Docker);
    let name = format!("ext-{}", std::process::id());
    let document = format!(
        "services: {{a: {{image: 'sandbox-test/busybox:1', command: sleep 600, stop_grace_period: 0s, volumes: \
         ['data:/data'], networks: [net]}}}}\nvolumes: {{data: {{external: true, name: {name}}}}}\nnetworks: {{net: \
         {{external: true, name: {name}}}}}\n"
    );
    by_hand(&["network", "create", &name]);
    let error = backend.stack(&document).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let volumes = by_hand(&["volume", "ls", "--quiet"]);
    assert!(!volumes.lines().any(|volume| volume == name), "made in its place");
    by_hand(&["volume", "create", &name]);
    let stack = backend.up(&document).await;
    assert_eq!(text(&stack, "a", "echo kept > /data/mark; cat /data/mark").await, "kept");
    backend.down(stack).await;
    by_hand(&["network", "rm", &name]);
    by_hand(&["volume", "rm", &name]);
    // The network, too.
    by_hand(&["volume", "create", &name]);
    let error = backend.stack(&document).start().await.unwrap_err();
    by_hand(&["volume", "rm", &name]);
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_is_taken_is_told_as_such() {
    let backend = Backend::new(Kind::Docker);
    let subnet = format!("10.79.{}.0/24", std::process::id() % 250);
    let document =
        "services: {a: {image: 'sandbox-test/busybox:1', command: sleep 600, stop_grace_period: 0s, networks: \
                    [one]}}\nnetworks: {one: {ipam: {config: [{subnet: SUBNET}]}}}\n"
            .replace("SUBNET", &subnet);
    let first = backend.up(&document).await;
    let error = backend.stack(&document).start().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.help().unwrap().contains("another subnet"), "{error}");
    backend.down(first).await;
}
