//! The double and the provider against the description that the service publishes: Prism passes requests on from one to the
//! other, checks what goes by, and puts an error in the place of what does not agree.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex},
};

use reqwest::Method;
use sandbox_core::{
    Connect, ErrorKind, ListFilter, ListSweep, NetworkMode, PauseResume, SandboxProvider, SandboxSpec, VolumeMount,
    VolumeSource,
};
use sandbox_daytona_double::{Double, KEY};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    sync::mpsc,
};

use crate::{
    description::{CONTROL_PLANE, Description},
    golden::do_everything,
    support::{LATE, Service, labelled, provider},
};

/// Names the program; `cargo xtask test` installs it and sets this.
const PRISM: &str = "SANDBOX_TEST_PRISM";

/// What Prism says of an answer whose status is not described; no refusal's is.
const UNDESCRIBED: &str = "Unable to match the returned status code";

/// Prism, between its clients and a double.
struct Prism {
    _program: Child,
    log: mpsc::UnboundedReceiver<String>,
    direct: String,
    /// Where clients go.
    url: String,
    /// All that clients were answered.
    answered: Arc<Mutex<Vec<u8>>>,
}

impl Prism {
    async fn before(double: &Double) -> Self {
        let program = std::env::var_os(PRISM).map(PathBuf::from);
        let program = program.unwrap_or_else(|| panic!("{PRISM} is not set: run cargo xtask test"));
        let mut prism = Command::new(program);
        prism.args(["proxy", "--port", "0", "--errors", "--cors", "false", CONTROL_PLANE]);
        prism.arg(format!("{}/api", double.url())).env("NO_COLOR", "1");
        prism.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut program = prism.spawn().expect("Prism starts");
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let (sender, mut log) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let _ = sender.send(line);
            }
        });
        let listens = async {
            loop {
                let line = log.recv().await.expect("Prism says where it listens");
                if let Some((_, url)) = line.split_once("Prism is listening on ") {
                    return url.trim().to_owned();
                }
            }
        };
        let direct = tokio::time::timeout(LATE, listens).await.expect("Prism listens");
        let (url, answered) = tap(&direct).await;
        Self { _program: program, log, direct, url, answered }
    }

    /// What it has reported since this was asked last, and what it has told clients of it.
    async fn reports(&mut self) -> Vec<String> {
        // Its log is in order: what it says of this request comes after all the rest.
        let last = "/the-last-request";
        let refused = reqwest::get(format!("{}{last}", self.direct)).await.unwrap();
        assert_eq!(refused.status().as_u16(), 404);
        let mut reports = Vec::new();
        loop {
            let line = tokio::time::timeout(LATE, self.log.recv()).await.expect("Prism reports").expect("it lives");
            let is_report =
                line.contains("terminated with error") || line.contains("Violation") && !line.contains(UNDESCRIBED);
            if is_report && line.contains(last) {
                break;
            }
            if is_report {
                reports.push(line);
            }
        }
        let answered = std::mem::take(&mut *self.answered.lock().unwrap());
        let answered = String::from_utf8_lossy(&answered);
        reports.extend(answered.lines().filter(|line| line.contains("/prism/errors#")).map(str::to_owned));
        reports
    }
}

/// The status of the answer to a request.
async fn ask(url: &str, method: Method, path: &str, body: Option<Value>) -> u16 {
    let request = reqwest::Client::new().request(method, format!("{url}{path}")).bearer_auth(KEY);
    let request = body.into_iter().fold(request, |request, body| request.json(&body));
    request.send().await.unwrap().status().as_u16()
}

/// Asks again as long as it is refused so: the sandbox is on its way.
async fn until_taken(url: &str, method: Method, path: &str, refusal: u16) {
    let mut answer = refusal;
    while answer == refusal {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        answer = ask(url, method.clone(), path, None).await;
    }
    assert_eq!(answer, 200, "{path}");
}

/// Passes bytes on and keeps those of the way back: Prism's log has no reasons, its answers do.
async fn tap(upstream: &str) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let upstream = upstream.trim_start_matches("http://").to_owned();
    let answered = Arc::new(Mutex::new(Vec::new()));
    let kept = answered.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (upstream, kept) = (upstream.clone(), kept.clone());
            tokio::spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_prism, mut to_prism) = TcpStream::connect(upstream).await?.into_split();
                let there = async {
                    tokio::io::copy(&mut from_client, &mut to_prism).await?;
                    to_prism.shutdown().await
                };
                let back = async {
                    let mut bytes = vec![0; 64 << 10];
                    loop {
                        let count = from_prism.read(&mut bytes).await?;
                        if count == 0 {
                            return to_client.shutdown().await;
                        }
                        kept.lock().unwrap().extend_from_slice(&bytes[..count]);
                        to_client.write_all(&bytes[..count]).await?;
                    }
                };
                tokio::try_join!(there, back).map(drop)
            });
        }
    });
    (url, answered)
}

/// What is described and was done: a refusal proves nothing, because none is described.
fn done(double: &Double) -> BTreeSet<(String, String)> {
    let (description, mut done) = (Description::control_plane(), BTreeSet::new());
    for request in double.requests() {
        let is_success = request.status.is_some_and(|status| (200..300).contains(&status));
        let Some(path) = request.path.strip_prefix("/api").filter(|_| is_success) else { continue };
        done.extend(description.operation(&request.method, path));
    }
    done
}

/// What the provider does beside what is recorded of the official client: where a sandbox cannot be frozen, where the
/// toolbox's address is missing, with everything that a sandbox can be made with, and where the service refuses.
async fn do_the_rest(service: &Service, url: &str) {
    let stop = service.provider.create(labelled("x-class", "container")).await.unwrap();
    service.provider.pause(&stop).await.unwrap();
    service.provider.resume(&stop).await.unwrap();
    let descriptor = service.provider.serialize_handle(&stop, None).await.unwrap();
    service.provider.connect(descriptor).await.unwrap();
    service.provider.create(labelled("x-no-proxy-url", "1")).await.unwrap();

    let mut spec = SandboxSpec::image("debian:12").with_metadata("team", "blue");
    spec.network = Some(NetworkMode::None);
    spec.resources.gpu = Some(1);
    spec.resources.gpu_type = Some("H100,H200".to_owned());
    spec.volumes = vec![VolumeMount {
        source: VolumeSource::Named("data".to_owned()),
        target: "/mnt/data".to_owned(),
        read_only: false,
    }];
    let full = service.provider.create(spec).await.unwrap();
    assert_eq!(service.provider.list(ListFilter::default()).await.unwrap().len(), 3);
    assert_eq!(service.provider.sweep(ListFilter::default(), true).await.unwrap().removed.len(), 0);

    // What only other clients of the double ask for.
    let path = format!("/sandbox/{}", full.sandbox_id);
    for (method, what, body) in [
        (Method::POST, "autostop/30", None),
        (Method::POST, "autopause/0", None),
        (Method::POST, "autoarchive/60", None),
        (Method::POST, "autodelete/-1", None),
        (Method::POST, "public/true", None),
        (Method::POST, "network-settings", Some(json!({"networkAllowList": "10.0.0.0/8"}))),
        (Method::GET, "ports/3000/signed-preview-url?expiresInSeconds=60", None),
        (Method::POST, "ports/3000/signed-preview-url/token/expire", None),
        (Method::GET, "build-logs-url", None),
        (Method::GET, "build-logs?follow=true", None),
        (Method::POST, "ssh-access?expiresInMinutes=30", None),
        (Method::DELETE, "ssh-access", None),
        (Method::GET, "signing-key", None),
        (Method::POST, "signing-key/rotate", None),
        (Method::POST, "resize", Some(json!({"cpu": 2, "memory": 2}))),
    ] {
        assert_eq!(ask(url, method, &format!("{path}/{what}"), body).await, 200, "{what}");
    }
    assert_eq!(ask(url, Method::GET, "/config", None).await, 200);
    assert_eq!(ask(url, Method::GET, "/sandbox/ssh-access/validate?token=none", None).await, 200);
    let broken = json!({"name": "broken", "labels": {"x-fail": "error", "x-recoverable": "1"}});
    assert_eq!(ask(url, Method::POST, "/sandbox", Some(broken)).await, 200);
    until_taken(url, Method::POST, "/sandbox/broken/recover", 400).await;
    until_taken(url, Method::DELETE, "/sandbox/broken", 409).await;
    assert_eq!(ask(url, Method::POST, &format!("{path}/last-activity"), None).await, 201);
    assert_eq!(ask(url, Method::POST, &format!("/sandbox/{}/stop?force=false", stop.sandbox_id), None).await, 200);
    until_taken(url, Method::POST, &format!("/sandbox/{}/archive", stop.sandbox_id), 409).await;

    let failed = service.provider.create(labelled("x-fail", "build_failed")).await.unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Create);
    let stranger = provider(&service.double, "wrong", json!({"connection": {"api_url": url}}));
    let refused = stranger.create(SandboxSpec::default()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unauthorized);
    for record in service.provider.list(ListFilter::default()).await.unwrap() {
        service.provider.close(&record.handle).await.unwrap();
    }
    assert_eq!(service.provider.pause(&full).await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_double_and_the_provider_speak_as_the_service_describes_it() {
    let double = Double::start().await.unwrap();
    let mut prism = Prism::before(&double).await;
    let provider = provider(&double, KEY, json!({"connection": {"api_url": prism.url}}));
    let service = Arc::new(Service { double, provider });
    let (used, url) = (service.clone(), prism.url.clone());
    let through = tokio::spawn(async move {
        do_everything(&used).await;
        do_the_rest(&used, &url).await;
    });
    let ended = tokio::time::timeout(LATE * 2, through).await;
    // First what Prism says: it is the reason where a call has failed.
    assert_eq!(prism.reports().await, Vec::<String>::new());
    ended.expect("it ends").unwrap();
    assert_eq!(
        done(&service.double),
        Description::control_plane().operations(),
        "everything that is described was done"
    );
    service.expect_empty().await;
    Arc::into_inner(service).expect("nobody uses it").double.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_and_a_request_that_break_the_description_are_reported() {
    let service = Service::new().await;
    let sandbox = service.sandbox().await;
    let mut prism = Prism::before(&service.double).await;
    let path = format!("/sandbox/{}", sandbox.sandbox_id);
    assert_eq!(ask(&prism.url, Method::GET, &path, None).await, 200);
    assert_eq!(prism.reports().await, Vec::<String>::new(), "a good answer is none");

    for (body, reason) in [(r#"{"url":7}"#, "property url must be string"), ("{}", "required property 'url'")] {
        service.fault("GET", "/toolbox-proxy-url", |fault| {
            fault.status = Some(200);
            fault.body = body.to_owned();
            fault.headers.insert("content-type".to_owned(), "application/json".to_owned());
        });
        assert_eq!(ask(&prism.url, Method::GET, &format!("{path}/toolbox-proxy-url"), None).await, 500);
        let reports = prism.reports().await;
        assert!(reports[0].contains("errors#VIOLATIONS") && reports[1].contains(reason), "{reports:?}");
    }
    for (method, path, body, reason) in [
        (Method::POST, "/sandbox", Some(json!({"cpu": 1.5})), "property cpu must be integer"),
        (Method::GET, "/sandboxes", None, "NO_PATH_MATCHED"),
        (Method::PATCH, "/sandbox", None, "NO_METHOD_MATCHED"),
    ] {
        assert!(ask(&prism.url, method, path, body).await >= 400);
        let reports = prism.reports().await;
        assert!(reports.len() == 2 && reports[1].contains(reason), "{reports:?}");
    }
    service.provider.close(&sandbox).await.unwrap();
    service.double.stop().await;
}
