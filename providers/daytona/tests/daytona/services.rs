//! Pausing, ports, terminals, times to live and the other way to run commands.

use std::time::Duration;

use sandbox_core::{
    AttachOptions, Endpoint, ErrorKind, ExecOutcome, ExecRequest, PauseResume, Pty, PtyAttach, PtyEvent, PtyStream,
    Renew, SandboxProvider, SandboxPtySpec, SandboxSpec, SandboxStatus,
};
use serde_json::json;

use crate::support::{LATE, Service, labelled};

#[tokio::test]
async fn where_nothing_can_be_frozen_a_pause_stops_and_a_resume_starts() {
    let service = Service::new().await;
    let sandbox = service.provider.create(labelled("x-class", "container")).await.unwrap();
    service.sh(&sandbox, "echo kept > kept").await;
    service.provider.pause(&sandbox).await.unwrap();
    assert_eq!(service.provider.status(&sandbox).await.unwrap(), SandboxStatus::Paused);
    let again = service.provider.pause(&sandbox).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::InvalidState);
    let resumed = service.provider.resume(&sandbox).await.unwrap();
    assert_eq!(service.provider.status(&resumed).await.unwrap(), SandboxStatus::Running);
    assert_eq!(service.sh(&resumed, "cat kept").await, "kept\n");
}

#[tokio::test]
async fn a_renewal_moves_the_services_clock_too() {
    let service = Service::new().await;
    let sandbox = service.provider.create(SandboxSpec::default().with_ttl_s(30.0)).await.unwrap();
    let created = service.requests("POST", "/sandbox").pop().unwrap().json.unwrap();
    assert_eq!(created["ttlMinutes"], 1);
    service.provider.renew(&sandbox, 600.0).await.unwrap();
    // From the creation on, in whole minutes: ten and the beginning of another one.
    assert_eq!(service.requests("POST", "/ttl/11").len(), 1);
}

#[tokio::test]
async fn an_endpoint_is_reached_with_its_headers_only() {
    let service = Service::new().await;
    // The double's sandboxes share one network: the port must be free.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let sandbox = service.provider.create(SandboxSpec::default().with_ports([port])).await.unwrap();
    let server = format!(
        "mkdir web; echo hello > web/page; cd web; python3 -m http.server --bind 127.0.0.1 {port} >/dev/null 2>&1 &"
    );
    service.sh(&sandbox, &server).await;
    let endpoint = service.provider.endpoint(&sandbox, port).await.unwrap();
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let ask = async |with_headers: bool| {
        let mut request = client.get(format!("{}page", endpoint.endpoint));
        for (name, value) in endpoint.headers.iter().filter(|_| with_headers) {
            request = request.header(name, value);
        }
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    };
    let end = std::time::Instant::now() + LATE;
    while ask(true).await != (200, "hello\n".to_owned()) {
        assert!(std::time::Instant::now() < end, "the server is not reached");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(ask(false).await.0, 307);
}

async fn until(stream: &mut PtyStream, text: &str) -> String {
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(text) {
        match tokio::time::timeout(LATE, stream.next()).await.expect("output comes").unwrap() {
            Some(PtyEvent::Output(bytes)) => seen.extend_from_slice(&bytes),
            Some(PtyEvent::Opened { .. }) => {}
            other => panic!("{other:?} instead of {text:?}"),
        }
    }
    String::from_utf8_lossy(&seen).into_owned()
}

#[tokio::test]
async fn a_session_that_was_left_is_attached_to_again() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let script = "echo ready; while read line; do echo \"got $line\"; [ \"$line\" = end ] && exit 4; done";
    let spec = SandboxPtySpec { command: Some(script.into()), ..SandboxPtySpec::default() };
    let mut stream = service.provider.create_pty(&sandbox, spec).await.unwrap();
    let Some(PtyEvent::Opened { session_id }) = stream.next().await.unwrap() else { panic!("it opens first") };
    until(&mut stream, "ready").await;
    stream.detach().await.unwrap();

    let missing = service.provider.attach_pty(&sandbox, "no-such".to_owned(), AttachOptions::default()).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    let replay = AttachOptions { since: Some(0), ..AttachOptions::default() };
    let replayed = service.provider.attach_pty(&sandbox, session_id.clone(), replay).await;
    assert_eq!(replayed.unwrap_err().field(), Some("since"));

    let mut stream = service.provider.attach_pty(&sandbox, session_id, AttachOptions::default()).await.unwrap();
    stream.write("again\n").await.unwrap();
    until(&mut stream, "got again").await;
    stream.write("end\n").await.unwrap();
    let exit = loop {
        if let Some(PtyEvent::Exit(exit)) = tokio::time::timeout(LATE, stream.next()).await.unwrap().unwrap() {
            break exit;
        }
    };
    assert_eq!(exit.outcome, ExecOutcome::Exited(4));
}

#[tokio::test]
async fn a_size_that_the_service_does_not_take_is_refused_by_name() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let spec = SandboxPtySpec { rows: 1001, ..SandboxPtySpec::default() };
    assert_eq!(service.provider.create_pty(&sandbox, spec).await.unwrap_err().field(), Some("rows"));
}

#[tokio::test]
async fn the_services_own_call_is_there_on_request_and_says_what_it_cannot() {
    let service = Service::with(json!({"operations": {"exec_mode": "direct"}})).await;
    let sandbox = service.sandbox().await;
    let result = service.run(&sandbox, ExecRequest::shell("echo $A; echo err >&2; exit 3").with_env("A", "a b")).await;
    assert_eq!((result.return_code(), result.stdout_text().as_ref()), (3, "a b\nerr\n"));
    let argv = service.run(&sandbox, ExecRequest::argv(["printf", "%s", "it's $HOME"])).await;
    assert_eq!(argv.stdout_text(), "it's $HOME");
    let late = service.run(&sandbox, ExecRequest::shell("sleep 60").with_timeout_s(0.4)).await;
    assert_eq!(*late.outcome(), ExecOutcome::TimedOut { idle: false });
    let input = ExecRequest::argv(["cat"]).with_stdin_bytes("x");
    assert_eq!(service.provider.exec(&sandbox, input).await.unwrap_err().kind(), ErrorKind::Unsupported);
    // A connection that broke is never made again for the caller: it may have run.
    service.fault("POST", "/process/execute", |fault| fault.drop_after = true);
    let lost = service.provider.exec(&sandbox, ExecRequest::shell("echo ran >> runs")).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert_eq!(service.sh(&sandbox, "cat runs").await, "ran\n");
}
