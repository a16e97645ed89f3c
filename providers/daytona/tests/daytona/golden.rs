//! What this provider sends is what the official client sends: its requests were recorded once (`tests/doubles/daytona/golden`).
//! They prove the shape of requests, not of answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use sandbox_core::{
    Endpoint, ExecRequest, Files, ListFilter, ListSweep, PauseResume, Pty, Renew, SandboxProvider, SandboxPtySpec,
    SandboxResources, SandboxSpec, WriteOptions,
};
use serde_json::{Value, json};

use crate::support::Service;

/// A call without its values: method and path.
type Shape = (String, String);

#[derive(Default)]
struct Known {
    /// Keys of the body, and of the query, that the official client uses for a call.
    body: BTreeSet<String>,
    query: BTreeSet<String>,
    headers: BTreeSet<String>,
}

/// Parts of a path that are values: numbers, ids of terminals.
fn shape(method: &str, path: &str) -> Shape {
    let mut before = "";
    let mut parts = Vec::new();
    for part in path.split('/') {
        let is_value = part.starts_with("{sandboxId}") && before == "sandbox"
            || before == "sandbox" && !part.is_empty() && !part.starts_with("volumes")
            || part.bytes().all(|byte| byte.is_ascii_digit()) && !part.is_empty()
            || before == "pty" && part != "create-connect"
            || before == "by-name";
        parts.push(if is_value { "*" } else { part });
        before = part;
    }
    (method.to_owned(), parts.join("/"))
}

fn golden() -> BTreeMap<Shape, Known> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/doubles/daytona/golden");
    let mut known: BTreeMap<Shape, Known> = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).expect("the recordings are there") {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let recording: Value = serde_json::from_str(&text).expect("a recording is JSON");
        for request in recording["requests"].as_array().into_iter().flatten() {
            let text = |key: &str| request[key].as_str().unwrap_or_default();
            let one = known.entry(shape(text("method"), text("path"))).or_default();
            one.body.extend(request["json"].as_object().into_iter().flat_map(|body| body.keys().cloned()));
            let query = request["query"].as_array().cloned().unwrap_or_default();
            one.query.extend(query.iter().filter_map(|pair| Some(pair.get(0)?.as_str()?.to_owned())));
            let headers = request["headers"].as_object().into_iter().flat_map(|headers| headers.keys());
            one.headers.extend(headers.map(|name| name.to_ascii_lowercase()));
        }
    }
    assert!(known.len() > 15, "only {} calls were recorded", known.len());
    known
}

/// Calls of the service that its official client makes in other ways: from the service's published description.
const DESCRIBED: [(&str, &str); 4] = [
    ("GET", "/toolbox/{sandboxId}/system/metrics"),
    ("GET", "/api/volumes/by-name/*"),
    ("POST", "/toolbox/{sandboxId}/process/pty/*/resize"),
    ("DELETE", "/toolbox/{sandboxId}/process/pty/*"),
];

pub(crate) async fn do_everything(service: &Service) {
    let provider = &service.provider;
    let mut spec = SandboxSpec::image("python:3.12-slim").with_env("A", "1").with_ports([3000]).with_ttl_s(600.0);
    spec.user = Some("root".to_owned());
    spec.resources =
        SandboxResources { cpu: Some(2.0), memory_mib: Some(4096), disk_gib: Some(10), ..SandboxResources::default() };
    spec.provider_options = json!({
        "network_allow_list": ["10.0.0.0/8"], "auto_archive_interval": 60, "auto_delete_interval": 600,
        "volumes": [{"volume_id": "vol-1", "mount_path": "/mnt/v", "subpath": "a/b"}], "target": "us",
        "domain_allow_list": ["*.example.com"],
    })
    .as_object()
    .cloned()
    .unwrap();
    let sandbox = provider.create(spec).await.unwrap();
    let mut other = SandboxSpec::default();
    other.provider_options.insert("snapshot".to_owned(), "mine".into());
    let snapshot = provider.create(other).await.unwrap();
    provider.close(&snapshot).await.unwrap();
    service.run(&sandbox, ExecRequest::shell("true").with_timeout_s(20.0)).await;
    provider.write_file(&sandbox, "f".into(), "x".into(), WriteOptions::default()).await.unwrap();
    provider.read_file(&sandbox, "f".into(), Default::default()).await.unwrap();
    provider.endpoint(&sandbox, 3000).await.unwrap();
    provider.renew(&sandbox, 900.0).await.unwrap();
    provider.list(ListFilter::default()).await.unwrap();
    let pty = SandboxPtySpec { command: Some("echo x".into()), ..SandboxPtySpec::default() };
    let mut stream = provider.create_pty(&sandbox, pty).await.unwrap();
    while stream.next().await.unwrap().is_some() {}
    provider.pause(&sandbox).await.unwrap();
    provider.resume(&sandbox).await.unwrap();
    provider.close(&sandbox).await.unwrap();
}

#[tokio::test]
async fn every_request_has_the_shape_of_one_of_the_official_client() {
    let known = golden();
    let service = Service::new().await;
    do_everything(&service).await;
    let mut seen = BTreeSet::new();
    for request in service.double.requests() {
        let shape = shape(&request.method, &request.path);
        seen.insert(shape.clone());
        if DESCRIBED.contains(&(shape.0.as_str(), shape.1.as_str())) {
            continue;
        }
        let Some(known) = known.get(&shape) else { panic!("the official client never sends {shape:?}") };
        let body = request.json.as_ref().and_then(Value::as_object).into_iter().flat_map(|body| body.keys());
        for key in body {
            assert!(known.body.contains(key), "{shape:?} has the key {key}, which the official client does not send");
        }
        for (key, _) in &request.query {
            assert!(
                known.query.contains(key),
                "{shape:?} has the query {key}, which the official client does not send"
            );
        }
        for header in ["authorization", "x-daytona-source", "x-daytona-sdk-version"] {
            assert!(request.headers.contains_key(header), "{shape:?} lacks {header}");
            assert!(known.headers.contains(header), "the official client sends no {header} with {shape:?}");
        }
        // Only with a JWT.
        assert!(!request.headers.contains_key("x-daytona-organization-id"), "{shape:?}");
    }
    assert!(seen.len() >= 14, "only {} calls were made: {seen:?}", seen.len());
}
