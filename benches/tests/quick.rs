//! The measuring programs run: little of everything, and nothing of what it gives is judged.

use std::process::{Command, Stdio};

#[test]
fn docker_is_measured_beside_its_peers() {
    let engine = std::env::var("SANDBOX_TEST_DOCKER")
        .unwrap_or_else(|_| panic!("this needs an engine: cargo xtask engine -- cargo nextest run -p sandbox-benches"));
    let name = format!("sandbox-agent-{}", std::env::consts::ARCH);
    let agent = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("providers").join(name);
    assert!(agent.is_file(), "{} is missing: cargo xtask build-plugins", agent.display());
    let output = Command::new(env!("CARGO_BIN_EXE_bench-docker"))
        .arg("--quick")
        .env("SANDBOX_TEST_DOCKER", engine)
        .env("SANDBOX_AGENT", agent)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (table, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{table}{errors}");
    for row in [
        "exec, 1 at once: p50",
        "exec, 8 at once: execs/s",
        "exec, 8 at once: p99",
        "exec, 8 at once, without the agent: p50",
        "create → first output |",
        "create → first output, network made ahead",
        "create → first output, from a warm pool",
        "upload of 1 KiB |",
        "download of 1 MiB, through the engine",
        "16 MiB of output",
        "3 sandboxes made at once",
        "3 sandboxes removed at once",
        "survivors | 0 ",
    ] {
        assert!(table.contains(&format!("| {row}")), "no row {row:?}:\n{table}");
    }
}
