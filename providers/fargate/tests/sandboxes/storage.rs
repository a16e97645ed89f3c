//! File systems of EFS in tasks.

use fargate_double::BASE_IMAGE;
use sandbox_core::{ErrorKind, SandboxProvider, SandboxSpec, SharedStorage};
use serde_json::{Value, json};

use crate::support::Service;

fn spec(more: Value) -> SandboxSpec {
    let mut spec = json!({ "image": BASE_IMAGE });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    SandboxSpec::from_json(spec).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_named_volume_outlives_its_sandboxes_and_has_a_definition_of_its_own() {
    let more = json!({
        "task_role_arn": "arn:aws:iam::123456789012:role/task",
        "volumes": {"data": {"file_system_id": "fs-1", "access_point_id": "fsap-2", "iam": true}},
    });
    let service = Service::with(Default::default(), more).await;
    let mount = |read_only: bool| {
        spec(json!({"volumes": [{"source": {"named": "data"}, "target": "/data", "read_only": read_only}]}))
    };
    let writer = service.provider.create(mount(false)).await.unwrap();
    service.sh(&writer, "echo kept > /data/file").await;
    service.provider.close(&writer).await.unwrap();
    service.double.stopped(&service.arn(&writer)).await;
    let reader = service.provider.create(mount(true)).await.unwrap();
    assert_eq!(
        service.sh(&reader, "cat /data/file; echo x > /data/file 2>/dev/null || echo refused").await,
        "kept\nrefused\n"
    );
    let plain = service.provider.create(spec(json!({}))).await.unwrap();
    assert_eq!(service.sh(&plain, "ls -d /data 2>/dev/null || echo none").await, "none\n");
    assert_eq!(service.double.calls("RegisterTaskDefinition"), 3, "to write, to read, and without");
    let registered = &service.double.requests("RegisterTaskDefinition")[0];
    let efs = &registered["volumes"][1]["efsVolumeConfiguration"];
    assert_eq!((&efs["transitEncryption"], &efs["authorizationConfig"]["iam"]), (&json!("ENABLED"), &json!("ENABLED")));
    service.provider.close(&plain).await.unwrap();
    service.double.stopped(&service.arn(&plain)).await;
    service.end(&reader).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_configured_is_refused_by_name_before_anything_is_asked() {
    let more = json!({"volumes": {"data": {"file_system_id": "fs-1", "iam": true}}, "shared_storage": null});
    let service = Service::with(Default::default(), more).await;
    assert!(service.provider.as_shared_storage().is_none(), "nothing is shared");
    let error = service.provider.shared_volume_options(None, "/x".into(), false).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Unsupported, Some("shared_storage")), "{error}");
    for (name, field) in [("other", "volumes[0].source"), ("data", "task_role_arn")] {
        let spec = spec(json!({"volumes": [{"source": {"named": name}, "target": "/data"}]}));
        let error = service.provider.create(spec).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some(field)), "{error}");
    }
    assert_eq!(service.double.operations(), Vec::<String>::new());
    service.double.stop().await;
}
