//! Podman, which speaks the Engine's API on a socket of its own.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
};

use sandbox_core::{
    ErrorKind, ExecOutcome, ExecRequest, SandboxProvider, SandboxSpec, SandboxStatus, serde_json::json,
};

use crate::{
    dockerd::{address, provider},
    engine,
    support::{eventually, run},
};

/// Where all of it is.
struct Podman {
    service: Child,
    words: Vec<String>,
}

impl Podman {
    async fn start(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name).display().to_string();
        let mut words = vec!["--cgroup-manager=cgroupfs".to_owned(), "--storage-driver=vfs".to_owned()];
        words.push("--runtime=runc".to_owned());
        for (option, name) in
            [("root", "root"), ("runroot", "runroot"), ("tmpdir", "tmp"), ("network-config-dir", "networks")]
        {
            words.push(format!("--{option}={}", path(name)));
        }
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let service = Command::new("podman")
            .args(&words)
            .args(["system", "service", "--time", "0", &address(folder)])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("podman is missing: cargo xtask engine");
        let started = Self { service, words };
        eventually("podman does not answer", async || folder.join("d.sock").exists()).await;
        started
    }

    fn by_hand(&self, arguments: &[&str]) -> String {
        let output = Command::new("podman").args(&self.words).args(arguments).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "podman {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = Command::new("podman").args(&self.words).args(["rm", "--all", "--force", "--time", "0"]).output();
        let _ = Command::new("kill").args(["-TERM", &self.service.id().to_string()]).status();
        let _ = self.service.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn podmans_socket_makes_runs_and_removes_sandboxes_by_every_way() {
    let temp = tempfile::Builder::new().prefix("sbp").tempdir().unwrap();
    let folder = temp.path();
    let podman = Podman::start(folder).await;
    let archive = folder.join("image.tar").display().to_string();
    let saved =
        Command::new("docker").args(["--host", &engine::host(), "save", "-o", &archive, engine::BUSYBOX]).status();
    assert!(saved.unwrap().success());
    podman.by_hand(&["load", "--quiet", "--input", &archive]);
    let names = podman.by_hand(&["images", "--format", "{{.Repository}}:{{.Tag}}"]);
    let image = names.lines().find(|name| name.contains("busybox")).unwrap_or_else(|| panic!("{names}"));
    for settings in [
        json!({ "agent": "required", "transport": "socket" }),
        json!({ "agent": "required", "transport": "relay" }),
        json!({ "agent": "off" }),
    ] {
        let provider = provider(folder, settings.clone());
        let mut spec = SandboxSpec::image(image).with_env("WHO", "podman").with_workdir("/work");
        // Podman asks for more open files than this machine may give.
        spec.provider_options.insert("ulimits".to_owned(), json!({ "nofile": 1024, "nproc": 1024 }));
        let handle = provider.create(spec).await.unwrap_or_else(|error| panic!("{settings}: {error:?}"));
        assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Running);
        let request = ExecRequest::shell("cat; echo $WHO in $(pwd) >&2; exit 4").with_stdin_bytes("in");
        let result = run(&provider, &handle, request).await;
        assert_eq!(*result.outcome(), ExecOutcome::Exited(4), "{settings}: {}", result.stderr_text());
        assert_eq!((result.stdout_text().as_ref(), result.stderr_text().as_ref()), ("in", "podman in /work\n"));
        let (file, back) = (folder.join("file"), folder.join("back"));
        std::fs::write(&file, b"\0bytes").unwrap();
        provider.upload_file(&handle, &file, &"/work/file".into()).await.unwrap();
        provider.download_file(&handle, &"/work/file".into(), &back).await.unwrap();
        assert_eq!(std::fs::read(&back).unwrap(), b"\0bytes");
        provider.close(&handle).await.unwrap();
        assert_eq!(provider.status(&handle).await.unwrap(), SandboxStatus::Stopped);
        assert_eq!(podman.by_hand(&["ps", "--all", "--quiet"]), "", "{settings}");
        let error = provider.create(SandboxSpec::image("localhost/no/such:1")).await.unwrap_err();
        assert!([ErrorKind::NotFound, ErrorKind::Unavailable].contains(&error.kind()), "{error:?}");
        provider.aclose().await.unwrap();
    }
}
