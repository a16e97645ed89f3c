//! The program, each command a process of its own, on a server of ours.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
};

use sandbox_core::{Owner, SandboxIdentity, SandboxProvider, SandboxSpec};
use serde_json::{Value, json};

use crate::support::{World, settings, soon};

/// The folder of the plugins, beside which the program is; `cargo xtask test` names it.
const PROVIDERS: &str = "SANDBOX_PROVIDER_DIR";

/// The program with nothing of this process's configuration.
struct Program<'a> {
    world: &'a World,
    place: tempfile::TempDir,
}

impl<'a> Program<'a> {
    fn new(world: &'a World) -> Self {
        let place = tempfile::tempdir().unwrap();
        let all = json!({ "provider": "opensandbox", "providers": {
            "opensandbox": settings(&world.control.address(), json!({})) } });
        std::fs::write(place.path().join("config.json"), all.to_string()).unwrap();
        Self { world, place }
    }

    async fn run(&self, code: i32, user: &str, words: &[&str]) -> String {
        let providers = std::env::var_os(PROVIDERS).map(PathBuf::from);
        let providers = providers.unwrap_or_else(|| panic!("{PROVIDERS} is not set: run cargo xtask test"));
        let program = providers.with_file_name("sandboxctl");
        let place: &Path = self.place.path();
        let mut command = tokio::process::Command::new(&program);
        command.arg("--config").arg(place.join("config.json")).args(words).env_clear().current_dir(place);
        command.env("PATH", "/usr/bin:/bin").env("HOME", place).env("XDG_STATE_HOME", place.join("state"));
        command.env(PROVIDERS, &providers).env("SANDBOX_USER", user).stdin(Stdio::null()).kill_on_drop(true);
        let output = soon(command.output()).await.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    /// What a command says in JSON.
    async fn json(&self, words: &[&str]) -> Value {
        let said = self.run(0, "somebody", &[&["-o", "json"], words].concat()).await;
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{words:?}: {error}: {said}"))
    }

    /// What a sweep would take or has taken, sorted.
    async fn gc(&self, words: &[&str]) -> Vec<String> {
        let report = self.json(&[&["gc", "--provider", "opensandbox"], words].concat()).await;
        let removed = report["providers"]["opensandbox"]["removed"].as_array().unwrap();
        let mut ids: Vec<String> = removed.iter().map(|id| id.as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    }

    async fn make(&self, run: &str, user: &str, expires_at_ms: u64) -> String {
        let mut spec = SandboxSpec::default();
        spec.identity = Some(SandboxIdentity {
            run_id: run.to_owned(),
            owner: Owner::Lease,
            created_at_ms: 1,
            expires_at_ms: Some(expires_at_ms),
            attribution: [("user".to_owned(), user.to_owned())].into(),
        });
        soon(self.world.provider.create(spec)).await.unwrap().sandbox_id
    }
}

fn sorted(ids: &[&String]) -> Vec<String> {
    let mut ids: Vec<String> = ids.iter().map(|id| (*id).clone()).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn the_program_removes_what_a_run_an_owner_or_an_age_left_and_nothing_else() {
    let world = World::new(json!({ "probe": { "command": null } })).await;
    let program = Program::new(&world);
    let past = 5;
    let first = program.make("run 1", "ann", past).await;
    let second = program.make("run 1", "bob", past).await;
    let third = program.make("run 2", "ann", past).await;
    let live = program.make("run 1", "ann", u64::MAX).await;
    // More than one page of them.
    for _ in 0..100 {
        program.make("many", "carl", past).await;
    }
    let all = world.control.ids();
    assert_eq!(program.gc(&["--dry-run", "--run", "run 1"]).await, sorted(&[&first, &second]));
    assert_eq!(program.gc(&["--dry-run", "--owner", "ann"]).await, sorted(&[&first, &third]));
    assert_eq!(program.gc(&["--dry-run", "--owner", "ann", "--run", "run 1"]).await, sorted(&[&first]));
    assert_eq!(program.gc(&["--dry-run", "--owner", "nobody"]).await, [""; 0]);
    assert_eq!(program.gc(&["--dry-run", "--older", "1h"]).await, [""; 0], "they are a moment old");
    assert_eq!(program.gc(&["--dry-run", "--older", "1ms", "--run", "run 2"]).await, sorted(&[&third]));
    assert_eq!(world.control.ids(), all, "a dry run removes nothing");
    assert_eq!(program.gc(&["--owner", "ann", "--run", "run 1"]).await, sorted(&[&first]));
    assert_eq!(program.gc(&["--run", "many"]).await.len(), 100);
    assert_eq!(world.control.ids(), sorted(&[&second, &third, &live]));
    assert_eq!(program.gc(&[]).await, sorted(&[&second, &third]));
    assert_eq!(world.control.ids(), sorted(&[&live]), "what somebody answers for stays");
    // A server that refuses is told, with the code of a failure.
    let stale = program.make("run 3", "ann", past).await;
    world.control.faults().plan(
        "DELETE",
        &format!("/v1/sandboxes/{stale}"),
        opensandbox_double::Fault::error(403, "NO"),
        9,
    );
    let said = program.run(1, "ann", &["gc", "--provider", "opensandbox"]).await;
    assert!(said.contains("not removed") && said.contains(&stale), "{said}");
    world.control.end().await;
}

#[tokio::test]
async fn the_program_makes_lists_and_removes_snapshots() {
    let world = World::new(json!({})).await;
    let program = Program::new(&world);
    program.run(0, "ann", &["create", "--name", "box", "--ttl", "10m", "img"]).await;
    let id = program.run(0, "ann", &["snapshot", "create", "box", "first"]).await;
    assert!(id.starts_with("snapshot:"), "{id}");
    let other = program.run(0, "ann", &["snapshot", "create", "box", "second"]).await;
    let listed = program.json(&["snapshot", "ls"]).await;
    let names: Vec<&Value> = listed["snapshots"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names.len(), 2, "{listed}");
    assert!(names.contains(&&json!("first")) && names.contains(&&json!("second")), "{listed}");
    // An image of another sandbox.
    program.run(0, "ann", &["create", "--name", "again", "--ttl", "10m", &id]).await;
    assert_eq!(program.run(0, "ann", &["exec", "again", "--", "echo", "in"]).await, "in");
    // In use, or not there: told, and the others are removed.
    let said = program.run(1, "ann", &["snapshot", "rm", &id, "second"]).await;
    assert!(said.contains(&format!("not removed {id}")) && said.contains(&format!("removed {other}")), "{said}");
    program.run(2, "ann", &["snapshot", "rm", "third"]).await;
    program.run(0, "ann", &["stop", "again"]).await;
    assert_eq!(program.run(0, "ann", &["snapshot", "rm", "--older", "1h"]).await, "");
    assert_eq!(
        program.run(0, "ann", &["snapshot", "rm", "--older", "1ms", "--dry-run"]).await,
        format!("would remove {id}")
    );
    assert_eq!(program.run(0, "ann", &["snapshot", "rm", "first"]).await, format!("removed {id}"));
    assert_eq!(program.run(0, "ann", &["snapshot", "ls", "-q"]).await, "");
    program.run(0, "ann", &["stop", "box"]).await;
    assert!(world.control.ids().is_empty());
    world.control.end().await;
}
