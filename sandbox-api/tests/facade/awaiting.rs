//! One sandbox of one object: its life, commands and files.

use std::time::Duration;

use sandbox_api::{
    AsyncSandbox, Capability, ErrorKind, ExecEvent, ExecOutcome, ExecRequest, Field, FieldSupport, Ownership,
    SandboxError, SandboxStatus, StdinSource, flush_cleanup,
};

use crate::{
    has,
    on::{On, Place, on_each},
    refused,
};

on_each! { @every
    a_sandbox_lives_from_start_to_stop,
    commands_end_as_results_with_both_streams,
    a_limit_ends_a_command_and_keeps_what_it_wrote,
    a_stream_takes_input_and_is_killed,
    files_and_folders_go_in_and_come_out,
    a_setup_that_fails_takes_the_sandbox_with_it,
    many_sandboxes_at_once_do_not_meet,
    what_is_dropped_is_removed_in_the_background,
}

/// A minute is more than anything here takes.
const LONG: f64 = 60.0;

fn new(place: &Place) -> AsyncSandbox {
    AsyncSandbox::new(place.provider.clone()).with_ownership(Ownership::Shared)
}

async fn a_sandbox_lives_from_start_to_stop(on: On) {
    let place = on.ready().await;
    let sandbox = new(&place);
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Unknown);
    assert_eq!(sandbox.run("true").await.unwrap_err().kind(), ErrorKind::InvalidState);
    let spec = place.spec().with_env("WHO", "it's\n\u{e9}").with_file("seed", "seeded \u{20ac}\n");
    sandbox.start(Some(spec.clone())).await.unwrap();
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Running);
    assert_eq!(sandbox.start(Some(spec)).await.unwrap_err().kind(), ErrorKind::InvalidState);
    let result = sandbox.run("printf '%s|' \"$WHO\"; cat seed").await.unwrap();
    assert_eq!(result.stdout_text(), "it's\n\u{e9}|seeded \u{20ac}\n");
    sandbox.stop().await.unwrap();
    sandbox.stop().await.unwrap();
    assert_eq!(sandbox.status().await.unwrap(), SandboxStatus::Stopped);
    assert_eq!(sandbox.run("true").await.unwrap_err().kind(), ErrorKind::InvalidState);
    place.end().await;
}

async fn commands_end_as_results_with_both_streams(on: On) {
    let place = on.ready().await;
    let sandbox = place.start().await;
    let result = sandbox.run("echo out; echo err >&2; exit 7").await.unwrap();
    assert_eq!((&*result.stdout_text(), &*result.stderr_text(), result.return_code()), ("out\n", "err\n", 7));
    assert_eq!(result.error_type(), None, "an exit code is the program's own");
    let words = ["printf", "%s|", "a b", "$HOME", "it's", ""];
    assert_eq!(sandbox.exec(ExecRequest::argv(words)).await.unwrap().stdout_text(), "a b|$HOME|it's||");
    let request = ExecRequest::shell("printf %s \"$V\"; pwd").with_env("V", "x\ny").with_cwd("/");
    assert_eq!(sandbox.exec(request).await.unwrap().stdout_text(), "x\ny/\n");
    let input = ExecRequest::argv(["cat"]).with_stdin_bytes(vec![0xff; 100_000]);
    assert_eq!(sandbox.exec(input).await.unwrap().stdout, vec![0xff; 100_000], "raw bytes, both ways");
    let missing = sandbox.exec(ExecRequest::argv(["/no/such/program"])).await.unwrap();
    assert_eq!((missing.return_code(), missing.error_type()), (127, Some("sandbox")));
    sandbox.set_default_workdir(Some("/tmp")).unwrap();
    assert_eq!(sandbox.run("pwd").await.unwrap().stdout_text(), "/tmp\n");
    sandbox.stop().await.unwrap();
    place.end().await;
}

async fn a_limit_ends_a_command_and_keeps_what_it_wrote(on: On) {
    let place = on.ready().await;
    let sandbox = place.start().await;
    let request = ExecRequest::shell("echo early; sleep 300; echo late").with_timeout_s(2.0);
    let result = tokio::time::timeout(Duration::from_secs_f64(LONG), sandbox.exec(request)).await.unwrap().unwrap();
    assert_eq!((result.error_type(), &*result.stdout_text()), (Some("timeout"), "early\n"));
    assert_eq!(sandbox.run("echo after").await.unwrap().stdout_text(), "after\n");
    sandbox.stop().await.unwrap();
    place.end().await;
}

async fn a_stream_takes_input_and_is_killed(on: On) {
    let place = on.ready().await;
    let sandbox = place.start().await;
    let request = ExecRequest::shell("while read -r line; do echo \"got $line\"; done; echo end");
    let opened = sandbox.exec_stream(request.with_stdin(StdinSource::Stream)).await;
    if let FieldSupport::Refused(_) = sandbox.info().support(Field::ExecStdinStream) {
        let error = opened.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("exec.stdin_stream")), "{error}");
    } else {
        let mut stream = opened.unwrap();
        let mut seen = Vec::new();
        stream.write("one\n").await.unwrap();
        while !seen.ends_with(b"got one\n") {
            match stream.next().await.unwrap() {
                Some(ExecEvent::Stdout(bytes)) => seen.extend_from_slice(&bytes),
                other => panic!("{other:?} after {seen:?}"),
            }
        }
        stream.write("two\n").await.unwrap();
        stream.close_input().await.unwrap();
        let rest = stream.collect(Default::default()).await.unwrap();
        assert_eq!((&*rest.stdout_text(), rest.outcome()), ("got two\nend\n", &ExecOutcome::Exited(0)));
    }
    let mut stream = sandbox.exec_stream(ExecRequest::shell("echo up; sleep 300")).await.unwrap();
    assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
    stream.kill().await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs_f64(LONG), stream.collect(Default::default())).await.unwrap();
    assert!(!end.unwrap().outcome().is_success());
    sandbox.stop().await.unwrap();
    place.end().await;
}

async fn files_and_folders_go_in_and_come_out(on: On) {
    let place = on.ready().await;
    let sandbox = place.start().await;
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    let (sent, back) = (folder.path().join("sent"), folder.path().join("deep/back"));
    std::fs::write(&sent, &bytes).unwrap();
    sandbox.upload(&sent, "/tmp/facade/in \u{e9}").await.unwrap();
    sandbox.download("/tmp/facade/in \u{e9}", &back).await.unwrap();
    assert!(std::fs::read(&back).unwrap() == bytes, "the bytes differ");
    let absent = folder.path().join("absent");
    let error = sandbox.download("/tmp/facade/no", &absent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(!absent.exists(), "half a file is left");
    sandbox.write_file("/tmp/facade/text", "text").await.unwrap();
    assert_eq!(sandbox.read_file("/tmp/facade/text").await.unwrap(), "text");
    let (tree, copy) = (folder.path().join("tree"), folder.path().join("copy"));
    std::fs::create_dir_all(tree.join("a/b")).unwrap();
    std::fs::write(tree.join("a/b/leaf"), "leaf").unwrap();
    let sent = sandbox.upload_dir(&tree, "/tmp/facade/tree").await;
    if has(&sandbox, Capability::Files) {
        sent.unwrap();
        sandbox.download_dir("/tmp/facade/tree", &copy).await.unwrap();
        assert_eq!(std::fs::read_to_string(copy.join("a/b/leaf")).unwrap(), "leaf");
    } else {
        refused(&place, Capability::Files, sent);
        refused(&place, Capability::Files, sandbox.download_dir("/tmp/facade", &copy).await);
        assert!(!copy.exists());
    }
    sandbox.run("rm -rf /tmp/facade").await.unwrap();
    sandbox.stop().await.unwrap();
    place.end().await;
}

async fn a_setup_that_fails_takes_the_sandbox_with_it(on: On) {
    let place = on.ready().await;
    let sandbox = new(&place);
    let mut handle = None;
    let failed = sandbox
        .start_with_setup(Some(place.spec()), async |sandbox: &AsyncSandbox| {
            handle = Some(sandbox.handle()?);
            assert_eq!(sandbox.run("echo ready").await?.stdout_text(), "ready\n");
            Err::<(), _>(SandboxError::invalid_input("setup", "this one fails"))
        })
        .await;
    assert_eq!(failed.unwrap_err().field(), Some("setup"));
    let gone = place.provider.status(&handle.unwrap()).await;
    assert!(matches!(&gone, Ok(SandboxStatus::Stopped)) || gone.is_err(), "{gone:?}");
    // One that is refused before anything is made leaves nothing either.
    let refused = place.spec().with_workdir("not/absolute");
    assert_eq!(new(&place).start(Some(refused)).await.unwrap_err().kind(), ErrorKind::InvalidInput);
    place.end().await;
}

async fn many_sandboxes_at_once_do_not_meet(on: On) {
    let place = on.ready().await;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..6 {
        let (sandbox, spec) = (new(&place), place.spec().with_env("N", number.to_string()));
        running.spawn(async move {
            sandbox.start(Some(spec)).await.unwrap();
            sandbox.run("echo $N > mine").await.unwrap();
            for _ in 0..3 {
                assert_eq!(sandbox.run("cat mine").await.unwrap().stdout_text(), format!("{number}\n"));
            }
            sandbox.stop().await.unwrap();
        });
    }
    running.join_all().await;
    place.end().await;
}

async fn what_is_dropped_is_removed_in_the_background(on: On) {
    let place = on.ready().await;
    let sandbox = place.start().await;
    let handle = sandbox.handle().unwrap();
    drop(sandbox);
    let report = flush_cleanup(Duration::from_secs_f64(LONG)).await;
    assert!(report.is_clean(), "{report:?}");
    let gone = place.provider.status(&handle).await;
    assert!(matches!(&gone, Ok(SandboxStatus::Stopped)) || gone.is_err(), "{gone:?}");
    place.end().await;
}
