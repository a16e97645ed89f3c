//! Commands and sessions.

use http_body_util::BodyExt;
use serde_json::json;

use crate::support::{Answer, Daemon, eventually, lives, soon, text};

#[tokio::test]
async fn a_command_in_the_foreground_tells_its_id_its_output_and_its_end() {
    let daemon = Daemon::start();
    let script = "printf 'a\\n\\nb'; printf e >&2; exit 3";
    let answer = daemon.post("/command", json!({ "command": script, "envs": { "X": "1" } })).await;
    assert_eq!((answer.status, &answer.headers["content-type"]), (200, &"text/event-stream".parse().unwrap()));
    let events = answer.events();
    let id = events[0]["text"].as_str().unwrap().to_owned();
    assert_eq!((&events[0]["type"], &events[1]["type"], id.len()), (&json!("init"), &json!("ping"), 32));
    assert_eq!((text(&events, "stdout"), text(&events, "stderr")), ("a\n\nb".to_owned(), "e".to_owned()));
    let last = events.last().unwrap();
    assert_eq!(last["error"], json!({ "ename": "CommandExecError", "evalue": "3", "traceback": ["exit status 3"] }));
    assert_eq!(last["exit"]["outcome"], json!({ "exited": 3 }));
    assert!(last["timestamp"].as_u64().is_some());
    let status = daemon.get(&format!("/command/status/{id}")).await.json();
    assert_eq!(
        (&status["running"], &status["exit_code"], &status["content"]),
        (&json!(false), &json!(3), &json!(script))
    );
    assert_eq!(status["error"], "exit status 3");
    let argv = daemon.post("/command", json!({ "argv": ["printf", "%s", "\u{e9}"], "cwd": "/" })).await.events();
    assert_eq!(
        (text(&argv, "stdout").as_str(), &argv.last().unwrap()["type"]),
        ("\u{e9}", &json!("execution_complete"))
    );
}

#[tokio::test]
async fn the_first_events_come_as_one_piece_to_those_who_ask_and_no_later_than_that() {
    let daemon = Daemon::start();
    let quick = daemon.post("/command", json!({ "command": "echo a", "gather_ms": 1000 })).await;
    let kinds: Vec<_> = quick.events().iter().map(|event| event["type"].clone()).collect();
    assert_eq!(kinds, ["init", "ping", "stdout", "execution_complete"]);
    assert_eq!(quick.headers["content-length"], quick.body.len().to_string());
    // It writes when it has been heard of, and has no end.
    let slow = format!("echo a; mkfifo {0}; cat {0}", daemon.path("pipe"));
    for (gather_ms, expected) in [(500, vec!["init", "ping", "stdout"]), (0, vec!["init", "ping"])] {
        let order = json!({ "command": slow, "gather_ms": gather_ms }).to_string();
        let request = hyper::Request::post("/command").header("host", "execd");
        let mut answer = soon(daemon.send(request.body(order.into()).unwrap())).await;
        assert!(!answer.headers().contains_key("content-length"));
        let piece = soon(answer.frame()).await.unwrap().unwrap().into_data().unwrap();
        let answer = Answer { status: 200, headers: Default::default(), body: piece };
        let kinds: Vec<_> = answer.events().iter().map(|event| event["type"].clone()).collect();
        assert_eq!(kinds, expected);
    }
}

#[tokio::test]
async fn what_cannot_be_started_says_why_and_bad_orders_are_refused() {
    let daemon = Daemon::start();
    let missing = daemon.post("/command", json!({ "argv": ["no-such-program"] })).await.events();
    let error = &missing.last().unwrap()["error"];
    assert_eq!(error["evalue"], "exec: \"no-such-program\": executable file not found in $PATH");
    for bad in [
        json!({ "command": "" }),
        json!({ "command": "true", "argv": ["true"] }),
        json!({ "command": "true", "cwd": "/no/such/folder" }),
        json!({ "command": "true", "gid": 1 }),
    ] {
        assert_eq!(
            daemon.post("/command", bad.clone()).await.refusal(),
            (400, "INVALID_REQUEST_BODY".to_owned()),
            "{bad}"
        );
    }
    assert_eq!(daemon.get("/command/status/none").await.refusal().0, 404);
    assert_eq!(daemon.get("/command/none/logs").await.refusal().0, 400);
    assert_eq!(daemon.call("DELETE", "/command?id=none", "").await.refusal(), (500, "RUNTIME_ERROR".to_owned()));
    assert_eq!(daemon.call("DELETE", "/command", "").await.refusal(), (400, "MISSING_QUERY".to_owned()));
    assert_eq!(daemon.get("/no/such/route").await.status, 404);
    assert_eq!(daemon.post("/code", json!({})).await.refusal(), (501, "NOT_SUPPORTED".to_owned()));
}

#[tokio::test]
async fn a_time_limit_ends_the_whole_tree() {
    let daemon = Daemon::start();
    let script = "setsid sh -c 'echo $$; sleep 1000' & wait";
    let events = daemon.post("/command", json!({ "command": script, "timeout": 500 })).await.events();
    let error = &events.last().unwrap()["error"];
    assert_eq!((&error["evalue"], &error["traceback"]), (&json!("-1"), &json!(["signal: killed"])));
    let pid = text(&events, "stdout");
    eventually(async || (!lives(pid.trim())).then_some(())).await;
}

#[tokio::test]
async fn a_command_that_was_just_submitted_can_be_interrupted() {
    let daemon = Daemon::start();
    for _ in 0..20 {
        let submitted = daemon.post("/command", json!({ "command": "exec sleep 1000", "background": true })).await;
        let id = submitted.events()[0]["text"].as_str().unwrap().to_owned();
        let answer = daemon.call("DELETE", &format!("/command?id={id}"), "").await;
        assert_eq!(answer.status, 200, "{:?}", answer.body);
    }
}

#[tokio::test]
async fn a_command_in_the_background_is_read_from_any_byte_and_can_be_interrupted() {
    let daemon = Daemon::start();
    // More than is kept in memory.
    let script = "head -c 100000 /dev/zero | tr '\\0' x; sleep 0.3; printf e >&2; exec sleep 1000";
    let events = daemon.post("/command", json!({ "command": script, "background": true })).await.events();
    assert_eq!(events.last().unwrap()["type"], "execution_complete");
    let id = events[0]["text"].as_str().unwrap().to_owned();
    let whole = eventually(async || {
        let logs = daemon.get(&format!("/command/{id}/logs")).await;
        (logs.body.len() == 100_001).then_some(logs)
    })
    .await;
    assert_eq!(whole.headers["execd-commands-tail-cursor"], "100001");
    let rest = daemon.get(&format!("/command/{id}/logs?cursor=99999")).await;
    assert_eq!((&rest.body[..], &rest.headers["execd-commands-tail-cursor"]), (&b"xe"[..], &"100001".parse().unwrap()));
    let status = daemon.get(&format!("/command/status/{id}")).await.json();
    assert_eq!((&status["running"], status.get("exit_code")), (&json!(true), None));
    assert_eq!(daemon.call("DELETE", &format!("/command?id={id}"), "").await.status, 200);
    let ended = eventually(async || {
        let status = daemon.get(&format!("/command/status/{id}")).await.json();
        (status["running"] == false).then_some(status)
    })
    .await;
    assert_eq!((&ended["exit_code"], &ended["error"]), (&json!(-1), &json!("signal: terminated")));
    assert_eq!(daemon.call("DELETE", &format!("/command?id={id}"), "").await.refusal().0, 500);
}

#[tokio::test]
async fn input_comes_from_a_file_and_bytes_stay_bytes_for_those_who_ask() {
    let daemon = Daemon::start();
    let input = daemon.path("input");
    std::fs::write(&input, [0xff; 200_000]).unwrap();
    let order = json!({ "command": "wc -c; printf '\\377' >&2", "stdin_path": input, "bytes": true });
    let events = daemon.post("/command", order).await.events();
    assert_eq!(text(&events, "stdout").trim(), "200000");
    assert!(events.iter().any(|event| event["data"] == "/w=="), "{events:?}");
}

#[tokio::test]
async fn variables_that_are_added_to_the_file_are_there_for_later_commands() {
    let daemon = Daemon::start_with(&[], &[("SANDBOX_BYTES_RAW", "\\377_"), ("GIVEN", "g")]);
    std::fs::write(daemon.path("envs"), "ADDED='a\nb'\nGIVEN=h\n").unwrap();
    let script = "printf %s \"$ADDED|$GIVEN|$OVER|\"; printf %s \"$RAW\" | od -An -tx1 | tr -d ' \\n'; \
                  test -n \"$EXECD_ENVS\" && env | grep -c SANDBOX_BYTES";
    let events = daemon.post("/command", json!({ "command": script, "envs": { "OVER": "o" } })).await.events();
    assert_eq!(text(&events, "stdout"), "a\nb|h|o|ff0\n");
}

#[tokio::test]
async fn a_session_keeps_folder_and_environment_and_ends_with_its_client() {
    let daemon = Daemon::start();
    let folder = daemon.path("it's new");
    let session = daemon.post("/session", json!({ "cwd": folder })).await.json();
    let id = session["session_id"].as_str().unwrap().to_owned();
    let run =
        async |command: &str| daemon.post(&format!("/session/{id}/run"), json!({ "command": command })).await.events();
    let first = run("export A='x y'; pwd; echo e >&2; mkdir sub; cd sub; false").await;
    assert_eq!(text(&first, "stdout"), format!("{folder}\ne\n"));
    assert_eq!(first.last().unwrap()["error"]["evalue"], "1");
    let second = run("pwd; printf %s \"$A\"; exit 5").await;
    assert_eq!(text(&second, "stdout"), format!("{folder}/sub\nx y"));
    assert_eq!(second.last().unwrap()["error"]["evalue"], "5");
    let limit = json!({ "command": "sleep 1000 & sleep 1000", "timeout": 300, "cwd": "/" });
    let late = daemon.post(&format!("/session/{id}/run"), limit).await.events();
    assert_eq!(late.last().unwrap()["error"]["evalue"], "-1");
    assert_eq!(text(&run("printf %s \"$A\"").await, "stdout"), "x y");
    assert_eq!(daemon.call("DELETE", &format!("/session/{id}"), "").await.status, 200);
    assert_eq!(
        daemon.call("DELETE", &format!("/session/{id}"), "").await.refusal(),
        (404, "CONTEXT_NOT_FOUND".to_owned())
    );
    let gone = daemon.post(&format!("/session/{id}/run"), json!({ "command": "true" })).await;
    assert_eq!(gone.refusal(), (500, "RUNTIME_ERROR".to_owned()));
}
