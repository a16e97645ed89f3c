//! Images that are copied into the registry of AWS, or built there.

use std::time::Duration;

use fargate_double::{BASE_IMAGE, Fault, Options};
use sandbox_core::{BuildImage, BuildRequest, ErrorKind, SandboxProvider, SandboxSpec, from_json};
use sandbox_provider_fargate::needs;
use serde_json::{Value, json};

use crate::support::{LATE, Service};

/// With these settings, and no more rights than the policy for them says.
async fn service(more: Value) -> Service {
    let mut settings = json!({ "s3_bucket": "sandbox-staging", "ecr_repository": "sandbox-images" });
    settings["build"] = json!({ "project": "sandbox-build" });
    for (key, value) in more.as_object().unwrap() {
        settings[key] = value.clone();
    }
    let mut asked = settings.clone();
    asked["region"] = "us-east-1".into();
    let policy = needs(&from_json(asked, "settings").unwrap(), &[]).unwrap().orchestrator;
    Service::with(Options { policy, ..Options::default() }, settings).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_copied_once_for_all_who_want_it_and_pulled_from_there() {
    let service = service(json!({ "auto_mirror": true })).await;
    let spec = || SandboxSpec::image(BASE_IMAGE);
    let (one, two) = tokio::join!(service.provider.create(spec()), service.provider.create(spec()));
    let (one, two) = (one.expect("it is made"), two.expect("it is made"));
    assert_eq!(service.double.calls("StartBuild"), 1, "both wait for the same copy");
    let registered = &service.double.requests("RegisterTaskDefinition")[0];
    let containers = registered["containerDefinitions"].as_array().unwrap();
    let main = containers.iter().find(|container| container["name"] == "main").unwrap();
    let image = main["image"].as_str().unwrap();
    assert!(
        image.contains(".dkr.ecr.us-east-1.amazonaws.com/sandbox-images:mirror-sandbox-test-busybox-1-"),
        "{image}"
    );
    // Another process finds it.
    let other = service.provider(json!({
        "auto_mirror": true, "ecr_repository": "sandbox-images", "build": {"project": "sandbox-build"},
    }));
    let three = other.create(spec()).await.expect("it is made");
    assert_eq!(service.double.calls("StartBuild"), 1);
    assert_eq!(service.sh(&one, "echo hi").await, "hi\n");
    for handle in [&two, &three] {
        service.provider.close(handle).await.unwrap();
        service.double.stopped(&service.arn(handle)).await;
    }
    let error = service.provider.create(SandboxSpec::image("nobody/knows:1")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("image")), "{error}");
    assert!(error.to_string().contains("copying the image failed: BUILD (COMMAND_EXECUTION_ERROR"), "{error}");
    service.end(&one).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repository_or_project_that_is_none_is_told_with_what_to_do() {
    for (more, field, help) in [
        (json!({ "ecr_repository": "none" }), "ecr_repository", "aws ecr create-repository --repository-name none"),
        (json!({ "build": { "project": "none" } }), "build.project", ""),
    ] {
        let mut settings = json!({ "auto_mirror": true });
        for (key, value) in more.as_object().unwrap() {
            settings[key] = value.clone();
        }
        let service = service(settings).await;
        let error = service.provider.create(SandboxSpec::image(BASE_IMAGE)).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some(field)), "{error}");
        assert!(error.help().unwrap_or_default().contains(help), "{error:?}");
        assert_eq!(service.double.calls("RunTask"), 0);
        service.double.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_is_built_once_for_its_contents_and_nothing_of_it_stays_in_the_bucket() {
    let service = service(json!({})).await;
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    put("Dockerfile", &format!("FROM {BASE_IMAGE}\nCOPY file /built/file\n"));
    put("file", "one");
    let spec = || {
        let options = json!({ "environment_dir": folder.path() });
        SandboxSpec::from_json(json!({ "provider_options": options })).unwrap()
    };
    let create = async || service.provider.create(spec()).await.expect("it is made");
    let first = create().await;
    assert_eq!(service.sh(&first, "cat /built/file").await, "one");
    let second = create().await;
    assert_eq!(service.double.calls("StartBuild"), 1, "the same contents are the same image");
    put("file", "two");
    let third = create().await;
    assert_eq!(service.sh(&third, "cat /built/file").await, "two");
    assert_eq!(service.double.calls("StartBuild"), 2);
    assert_eq!(service.double.objects(), Vec::<String>::new());
    for handle in [&second, &third] {
        service.provider.close(handle).await.unwrap();
        service.double.stopped(&service.arn(handle)).await;
    }
    let mut both = spec();
    both.image = Some(BASE_IMAGE.into());
    assert_eq!(service.provider.create(both).await.unwrap_err().field(), Some("image"));
    service.end(&first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_that_fails_or_is_given_up_is_told_or_stopped_and_leaves_no_object() {
    let service = service(json!({})).await;
    let folder = tempfile::tempdir().unwrap();
    let request = |text: String| BuildRequest {
        context: folder.path().to_string_lossy().into_owned(),
        dockerfile_inline: Some(text),
        ..BuildRequest::default()
    };
    service.double.fault(Fault::refused("BatchGetBuilds", 500, "InternalFailure", "later"));
    let mut session = service.provider.build_image(request(format!("FROM {BASE_IMAGE}\nCOPY none /\n"))).await.unwrap();
    let mut log = Vec::new();
    let error = loop {
        match tokio::time::timeout(LATE, session.next()).await.expect("in time") {
            Ok(Some(sandbox_core::BuildEvent::Log(bytes))) => log.extend_from_slice(&bytes),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Create, "{error}");
    assert!(error.to_string().contains("step 2/2 (COPY)"), "{error}");
    assert!(String::from_utf8_lossy(&log).contains("[1/2] FROM"), "what it says is handed on");
    assert_eq!((service.double.happened("refused"), service.double.objects().len()), (1, 0));
    // Nobody waits.
    let session = service.provider.build_image(request(format!("FROM {BASE_IMAGE}\n"))).await.unwrap();
    let end = std::time::Instant::now() + LATE;
    while service.double.answers("StartBuild", 200) < 2 {
        assert!(std::time::Instant::now() < end, "it does not start");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(session);
    while service.double.calls("StopBuild") == 0 || !service.double.objects().is_empty() {
        assert!(std::time::Instant::now() < end, "left: {:?}", service.double.objects());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    service.double.stop().await;
}
