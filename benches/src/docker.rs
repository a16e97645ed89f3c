//! The Engine without us: its API by bollard, and its own command.

use std::{
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    exec::{CreateExecOptions, StartExecOptions, StartExecResults},
    models::ContainerCreateBody,
    query_parameters::{
        CreateContainerOptions, DownloadFromContainerOptionsBuilder, ListContainersOptions,
        RemoveContainerOptionsBuilder, UploadToContainerOptionsBuilder,
    },
};
use bytes::Bytes;
use futures_util::StreamExt;

use crate::peer::HELLO;

/// How long a call of the engine may take, in seconds: 128 at once queue up.
const LIMIT_S: u64 = 600;

/// The Engine's API.
pub struct EngineApi(Docker);

impl EngineApi {
    /// The engine at this address of a unix socket.
    pub fn new(host: &str) -> Self {
        Self(Docker::connect_with_unix(host, LIMIT_S, API_DEFAULT_VERSION).expect("an engine"))
    }

    /// Makes a container that stays.
    pub async fn create(&self, image: &str) -> String {
        let body = ContainerCreateBody {
            image: Some(image.to_owned()),
            cmd: Some(["sleep", "100000"].map(str::to_owned).to_vec()),
            ..ContainerCreateBody::default()
        };
        let made = self.0.create_container(None::<CreateContainerOptions>, body).await.expect("it is made");
        self.0.start_container(&made.id, None).await.expect("it starts");
        made.id
    }

    /// Removes a container.
    pub async fn remove(&self, container: &str) {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        self.0.remove_container(container, Some(options)).await.expect("it is removed");
    }

    /// How many containers run.
    pub async fn running(&self) -> usize {
        self.0.list_containers(None::<ListContainersOptions>).await.expect("a list").len()
    }

    /// Runs the command of every comparison to its end.
    pub async fn exec(&self, container: &str) -> Duration {
        let begin = Instant::now();
        let options = CreateExecOptions {
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            cmd: Some(HELLO.to_vec()),
            ..CreateExecOptions::default()
        };
        let exec = self.0.create_exec(container, options).await.expect("it is made").id;
        let started = self.0.start_exec(&exec, None::<StartExecOptions>).await.expect("it starts");
        let StartExecResults::Attached { mut output, .. } = started else { panic!("nothing is attached") };
        let mut said = Vec::new();
        while let Some(chunk) = output.next().await {
            said.extend_from_slice(chunk.expect("it goes on").as_ref());
        }
        assert_eq!(said, b"hi\n");
        self.0.inspect_exec(&exec).await.expect("it has ended");
        begin.elapsed()
    }

    /// From nothing to the first output, and the removal.
    pub async fn cold(&self, image: &str) -> (Duration, Duration) {
        let begin = Instant::now();
        let container = self.create(image).await;
        self.exec(&container).await;
        let first = begin.elapsed();
        let begin = Instant::now();
        self.remove(&container).await;
        (first, begin.elapsed())
    }

    /// So many made at once, and then removed at once: both times.
    pub async fn burst(&self, image: &str, count: usize) -> (Duration, Duration) {
        let begin = Instant::now();
        let made: Vec<_> = (0..count).map(|_| self.create(image)).collect();
        let containers = futures_util::future::join_all(made).await;
        let made = begin.elapsed();
        let begin = Instant::now();
        futures_util::future::join_all(containers.iter().map(|container| self.remove(container))).await;
        (made, begin.elapsed())
    }

    /// A file into a container and out of it again, as archives.
    pub async fn transfer(&self, container: &str, file: &Path, back: &Path) -> (Duration, Duration) {
        let begin = Instant::now();
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_path_with_name(file, "transferred").expect("it is packed");
        let archive = Bytes::from(builder.into_inner().expect("it is packed"));
        let options = UploadToContainerOptionsBuilder::default().path("/tmp").build();
        let sent = self.0.upload_to_container(container, Some(options), bollard::body_full(archive)).await;
        sent.expect("it is uploaded");
        let up = begin.elapsed();
        let _ = std::fs::remove_file(back);
        let begin = Instant::now();
        let options = DownloadFromContainerOptionsBuilder::default().path("/tmp/transferred").build();
        let mut chunks = Box::pin(self.0.download_from_container(container, Some(options)));
        let mut archive = Vec::new();
        while let Some(chunk) = chunks.next().await {
            archive.extend_from_slice(&chunk.expect("it is downloaded"));
        }
        let mut archive = tar::Archive::new(archive.as_slice());
        let mut entry = archive.entries().expect("an archive").next().expect("an entry").expect("a file");
        entry.unpack(back).expect("it is unpacked");
        (up, begin.elapsed())
    }
}

/// The Engine's own command.
pub struct Cli(String);

impl Cli {
    /// For the engine at this address.
    pub fn new(host: &str) -> Self {
        Self(host.to_owned())
    }

    async fn run(&self, arguments: &[&str]) -> (Vec<u8>, Duration) {
        let begin = Instant::now();
        let mut command = tokio::process::Command::new("docker");
        command.args(["--host", &self.0]).args(arguments).stdin(Stdio::null());
        let output = command.output().await.expect("docker is there");
        assert!(output.status.success(), "docker: {}", String::from_utf8_lossy(&output.stderr));
        (output.stdout, begin.elapsed())
    }

    /// Runs the command of every comparison to its end.
    pub async fn exec(&self, container: &str) -> Duration {
        let (said, time) = self.run(&["exec", container, HELLO[0], HELLO[1], HELLO[2]]).await;
        assert_eq!(said, b"hi\n");
        time
    }

    /// From nothing to the end of that command, and the removal.
    pub async fn cold(&self, image: &str) -> Duration {
        let (said, time) = self.run(&["run", "--rm", image, HELLO[0], HELLO[1], HELLO[2]]).await;
        assert_eq!(said, b"hi\n");
        time
    }

    /// A file into a container and out of it again.
    pub async fn transfer(&self, container: &str, file: &Path, back: &Path) -> (Duration, Duration) {
        let _ = std::fs::remove_file(back);
        let (file, back) = (file.display().to_string(), back.display().to_string());
        let remote = format!("{container}:/tmp/transferred");
        let (_, up) = self.run(&["cp", &file, &remote]).await;
        let (_, down) = self.run(&["cp", &remote, &back]).await;
        (up, down)
    }
}
