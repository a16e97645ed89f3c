//! What runs: networks, files and processes of tasks, and the way in.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use fargate_double::{Double, SIDECAR_IMAGE};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::support::{Client, LATE, arn, double, run, script, until};

/// Starts a task of these containers and waits until it runs.
async fn start(double: &Double, client: &mut Client, containers: Value) -> String {
    let definition = client.define(containers, json!([]));
    let arn = arn(&client.ecs("run_task", run(double, &definition)));
    until("it runs or stops", || {
        double.tasks().iter().any(|task| task.arn == arn && ["RUNNING", "STOPPED"].contains(&task.status))
    })
    .await;
    let task = client.describe(double, &arn);
    let logs =
        || task["containers"].as_array().unwrap().iter().map(|one| double.log(&arn, one["name"].as_str().unwrap()));
    assert_eq!(task["lastStatus"], "RUNNING", "{} {:?}", task["stoppedReason"], logs().collect::<Vec<_>>());
    arn
}

/// The address of a task, as the services tell it.
fn address(double: &Double, client: &mut Client, arn: &str) -> String {
    let task = client.describe(double, arn);
    let details = task["attachments"][0]["details"].as_array().unwrap();
    let detail =
        |name: &str| details.iter().find(|one| one["name"] == name).unwrap()["value"].as_str().unwrap().to_owned();
    let interfaces = json!({"NetworkInterfaceIds": [detail("networkInterfaceId")]});
    let interface =
        client.ask("ec2", "describe_network_interfaces", interfaces).unwrap()["NetworkInterfaces"][0].clone();
    assert_eq!(interface["PrivateIpAddress"], detail("privateIPv4Address"));
    detail("privateIPv4Address")
}

/// What a port says.
async fn read(address: &str, port: u16) -> String {
    let end = std::time::Instant::now() + LATE;
    loop {
        let mut text = String::new();
        if let Ok(mut stream) = TcpStream::connect((address, port)).await
            && stream.read_to_string(&mut text).await.is_ok()
            && !text.is_empty()
        {
            return text;
        }
        assert!(std::time::Instant::now() < end, "nothing at {address}:{port}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_has_an_address_and_its_containers_share_it_and_nothing_else() {
    let (double, mut client) = double().await;
    // The one serves on every address; the other reaches it by the loopback, and serves there only.
    let serve = "echo mine > /tmp/file; nc -ll -p 8000 -e sh -c 'echo $$-$(ls /tmp)-$(ps | grep -c [s]leep)'";
    let other = "sleep 1000 & httpd -p 127.0.0.1:9000; wget -O- http://127.0.0.1:9000/none 2>&1 | grep -o 'Not Found'
        while ! nc 127.0.0.1 8000 </dev/null; do sleep 0.1; done; ls /tmp; exec sleep 1000";
    let mut side = script("side", other);
    side["portMappings"] = json!([{"containerPort": 9000}]);
    let containers = json!([script("main", serve), side]);
    let [one, two] =
        [start(&double, &mut client, containers.clone()).await, start(&double, &mut client, containers).await];
    let addresses = [address(&double, &mut client, &one), address(&double, &mut client, &two)];
    assert_ne!(addresses[0], addresses[1]);
    for address in &addresses {
        // Its first process is its own, and it sees no process of the other.
        let said = read(address, 8000).await;
        assert!(said.ends_with("-file-0\n"), "{said}");
        assert!(said.split('-').next().unwrap().parse::<u32>().unwrap() < 100, "{said}");
    }
    until("the side got it by the loopback", || double.log(&one, "side").contains("-file-0")).await;
    assert!(
        !double.log(&one, "side").ends_with("file\n"),
        "it sees files of its own only: {}",
        double.log(&one, "side")
    );
    assert!(double.log(&one, "side").contains("Not Found"), "it listens: {}", double.log(&one, "side"));
    let mut text = String::new();
    // It may end as early as in the connecting.
    if let Ok(mut stream) = TcpStream::connect((addresses[0].as_str(), 9000)).await {
        let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await;
        let _ = stream.read_to_string(&mut text).await;
    }
    assert_eq!(text, "", "what listens on the loopback of a task is for the task");
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn debians_ssh_gets_into_a_sidecar() {
    let (double, mut client) = double().await;
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).status();
    assert!(made.expect("run cargo xtask needs").success());
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let sshd = "mkdir -p /run/sshd /run/s && ssh-keygen -q -t ed25519 -N '' -f /run/s/host && echo \"$KEY\" > /run/s/keys && \
        exec /usr/sbin/sshd -D -e -f /dev/null -p 52222 -h /run/s/host -o AuthorizedKeysFile=/run/s/keys -o StrictModes=no -o PidFile=none -o UsePAM=no";
    let mut side = script("ssh", sshd);
    side["image"] = json!(SIDECAR_IMAGE);
    side["portMappings"] = json!([{"containerPort": 52222}]);
    side["environment"] = json!([{"name": "KEY", "value": fs::read_to_string(key.with_extension("pub")).unwrap()}]);
    let main = script("main", "nc -ll -p 8000 -e cat");
    let arn = start(&double, &mut client, json!([side, main])).await;
    let address = address(&double, &mut client, &arn);
    until("sshd listens", || double.log(&arn, "ssh").contains("Server listening")).await;
    let output = ssh(&key, &address).args(["root@x", "id -u; hostname; ls /opt/sandbox"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let name = format!("ip-{}.ec2.internal", address.replace('.', "-"));
    assert_eq!(text, format!("0\n{name}\nsandbox-agent\n"), "{}", String::from_utf8_lossy(&output.stderr));

    // Through it to the loopback of the other container, until it is cut.
    let mut tunnel = tokio::process::Command::from(ssh(&key, &address));
    tunnel.args(["-W", "127.0.0.1:8000", "root@x"]).kill_on_drop(true);
    tunnel.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut tunnel = tunnel.spawn().unwrap();
    let mut input = tunnel.stdin.take().unwrap();
    let mut lines = BufReader::new(tunnel.stdout.take().unwrap()).lines();
    input.write_all(b"there and back\n").await.unwrap();
    let line = tokio::time::timeout(LATE, lines.next_line()).await.expect("it comes back").unwrap();
    assert_eq!(line.as_deref(), Some("there and back"));
    assert_eq!(double.connections(&arn), 1);
    assert_eq!(double.cut(&arn), 1);
    let status = tokio::time::timeout(LATE, tunnel.wait()).await.expect("it ends").unwrap();
    assert!(!status.success(), "the connection was cut");
    assert_eq!(double.was_cut(&arn), 1);
    until("it is closed", || double.connections(&arn) == 0).await;
    double.stop().await;
}

fn ssh(key: &Path, address: &str) -> Command {
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "none", "-p", "52222", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"]);
    ssh.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", &format!("HostName={address}")]);
    ssh.arg("-i").arg(key);
    ssh
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_cut_refused_and_held_up() {
    let (double, mut client) = double().await;
    let arn = start(&double, &mut client, json!([script("main", "nc -ll -p 8000 -e cat")])).await;
    let address = address(&double, &mut client, &arn);
    let echo = async |stream: &mut TcpStream, text: &[u8]| {
        stream.write_all(text).await?;
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back).await.map(|_| back)
    };
    let end = std::time::Instant::now() + LATE;
    let mut stream = loop {
        let mut stream = TcpStream::connect((address.as_str(), 8000)).await.unwrap();
        if echo(&mut stream, b"1").await.is_ok() {
            break stream;
        }
        assert!(std::time::Instant::now() < end, "nothing listens");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    double.stall(&arn, true);
    let mut held = tokio::spawn(async move { echo(&mut stream, b"2").await.map(|back| (back, stream)) });
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut held).await.is_err(), "it is held up");
    double.stall(&arn, false);
    let (back, mut stream) = tokio::time::timeout(LATE, held).await.unwrap().unwrap().unwrap();
    assert_eq!(back, b"2");
    // A hundred bytes, counted on both ways.
    double.cut_after(&arn, 100);
    let mut rounds = 0;
    while echo(&mut stream, b"0123456789").await.is_ok() {
        rounds += 1;
        assert!(rounds <= 5, "it was not cut");
    }
    assert_eq!(double.was_cut(&arn), 1);
    double.refuse(&arn, true);
    let refused = match TcpStream::connect((address.as_str(), 8000)).await {
        Ok(mut stream) => echo(&mut stream, b"3").await.is_err(),
        Err(_) => true,
    };
    assert!(refused);
    double.refuse(&arn, false);
    let mut stream = TcpStream::connect((address.as_str(), 8000)).await.unwrap();
    assert_eq!(echo(&mut stream, b"4").await.unwrap(), b"4");
    double.stop().await;
}

/// How many processes of this machine sleep so long.
fn marks(seconds: u32) -> usize {
    let text = format!("sleep\0{seconds}\0");
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| fs::read(entry.path().join("cmdline")).is_ok_and(|line| line == text.as_bytes())).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_task_outlives_a_double_that_is_killed() {
    let seconds = 200_000 + std::process::id();
    // It cannot remove its folder.
    let folder = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_fargate-double"));
    let mut double = program.env("TMPDIR", folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(double.stdout.take().unwrap()), &mut line).unwrap();
    let settings: Value = serde_json::from_str(&line).unwrap();
    let text = |key: &str| settings.pointer(key).unwrap().as_str().unwrap();
    let mut client =
        Client::at(text("/endpoint_url"), text("/credentials/access_key_id"), text("/credentials/secret_access_key"));
    let definition = client.define(json!([script("main", &format!("exec sleep {seconds}"))]), json!([]));
    client.ecs(
        "run_task",
        json!({
            "cluster": settings["cluster"], "taskDefinition": definition, "launchType": "FARGATE",
            "networkConfiguration": {"awsvpcConfiguration": {"subnets": settings["subnets"]}},
        }),
    );
    until("it runs", || marks(seconds) == 1).await;
    double.kill().unwrap();
    double.wait().unwrap();
    until("it is gone", || marks(seconds) == 0).await;
    let control_plane = TcpStream::connect(text("/endpoint_url").trim_start_matches("http://")).await;
    assert!(control_plane.is_err(), "nobody listens any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_a_task_outlives_the_double() {
    let seconds = 100_000 + std::process::id();
    let (double, mut client) = double().await;
    let stubborn = format!("trap '' TERM; sleep {seconds} & setsid sleep {seconds} & wait; wait");
    let arn = start(&double, &mut client, json!([script("main", &stubborn)])).await;
    until("its processes are there", || marks(seconds) == 2).await;
    double.stop_task(&arn, "UserInitiated", "the test");
    double.stopped(&arn).await;
    assert_eq!(marks(seconds), 0, "stopped");
    start(&double, &mut client, json!([script("main", &stubborn)])).await;
    until("its processes are there", || marks(seconds) == 2).await;
    // Nobody waits for it.
    drop(double);
    until("they are gone", || marks(seconds) == 0).await;
    let left = || fs::read_to_string("/proc/self/mountinfo").unwrap().matches("fargate-double").count();
    assert_eq!(left(), 0, "mounts");
}
