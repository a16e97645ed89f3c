//! Connections that break while commands run.

use std::time::Duration;

use bytes::Bytes;
use sandbox_core::{ErrorKind, ExecEvent, ExecOutcome, ExecRequest, SandboxProvider, StdinSource};
use tokio::time::timeout;

use crate::support::{LATE, Service};

/// Cuts the connection and waits until it was cut.
async fn cut(service: &Service, arn: &str) {
    let before = service.double.was_cut(arn);
    let cutting = async {
        while service.double.cut(arn) == 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LATE, cutting).await.expect("there is a connection to cut");
    assert!(service.double.was_cut(arn) > before, "nothing was cut");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f04_a_command_goes_on_over_broken_connections_and_runs_once() {
    let service = Service::new().await;
    let handle = service.sandbox().await;
    let arn = service.arn(&handle);
    let script = "echo begin >> /tmp/runs; for i in 1 2 3 4 5 6; do echo out$i; echo err$i >&2; sleep 1; done; exit 7";
    let mut stream = service.provider.exec(&handle, ExecRequest::shell(script)).await.unwrap();
    let (mut stdout, mut stderr, mut exit) = (Vec::new(), Vec::new(), None);
    let mut cuts = 0;
    let reading = async {
        while let Some(event) = stream.next().await.expect("it is not lost") {
            match event {
                ExecEvent::Stdout(bytes) => stdout.extend_from_slice(&bytes),
                ExecEvent::Stderr(bytes) => stderr.extend_from_slice(&bytes),
                ExecEvent::Exit(found) => exit = Some(found),
                other => panic!("{other:?}"),
            }
            if cuts < 3 && stdout.ends_with(b"\n") {
                cuts += 1;
                cut(&service, &arn).await;
            }
        }
    };
    timeout(LATE, reading).await.expect("it ends in time");
    assert_eq!(exit.unwrap().outcome, ExecOutcome::Exited(7));
    let lines = |name: &str| (1..=6).map(|number| format!("{name}{number}\n")).collect::<String>();
    assert_eq!(String::from_utf8(stdout).unwrap(), lines("out"));
    assert_eq!(String::from_utf8(stderr).unwrap(), lines("err"));
    assert_eq!(service.sh(&handle, "cat /tmp/runs").await, "begin\n", "it ran once");
    service.end(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn input_over_broken_connections_is_taken_once_and_in_order() {
    let service = Service::new().await;
    let handle = service.sandbox().await;
    let arn = service.arn(&handle);
    let request = ExecRequest::argv(["cat"]).with_stdin(StdinSource::Stream);
    let mut stream = service.provider.exec(&handle, request).await.unwrap();
    let control = stream.control();
    let expected: Vec<u8> =
        (0..40u32).flat_map(|part| (0..50_000u32).map(move |at| ((at * 7 + part) % 251) as u8)).collect();
    let parts: Vec<Bytes> = expected.chunks(50_000).map(Bytes::copy_from_slice).collect();
    let writing = async {
        for (number, part) in parts.into_iter().enumerate() {
            control.write(part).await?;
            if number % 10 == 5 {
                cut(&service, &arn).await;
            }
        }
        control.control(sandbox_core::ControlRequest::CloseInput).await
    };
    let reading = async {
        let mut found = Vec::new();
        while let Some(event) = stream.next().await.expect("it is not lost") {
            match event {
                ExecEvent::Stdout(bytes) => found.extend_from_slice(&bytes),
                ExecEvent::Exit(exit) => assert_eq!(exit.outcome, ExecOutcome::Exited(0)),
                other => panic!("{other:?}"),
            }
        }
        found
    };
    let (written, found) = timeout(LATE, async { tokio::join!(writing, reading) }).await.expect("it ends in time");
    written.expect("input is taken");
    assert!(found == expected, "{} bytes instead of {}", found.len(), expected.len());
    service.end(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_commands_at_once_share_one_connection() {
    let service = Service::new().await;
    let handle = service.sandbox().await;
    let arn = service.arn(&handle);
    let one = async |number: usize| {
        let request = ExecRequest::shell(format!("sleep 1; head -c 100000 /dev/zero | tr '\\0' x; echo {number}"));
        let result = service.run(&handle, request).await;
        assert!(result.stdout_text().ends_with(&format!("x{number}\n")), "{number}");
        assert_eq!(result.stdout.len(), 100_000 + number.to_string().len() + 1);
    };
    let all = futures_util::future::join_all((0..32).map(one));
    let (_, open) = tokio::join!(all, async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        service.double.connections(&arn)
    });
    assert_eq!(open, 1, "connections");
    service.end(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_task_is_stopped_is_lost_with_the_reason_and_later_ones_are_not_found() {
    let service = Service::new().await;
    let handle = service.sandbox().await;
    let arn = service.arn(&handle);
    let mut stream = service.provider.exec(&handle, ExecRequest::shell("echo up; sleep 300")).await.unwrap();
    assert!(matches!(stream.next().await.unwrap(), Some(ExecEvent::Stdout(_))));
    service.double.stop_task(&arn, "SpotInterruption", "Your Spot Task was interrupted.");
    let error = timeout(LATE, stream.next()).await.expect("it is told in time").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(error.to_string().contains("spot capacity"), "{error}");
    let error = timeout(LATE, service.provider.exec(&handle, ExecRequest::shell("true"))).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(service.double.happened("task stopped") > 0);
    service.end(&handle).await;
}
