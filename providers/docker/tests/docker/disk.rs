//! A disk that is full: the engine's own.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sandbox_core::{ByteString, ErrorKind, ExecRequest, ListFilter, ListSweep, SandboxProvider, serde_json::json};

use crate::{
    dockerd::{self, Dockerd, bring_image, provider},
    support::{run, spec},
};

/// Enough for an engine with one small image.
const DISK_BYTES: u64 = 96 << 20;

fn run_command(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A small disk, mounted.
struct Disk(PathBuf);

impl Disk {
    fn mount(folder: &Path, point: &str) -> Self {
        let (file, point) = (folder.join("disk"), folder.join(point));
        std::fs::File::create(&file).unwrap().set_len(DISK_BYTES).unwrap();
        std::fs::create_dir(&point).unwrap();
        run_command("/sbin/mkfs.ext4", &["-q", "-F", "-m", "0", file.to_str().unwrap()]);
        run_command("mount", &["-o", "loop", file.to_str().unwrap(), point.to_str().unwrap()]);
        Self(point)
    }

    /// Leaves no byte.
    fn fill(&self) {
        let mut file = std::fs::File::create(self.0.join("filler")).unwrap();
        let zeros = vec![0; 1 << 20];
        for size in [zeros.len(), 4096, 1] {
            while file.write_all(&zeros[..size]).is_ok() {}
        }
        file.sync_all().unwrap();
    }

    fn free(&self) {
        std::fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The engine's end may have done it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).stderr(Stdio::null()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c15_a_full_disk_of_the_engine_is_exhausted_leaves_nothing_and_is_used_again_when_there_is_room() {
    let temp = tempfile::Builder::new().prefix("sbx").tempdir().unwrap();
    let folder = temp.path();
    let disk = Disk::mount(folder, "data");
    let _dockerd = Dockerd::start(folder, &[]).await;
    bring_image(folder);
    std::fs::remove_file(folder.join("image.tar")).unwrap();
    let provider = provider(folder, json!({}));
    let handle = provider.create(spec()).await.unwrap();
    let local = folder.join("upload");
    std::fs::write(&local, vec![7; 300 << 10]).unwrap();
    let target = ByteString::from("/kept");
    provider.upload_file(&handle, &local, &target).await.unwrap();

    disk.fill();
    let error = provider.create(spec()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error:?}");
    let all = provider.list(ListFilter::default()).await.unwrap();
    assert_eq!(all.iter().map(|found| &found.handle.sandbox_id).collect::<Vec<_>>(), [&handle.sandbox_id]);
    let output = dockerd::by_hand(folder, &["ps", "--all", "--format", "{{.Names}}"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), handle.sandbox_id);
    assert_eq!(std::fs::read_dir(folder.join("run")).unwrap().count(), 1, "the folder of the one that runs");
    // What runs goes on; what needs room is told there is none, and what was there stays as it was.
    let result = run(&provider, &handle, ExecRequest::argv(["echo", "on"])).await;
    assert_eq!(result.stdout_text(), "on\n");
    std::fs::write(&local, vec![8; 400 << 10]).unwrap();
    let error = provider.upload_file(&handle, &local, &target).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error:?}");
    let files = run(&provider, &handle, ExecRequest::argv(["sh", "-c", "ls -A / | grep kept; wc -c < /kept"])).await;
    assert_eq!(files.stdout_text(), format!("kept\n{}\n", 300 << 10), "{}", files.stderr_text());

    disk.free();
    provider.upload_file(&handle, &local, &target).await.unwrap();
    let next = provider.create(spec()).await.unwrap();
    for handle in [&handle, &next] {
        provider.close(handle).await.unwrap();
    }
    provider.aclose().await.unwrap();
}
