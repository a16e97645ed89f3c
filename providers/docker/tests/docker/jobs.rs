//! Jobs outlive the program that started them.

use sandbox_core::{
    CaptureLimits, Connect, ErrorKind, ExecOutcome, ExecRequest, JobOffsets, Jobs, SandboxProvider, serde_json::json,
};

use crate::support::{docker, spec};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_on_without_its_client_and_another_one_reads_it_by_both_ways() {
    for transport in ["socket", "relay"] {
        let docker = docker(json!({ "transport": transport }));
        let handle = docker.create(spec()).await;
        let mut request =
            ExecRequest::shell("echo one; while ! test -e /tmp/go; do sleep 0.05; done; echo two; exit 7");
        request.exec_id = "j1".to_owned();
        assert_eq!(docker.provider.start_job(&handle, request.clone()).await.unwrap().exit, None);
        let descriptor = docker.provider.serialize_handle(&handle, None).await.unwrap();
        docker.provider.aclose().await.unwrap();
        let other = docker.another();
        let handle = other.connect(descriptor).await.unwrap();
        assert_eq!(other.wait_job(&handle, "j1".to_owned(), Some(0.0)).await.unwrap(), None, "it waits");
        assert_eq!(other.start_job(&handle, request).await.unwrap().job_id, "j1", "it is not started again");
        crate::support::run(&other, &handle, ExecRequest::argv(["touch", "/tmp/go"])).await;
        let exit = other.wait_job(&handle, "j1".to_owned(), Some(60.0)).await.unwrap().expect("it has ended");
        assert_eq!(exit.outcome, ExecOutcome::Exited(7));
        let stream = other.attach_job(&handle, "j1".to_owned(), JobOffsets { stdout: 4, stderr: 0 }).await.unwrap();
        assert_eq!(stream.collect(CaptureLimits::default()).await.unwrap().stdout_text(), "two\n", "from an offset");
        assert_eq!(other.list_jobs(&handle).await.unwrap().len(), 1, "one start is one job");
        let unknown = other.wait_job(&handle, "j2".to_owned(), Some(1.0)).await.unwrap_err();
        assert_eq!(unknown.kind(), ErrorKind::NotFound, "{unknown:?}");
        other.close(&handle).await.unwrap();
        docker.ensure_no_folders();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_our_agent_there_are_no_jobs() {
    let docker = docker(json!({ "agent": "off" }));
    assert!(docker.provider.as_jobs().is_none());
}
