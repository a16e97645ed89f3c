//! Faults happen where and as often as they are said to, and are counted.

use std::time::Duration;

use fargate_double::Fault;
use serde_json::{Value, json};

use crate::support::{Client, arn, definition, double, run, script};

fn containers() -> Value {
    json!([script("main", "exec sleep 1000")])
}

fn error(client: &mut Client, operation: &str, arguments: Value) -> (String, String) {
    let error = client.ask("ecs", operation, arguments).unwrap_err();
    (error["error"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_fail_as_they_are_told_to() {
    let (double, mut client) = double().await;
    double.fault(Fault::concurrent_revisions());
    let request = definition(containers(), json!([]));
    let (code, message) = error(&mut client, "register_task_definition", request);
    assert_eq!((code.as_str(), message.contains("Too many concurrent attempts")), ("ClientException", true));
    let definition = client.define(containers(), json!([]));

    double.fault(Fault::capacity().times(2));
    double.fault(Fault::no_interfaces());
    let mut reasons = Vec::new();
    for _ in 0..3 {
        let answer = client.ecs("run_task", run(&double, &definition));
        assert_eq!(answer["tasks"], json!([]));
        reasons.push(answer["failures"][0]["reason"].as_str().unwrap()[..8].to_owned());
    }
    assert_eq!(reasons, ["Capacity", "Capacity", "RESOURCE"]);
    double.fault(Fault::throttled("RunTask"));
    double.fault(Fault::throttled_by_message("RunTask"));
    assert_eq!(error(&mut client, "run_task", run(&double, &definition)).0, "ThrottlingException");
    let (code, message) = error(&mut client, "run_task", run(&double, &definition));
    assert_eq!((code.as_str(), message.contains("Rate exceeded")), ("InvalidParameterException", true));

    double.fault(Fault::hung_up("RunTask"));
    assert_eq!(error(&mut client, "run_task", run(&double, &definition)).0, "ConnectionClosedError");
    assert_eq!(double.tasks(), [], "none of them started anything");
    let counts =
        ["concurrent revisions", "capacity", "network interfaces", "throttled", "throttled by message", "hung up"];
    assert_eq!(counts.map(|name| double.happened(name)), [1, 2, 1, 1, 1, 1]);
    assert_eq!((double.calls("RunTask"), double.answers("RunTask", 200), double.faults_left()), (6, 3, 0));
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_was_an_answer_to_something_done() {
    let (double, mut client) = double().await;
    let definition = client.define(containers(), json!([]));
    double.fault(Fault::lost_answer("RunTask"));
    let mut request = run(&double, &definition);
    request["clientToken"] = json!("token");
    assert_eq!(error(&mut client, "run_task", request.clone()).0, "ConnectionClosedError");
    let tasks = double.tasks();
    assert_eq!((tasks.len(), double.happened("lost answer")), (1, 1));
    // Whoever asks again with the token gets it.
    assert_eq!(arn(&client.ecs("run_task", request)), tasks[0].arn);
    double.fault(Fault::missing());
    let describe = json!({"cluster": "sandboxes", "tasks": [tasks[0].arn]});
    let answer = client.ecs("describe_tasks", describe.clone());
    assert_eq!((&answer["tasks"], &answer["failures"][0]["reason"]), (&json!([]), &json!("MISSING")));
    assert_eq!(client.ecs("describe_tasks", describe)["tasks"][0]["taskArn"], tasks[0].arn);
    assert_eq!(double.happened("missing"), 1);
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_fail_after_they_were_accepted() {
    let (double, mut client) = double().await;
    let definition = client.define(containers(), json!([]));
    for (fault, part) in [(Fault::no_network(), "network interface"), (Fault::no_image(), "CannotPullContainerError")] {
        double.fault(fault);
        let arn = arn(&client.ecs("run_task", run(&double, &definition)));
        double.stopped(&arn).await;
        let task = client.describe(&double, &arn);
        assert_eq!(task["stopCode"], "TaskFailedToStart");
        assert!(task["stoppedReason"].as_str().unwrap().contains(part), "{task}");
    }
    let arn = arn(&client.ecs("run_task", run(&double, &definition)));
    let one = json!({"cluster": "sandboxes", "tasks": [arn]});
    client.ask("ecs", "wait:tasks_running", one).unwrap();
    double.stop_task(&arn, "SpotInterruption", "Your Spot Task was interrupted.");
    double.stopped(&arn).await;
    assert_eq!(client.describe(&double, &arn)["stopCode"], "SpotInterruption");
    assert_eq!(["no network", "no image", "task stopped"].map(|name| double.happened(name)), [1, 1, 1]);
    double.fault(Fault::slow_pull(Duration::from_secs(600)));
    let slow = crate::support::arn(&client.ecs("run_task", run(&double, &definition)));
    client.ecs("stop_task", json!({"cluster": "sandboxes", "task": slow}));
    double.stopped(&slow).await;
    assert_eq!(double.living(), []);
    double.stop().await;
}
