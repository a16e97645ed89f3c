//! The sandbox's own main process.

use crate::support::{Agent, As, eventually, seconds, sh, within};
use rustix::process::{Pid, Signal, kill_process};
use sandbox_core::{ErrorKind, ExecOutcome, ExecRequest, StartFailure};
use sandbox_protocol::{
    Client, LogEvent,
    methods::{self, AgentInfo, ENTRYPOINT_ID, EntrypointInfo, ExecLogs, ExecWait, ExecWaited, Nothing},
};
use serde_json::{Value, json};

fn script(text: &str) -> Value {
    json!({ "argv": ["sh", "-c", text] })
}

async fn info(client: &Client) -> EntrypointInfo {
    client.call::<AgentInfo>(methods::INFO, &Nothing {}).await.unwrap().entrypoint.expect("there is one")
}

async fn output(client: &Client) -> String {
    let request = ExecLogs { exec_id: ENTRYPOINT_ID.to_owned(), ..ExecLogs::default() };
    let mut session = client.open::<LogEvent>(methods::EXEC_LOGS, &request).await.unwrap();
    let mut text = Vec::new();
    while let Some(LogEvent::Stdout(bytes)) = within(seconds(20), session.next()).await.unwrap() {
        text.extend_from_slice(&bytes);
    }
    String::from_utf8(text).unwrap()
}

async fn eventually_prints(client: &Client, wanted: &str) {
    eventually(wanted, async || output(client).await.contains(wanted)).await;
}

/// The agent itself: below `unshare` it is its child.
fn signal(agent: &Agent, signal: Signal) {
    kill_process(Pid::from_child(&agent.child), signal).unwrap();
}

#[tokio::test]
async fn the_entrypoint_runs_in_its_surroundings_and_the_agent_serves_on_after_it() {
    let entrypoint = json!({ "argv": ["sh", "-c", "echo $MINE $OURS $PWD; id -u; exit 7"], "env": { "MINE": "m" },
        "cwd": "/usr", "user": "nobody" });
    let mut agent = Agent::start(json!({ "entrypoint": entrypoint, "env": { "OURS": "o" } }));
    let client = agent.connect().await;
    let wait = ExecWait { exec_id: ENTRYPOINT_ID.to_owned(), timeout_s: Some(20.0) };
    let waited: ExecWaited = client.call(methods::EXEC_WAIT, &wait).await.unwrap();
    assert_eq!(waited.exit.unwrap().outcome, ExecOutcome::Exited(7));
    assert_eq!(output(&client).await, "m o /usr\n65534\n");
    let found = info(&client).await;
    assert_eq!((found.exec_id.as_str(), found.running, found.pid), (ENTRYPOINT_ID, false, None));
    assert_eq!(found.exit.unwrap().outcome, ExecOutcome::Exited(7));
    assert_eq!(sh(&client, "echo on").await, "on\n");
    // Its id is nobody else's.
    let mut request = ExecRequest::shell("true");
    request.exec_id = ENTRYPOINT_ID.to_owned();
    assert_eq!(client.exec(request).await.unwrap_err().kind(), ErrorKind::AlreadyExists);
    // It is over, so what ends the sandbox ends it at once, and well.
    signal(&agent, Signal::TERM);
    assert_eq!(agent.ended().await.code(), Some(0));
}

#[tokio::test]
async fn signals_go_to_the_entrypoint_and_the_sandbox_ends_after_it_with_its_code() {
    let text = "exec 2>/dev/null; trap 'echo hup' HUP; trap 'echo usr' USR1; trap 'echo bye; exit 9' TERM; echo up; \
                while :; do sleep 0.05; done";
    let mut agent = Agent::start(json!({ "entrypoint": script(text) }));
    let client = agent.connect().await;
    eventually_prints(&client, "up").await;
    assert!(info(&client).await.running && info(&client).await.pid.is_some());
    signal(&agent, Signal::HUP);
    eventually_prints(&client, "hup").await;
    signal(&agent, Signal::USR1);
    eventually_prints(&client, "usr").await;
    signal(&agent, Signal::TERM);
    assert_eq!(agent.ended().await.code(), Some(9));
}

#[tokio::test]
async fn as_pid_one_it_ends_with_its_entrypoint_when_it_shall() {
    let mut agent = Agent::start_as(
        As::Init,
        json!({ "entrypoint": script("setsid sleep 300 & read line; exit 42"), "exit_with_entrypoint": true }),
    );
    assert_eq!(agent.ended().await.code(), Some(42));
    let text = "echo up; kill -9 $$";
    let mut agent = Agent::start(json!({ "entrypoint": script(text), "exit_with_entrypoint": true }));
    assert_eq!(agent.ended().await.code(), Some(137));
}

#[tokio::test]
async fn an_entrypoint_that_cannot_start_is_an_end_that_says_why() {
    let missing = json!({ "argv": ["/no/such/program"] });
    let agent = Agent::start(json!({ "entrypoint": missing }));
    let client = agent.connect().await;
    eventually("it has failed", async || !info(&client).await.running).await;
    match info(&client).await.exit.unwrap().outcome {
        ExecOutcome::StartFailed { reason, .. } => assert_eq!(reason, StartFailure::NotFound),
        other => panic!("{other:?}"),
    }
    assert_eq!(sh(&client, "echo on").await, "on\n");
    let mut agent = Agent::start(json!({ "entrypoint": missing, "exit_with_entrypoint": true }));
    assert_eq!(agent.ended().await.code(), Some(127));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_entrypoint_is_never_forgotten() {
    let agent = Agent::start(json!({ "entrypoint": script("echo kept") }));
    let client = agent.connect().await;
    eventually("it is over", async || !info(&client).await.running).await;
    for _ in 0..600 {
        // More than the finished commands that are known.
        let stream = client.exec(ExecRequest::argv(["/no/such/program"])).await.unwrap();
        stream.collect(Default::default()).await.unwrap();
    }
    assert_eq!(output(&client).await, "kept\n");
    assert_eq!(client.call::<AgentInfo>(methods::INFO, &Nothing {}).await.unwrap().execs, 0);
}
