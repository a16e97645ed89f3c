//! Images that the engine builds.

use std::{
    collections::BTreeSet,
    path::Path,
    time::{Duration, Instant},
};

use sandbox_core::{
    BuildEvent, BuildImage, BuildRequest, ErrorKind, ImageConfigs, Result, SandboxProvider, SandboxSpec,
    serde_json::json,
};

use crate::{
    engine,
    support::{Docker, by_hand, docker, eventually},
};

/// A folder to build from.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new(dockerfile: &str) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.put("Dockerfile", dockerfile)
    }

    fn put(self, name: &str, contents: &str) -> Self {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
        self
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn request(&self) -> BuildRequest {
        BuildRequest { context: self.path().display().to_string(), ..BuildRequest::default() }
    }
}

/// Builds to the end; gives the image and the log.
async fn build(docker: &Docker, request: BuildRequest) -> Result<(String, String)> {
    let mut session = docker.provider.build_image(request).await?;
    let mut log = Vec::new();
    loop {
        match session.next().await? {
            Some(BuildEvent::Log(bytes)) => log.extend_from_slice(&bytes),
            Some(BuildEvent::Built(built)) => {
                assert!(session.next().await?.is_none(), "the image is the last event");
                return Ok((built.image, String::from_utf8(log).unwrap()));
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A name that nothing else has.
fn unique(name: &str) -> String {
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    format!("sandbox-test/{name}-{}-{nanos}", std::process::id())
}

/// What images of this build would be found by: a line of the history that nothing else has.
fn left_of(mark: &str) -> BTreeSet<String> {
    let all = by_hand(["images", "--all", "--quiet", "--no-trunc"]);
    let has_mark = |id: &&str| {
        // One of another test may go away meanwhile.
        let output = std::process::Command::new("docker")
            .args(["--host", &engine::host(), "history", "--no-trunc", "--format", "{{.CreatedBy}}", id])
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).contains(mark)
    };
    all.lines().filter(has_mark).map(str::to_owned).collect()
}

/// Containers of steps that have this text in their command.
fn containers_of(mark: &str) -> Vec<String> {
    let all = by_hand(["ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Command}}"]);
    all.lines().filter(|line| line.contains(mark)).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_built_with_arguments_labels_names_and_a_target_and_a_sandbox_runs_it() {
    let docker = docker(json!({ "pull": "never" }));
    let folder = Folder::new(&format!(
        "FROM {} AS base\nARG WHO=nobody\nCOPY . /src/\nRUN echo built for $WHO; echo $WHO > /who; ls -A /src > /list\n\
         ENV E=of-the-image\nWORKDIR /src\nFROM base AS broken\nRUN false\n",
        engine::BUSYBOX
    ))
    .put("kept/file", "kept")
    .put("kept/drop.log", "x")
    .put(".dockerignore", "**/*.log\nDockerfile\n.dockerignore\n");
    let (one, two) = (unique("built"), unique("also"));
    let mut request = folder.request();
    request.tags = vec![one.clone(), format!("{two}:9")];
    request.args.insert("WHO", "the test");
    request.target = Some("base".to_owned());
    request.labels.insert("a.b".to_owned(), "c d".to_owned());
    let (image, log) = build(&docker, request.clone()).await.unwrap();
    assert!(log.contains("Step 1/") && log.contains("built for the test\n"), "{log}");
    for name in [format!("{one}:latest"), format!("{two}:9")] {
        assert_eq!(by_hand(["image", "inspect", "--format", "{{.Id}}", &name]), image);
    }
    let config = docker.provider.image_config(image.clone()).await.unwrap();
    assert_eq!((config.labels["a.b"].as_str(), config.workdir.as_deref()), ("c d", Some("/src")));
    let handle = docker.create(SandboxSpec::image(&image)).await;
    assert_eq!(
        docker.text(&handle, "cat /who /list kept/file; ls kept; echo $E").await,
        "the test\nkept\nkeptfile\nof-the-image"
    );
    docker.provider.close(&handle).await.unwrap();
    // What was done is not done again, unless it must be.
    let (again, log) = build(&docker, request.clone()).await.unwrap();
    assert!(again == image && !log.contains("built for the test\n"), "{log}");
    request.no_cache = true;
    let (anew, log) = build(&docker, request).await.unwrap();
    assert!(anew != image && log.contains("built for the test\n"), "{log}");
    by_hand(["rmi", &format!("{one}:latest"), &format!("{two}:9")]);
    by_hand(["rmi", &image]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_nothing_holds_what_is_copied() {
    let docker = docker(json!({}));
    let folder = Folder::new("FROM scratch\nCOPY data /deep/data\n").put("data", "0123456789");
    // Larger than everything that is held on the way.
    let large: Vec<u8> = (0..24_u32 << 20).map(|index| (index % 251) as u8).collect();
    std::fs::write(folder.path().join("large"), &large).unwrap();
    std::os::unix::fs::symlink("data", folder.path().join("link")).unwrap();
    let mut request = folder.request();
    request.dockerfile_inline = Some("FROM scratch\nCOPY . /\n".to_owned());
    let (image, _) = build(&docker, request).await.unwrap();
    // Our agent needs nothing of an image.
    let handle = docker.create(SandboxSpec::image(&image)).await;
    assert_eq!(docker.get(&handle, "/link").await, b"0123456789");
    assert!(docker.get(&handle, "/large").await == large);
    docker.provider.close(&handle).await.unwrap();
    by_hand(["rmi", &image]);
    let (image, _) = build(&docker, folder.request()).await.unwrap();
    let handle = docker.create(SandboxSpec::image(&image)).await;
    assert_eq!(docker.get(&handle, "/deep/data").await, b"0123456789");
    docker.provider.close(&handle).await.unwrap();
    by_hand(["rmi", &image]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_fails_names_the_step_carries_its_output_and_leaves_nothing() {
    let docker = docker(json!({}));
    let mark = unique("mark");
    // The engine gives both streams in no order that is sure.
    let folder = Folder::new(&format!(
        "FROM {}\nRUN echo {mark} > /first\nCOPY file /\nRUN seq 1 2000; sleep 1; echo the reason >&2; exit 42 # {mark}\n",
        engine::BUSYBOX
    ))
    .put("file", &mark);
    let mut request = folder.request();
    request.tags = vec![unique("never")];
    let error = build(&docker, request).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Create, Some("dockerfile")), "{error:?}");
    assert_eq!(error.message(), "step 4/4 of the build (RUN) ended with code 42");
    let tail = error.chain().join("\n");
    assert!(tail.contains("1999\n2000\n") && tail.contains("the reason") && tail.len() < 4096, "{tail}");
    assert_eq!((left_of(&mark), containers_of(&mark)), (BTreeSet::new(), Vec::new()));
    for (dockerfile, kind, words) in [
        (format!("FROM {}\nCOPY gone /\n", engine::BUSYBOX), ErrorKind::Create, "step 2/2 of the build (COPY) failed"),
        ("FRM scratch\n".to_owned(), ErrorKind::InvalidInput, "FRM"),
        (String::new(), ErrorKind::InvalidInput, "empty"),
        (
            format!("FROM {}\nRUN --mount=type=cache,target=/c true\n", engine::BUSYBOX),
            ErrorKind::InvalidInput,
            "needs BuildKit",
        ),
        ("FROM 127.0.0.1:1/sandbox-test/none:1\n".to_owned(), ErrorKind::Unavailable, "step 1/1 of the build (FROM)"),
    ] {
        let error = build(&docker, Folder::new(&dockerfile).request()).await.unwrap_err();
        assert_eq!((error.kind(), error.field()), (kind, Some("dockerfile")), "{dockerfile}: {error:?}");
        assert!(error.message().contains(words), "{dockerfile}: {error}");
    }
    let folder = Folder::new("FROM scratch AS a\nCOPY Dockerfile /\n");
    let mut request = folder.request();
    request.target = Some("b".to_owned());
    let error = build(&docker, request).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("target")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_pulls_a_base_that_is_not_there_is_told_before_anything_is_sent() {
    let docker = docker(json!({ "pull": "never" }));
    let folder = Folder::new("FROM sandbox-test/not-there:1\n");
    let error = build(&docker, folder.request()).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("dockerfile")), "{error:?}");
    assert!(error.help().unwrap().contains("never"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_nobody_waits_for_ends_and_leaves_nothing() {
    let docker = docker(json!({}));
    let mark = unique("cancelled");
    let folder = Folder::new(&format!(
        "FROM {}\nRUN echo {mark} > /first\nRUN echo it runs; sleep 600 # {mark}\n",
        engine::BUSYBOX
    ));
    let mut session = docker.provider.build_image(folder.request()).await.unwrap();
    let mut log = String::new();
    while !log.contains("it runs\n") {
        match session.next().await.unwrap() {
            Some(BuildEvent::Log(bytes)) => log.push_str(std::str::from_utf8(&bytes).unwrap()),
            other => panic!("{other:?}: {log}"),
        }
    }
    assert_eq!(containers_of(&mark).len(), 1);
    assert_eq!(left_of(&mark).len(), 1, "the first step has made an image");
    drop(session);
    let begun = Instant::now();
    eventually("a container of the build is left", async || containers_of(&mark).is_empty()).await;
    eventually("an image of the build is left", async || left_of(&mark).is_empty()).await;
    assert!(begun.elapsed() < Duration::from_secs(50), "the build went on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_takes_too_long_is_ended() {
    let docker = docker(json!({ "build_timeout_s": 5 }));
    let mark = unique("slow");
    let folder = Folder::new(&format!("FROM {}\nRUN sleep 600 # {mark}\n", engine::BUSYBOX));
    let error = build(&docker, folder.request()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error:?}");
    assert!(error.message().contains("build_timeout_s"), "{error}");
    assert_eq!(containers_of(&mark), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_that_cannot_be_read_is_why_the_build_failed() {
    let docker = docker(json!({}));
    let request = BuildRequest {
        // Its files are shorter than they say, whoever reads them.
        context: "/sys/devices/system/cpu".to_owned(),
        dockerfile_inline: Some("FROM scratch\nCOPY . /\n".to_owned()),
        ..BuildRequest::default()
    };
    let error = build(&docker, request).await.unwrap_err();
    assert_eq!(error.field(), Some("context"), "{error:?}");
    assert!(error.message().contains("/sys/devices/system/cpu/"), "{error}");
}
