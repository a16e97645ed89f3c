//! Stacks on a provider in this process.

use std::{path::Path, sync::Arc, time::Duration};

use crate::fake::{Kind, PATIENCE, StackFake};
use sandbox_api::{
    ErrorKind,
    compose::{
        AsyncSandboxCompose, ComposeOptions, ComposeProject, PlanOptions, PublishPolicy, ServiceHealth, ServicePhase,
    },
};
use sandbox_core::{ImageConfig, ImageHealthcheck, SandboxProvider};
use tempfile::TempDir;

/// A project out of one document. The folder lives as long as the test.
fn project(text: &str) -> (TempDir, ComposeProject) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("compose.yaml"), text).unwrap();
    let loaded = load(folder.path());
    (folder, loaded)
}

fn load(folder: &Path) -> ComposeProject {
    let mut options = ComposeOptions::default();
    options.working_directory = Some(folder.to_owned());
    let loaded = ComposeProject::load(&options);
    loaded.project.unwrap_or_else(|| panic!("{}", loaded.report))
}

fn docker() -> Arc<StackFake> {
    let fake = StackFake::new(Kind::DockerLike);
    for name in ["web", "db", "app"] {
        let command = vec!["serve".to_owned()];
        fake.world().images.insert(name.to_owned(), ImageConfig { command, ..ImageConfig::default() });
    }
    fake
}

fn stack(fake: &Arc<StackFake>, project: ComposeProject) -> AsyncSandboxCompose {
    let provider: Arc<dyn SandboxProvider> = fake.clone();
    AsyncSandboxCompose::new(provider, project).with_timeout_s(60.0).with_poll_interval_s(0.05)
}

fn position(calls: &[String], call: &str) -> usize {
    calls.iter().position(|seen| seen == call).unwrap_or_else(|| panic!("never: {call}; {calls:?}"))
}

const WEB_AND_DB: &str = "
services:
  web:
    image: web
    depends_on: {db: {condition: service_healthy}}
    ports: ['8080:80']
  db:
    image: db
    healthcheck: {test: [CMD, well], interval: 20ms, retries: 5}
    volumes: ['data:/var/lib/db']
volumes:
  data:
";

#[tokio::test]
async fn a_service_starts_when_what_it_needs_is_healthy_and_stops_before_it() {
    let fake = docker();
    fake.world().sick.insert("db".to_owned(), 2);
    let (_folder, project) = project(WEB_AND_DB);
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    let status = stack.status().unwrap();
    let db = status.iter().find(|status| status.service == "db").unwrap();
    assert_eq!((&db.state.phase, db.state.health), (&ServicePhase::Running, ServiceHealth::Healthy));
    let calls = fake.calls();
    assert_eq!(calls[..position(&calls, "run web serve")].iter().filter(|call| *call == "run db well").count(), 3);
    // Every sandbox is there before the first program runs.
    assert!(position(&calls, "create web") < position(&calls, "run db serve"));
    let mut follower = stack.logs("web", 1).unwrap().follow();
    assert_eq!(follower.next().await.unwrap().bytes, "web serves\n");
    let result = stack.service("web").unwrap().exec(sandbox_core::ExecRequest::argv(["exit", "7"])).await.unwrap();
    assert_eq!(result.return_code(), 7);
    stack.stop().await.unwrap();
    stack.stop().await.unwrap();
    let calls = fake.calls();
    assert!(position(&calls, "ended web") < position(&calls, "signal db 15"), "{calls:?}");
    assert!(fake.is_empty());
    assert!(!calls.contains(&"aclose".to_owned()), "a lent provider was ended");
    assert_eq!(stack.logs("web", 1).unwrap().tail(100), "web serves");
    assert_eq!(stack.status().unwrap_err().kind(), ErrorKind::InvalidState);
}

#[tokio::test]
async fn a_migration_runs_to_its_end_before_the_application_starts() {
    let fake = docker();
    let text = "
services:
  app: {image: app, depends_on: {migrate: {condition: service_completed_successfully}}}
  migrate: {image: app, command: [print, done]}
";
    let (_folder, project) = project(text);
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    let calls = fake.calls();
    assert!(position(&calls, "run migrate print done") < position(&calls, "run app serve"));
    assert_eq!(stack.logs("migrate", 1).unwrap().tail(10), "done");
    let migrate = stack.status().unwrap().into_iter().find(|status| status.service == "migrate").unwrap();
    assert_eq!(migrate.state.phase, ServicePhase::Exited(0));
    stack.stop().await.unwrap();
    assert!(fake.is_empty());
}

#[tokio::test]
async fn whatever_fails_everything_is_rolled_back() {
    let cases = [
        ("a: {image: app}\n  b: {image: app}\n  c: {image: app}", Some("c"), "service \"c\": scripted"),
        ("a: {image: app}\n  c: {image: app, command: missing}", None, "service \"c\" failed: program \"missing\""),
        (
            "a: {image: app}\n  c: {image: app, healthcheck: {test: exit 1, interval: 10ms, retries: 2}}",
            None,
            "service \"c\" is unhealthy",
        ),
        (
            "a: {image: app, depends_on: {c: {condition: service_completed_successfully}}}\n  c: {image: app, command: exit 3}",
            None,
            "service \"c\", which it needs, exited (3)",
        ),
        (
            "a: {image: app, command: exit 4, healthcheck: {test: exit 1, interval: 10s}}",
            None,
            "service \"a\" exited (4) before it was healthy",
        ),
        ("a: {image: absent}", None, "image of service \"a\": image \"absent\""),
    ];
    for (services, fails, message) in cases {
        let fake = docker();
        fake.world().fail_create_of = fails.map(str::to_owned);
        let (_folder, project) = project(&format!("services:\n  {services}\n"));
        let stack = stack(&fake, project);
        let error = stack.start().await.unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        assert!(fake.is_empty(), "{services}: something is left");
        assert!(!fake.calls().contains(&"aclose".to_owned()));
    }
}

#[tokio::test]
async fn a_failed_start_keeps_the_logs_and_can_be_repeated() {
    let fake = docker();
    let (_folder, project) = project(
        "services:\n  a: {image: app}\n  b: {image: app, healthcheck: {test: [CMD, well], interval: 10ms, retries: 1}}\n",
    );
    fake.world().sick.insert("b".to_owned(), 1);
    let stack = stack(&fake, project);
    stack.start().await.unwrap_err();
    assert_eq!(stack.logs("b", 1).unwrap().tail(20), "b serves");
    stack.start().await.unwrap();
    stack.stop().await.unwrap();
    assert!(fake.is_empty());
}

#[tokio::test]
async fn a_start_that_is_dropped_leaves_nothing() {
    let fake = docker();
    let (_folder, project) = project("services:\n  a: {image: app, healthcheck: {test: exit 1, interval: 1h}}\n");
    let stack = stack(&fake, project);
    {
        let start = stack.start();
        tokio::pin!(start);
        loop {
            tokio::select! {
                result = &mut start => panic!("{result:?}"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
            if fake.calls().iter().any(|call| call.starts_with("run a")) {
                break;
            }
        }
    }
    let emptied = async {
        while !fake.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, emptied).await.expect("something is left");
}

#[tokio::test]
async fn a_program_that_does_not_stop_is_killed_after_its_grace_period() {
    let fake = docker();
    let text = "services:\n  a: {image: app, command: stubborn, stop_signal: SIGINT, stop_grace_period: 50ms}\n";
    let (_folder, project) = project(text);
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    stack.stop().await.unwrap();
    let calls = fake.calls();
    assert!(position(&calls, "signal a 2") < position(&calls, "ended a"));
    assert!(fake.is_empty());
}

#[tokio::test]
async fn restart_policies_start_a_program_again() {
    let fake = docker();
    let text = "
services:
  a: {image: app, command: crash 2, restart: 'on-failure:3'}
  b: {image: app, command: exit 5, restart: 'on-failure:1'}
  c: {image: app, command: exit 0, restart: on-failure}
";
    let (_folder, project) = project(text);
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    let settled = async {
        loop {
            let status = stack.status().unwrap();
            let of = |name: &str| status.iter().find(|status| status.service == name).unwrap().state.clone();
            if of("a").restarts == 2 && of("a").phase == ServicePhase::Running && of("b").is_over() && of("c").is_over()
            {
                return (of("b"), of("c"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (b, c) = tokio::time::timeout(PATIENCE, settled).await.unwrap();
    assert_eq!((b.phase, b.restarts), (ServicePhase::Exited(5), 1));
    assert_eq!((c.phase, c.restarts), (ServicePhase::Exited(0), 0));
    stack.stop().await.unwrap();
    assert!(fake.is_empty());
}

#[tokio::test]
async fn h13_every_name_resolves_for_the_first_command_and_aliases_only_in_their_network() {
    let text = "
services:
  app:
    image: app
    command: resolve db_main db-main db
    networks: [back]
    depends_on: [db_main]
  outside:
    image: app
    command: resolve db-main
    networks: [front]
  db_main:
    image: app
    container_name: db
    networks: {back: {aliases: [db-main]}, front: {}}
networks:
  back: {internal: true}
  front:
";
    for _ in 0..10 {
        let fake = docker();
        let (_folder, project) = project(text);
        let stack = stack(&fake, project);
        stack.start().await.unwrap();
        let wait = async {
            loop {
                let status = stack.status().unwrap();
                let phase =
                    |name: &str| status.iter().find(|status| status.service == name).unwrap().state.phase.clone();
                if let (ServicePhase::Exited(app), ServicePhase::Exited(outside)) = (phase("app"), phase("outside")) {
                    return (app, outside);
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert_eq!(tokio::time::timeout(PATIENCE, wait).await.unwrap(), (0, 1));
        assert!(fake.calls().contains(&"network internal".to_owned()));
        stack.stop().await.unwrap();
        assert!(fake.is_empty());
    }
}

#[tokio::test]
async fn h09_h10_forty_stacks_of_one_document_run_beside_each_other() {
    let fake = docker();
    let (_folder, project) = project(WEB_AND_DB);
    let mut options = PlanOptions::default();
    options.publish = PublishPolicy::Dynamic;
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let stack = stack(&fake, project.clone()).with_options(options.clone());
        running.spawn(async move {
            stack.start().await.unwrap();
            stack
        });
    }
    let stacks = running.join_all().await;
    let mut ids: Vec<String> = stacks.iter().map(|stack| stack.id().unwrap()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), fake.counts()), (40, (40, 40, 80)));
    stacks[0].stop().await.unwrap();
    assert_eq!(fake.counts(), (39, 39, 78));
    for stack in &stacks {
        stack.stop().await.unwrap();
    }
    assert!(fake.is_empty());
}

#[tokio::test]
async fn sandboxes_are_made_at_the_same_time_and_replicas_are_counted() {
    let fake = docker();
    let (_folder, project) = project("services:\n  a: {image: app, scale: 10}\n  b: {image: app, scale: 0}\n");
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    let most = fake.world().most_made_at_once;
    assert!(most > 4, "{most}");
    assert_eq!(stack.status().unwrap().len(), 10);
    assert!(stack.replica("a", 10).is_ok());
    let error = stack.replica("a", 11).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(stack.service("nosuch").unwrap_err().to_string().contains("there is: a"));
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn a_stop_that_fails_keeps_what_is_left_for_the_next_one() {
    let fake = docker();
    let (_folder, project) = project("services:\n  a: {image: app}\n  b: {image: app}\n");
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    fake.world().fail_close = 1;
    stack.stop().await.unwrap_err();
    assert_eq!(fake.world().sandboxes.len(), 1);
    stack.stop().await.unwrap();
    assert!(fake.is_empty());
}

#[tokio::test]
async fn the_image_says_what_the_document_does_not() {
    let fake = docker();
    let image = ImageConfig {
        entrypoint: vec!["print".to_owned()],
        command: vec!["from".to_owned(), "image".to_owned()],
        workdir: Some("/srv".to_owned()),
        user: Some("app".to_owned()),
        healthcheck: Some(ImageHealthcheck {
            test: vec!["CMD".to_owned(), "well".to_owned()],
            interval_s: Some(0.01),
            ..ImageHealthcheck::default()
        }),
        ..ImageConfig::default()
    };
    fake.world().images.insert("img".to_owned(), image);
    let text = "
services:
  own: {image: img, healthcheck: {disable: true}}
  arguments: {image: img, command: mine, healthcheck: {disable: true}}
  cleared: {image: img, command: [], healthcheck: {disable: true}}
  program: {image: img, entrypoint: [exit, '0'], healthcheck: {disable: true}}
  checked: {image: img, entrypoint: [serve]}
  after: {image: img, entrypoint: [serve], healthcheck: {test: [NONE]}, depends_on: {checked: {condition: service_healthy}}}
";
    let (_folder, project) = project(text);
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    let calls = fake.calls();
    for call in ["run own print from image", "run arguments print mine", "run cleared print", "run program exit 0"] {
        position(&calls, call);
    }
    assert!(position(&calls, "run checked well") < position(&calls, "run after serve"));
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn another_process_finds_the_stack_and_removes_it() {
    let fake = docker();
    let (_folder, project) = project(WEB_AND_DB);
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    let descriptor = stack.serialize(None).await.unwrap();
    assert_eq!(descriptor["services"]["web"]["id"].as_str().map(|id| id.starts_with('s')), Some(true));
    let provider: Arc<dyn SandboxProvider> = fake.clone();
    let other = AsyncSandboxCompose::connect(provider, descriptor).await.unwrap();
    let result = other.service("db").unwrap().exec(sandbox_core::ExecRequest::argv(["exit", "4"])).await.unwrap();
    assert_eq!(result.return_code(), 4);
    other.stop().await.unwrap();
    assert!(fake.is_empty());
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn h12_volumes_of_the_stack_go_with_it_and_external_ones_stay() {
    let text = "
services:
  a: {image: app, volumes: ['own:/own', 'theirs:/theirs', '/anonymous'], tmpfs: ['/run:size=1m']}
volumes: {own: {}, theirs: {external: true}}
";
    let fake = docker();
    let (_folder, project) = project(text);
    let stack = stack(&fake, project);
    let error = stack.start().await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("volumes.theirs")));
    assert!(fake.is_empty());
    fake.world().volumes.insert("theirs".to_owned());
    for _ in 0..20 {
        stack.start().await.unwrap();
        assert_eq!(fake.world().volumes.len(), 2);
        stack.stop().await.unwrap();
        assert_eq!(fake.world().volumes.iter().collect::<Vec<_>>(), ["theirs"]);
    }
}

#[tokio::test]
async fn h12_a_bind_source_that_is_absent_or_leads_out_is_refused_before_anything_is_made() {
    let fake = docker();
    let (folder, project) = project("services:\n  a: {image: app, volumes: ['./conf:/conf']}\n");
    let stack = stack(&fake, project);
    let error = stack.start().await.unwrap_err();
    assert!(error.to_string().contains("conf") && error.kind() == ErrorKind::NotFound, "{error}");
    std::os::unix::fs::symlink("/etc", folder.path().join("conf")).unwrap();
    let error = stack.start().await.unwrap_err();
    assert!(error.to_string().contains("leads out of the project's folder"), "{error}");
    assert_eq!(fake.calls(), Vec::<String>::new());
}

#[tokio::test]
async fn h12_a_build_from_a_folder_that_is_absent_or_leads_out_is_refused_before_anything_is_made() {
    let fake = docker();
    let (folder, project) = project("services:\n  a: {build: ./app}\n");
    let stack = stack(&fake, project);
    let error = stack.start().await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("services.a.build.context")), "{error:?}");
    std::os::unix::fs::symlink("/etc", folder.path().join("app")).unwrap();
    let error = stack.start().await.unwrap_err();
    assert!(error.to_string().contains("leads out of the project's folder"), "{error}");
    assert_eq!(fake.calls(), Vec::<String>::new());
}

#[tokio::test]
async fn secrets_become_files_and_a_build_gives_the_image() {
    let fake = docker();
    let text = "
services:
  a: {build: ., secrets: [token, {source: file, target: /etc/key, mode: '0400'}]}
secrets: {token: {environment: TOKEN}, file: {file: ./key}}
";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("compose.yaml"), text).unwrap();
    std::fs::write(folder.path().join("key"), "k").unwrap();
    let mut options = ComposeOptions::default();
    options.working_directory = Some(folder.path().to_owned());
    options.environment.insert("TOKEN".to_owned(), "canary".to_owned());
    let project = ComposeProject::load(&options).project.unwrap();
    assert!(!format!("{project:?}").contains("canary"));
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    let id = stack.status().unwrap()[0].sandbox_id.clone();
    let files = fake.world().files.clone();
    assert_eq!(files[&(id.clone(), "/run/secrets/token".to_owned())], b"canary");
    assert_eq!(files[&(id, "/etc/key".to_owned())], b"k");
    assert!(fake.calls().iter().any(|call| call.starts_with("build ")));
    stack.stop().await.unwrap();
}

#[tokio::test]
async fn on_addresses_alone_names_are_in_the_hosts_file_and_urls_get_addresses() {
    let fake = StackFake::new(Kind::LocalLike);
    let text = "
services:
  web:
    command: serve
    environment: {URL: 'http://me:secret@db:5432/x', OTHER: 'http://db/'}
    x-sandbox: {resolve_environment: [URL]}
  db: {command: serve, hostname: database, volumes: ['data:/data']}
  alone: {command: serve, x-sandbox: {hosts: []}}
volumes: {data: {}}
";
    let (_folder, project) = project(text);
    let stack = stack(&fake, project);
    stack.start().await.unwrap();
    {
        let world = fake.world();
        let of = |name: &str| {
            world.sandboxes.values().find(|sandbox| crate::fake::service_of(&sandbox.spec) == name).unwrap()
        };
        let address = of("db").address.clone();
        assert_eq!(of("web").hosts.get("db"), Some(&address));
        assert_eq!(of("web").hosts.get("database"), Some(&address));
        assert!(of("alone").hosts.is_empty());
        assert!(world.calls.contains(&"run db mkdir -p -- /data".to_owned()));
    }
    stack.stop().await.unwrap();
    assert!(fake.is_empty());
}
