//! Pulls from a registry on this machine, with and without credentials, and what can be wrong with an image.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

use sandbox_core::{ErrorKind, ImageConfigs, SandboxProvider, SandboxSpec, serde_json::json};

use crate::{
    registry::{Registry, free_address, push},
    support::{by_hand, docker},
};

#[tokio::test(flavor = "multi_thread")]
async fn c08_images_are_pulled_when_the_policy_says_so_and_missing_ones_are_not_found() {
    let registry = Registry::start(false);
    let folder = tempfile::tempdir().unwrap();
    let image = registry.image("tests/pulled:1");
    push(&image, folder.path());
    let never = docker(json!({ "pull": "never" }));
    let error = never.provider.create(SandboxSpec::image(&image)).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("image")), "{error:?}");
    assert!(error.help().unwrap().contains("never"), "{error:?}");
    let docker = docker(json!({}));
    let config = docker.provider.image_config(format!("docker://{image}")).await.unwrap();
    assert!(config.platform.starts_with("linux/"), "{config:?}");
    let handle = docker.create(SandboxSpec::image(&image)).await;
    docker.provider.close(&handle).await.unwrap();
    for missing in ["tests/pulled:2", "tests/other:1"] {
        let error = docker.provider.create(SandboxSpec::image(registry.image(missing))).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("image")), "{error:?}");
    }
    by_hand(["rmi", &image]);
}

#[tokio::test(flavor = "multi_thread")]
async fn c08_credentials_come_from_the_settings_and_wrong_ones_are_unauthorized() {
    let registry = Registry::start(true);
    let folder = tempfile::tempdir().unwrap();
    let host = registry.address.to_string();
    // base64 of user:secret-of-tests
    let config = json!({ "auths": { &host: { "auth": "dXNlcjpzZWNyZXQtb2YtdGVzdHM=" } } });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let image = registry.image("tests/private:1");
    push(&image, folder.path());
    let with = |username: &str, password: &str| {
        docker(json!({ "registry_auth": { &host: { "username": username, "password": password } } }))
    };
    for provider in [docker(json!({})), with("user", "wrong-canary")] {
        let error = provider.provider.create(SandboxSpec::image(&image)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
        assert!(error.help().is_some() && !format!("{error:?}").contains("canary"), "{error:?}");
    }
    let right = with("user", "secret-of-tests");
    let handle = right.create(SandboxSpec::image(&image)).await;
    right.provider.close(&handle).await.unwrap();
    by_hand(["rmi", &image]);
}

#[tokio::test(flavor = "multi_thread")]
async fn c08_a_rate_limit_is_exhausted_and_a_registry_that_is_not_there_unavailable() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            let count = stream.read(&mut request).unwrap_or(0);
            let text = String::from_utf8_lossy(&request[..count]).into_owned();
            let limit = r#"{"errors":[{"code":"TOOMANYREQUESTS","message":"You have reached your pull rate limit."}]}"#;
            let (status, body) = match text.contains("/manifests/") {
                true => ("429 Too Many Requests", limit),
                false => ("200 OK", "{}"),
            };
            let _ = write!(
                stream,
                "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\
                 Docker-Distribution-Api-Version: registry/2.0\r\n\r\n{body}",
                body.len()
            );
        }
    });
    let docker = docker(json!({}));
    let error = docker.provider.create(SandboxSpec::image(format!("{address}/x:1"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error:?}");
    assert!(error.is_retryable());
    let nobody = free_address();
    let error = docker.provider.create(SandboxSpec::image(format!("{nobody}/x:1"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c08_an_image_for_another_architecture_is_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let archive = folder.path().join("other.tar");
    std::fs::write(&archive, image_for(if cfg!(target_arch = "x86_64") { "arm64" } else { "amd64" })).unwrap();
    by_hand(["load", "--quiet", "--input", archive.to_str().unwrap()]);
    let docker = docker(json!({ "pull": "never" }));
    let error = docker.provider.create(SandboxSpec::image("sandbox-test/other-arch:1")).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("image")), "{error:?}");
    assert!(error.to_string().contains("is for"), "{error}");
    by_hand(["rmi", "sandbox-test/other-arch:1"]);
}

/// An image of one empty layer that says it is for this architecture.
fn image_for(arch: &str) -> Vec<u8> {
    // Of an archive of two empty blocks.
    let digest = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef";
    let config = json!({
        "architecture": arch, "os": "linux", "config": {}, "rootfs": { "type": "layers", "diff_ids": [digest] },
    });
    let manifest =
        json!([{ "Config": "config.json", "RepoTags": ["sandbox-test/other-arch:1"], "Layers": ["layer.tar"] }]);
    let mut archive = tar::Builder::new(Vec::new());
    for (name, contents) in [
        ("config.json", config.to_string().into_bytes()),
        ("layer.tar", vec![0; 1024]),
        ("manifest.json", manifest.to_string().into_bytes()),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(contents.len() as u64);
        archive.append_data(&mut header, name, contents.as_slice()).unwrap();
    }
    archive.into_inner().unwrap()
}
