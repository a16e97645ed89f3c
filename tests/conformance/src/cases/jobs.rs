//! Commands that run on without a client.

use std::time::Duration;

use sandbox_core::{CaptureLimits, ErrorKind, ExecOutcome, ExecRequest, JobInfo, JobOffsets, Jobs, SandboxExecResult};

use super::cases;
use crate::{
    check::{Check, Stop, ensure_refused},
    context::Context,
    host::within,
    sandbox::{RUN_WITHIN, TestSandbox},
};

cases! { "jobs":
    job_runs_on_and_keeps_its_output, "decisions: CLI, contract: Capabilities, jobs", capability Jobs;
    job_output_goes_on_from_an_offset, "contract: Capabilities, jobs", capability Jobs;
    known_id_starts_no_second_job, "contract: Capabilities, jobs", capability Jobs;
    leaving_a_job_does_not_end_it, "contract: Capabilities, jobs", capability Jobs;
    wait_for_a_job_has_a_limit, "contract: Capabilities, jobs", capability Jobs;
    killed_job_ends_with_its_tree, "contract: Capabilities, jobs", capability Jobs;
    tree_kill_of_a_job_that_is_over_ends_what_it_left, "contract: Capabilities, jobs", capability Jobs;
    job_that_cannot_start_says_so, "contract: Capabilities, jobs", capability Jobs;
    unknown_job_is_not_found, "contract: Capabilities, jobs", capability Jobs;
}

fn jobs(sandbox: &TestSandbox) -> Check<&dyn Jobs> {
    sandbox.provider().as_jobs().ok_or_else(|| Stop::failed("it is declared, but its accessor is empty"))
}

fn request(id: &str, script: &str) -> ExecRequest {
    let mut request = ExecRequest::shell(script);
    id.clone_into(&mut request.exec_id);
    request
}

async fn start(sandbox: &TestSandbox, id: &str, script: &str) -> Check<JobInfo> {
    let started =
        within(RUN_WITHIN, "the start of a job", jobs(sandbox)?.start_job(sandbox.handle(), request(id, script)));
    Ok(started.await??)
}

async fn wait(sandbox: &TestSandbox, id: &str) -> Check<ExecOutcome> {
    let wait = jobs(sandbox)?.wait_job(sandbox.handle(), id.to_owned(), Some(30.0));
    let exit = within(RUN_WITHIN, "the end of a job", wait).await??;
    Ok(exit.ok_or_else(|| Stop::failed("the job did not end in 30 s"))?.outcome)
}

async fn output(sandbox: &TestSandbox, id: &str, since: JobOffsets) -> Check<SandboxExecResult> {
    let stream = jobs(sandbox)?.attach_job(sandbox.handle(), id.to_owned(), since).await?;
    Ok(within(RUN_WITHIN, "the output of a job", stream.collect(CaptureLimits::default())).await??)
}

async fn job_runs_on_and_keeps_its_output(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "echo out; echo err >&2; while ! test -e go; do sleep 0.05; done; echo late; exit 7";
    let info = start(&sandbox, "j1", script).await?;
    ensure_eq!(info.job_id, "j1", "the id");
    ensure_eq!(info.exit, None, "the exit of a job that waits");
    sandbox.put("go", b"").await?;
    ensure_eq!(wait(&sandbox, "j1").await?, ExecOutcome::Exited(7), "the end");
    let result = output(&sandbox, "j1", JobOffsets::default()).await?;
    ensure_eq!(result.stdout_text(), "out\nlate\n", "stdout");
    ensure_eq!(String::from_utf8_lossy(&result.stderr), "err\n", "stderr");
    ensure_eq!(result.exit.outcome, ExecOutcome::Exited(7), "the end in the stream");
    let list = jobs(&sandbox)?.list_jobs(sandbox.handle()).await?;
    let listed = list.iter().find(|job| job.job_id == "j1").ok_or_else(|| Stop::failed("the job is not listed"))?;
    ensure_eq!((listed.stdout_bytes, listed.stderr_bytes), (9, 4), "the bytes in the list");
    Ok(())
}

async fn job_output_goes_on_from_an_offset(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    start(&sandbox, "j1", "printf 0123456789; printf abcdef >&2").await?;
    wait(&sandbox, "j1").await?;
    let result = output(&sandbox, "j1", JobOffsets { stdout: 4, stderr: 6 }).await?;
    ensure_eq!(result.stdout_text(), "456789", "stdout from its fifth byte on");
    ensure_eq!(result.stderr.len(), 0, "bytes of stderr behind its end");
    Ok(())
}

async fn known_id_starts_no_second_job(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    for _ in 0..3 {
        start(&sandbox, "same", "echo x >> runs").await?;
    }
    wait(&sandbox, "same").await?;
    start(&sandbox, "same", "echo x >> runs").await?;
    ensure_eq!(sandbox.text("cat runs").await?, "x", "how often the job ran");
    Ok(())
}

async fn leaving_a_job_does_not_end_it(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    start(&sandbox, "j1", "echo on; while ! test -e go; do sleep 0.05; done; echo done > ended").await?;
    let mut stream = jobs(&sandbox)?.attach_job(sandbox.handle(), "j1".to_owned(), JobOffsets::default()).await?;
    within(RUN_WITHIN, "the first output", stream.next()).await??;
    drop(stream);
    sandbox.put("go", b"").await?;
    ensure!(sandbox.eventually(Duration::from_secs(20), "test -e ended").await?, "the job ended with its reader");
    Ok(())
}

async fn wait_for_a_job_has_a_limit(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    start(&sandbox, "j1", "sleep 60").await?;
    let wait = jobs(&sandbox)?.wait_job(sandbox.handle(), "j1".to_owned(), Some(0.2));
    ensure_eq!(within(Duration::from_secs(15), "a short wait", wait).await??, None, "the exit of a job that runs");
    Ok(())
}

async fn killed_job_ends_with_its_tree(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "(while :; do echo tick >> ticks; sleep 0.05; done) & trap '' TERM; wait";
    start(&sandbox, "j1", script).await?;
    ensure!(sandbox.eventually(Duration::from_secs(20), "test -s ticks").await?, "the job does not run");
    jobs(&sandbox)?.signal_job(sandbox.handle(), "j1".to_owned(), 9, true).await?;
    ensure_eq!(wait(&sandbox, "j1").await?, ExecOutcome::Signalled(9), "the end");
    let still = "a=$(wc -c < ticks); sleep 0.4; test \"$a\" = \"$(wc -c < ticks)\"";
    ensure!(sandbox.eventually(Duration::from_secs(10), still).await?, "a child of the job goes on");
    jobs(&sandbox)?.signal_job(sandbox.handle(), "j1".to_owned(), 9, true).await?;
    Ok(())
}

async fn tree_kill_of_a_job_that_is_over_ends_what_it_left(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let script = "(trap '' TERM HUP; while :; do echo tick >> ticks; sleep 0.05; done) >/dev/null 2>&1 & \
                  until test -s ticks; do sleep 0.05; done; exit 3";
    start(&sandbox, "j1", script).await?;
    ensure_eq!(wait(&sandbox, "j1").await?, ExecOutcome::Exited(3), "the end");
    let grows = "a=$(wc -c < ticks); sleep 0.4; test \"$a\" != \"$(wc -c < ticks)\"";
    ensure!(sandbox.eventually(Duration::from_secs(10), grows).await?, "what the job left does not run");
    let kill = jobs(&sandbox)?.signal_job(sandbox.handle(), "j1".to_owned(), 9, true);
    within(Duration::from_secs(40), "the end of what a job left", kill).await??;
    // Gone at the answer, not some time later.
    let is_still =
        sandbox.text("a=$(wc -c < ticks); sleep 0.4; test \"$a\" = \"$(wc -c < ticks)\" && echo still").await?;
    ensure_eq!(is_still, "still", "what the job left");
    ensure_eq!(wait(&sandbox, "j1").await?, ExecOutcome::Exited(3), "the end afterwards");
    Ok(())
}

async fn job_that_cannot_start_says_so(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let mut request = ExecRequest::argv(["/nonexistent/program"]);
    "j1".clone_into(&mut request.exec_id);
    jobs(&sandbox)?.start_job(sandbox.handle(), request).await?;
    let outcome = wait(&sandbox, "j1").await?;
    ensure!(matches!(outcome, ExecOutcome::StartFailed { .. }), "the outcome is {outcome:?}");
    Ok(())
}

async fn unknown_job_is_not_found(cx: Context) -> Check {
    let sandbox = cx.sandbox().await?;
    let (jobs, handle) = (jobs(&sandbox)?, sandbox.handle());
    let id = || "no-such-job".to_owned();
    ensure_refused(jobs.wait_job(handle, id(), Some(0.1)).await, &[ErrorKind::NotFound], "a wait")?;
    ensure_refused(jobs.signal_job(handle, id(), 15, false).await, &[ErrorKind::NotFound], "a signal")?;
    ensure_refused(jobs.attach_job(handle, id(), JobOffsets::default()).await, &[ErrorKind::NotFound], "an attach")?;
    Ok(())
}
