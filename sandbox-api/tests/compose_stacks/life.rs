//! A stack and the processes around it.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Stdio},
};

use sandbox_api::{
    compose::{AsyncSandboxCompose, ServiceLogs, ServicePhase, sweep_stacks},
    process_owner,
    serde_json::Value,
};
use sandbox_core::{ErrorKind, ListFilter, Owner};

use crate::backend::{Backend, Kind, eventually, text};

/// In the process that makes a stack and is killed: the folder of its backend.
const CREATOR: &str = "SANDBOX_TEST_COMPOSE_CREATOR";

const DOCUMENT: &str = r#"
services:
  app: {IMAGE command: [sh, -c, "echo here > /tmp/mark; exec sleep 600"], volumes: ["data:/data"]}
  other: {IMAGE command: sleep 600}
volumes: {data: }
"#;

/// One that goes on until it is asked to stop, in its own way, and one that is over.
const KEPT: &str = r#"
services:
  app:
    {IMAGE command: [sh, -c, "trap 'echo bye; exit 5' USR1; echo up; n=0; while :; do n=$$((n+1)); echo $$n > /tmp/n; sleep 0.05; done"],
     stop_signal: SIGUSR1, stop_grace_period: 60s}
  job: {IMAGE command: [sh, -c, "echo did; echo wrong >&2; exit 3"], depends_on: [app]}
"#;

/// Makes a stack, says where it is, and waits to be killed.
async fn create(kind: Kind, folder: &Path, document: &str, owner: Owner) {
    let backend = Backend::in_folder(kind, folder);
    let stack = backend.stack(document).with_owner(owner);
    stack.start().await.unwrap();
    std::fs::write(folder.join("descriptor.part"), stack.serialize(None).await.unwrap().to_string()).unwrap();
    std::fs::rename(folder.join("descriptor.part"), folder.join("descriptor")).unwrap();
    println!("up");
    // The other process keeps its end open until it kills this one.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Another process that made a stack.
struct Creator {
    process: Child,
    descriptor: Value,
}

impl Creator {
    /// Starts this program's test again as the other process.
    async fn start(backend: &Backend, test: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", test])
            .env(CREATOR, &backend.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = process.stdout.take().unwrap();
        let is_up = tokio::task::spawn_blocking(move || {
            BufReader::new(output).lines().map_while(Result::ok).any(|line| line.ends_with("up"))
        });
        assert!(is_up.await.unwrap(), "the creator says why");
        let descriptor = std::fs::read_to_string(backend.folder.join("descriptor")).unwrap();
        Self { process, descriptor: sandbox_api::serde_json::from_str(&descriptor).unwrap() }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// The stack of a process is found by another one, outlives its kill until it is swept, and is swept as a whole.
async fn found_and_swept(kind: Kind, test: &str) {
    if let Ok(folder) = std::env::var(CREATOR) {
        return create(kind, Path::new(&folder), DOCUMENT, process_owner()).await;
    }
    let backend = Backend::new(kind);
    let mut creator = Creator::start(&backend, test).await;
    let descriptor = creator.descriptor.clone();
    let stack = AsyncSandboxCompose::connect(backend.provider.clone(), descriptor).await.unwrap();
    let id = stack.id().unwrap();
    let wait = "until [ -e /tmp/mark ]; do sleep 0.05; done; cat /tmp/mark";
    assert_eq!(text(&stack, "app", wait).await, "here");
    stack.service("other").unwrap().write_file("/tmp/sent", "sent").await.unwrap();
    assert_eq!(text(&stack, "other", "cat /tmp/sent").await, "sent");
    // Two sandboxes, a network and a volume; none of them may go while their owner lives.
    let all = backend.left(&id).await.len();
    assert!(all >= 4, "{all}");
    let sweep = async |is_dry: bool| {
        let lister = backend.provider.as_list_sweep().unwrap();
        let swept = lister.sweep(ListFilter::default(), is_dry).await.unwrap();
        sweep_stacks(&backend.provider, &ListFilter::default(), &swept.removed, is_dry).await.unwrap()
    };
    sweep(false).await;
    assert_eq!(backend.left(&id).await.len(), all);
    drop(stack);
    creator.kill();
    eventually("a dry sweep names what belongs to the stack", async || {
        sweep(true).await.removed.iter().filter(|name| name.contains(&id)).count() == all - 2
    })
    .await;
    assert_eq!(backend.left(&id).await.len(), all);
    eventually("nothing is left", async || {
        sweep(false).await;
        backend.left(&id).await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stack_is_found_by_another_process_and_swept_when_its_creator_is_killed_on_docker() {
    let test = "life::a_stack_is_found_by_another_process_and_swept_when_its_creator_is_killed_on_docker";
    found_and_swept(Kind::Docker, test).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stack_is_found_by_another_process_and_swept_when_its_creator_is_killed_on_local() {
    let test = "life::a_stack_is_found_by_another_process_and_swept_when_its_creator_is_killed_on_local";
    found_and_swept(Kind::Local, test).await;
}

/// The programs of a leased stack run on when the process that started them is killed; another one sees what they say
/// and how they end, and asks them to stop in their own way.
async fn programs_run_on(kind: Kind, test: &str) {
    if let Ok(folder) = std::env::var(CREATOR) {
        return create(kind, Path::new(&folder), KEPT, Owner::Lease).await;
    }
    let backend = Backend::new(kind);
    let mut creator = Creator::start(&backend, test).await;
    let descriptor = creator.descriptor.clone();
    let connect = async || AsyncSandboxCompose::connect(backend.provider.clone(), descriptor.clone()).await.unwrap();
    let phase = |stack: &AsyncSandboxCompose, name: &str| {
        stack.status().unwrap().into_iter().find(|one| one.service == name).unwrap().state.phase
    };
    let stack = connect().await;
    let id = stack.id().unwrap();
    assert_eq!(phase(&stack, "app"), ServicePhase::Running);
    eventually("the end of the job is seen", async || phase(&stack, "job") == ServicePhase::Exited(3)).await;
    assert_eq!(stack.logs("app", 1).unwrap().tail(100), "up");
    assert_eq!(stack.restart("app").unwrap_err().kind(), ErrorKind::InvalidState);
    drop(stack);
    creator.kill();
    let stack = connect().await;
    let grows = "a=$(cat /tmp/n); until test $a != $(cat /tmp/n); do sleep 0.1; done; echo grows";
    assert_eq!(text(&stack, "app", grows).await, "grows");
    assert_eq!((phase(&stack, "app"), phase(&stack, "job")), (ServicePhase::Running, ServicePhase::Exited(3)));
    let said = |logs: &ServiceLogs, is_stderr: bool| {
        let chunks = logs.snapshot().into_iter().filter(|chunk| chunk.is_stderr == is_stderr);
        String::from_utf8(chunks.flat_map(|chunk| chunk.bytes.to_vec()).collect()).unwrap()
    };
    let logs = stack.logs("job", 1).unwrap();
    assert_eq!((said(&logs, false).as_str(), said(&logs, true).as_str()), ("did\n", "wrong\n"));
    let logs = stack.logs("app", 1).unwrap();
    assert_eq!(logs.tail(100), "up");
    stack.stop().await.unwrap();
    // On standard error the shell may tell of its own child, which hears the signal, too.
    assert_eq!(said(&logs, false), "up\nbye\n", "it was asked with its own signal");
    assert_eq!(backend.left(&id).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_run_on_when_their_creator_is_killed_on_docker() {
    programs_run_on(Kind::Docker, "life::programs_run_on_when_their_creator_is_killed_on_docker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_run_on_when_their_creator_is_killed_on_local() {
    programs_run_on(Kind::Local, "life::programs_run_on_when_their_creator_is_killed_on_local").await;
}

/// A stack is left on purpose, by one that may, and goes on.
async fn left_and_found(backend: &Backend) {
    let own = backend.stack(KEPT);
    own.start().await.unwrap();
    assert_eq!(own.leave().await.unwrap_err().kind(), ErrorKind::InvalidState, "it belongs to this process");
    assert_eq!(text(&own, "app", "echo here").await, "here", "a refusal changes nothing");
    backend.down(own).await;
    let stack = backend.stack(KEPT).with_owner(Owner::Lease);
    stack.start().await.unwrap();
    let descriptor = stack.serialize(None).await.unwrap();
    stack.leave().await.unwrap();
    assert_eq!(stack.status().unwrap_err().kind(), ErrorKind::InvalidState);
    drop(stack);
    let found = AsyncSandboxCompose::connect(backend.provider.clone(), descriptor).await.unwrap();
    let grows = "a=$(cat /tmp/n); until test $a != $(cat /tmp/n); do sleep 0.1; done; echo grows";
    assert_eq!(text(&found, "app", grows).await, "grows");
    backend.down(found).await;
    // A program whose input somebody holds cannot be left.
    let stack = backend.stack("services: {a: {IMAGE command: cat, stdin_open: true, stop_grace_period: 0s}}");
    let stack = stack.with_owner(Owner::Lease);
    stack.start().await.unwrap();
    assert_eq!(stack.leave().await.unwrap_err().field(), Some("services.a"));
    backend.down(stack).await;
}

crate::backend::on_both! {
    a_stack_is_left_on_purpose_and_found_again: left_and_found;
}
