//! Programs that others wrote to break out or to use everything up. `cargo xtask test` installs them; a test without its
//! adversary fails.

use std::{
    collections::BTreeSet,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use sandbox_core::{
    CaptureLimits, ExecOutcome, ExecRequest, SandboxExecResult, SandboxHandle, SandboxProvider, SandboxSpec,
    StdinSource,
    bytes::Bytes,
    from_json,
    serde_json::{self, Value, json},
};
use sandbox_provider_local::LocalProvider;

use crate::{
    agent,
    support::{Local, eventually, isolated, marker},
};

/// Techniques that cepheus reports although they cannot be meant: known by their names, each with its reason.
const ACCEPTED: [(&str, &str); 3] = [
    ("cve_2025_31133", "a race in runc's masking of paths; runc is not used, masks are mounts made before the switch"),
    ("cve_2025_52565", "a race in runc's mount of /dev/console; runc is not used, there is no /dev/console"),
    ("cve_2025_52881", "a redirected write of runc to /proc; runc is not used, nothing is written to /proc inside"),
];

/// As many as a sandbox that is none must match at least, or the tool has not worked.
const CONTROL_MIN: usize = 20;

fn cepheus() -> PathBuf {
    let path = std::env::var_os("SANDBOX_TEST_CEPHEUS").map(PathBuf::from);
    path.expect("SANDBOX_TEST_CEPHEUS names cepheus; `cargo xtask test` installs it and sets it")
}

/// The half of it that runs inside.
fn enumerator() -> Bytes {
    let environment = cepheus().ancestors().nth(2).expect("it lies in an environment").join("lib");
    let version = std::fs::read_dir(environment).expect("the environment has libraries").flatten().next();
    let packages = version.expect("of one version of python").path().join("site-packages");
    std::fs::read(packages.join("cepheus/enumerator/cepheus-enum.sh")).expect("the script is there").into()
}

/// The names of the techniques that may work, by what was found inside.
fn matched(posture: &[u8]) -> BTreeSet<String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("posture.json");
    std::fs::write(&file, posture).unwrap();
    let mut analyze = Command::new(cepheus());
    analyze.arg("analyze").arg(&file).args(["--format", "json"]).env("HOME", folder.path());
    let output = analyze.output().expect("cepheus starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("it writes JSON");
    assert!(report["total_techniques_checked"].as_u64() >= Some(75), "{report}");
    let chains = report["chains"].as_array().expect("a list").iter();
    let steps = chains.flat_map(|chain| chain["steps"].as_array().expect("a list"));
    let found: BTreeSet<String> =
        steps.map(|step| step["technique"]["id"].as_str().expect("a name").to_owned()).collect();
    assert_eq!(Some(found.len() as u64), report["techniques_matched"].as_u64(), "every match is in a chain");
    found
}

async fn enumerate(provider: &LocalProvider, handle: &SandboxHandle) -> SandboxExecResult {
    let mut request = ExecRequest::argv(["bash", "-s"]).with_timeout_s(120.0);
    request.stdin = StdinSource::Bytes(enumerator());
    provider.exec(handle, request).await.unwrap().collect(CaptureLimits::default()).await.unwrap()
}

/// One whose root is the copy of what was made for all, as it is of those after the first: below two `/proc`.
async fn on_a_template(local: &Local) -> SandboxHandle {
    for _ in 0..100 {
        let handle = local.create().await;
        let procs = local.text(&handle, "awk '$5 == \"/proc\"' /proc/self/mountinfo | wc -l").await;
        if procs == "2" {
            return handle;
        }
        local.provider.close(&handle).await.unwrap();
    }
    panic!("no sandbox has a root that was made before it");
}

#[tokio::test(flavor = "multi_thread")]
async fn cepheus_finds_no_way_out_and_many_where_there_is_no_sandbox() {
    let local = isolated(json!({}));
    let handle = local.create().await;
    // Without it the script finds nothing, whatever is there.
    local.text(&handle, "command -v awk").await;
    for handle in [handle, on_a_template(&local).await] {
        let result = enumerate(&local.provider, &handle).await;
        assert_eq!(result.exit.outcome, ExecOutcome::Exited(0));
        assert_eq!(String::from_utf8_lossy(&result.stderr), "", "a script that went on after an error proves nothing");
        let mut unexplained = matched(&result.stdout);
        unexplained.retain(|name| !ACCEPTED.iter().any(|(accepted, _)| accepted == name));
        assert!(unexplained.is_empty(), "{unexplained:?}");
    }

    let settings = json!({ "isolation": "none", "workspace_root": local.temp().join("control") });
    let control = LocalProvider::new(from_json(settings, "settings").unwrap()).unwrap();
    let open = control.create(SandboxSpec::default()).await.unwrap();
    let found = matched(&enumerate(&control, &open).await.stdout);
    control.close(&open).await.unwrap();
    assert!(found.len() >= CONTROL_MIN, "the control matched {found:?} only");
}

/// A file that only this machine's root may read.
fn planted(folder: &Path) -> PathBuf {
    let file = folder.join("shadow");
    std::fs::write(&file, "root:planted-secret:1:::::\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    file
}

#[tokio::test(flavor = "multi_thread")]
async fn captest_reads_no_shadow_file_and_gains_no_capability() {
    let folder = tempfile::tempdir().unwrap();
    let local = isolated(json!({ "binds": [{ "source": planted(folder.path()), "target": "/etc/shadow" }] }));
    captest(&local, &local.create().await).await;
    captest(&local, &on_a_template(&local).await).await;
}

async fn captest(local: &Local, handle: &SandboxHandle) {
    let there = local.text(handle, "test -e /etc/shadow && echo there").await;
    assert_eq!(there, "there", "the file is there to be read");
    let text = local.text(handle, "captest").await;
    for attempt in ["Attempting direct access to shadow...FAILED", "access shadow by child process...FAILED"] {
        assert!(text.contains(attempt), "{text}");
    }
    assert!(!text.contains("SUCCESS") && text.contains("Current capabilities: none"), "{text}");
    assert!(!local.text(handle, "cat /etc/shadow || true").await.contains("planted-secret"));
}

/// How many processes have this in their environment: what they call themselves changes.
fn processes_of(mark: &str) -> usize {
    let holds = |pid: &std::fs::DirEntry| {
        let environment = std::fs::read(pid.path().join("environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    std::fs::read_dir("/proc").unwrap().flatten().filter(holds).count()
}

/// Every kind of load at once, with and without limits, then a look at what is left.
async fn stress_leaves_nothing(limited: bool) {
    let local = isolated(json!({}));
    let mut spec = SandboxSpec::default();
    if limited {
        spec.resources.memory_mib = Some(256);
        spec.resources.pids = Some(64);
    }
    let (stressed, other) = (local.create_with(spec).await, local.create().await);
    let mark = marker();
    let vm = if limited { "1G" } else { "16M" };
    let script = format!(
        "exec env MARK={mark} stress-ng --temp-path /tmp --fork 2 --pipe 2 --vm 1 --vm-bytes {vm} --sigfd 1 --timer 1 \
         --dentry 1 --timeout 3"
    );
    let stress = local.run(&stressed, ExecRequest::shell(script).with_timeout_s(60.0));
    // Its neighbour goes on meanwhile.
    let neighbour = async {
        for _ in 0..20 {
            assert_eq!(local.text(&other, "echo on").await, "on");
        }
    };
    let (result, ()) = tokio::join!(stress, neighbour);
    // What it makes of the limits is its affair; that it was answered, and that the sandbox lives, is ours.
    assert!(
        limited || matches!(result.outcome(), ExecOutcome::Exited(0)),
        "{}",
        String::from_utf8_lossy(&result.stderr)
    );
    assert_eq!(local.text(&stressed, "echo usable").await, "usable");
    local.provider.close(&stressed).await.unwrap();
    local.provider.close(&other).await.unwrap();
    eventually("a process of it is left", || processes_of(&mark) == 0).await;
    assert_eq!(local.remains(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn stress_ng_leaves_nothing_behind() {
    stress_leaves_nothing(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stress_ng_within_limits_leaves_nothing_behind() {
    stress_leaves_nothing(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stress_as_nobody() {
    if agent::is_nobody() {
        stress_leaves_nothing(false).await;
    }
}

#[test]
fn stress_ng_of_an_ordinary_user_leaves_nothing_behind() {
    agent::as_nobody("adversaries::stress_as_nobody");
}
