//! Images that fetch the agent by themselves.

use fargate_double::{BARE_IMAGE, BASE_IMAGE, EMPTY_IMAGE, Fault};
use sandbox_core::{ErrorKind, SandboxProvider, SandboxSpec};
use serde_json::{Value, json};

use crate::support::Service;

fn settings() -> Value {
    json!({ "transport": "direct", "s3_bucket": "sandbox-staging", "sidecar": {} })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_with_a_program_for_it_fetches_the_agent_which_is_put_there_once() {
    let service = Service::with(Default::default(), settings()).await;
    let spec = || {
        let spec = json!({"image": BASE_IMAGE, "workdir": "/somewhere", "env": {"GREETING": "hello there"}});
        SandboxSpec::from_json(spec).unwrap()
    };
    let handle = service.provider.create(spec()).await.expect("it is made");
    let said = service.sh(&handle, "echo $GREETING; pwd; env | grep -c SANDBOX_AGENT; ls /.sandbox").await;
    assert_eq!(said, "hello there\n/somewhere\n0\nagent\n", "and nothing tells the code where it came from");
    let other = service.provider(settings());
    let again = other.create(spec()).await.expect("another process makes one, too");
    other.close(&again).await.unwrap();
    service.double.stopped(&service.arn(&again)).await;
    let counts = ["PutObject", "HeadObject", "GetObject"].map(|name| service.double.calls(name));
    assert_eq!(counts, [1, 2, 2], "one copy, looked for by each process, and fetched by each task");
    assert_eq!(service.double.calls("RegisterTaskDefinition"), 1);
    service.end(&handle).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_cannot_is_told_with_what_helps_and_one_that_does_not_get_it_tries_again() {
    let service = Service::with(Default::default(), settings()).await;
    for (image, part) in [(BARE_IMAGE, "neither curl nor wget"), (EMPTY_IMAGE, "needs a shell")] {
        let error = service.provider.create(SandboxSpec::image(image)).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::CreateVerification, Some("image")), "{error}");
        assert!(error.to_string().contains(part), "{error}");
        assert!(error.help().unwrap().contains("sidecar.image"), "{error:?}");
    }
    assert_eq!(service.double.calls("RunTask"), 2, "each was tried once");
    service.double.fault(Fault::refused("GetObject", 503, "SlowDown", "slow"));
    let handle = service.sandbox().await;
    assert_eq!((service.double.happened("refused"), service.double.calls("RunTask")), (1, 4));
    assert_eq!(service.sh(&handle, "echo hi").await, "hi\n");
    service.end(&handle).await;
    let error = sandbox_provider_fargate::FargateProvider::new(
        sandbox_core::from_json(json!({"region": "r", "sidecar": {"agent_file": "relative"}}), "settings").unwrap(),
    );
    assert_eq!(error.err().unwrap().field(), Some("sidecar.agent_file"));
}
