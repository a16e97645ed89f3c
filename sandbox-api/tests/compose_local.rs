//! A stack of commands on the local provider, linked: real processes behind the ABI.

use std::time::Duration;

use sandbox_api::{
    Ownership,
    compose::{AsyncSandboxCompose, ComposeOptions, ComposeProject, ServiceHealth, ServicePhase},
    create_provider,
    serde_json::json,
};

const STACK: &str = r#"
services:
  app:
    command: [sh, -c, "trap 'echo bye; exit 0' TERM; echo \"up $$WHO\"; while :; do sleep 0.05; done"]
    environment: {WHO: world}
    healthcheck: {test: "exit 0", interval: 50ms}
    network_mode: bridge
  job:
    command: sh -c 'echo done; exit 0'
    depends_on: {app: {condition: service_healthy}}
    network_mode: bridge
"#;

fn project(text: &str) -> ComposeProject {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("compose.yaml"), text).unwrap();
    let mut options = ComposeOptions::default();
    options.working_directory = Some(folder.path().to_owned());
    let loaded = ComposeProject::load(&options);
    loaded.project.unwrap_or_else(|| panic!("{}", loaded.report))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stack_of_commands_runs_and_is_asked_to_stop() {
    let provider = create_provider(&json!({"local": {}})).unwrap();
    let stack = AsyncSandboxCompose::new(provider, project(STACK)).with_ownership(Ownership::Owned);
    stack.start().await.unwrap();
    let job = async {
        loop {
            let status = stack.status().unwrap();
            let of = |name: &str| status.iter().find(|one| one.service == name).unwrap().state.clone();
            if of("job").is_over() {
                return (of("job").phase, of("app").health);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), job).await.unwrap();
    assert_eq!(ended, (ServicePhase::Exited(0), ServiceHealth::Healthy));
    let result = stack.service("app").unwrap().run("echo $WHO").await.unwrap();
    assert_eq!(result.stdout_text(), "world\n");
    stack.stop().await.unwrap();
    // On standard error the shell may tell of its own child, which hears the signal too.
    let chunks = stack.logs("app", 1).unwrap().snapshot();
    let stdout: Vec<u8> =
        chunks.iter().filter(|chunk| !chunk.is_stderr).flat_map(|chunk| chunk.bytes.to_vec()).collect();
    assert_eq!(String::from_utf8_lossy(&stdout), "up world\nbye\n");
    assert_eq!(stack.logs("job", 1).unwrap().tail(100), "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_stacks_run_beside_each_other() {
    let provider = create_provider(&json!({"local": {}})).unwrap();
    let project = project("services: {a: {command: sleep 600, network_mode: bridge, stop_grace_period: 0s}}");
    let mut starting = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let stack = AsyncSandboxCompose::new(provider.clone(), project.clone()).with_poll_interval_s(0.05);
        starting.spawn(async move {
            stack.start().await.unwrap();
            stack
        });
    }
    for stack in starting.join_all().await {
        stack.stop().await.unwrap();
    }
    provider.aclose().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_is_not_there_rolls_the_stack_back() {
    let provider = create_provider(&json!({"local": {}})).unwrap();
    let text = "services:\n  a: {command: sleep 600, network_mode: bridge}\n  b: {command: /no/such/program, network_mode: bridge}\n";
    let stack = AsyncSandboxCompose::new(provider.clone(), project(text));
    let error = stack.start().await.unwrap_err();
    assert_eq!(error.field(), Some("services.b"), "{error}");
    assert!(stack.status().is_err());
    provider.aclose().await.unwrap();
}
