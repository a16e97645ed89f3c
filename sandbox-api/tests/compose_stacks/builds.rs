//! Services whose images are built by the engine.

use std::path::Path;

use sandbox_api::compose::{AsyncSandboxCompose, ComposeOptions, ComposeProject};
use sandbox_core::ErrorKind;

use crate::backend::{Backend, Kind, by_hand, text};

fn stack(backend: &Backend, folder: &Path, name: &str, document: &str) -> AsyncSandboxCompose {
    std::fs::write(folder.join("compose.yaml"), document).unwrap();
    let mut options = ComposeOptions::default();
    options.working_directory = Some(folder.to_owned());
    options.project_name = Some(name.to_owned());
    let loaded = ComposeProject::load(&options);
    let project = loaded.project.unwrap_or_else(|| panic!("{}", loaded.report));
    AsyncSandboxCompose::new(backend.provider.clone(), project).with_poll_interval_s(0.02).with_timeout_s(300.0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_are_built_from_a_folder_a_file_and_a_text_and_named_as_the_specification_says() {
    let backend = Backend::new(Kind::Docker);
    let folder = tempfile::tempdir_in(&backend.folder).unwrap();
    let put = |name: &str, contents: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, contents).unwrap();
    };
    put("app/page", "a page");
    put("app/secret", "not for the image");
    put("app/.dockerignore", "secret\n");
    put("app/Dockerfile", "FROM sandbox-test/busybox:1\nCOPY . /app\nWORKDIR /app\nCMD [\"sleep\", \"600\"]\n");
    put(
        "app/ops/stages",
        "FROM sandbox-test/busybox:1 AS first\nARG WHO\nRUN echo from $WHO > /who\n\
         FROM sandbox-test/busybox:1 AS second\nRUN false\n",
    );
    let project = format!("built{}", std::process::id());
    let document = r#"
services:
  folder: {build: ./app, stop_grace_period: 0s}
  file:
    build: {context: ./app, dockerfile: ops/stages, target: first, args: [WHO=args], labels: {a.b: c}, tags: ["PROJECT-extra:2"]}
    image: "PROJECT-file:7"
    command: sleep 600
    stop_grace_period: 0s
  text:
    build:
      context: ./app
      dockerfile_inline: |
        FROM sandbox-test/busybox:1
        COPY . /all
        RUN ls -A /all > /list
    command: sleep 600
    stop_grace_period: 0s
"#
    .replace("PROJECT", &project);
    let stack = stack(&backend, folder.path(), &project, &document);
    if let Err(error) = stack.start().await {
        panic!("{error}: {:?}", error.chain());
    }
    assert_eq!(
        text(&stack, "folder", "pwd; cat page; ls -A").await,
        "/app\na page.dockerignore\nDockerfile\nops\npage"
    );
    assert_eq!(text(&stack, "file", "cat /who").await, "from args");
    // The build file itself came from nowhere that is copied.
    assert_eq!(text(&stack, "text", "cat /list").await, ".dockerignore\nDockerfile\nops\npage");
    let id = |name: &str| by_hand(&["image", "inspect", "--format", "{{.Id}}", name]);
    for service in ["folder", "text"] {
        id(&format!("{project}-{service}:latest"));
    }
    assert_eq!(id(&format!("{project}-file:7")), id(&format!("{project}-extra:2")));
    let label =
        by_hand(&["image", "inspect", "--format", "{{index .Config.Labels \"a.b\"}}", &format!("{project}-file:7")]);
    assert_eq!(label, "c");
    backend.down(stack).await;
    for image in ["folder:latest", "text:latest", "file:7", "extra:2"] {
        by_hand(&["rmi", &format!("{project}-{image}")]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_that_fails_names_its_service_and_step_and_leaves_no_stack() {
    let backend = Backend::new(Kind::Docker);
    let folder = tempfile::tempdir_in(&backend.folder).unwrap();
    std::fs::write(folder.path().join("Dockerfile"), "FROM sandbox-test/busybox:1\nRUN echo why it is; exit 3\n")
        .unwrap();
    let document = "services: {web: {build: ., command: sleep 600}, other: {image: 'sandbox-test/busybox:1'}}\n";
    let stack = stack(&backend, folder.path(), "fails", document);
    let error = stack.start().await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::Create, Some("services.web.build.dockerfile")), "{error:?}");
    assert_eq!(error.message(), "building service \"web\": step 2/2 of the build (RUN) ended with code 3");
    assert!(error.chain()[0].ends_with("why it is"), "{:?}", error.chain());
    assert_eq!(stack.status().unwrap_or_default().len(), 0);
}
