//! Tasks from their start to their end, as the official client sees them.

use fargate_double::Double;
use serde_json::{Value, json};

use crate::support::{arn, definition, double, run, script, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_runs_its_commands_and_stops_when_it_is_told() {
    let (double, mut client) = double().await;
    let containers = json!([
        script("main", "echo $GREETING $PLANET; trap 'exit 7' TERM; while :; do sleep 0.05; done"),
        script("side", "echo side; exec sleep 1000"),
    ]);
    let definition = client.define(containers, json!([]));
    let mut request = run(&double, &definition);
    request["startedBy"] = json!("a run");
    request["tags"] = json!([{"key": "owner", "value": "me"}]);
    request["overrides"] = json!({
        "cpu": "1024", "memory": "2048", "ephemeralStorage": {"sizeInGiB": 30},
        "containerOverrides": [{"name": "main", "environment": [
            {"name": "GREETING", "value": "hello"}, {"name": "PLANET", "value": "earth"},
        ]}],
    });
    let answer = client.ecs("run_task", request);
    let arn = arn(&answer);
    assert_eq!(answer["tasks"][0]["lastStatus"], "PROVISIONING");
    assert_eq!(answer["failures"], json!([]));
    let one = json!({"cluster": "sandboxes", "tasks": [arn]});
    client.ask("ecs", "wait:tasks_running", one.clone()).unwrap();
    let task = client.describe(&double, &arn);
    assert_eq!((&task["lastStatus"], &task["desiredStatus"]), (&json!("RUNNING"), &json!("RUNNING")));
    assert_eq!((&task["cpu"], &task["memory"]), (&json!("1024"), &json!("2048")));
    assert_eq!(task["ephemeralStorage"]["sizeInGiB"], 30);
    assert_eq!((&task["startedBy"], &task["tags"][0]["value"]), (&json!("a run"), &json!("me")));
    let names: Vec<&Value> = task["containers"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, [&json!("main"), &json!("side")]);
    until("it printed", || double.log(&arn, "main") == "hello earth\n" && double.log(&arn, "side") == "side\n").await;
    let listed = |client: &mut crate::support::Client, more: Value| {
        let mut arguments = json!({"cluster": "sandboxes"});
        arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.ecs("list_tasks", arguments)["taskArns"].clone()
    };
    assert_eq!(listed(&mut client, json!({"startedBy": "a run"})), json!([arn]));
    assert_eq!(listed(&mut client, json!({"startedBy": "another"})), json!([]));

    let answer = client.ecs("stop_task", json!({"cluster": "sandboxes", "task": arn, "reason": "enough"}));
    assert_eq!(answer["task"]["desiredStatus"], "STOPPED");
    client.ask("ecs", "wait:tasks_stopped", one).unwrap();
    let task = client.describe(&double, &arn);
    assert_eq!((&task["stopCode"], &task["stoppedReason"]), (&json!("UserInitiated"), &json!("enough")));
    // One listened to the signal, the other was killed.
    let codes: Vec<&Value> = task["containers"].as_array().unwrap().iter().map(|one| &one["exitCode"]).collect();
    assert_eq!(codes, [&json!(7), &json!(137)]);
    assert_eq!(listed(&mut client, json!({})), json!([]));
    assert_eq!(listed(&mut client, json!({"desiredStatus": "STOPPED"})), json!([arn]));
    assert_eq!(double.living(), []);
    double.stop().await;
}

/// Runs a definition to its end, and tells of it.
async fn to_the_end(double: &Double, client: &mut crate::support::Client, containers: Value) -> Value {
    let definition = client.define(containers, json!([{"name": "shared"}]));
    let arn = arn(&client.ecs("run_task", run(double, &definition)));
    double.stopped(&arn).await;
    client.describe(double, &arn)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_an_essential_container_is_the_end_of_its_task() {
    let (double, mut client) = double().await;
    let task = to_the_end(&double, &mut client, json!([script("main", "exit 3"), script("side", "sleep 1000")])).await;
    assert_eq!(task["stopCode"], "EssentialContainerExited");
    assert_eq!(task["containers"][0]["exitCode"], 3);
    let missing = json!([{"name": "main", "image": fargate_double::BASE_IMAGE, "entryPoint": ["/no/such"]}]);
    let task = to_the_end(&double, &mut client, missing).await;
    assert_eq!(task["stopCode"], "TaskFailedToStart");
    assert!(task["stoppedReason"].as_str().unwrap().starts_with("CannotStartContainerError: "), "{task}");
    let task = to_the_end(&double, &mut client, json!([{"name": "main", "image": "nobody/knows:1"}])).await;
    assert_eq!(task["stopCode"], "TaskFailedToStart");
    assert!(task["stoppedReason"].as_str().unwrap().starts_with("CannotPullContainerError: "), "{task}");
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_waits_for_those_that_it_depends_on() {
    let (double, mut client) = double().await;
    let volume =
        |read_only: bool| json!([{"sourceVolume": "shared", "containerPath": "/shared", "readOnly": read_only}]);
    let mut first = script("first", "sleep 0.3; echo data > /shared/file");
    first["essential"] = json!(false);
    first["mountPoints"] = volume(false);
    let mut main = script("main", "cat /shared/file; touch /shared/other 2>/dev/null && exit 1; exit 4");
    main["dependsOn"] = json!([{"containerName": "first", "condition": "SUCCESS"}]);
    main["mountPoints"] = volume(true);
    let task = to_the_end(&double, &mut client, json!([main, first])).await;
    assert_eq!(task["containers"][0]["exitCode"], 4, "{task}");
    let arn = task["taskArn"].as_str().unwrap();
    assert_eq!(double.log(arn, "main"), "data\n");

    first["command"] = json!(["exit 9"]);
    let task = to_the_end(&double, &mut client, json!([main, first])).await;
    assert_eq!(task["stopCode"], "TaskFailedToStart");
    assert_eq!(double.log(task["taskArn"].as_str().unwrap(), "main"), "", "it never ran");
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_starts_one_task_only() {
    let (double, mut client) = double().await;
    let definition = client.define(json!([script("main", "exec sleep 1000")]), json!([]));
    let mut request = run(&double, &definition);
    request["clientToken"] = json!("a token");
    let first = arn(&client.ecs("run_task", request.clone()));
    assert_eq!(arn(&client.ecs("run_task", request.clone())), first);
    request["startedBy"] = json!("somebody else");
    assert_eq!(client.ask("ecs", "run_task", request).unwrap_err()["error"], "ConflictException");
    assert_eq!(double.tasks().len(), 1);
    double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_service_refuses_is_refused() {
    let (double, mut client) = double().await;
    let mut wrong = definition(json!([script("main", "true")]), json!([]));
    wrong["memory"] = json!("700");
    let error = client.ask("ecs", "register_task_definition", wrong).unwrap_err();
    assert!(error["message"].as_str().unwrap().contains("No Fargate configuration exists"), "{error}");
    let definition = client.define(json!([script("main", "true")]), json!([]));
    let changes = [
        ("overrides", json!({"cpu": "1024", "memory": "4500"}), "No Fargate configuration exists"),
        ("overrides", json!({"ephemeralStorage": {"sizeInGiB": 300}}), "between 21 and 200"),
        ("overrides", json!({"containerOverrides": [{"name": "other"}]}), "not a container"),
        ("count", json!(11), "Count"),
        ("launchType", json!("EC2"), "Fargate only"),
    ];
    for (key, value, part) in changes {
        let mut request = run(&double, &definition);
        request[key] = value;
        let error = client.ask("ecs", "run_task", request).unwrap_err();
        assert_eq!(error["error"], "InvalidParameterException", "{error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{part}: {error}");
    }
    let stop = client.ask("ecs", "stop_task", json!({"cluster": "sandboxes", "task": "0123"})).unwrap_err();
    assert_eq!(stop["error"], "InvalidParameterException");
    let list = json!({"cluster": "sandboxes", "startedBy": "x", "desiredStatus": "RUNNING"});
    assert_eq!(client.ask("ecs", "list_tasks", list).unwrap_err()["error"], "InvalidParameterException");
    let unknown = "arn:aws:ecs:us-east-1:123456789012:task/sandboxes/none";
    let answer = client.ecs("describe_tasks", json!({"cluster": "sandboxes", "tasks": [unknown]}));
    assert_eq!(answer["failures"], json!([{"arn": unknown, "reason": "MISSING"}]));
    assert_eq!(double.tasks(), []);
    double.stop().await;
}
