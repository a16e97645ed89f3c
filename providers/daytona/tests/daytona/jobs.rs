//! Commands that run on without a client, beside what the contract asks of them.

use sandbox_core::{
    CaptureLimits, ErrorKind, ExecOutcome, ExecRequest, JobOffsets, Jobs, PauseResume, SandboxHandle, SandboxProvider,
    StdinSource,
};
use sandbox_daytona_double::KEY;
use sandbox_provider_daytona::DaytonaProvider;
use serde_json::json;

use crate::support::{Service, labelled, provider};

fn request(id: &str, script: &str) -> ExecRequest {
    let mut request = ExecRequest::shell(script);
    id.clone_into(&mut request.exec_id);
    request
}

async fn ended(provider: &DaytonaProvider, sandbox: &SandboxHandle, id: &str) -> ExecOutcome {
    provider.wait_job(sandbox, id.to_owned(), Some(30.0)).await.unwrap().expect("it ends").outcome
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_found_by_another_process_and_keeps_its_output_for_everybody() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let first =
        service.provider.start_job(&sandbox, request("a.job..", "echo out; echo err >&2; exit 4")).await.unwrap();
    let other = provider(&service.double, KEY, json!({}));
    assert_eq!(ended(&other, &sandbox, "a.job..").await, ExecOutcome::Exited(4));
    for reader in [&service.provider, &other] {
        let stream = reader.attach_job(&sandbox, first.job_id.clone(), JobOffsets::default()).await.unwrap();
        let result = stream.collect(CaptureLimits::default()).await.unwrap();
        assert_eq!((result.stdout_text().as_ref(), &result.stderr[..]), ("out\n", &b"err\n"[..]));
    }
    // Other commands tidy up what was delivered of commands, never of jobs.
    assert_eq!(service.sh(&sandbox, "echo x").await, "x\n");
    let second = other.start_job(&sandbox, ExecRequest::shell("sleep 60")).await.unwrap();
    let listed = other.list_jobs(&sandbox).await.unwrap();
    let ids: Vec<_> = listed.iter().map(|job| (job.job_id.as_str(), job.pid.is_some(), job.stdout_bytes)).collect();
    assert_eq!(ids, [("a.job..", false, 4), (second.job_id.as_str(), true, 0)]);
    let mut with_input = request("in", "cat");
    with_input.stdin = StdinSource::Stream;
    let refused = other.start_job(&sandbox, with_input).await.unwrap_err();
    assert_eq!((refused.kind(), refused.field()), (ErrorKind::InvalidInput, Some("stdin")));
    service.provider.close(&sandbox).await.unwrap();
    assert_eq!(other.list_jobs(&sandbox).await.unwrap_err().kind(), ErrorKind::NotFound);
    service.double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_was_ended_with_its_sandbox_counts_as_killed() {
    let service = Service::new().await;
    let sandbox = service.provider.create(labelled("x-class", "container")).await.unwrap();
    service.provider.start_job(&sandbox, request("j", "echo on; sleep 60")).await.unwrap();
    service.provider.pause(&sandbox).await.unwrap();
    assert_eq!(service.provider.list_jobs(&sandbox).await.unwrap_err().kind(), ErrorKind::InvalidState);
    let sandbox = service.provider.resume(&sandbox).await.unwrap();
    assert_eq!(ended(&service.provider, &sandbox, "j").await, ExecOutcome::Signalled(9));
    let kept = service.provider.attach_job(&sandbox, "j".to_owned(), JobOffsets::default()).await.unwrap();
    assert_eq!(kept.collect(CaptureLimits::default()).await.unwrap().stdout_text(), "on\n");
    service.provider.close(&sandbox).await.unwrap();
    service.double.stop().await;
}
