//! A session that goes from one process to another one and back.

use std::process::{Command, Stdio};

use sandbox_api::{ErrorKind, ExecOutcome, SandboxPtySession, SandboxPtySpec};

use crate::{
    built::examples,
    on::{On, Place, on_each, plugins},
    support::{PATIENCE, rest, text, until},
};

on_each! {
    d06_another_process_takes_a_session_over_from_an_offset_and_the_first_one_takes_it_back,
    d06_output_of_a_detached_session_that_is_no_longer_kept_is_a_gap_in_another_process,
}

/// Runs the example `reattach` as the second process: it takes the session over from an offset, writes a line, and
/// prints everything to the end.
async fn second(place: &Place, descriptor: String, session: &SandboxPtySession, since: u64) -> Vec<u8> {
    let mut command = Command::new(examples().join("reattach"));
    command.args([descriptor, session.session_id().to_owned(), since.to_string()]);
    command.env("SANDBOX_EXAMPLE_CONFIG", place.config().to_string());
    command.env("SANDBOX_PROVIDER_DIR", plugins()).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

async fn d06_another_process_takes_a_session_over_from_an_offset_and_the_first_one_takes_it_back(on: On) {
    let place = on.place();
    let sandbox = place.start_with(place.spec().with_ttl_s(300.0)).await;
    let command = "stty -echo; echo 0123456789; read -r line; echo got $line; exit 6";
    let spec = SandboxPtySpec { command: Some(command.into()), ..SandboxPtySpec::default() };
    let session = sandbox.pty().create(spec).await.unwrap();
    until(&session, "9\r\n").await;
    let descriptor = sandbox.serialize(None).await.unwrap().to_string();
    // This process holds it: the second one evicts it, sees what it asked for, and its input arrives.
    let said = second(&place, descriptor.clone(), &session, 4).await;
    assert_eq!(text(&said), "456789\r\ngot from the second\r\n");
    let error = session.read(PATIENCE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Pty);
    assert!(error.to_string().contains("replaced"), "{error}");
    // Taken back, it goes on at the byte where it stopped here.
    session.reattach().await.unwrap();
    let (output, gap) = rest(&session).await;
    assert_eq!((text(&output), gap), ("got from the second\r\n".to_owned(), 0));
    assert_eq!(session.wait_exit(PATIENCE).await.unwrap().outcome, ExecOutcome::Exited(6));
    // The sandbox is this process's still.
    assert_eq!(sandbox.run("echo here").await.unwrap().stdout_text(), "here\n");
    sandbox.stop().await.unwrap();
}

async fn d06_output_of_a_detached_session_that_is_no_longer_kept_is_a_gap_in_another_process(on: On) {
    let place = on.place();
    let sandbox = place.start_with(place.spec().with_ttl_s(300.0)).await;
    const BYTES: usize = 3_000_000;
    let command = "stty raw -echo; head -c 3000000 /dev/zero | tr '\\0' x; echo > /tmp/flooded; read -r line; exit 0";
    let spec = SandboxPtySpec { command: Some(command.into()), ..SandboxPtySpec::default() };
    let session = sandbox.pty().create(spec).await.unwrap();
    session.detach().await.unwrap();
    let flooded = sandbox.run("until test -e /tmp/flooded; do sleep 0.05; done").await.unwrap();
    assert_eq!(*flooded.outcome(), ExecOutcome::Exited(0));
    let descriptor = sandbox.serialize(None).await.unwrap().to_string();
    let said = text(&second(&place, descriptor, &session, 0).await);
    let gap = said.split_once("bytes are missing]").and_then(|(before, _)| before.rsplit_once('[')).expect("a mark");
    let gap: usize = gap.1.trim().parse().unwrap();
    let kept = said.matches('x').count();
    assert!(gap > 0 && kept >= 500_000, "{gap} missing, {kept} kept");
    assert_eq!(gap + kept, BYTES);
    sandbox.stop().await.unwrap();
}
