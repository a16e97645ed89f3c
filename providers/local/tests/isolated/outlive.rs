//! Sandboxes that outlive the program that made them.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use sandbox_core::{
    AttachOptions, Connect, ErrorKind, ExecRequest, ListFilter, ListSweep, Owner, PauseResume, PtyAttach, PtyEvent,
    PtyStream, Renew, SandboxHandle, SandboxIdentity, SandboxProvider, SandboxPtySpec, SandboxSpec, SandboxStatus,
    serde_json::{self, Value, json},
};
use sandbox_provider_local::LocalProvider;

use crate::{
    agent,
    support::{cgroups, eventually, isolated, provider, remains, run},
};

/// What the other program is to do. Set in that program only.
const HOLDER: &str = "SANDBOX_TEST_LEASE_HOLDER";

/// A spec whose sandbox belongs to a lease.
pub(crate) fn leased(run_id: &str, ttl_s: f64) -> SandboxSpec {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let mut spec = SandboxSpec::default().with_ttl_s(ttl_s).with_metadata("of", "outlive");
    spec.identity = Some(SandboxIdentity {
        run_id: run_id.to_owned(),
        owner: Owner::Lease,
        created_at_ms: now.as_millis() as u64,
        expires_at_ms: None,
        attribution: Default::default(),
    });
    spec
}

/// What the holder did, for the program that comes after it.
struct Held {
    process: Child,
    descriptor: Value,
    session_id: String,
}

/// Runs as another program: makes a sandbox with a file, a running command and a terminal, tells of them, and waits to be
/// killed.
#[tokio::test(flavor = "multi_thread")]
async fn holder() {
    let Ok(what) = std::env::var(HOLDER) else { return };
    let what: Value = serde_json::from_str(&what).unwrap();
    let provider = provider(Path::new(what["folder"].as_str().unwrap()), json!({}));
    let handle = provider.create(leased("held", what["ttl_s"].as_f64().unwrap())).await.unwrap();
    assert_eq!(run(&provider, &handle, ExecRequest::shell("echo kept > f")).await.return_code(), 0);
    let mut job = provider.exec(&handle, once()).await.unwrap();
    job.next().await.unwrap();
    let mut terminal = provider.as_pty().unwrap().create_pty(&handle, SandboxPtySpec::default()).await.unwrap();
    let session_id = match terminal.next().await.unwrap() {
        Some(PtyEvent::Opened { session_id }) => session_id,
        other => panic!("{other:?}"),
    };
    terminal.write("echo $((40 + 2))-told\n").await.unwrap();
    read_until(&mut terminal, "42-told").await;
    let descriptor = provider.serialize_handle(&handle, None).await.unwrap();
    eprintln!("\nHOLDER {}", json!({ "descriptor": descriptor, "session_id": session_id }));
    std::future::pending::<()>().await;
    drop((job, terminal));
}

/// A command that tells whether it ran more than once, and goes on.
fn once() -> ExecRequest {
    let mut request = ExecRequest::shell("echo ran >> ran; seq 1 100; echo last; exec sleep 600");
    request.exec_id = "the-job".to_owned();
    request
}

async fn read_until(terminal: &mut PtyStream, text: &str) {
    let mut seen = String::new();
    while !seen.contains(text) {
        match tokio::time::timeout(Duration::from_secs(20), terminal.next()).await.expect(text).unwrap() {
            Some(PtyEvent::Output(bytes)) => seen.push_str(&String::from_utf8_lossy(&bytes)),
            Some(_) => {}
            None => panic!("{text} is not in {seen}"),
        }
    }
}

impl Held {
    fn start(folder: &Path, ttl_s: f64) -> Held {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "outlive::holder", "--nocapture"])
            .env(HOLDER, json!({ "folder": folder, "ttl_s": ttl_s }).to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let told = lines.find_map(|line| line.unwrap().strip_prefix("HOLDER ").map(str::to_owned));
        let told: Value = serde_json::from_str(&told.expect("the holder tells its sandbox")).unwrap();
        let session_id = told["session_id"].as_str().unwrap().to_owned();
        Held { process, descriptor: told["descriptor"].clone(), session_id }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn text(provider: &LocalProvider, handle: &SandboxHandle, script: &str) -> String {
    let result = run(provider, handle, ExecRequest::shell(script)).await;
    assert_eq!(result.return_code(), 0, "{script}: {}", result.stderr_text());
    result.stdout_text().into_owned()
}

async fn refusal(provider: &LocalProvider, descriptor: Value) -> (ErrorKind, Option<String>) {
    let error = provider.connect(descriptor).await.expect_err("must be refused");
    (error.kind(), error.field().map(str::to_owned))
}

async fn a_sandbox_outlives_its_program() {
    let temp = tempfile::tempdir().unwrap();
    let mut held = Held::start(temp.path(), 600.0);
    held.kill();
    let provider = provider(temp.path(), json!({}));
    let handle = provider.connect(held.descriptor.clone()).await.unwrap();
    assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Running);
    assert_eq!(text(&provider, &handle, "cat f").await, "kept\n");

    // Files.
    let (out, back) = (temp.path().join("out"), temp.path().join("back"));
    std::fs::write(&out, [0, 255, 7]).unwrap();
    provider.upload_file(&handle, &out, &"sub/in".into()).await.unwrap();
    provider.download_file(&handle, &"sub/in".into(), &back).await.unwrap();
    assert_eq!(std::fs::read(&back).unwrap(), [0, 255, 7]);

    // The command that ran is taken up, from its first byte, and did not run again.
    let mut job = provider.exec(&handle, once()).await.unwrap();
    let mut output = String::new();
    while !output.ends_with("last\n") {
        match tokio::time::timeout(Duration::from_secs(20), job.next()).await.unwrap().unwrap() {
            Some(sandbox_core::ExecEvent::Stdout(bytes)) => output.push_str(&String::from_utf8_lossy(&bytes)),
            other => panic!("{other:?} after {output}"),
        }
    }
    assert!(output.starts_with("1\n2\n3\n") && output.ends_with("99\n100\nlast\n"), "{output}");
    assert_eq!(text(&provider, &handle, "cat ran").await, "ran\n");
    drop(job);

    // So is the terminal, with what it has shown.
    let options = AttachOptions { takeover: true, since: Some(0) };
    let mut terminal = provider.attach_pty(&handle, held.session_id.clone(), options).await.unwrap();
    read_until(&mut terminal, "42-told").await;
    terminal.write("echo $((50 + 5))-more\n").await.unwrap();
    read_until(&mut terminal, "55-more").await;
    drop(terminal);

    // Nothing inside reaches the agent's socket or its token.
    let found =
        text(&provider, &handle, "find / -name agent.sock -o -name token -path '*state*' 2>/dev/null; true").await;
    assert_eq!(found, "");

    let listed = provider.list(ListFilter { run_id: Some("held".to_owned()), ..Default::default() }).await.unwrap();
    let [record] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!((&record.handle, record.status), (&handle, SandboxStatus::Running));
    assert_eq!(record.identity.as_ref().unwrap().owner, Owner::Lease);
    assert_eq!(record.metadata["of"], "outlive");
    let before = record.identity.as_ref().unwrap().expires_at_ms.unwrap();
    let expires_at_ms = provider.renew(&handle, 1200.0).await.unwrap();
    assert!(expires_at_ms > before + 500_000);
    let other = self::provider(temp.path(), json!({}));
    let listed = other.list(ListFilter::default()).await.unwrap();
    assert_eq!(listed[0].identity.as_ref().unwrap().expires_at_ms, Some(expires_at_ms));
    assert!(other.sweep(ListFilter::default(), false).await.unwrap().removed.is_empty());

    // A client that goes leaves it.
    drop((provider, other));
    let last = self::provider(temp.path(), json!({}));
    let handle = last.connect(held.descriptor.clone()).await.unwrap();
    last.close(&handle).await.unwrap();
    assert_eq!(last.status(&handle).await.unwrap(), SandboxStatus::Stopped);
    assert_eq!(remains(temp.path()), Vec::<String>::new());
    assert!(cgroups(&handle.sandbox_id).is_empty());
    assert_eq!(refusal(&last, held.descriptor.clone()).await, (ErrorKind::NotFound, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_sandbox_outlives_the_program_that_made_it() {
    a_sandbox_outlives_its_program().await;
}

/// Runs as another program, for the test below.
#[tokio::test(flavor = "multi_thread")]
async fn outlives_as_nobody() {
    if agent::is_nobody() {
        a_sandbox_outlives_its_program().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leased_sandbox_of_a_user_without_privileges_outlives_its_program() {
    agent::as_nobody("outlive::outlives_as_nobody");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_connected_to_is_told_apart() {
    let local = isolated(json!({}));
    let handle = local.create_with(leased("told", 600.0)).await;
    let good = local.provider.serialize_handle(&handle, None).await.unwrap();
    let with = |key: &str, value: Value| {
        let mut other = good.clone();
        other[key] = value;
        other
    };
    let field = |kind, field: &str| (kind, Some(field.to_owned()));
    for (descriptor, expected) in [
        (with("version", json!(2)), field(ErrorKind::Unsupported, "version")),
        (with("version", json!(null)), field(ErrorKind::Unsupported, "version")),
        (with("host", json!("elsewhere")), field(ErrorKind::InvalidInput, "host")),
        (with("boot", json!("another one")), (ErrorKind::NotFound, None)),
        (with("incarnation", json!("another one")), (ErrorKind::NotFound, None)),
        (with("sandbox_id", json!("local-ffffffffffff")), (ErrorKind::NotFound, None)),
        (with("sandbox_id", json!("../../etc")), (ErrorKind::NotFound, None)),
        (with("sandbox_id", json!(7)), field(ErrorKind::InvalidInput, "descriptor")),
        (with("provider", json!("docker")), field(ErrorKind::InvalidInput, "descriptor")),
    ] {
        assert_eq!(refusal(&local.provider, descriptor.clone()).await, expected, "{descriptor}");
    }
    // Also where what is written down is newer than the descriptor says.
    let path = local.temp().join("state").join(&handle.sandbox_id).join("descriptor.json");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("\"version\":1", "\"version\":7")).unwrap();
    assert_eq!(refusal(&local.provider, good.clone()).await, field(ErrorKind::Unsupported, "version"));
    std::fs::write(&path, text).unwrap();
    let error = local.provider.serialize_handle(&handle, Some("team".to_owned())).await.unwrap_err();
    assert_eq!(error.field(), Some("scope"));
    local.provider.close(&handle).await.unwrap();
    assert_eq!(refusal(&local.provider, good).await, (ErrorKind::NotFound, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn its_time_ends_it_when_nobody_is_there() {
    let temp = tempfile::tempdir().unwrap();
    let mut held = Held::start(temp.path(), 2.0);
    held.kill();
    let id = held.descriptor["sandbox_id"].as_str().unwrap().to_owned();
    let provider = provider(temp.path(), json!({}));
    let list = async || provider.list(ListFilter::default()).await.unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while list().await[0].status != SandboxStatus::Stopped {
        assert!(Instant::now() < end, "it runs on after its time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    eventually("its keeper leaves the cgroup", || cgroups(&id).is_empty()).await;
    assert_eq!(refusal(&provider, held.descriptor.clone()).await, (ErrorKind::NotFound, None));
    let report = provider.sweep(ListFilter::default(), false).await.unwrap();
    assert_eq!((report.removed, report.failed), (vec![id], vec![]));
    assert_eq!(remains(temp.path()), Vec::<String>::new());
}

/// What another program is to do with a sandbox. Set in that program only.
const CONNECTOR: &str = "SANDBOX_TEST_CONNECTOR";

/// Runs as another program: connects, and does one thing.
#[tokio::test(flavor = "multi_thread")]
async fn connector() {
    let Ok(what) = std::env::var(CONNECTOR) else { return };
    let what: Value = serde_json::from_str(&what).unwrap();
    let provider = provider(Path::new(what["folder"].as_str().unwrap()), json!({}));
    let handle = provider.connect(what["descriptor"].clone()).await.unwrap();
    match what["does"].as_str().unwrap() {
        "pause" => provider.pause(&handle).await.unwrap(),
        "renew" => drop(provider.renew(&handle, 600.0).await.unwrap()),
        "close" => provider.close(&handle).await.unwrap(),
        script => eprint!("\nSAYS {}", text(&provider, &handle, script).await),
    }
}

/// Lets another program connect, do one thing and end.
pub(crate) async fn another_program(
    folder: &Path,
    maker: &LocalProvider,
    handle: &SandboxHandle,
    does: &str,
) -> String {
    let descriptor = maker.serialize_handle(handle, None).await.unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "outlive::connector", "--nocapture"]);
    command.env(CONNECTOR, json!({ "folder": folder, "descriptor": descriptor, "does": does }).to_string());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said.lines().find_map(|line| line.strip_prefix("SAYS ")).unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_by_another_program_counts_for_the_one_that_made_it() {
    let local = isolated(json!({}));
    let begin = Instant::now();
    let handle = local.create_with(leased("renewed", 3.0)).await;
    another_program(local.temp(), &local.provider, &handle, "renew").await;
    while begin.elapsed() < Duration::from_millis(3_500) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(local.text(&handle, "echo here").await, "here");
    another_program(local.temp(), &local.provider, &handle, "close").await;
    assert_eq!(local.provider.status(&handle).await.unwrap(), SandboxStatus::Stopped);
    let error = local.provider.exec(&handle, ExecRequest::shell("true")).await.expect_err("is closed");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    local.provider.close(&handle).await.unwrap();
    assert_eq!(local.remains(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn another_program_uses_a_sandbox_as_long_as_its_owner_lives() {
    let local = isolated(json!({}));
    let handle = local.create_with(SandboxSpec::default().with_env("GIVEN", "to the agent")).await;
    local.text(&handle, "echo here > f").await;
    let said = another_program(local.temp(), &local.provider, &handle, "echo $(cat f) $GIVEN").await;
    assert_eq!(said, "here to the agent");
    assert_eq!(local.text(&handle, "cat f").await, "here", "the other program has ended");
    let other = provider(local.temp(), json!({}));
    assert!(other.sweep(ListFilter::default(), false).await.unwrap().removed.is_empty());
    local.provider.close(&handle).await.unwrap();
    assert_eq!(local.remains(), Vec::<String>::new());
}
