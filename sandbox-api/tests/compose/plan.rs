//! What a document becomes on providers of three kinds. Nothing is started.

use crate::fake::{Kind, capabilities, info};
use sandbox_api::compose::{
    BindPolicy, ComposeAllow, ComposeOptions, ComposePlanned, ComposeProject, FindingClass, Networking, PlanOptions,
    PublishPolicy, Severity,
};
use sandbox_core::{NetworkMode, ProviderInfo, VolumeSource};

fn provider(kind: Kind) -> ProviderInfo {
    let mut info = info(kind);
    info.capabilities = capabilities(kind).into_iter().collect();
    info
}

fn project(text: &str) -> ComposeProject {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("compose.yaml"), text).unwrap();
    let mut options = ComposeOptions::default();
    options.working_directory = Some(folder.path().to_owned());
    let loaded = ComposeProject::load(&options);
    loaded.project.unwrap_or_else(|| panic!("{text}\n{}", loaded.report))
}

fn plan(text: &str, kind: Kind, options: &PlanOptions) -> ComposePlanned {
    project(text).plan(&provider(kind), options)
}

/// Class and key of every error.
fn errors(planned: &ComposePlanned) -> Vec<(FindingClass, String)> {
    planned.report.errors().map(|finding| (finding.class, finding.key.clone())).collect()
}

fn allowing(allow: impl IntoIterator<Item = ComposeAllow>) -> PlanOptions {
    let mut options = PlanOptions::default();
    options.allow = allow.into_iter().collect();
    options
}

const WEB: &str = "
services:
  web:
    image: web
    cpus: 1.5
    mem_limit: 64m
    ports: ['8080:80']
    volumes: ['./conf:/conf:ro', 'data:/data']
    depends_on: [db]
    networks: [front, back]
  db: {image: db, networks: {back: {aliases: [store]}}, ulimits: {nofile: 5}}
networks: {front: , back: {internal: true}}
volumes: {data: }
";

#[test]
fn an_engine_takes_all_of_it() {
    let planned = plan(WEB, Kind::DockerLike, &PlanOptions::default());
    let plan = planned.plan.unwrap_or_else(|| panic!("{}", planned.report));
    assert_eq!(plan.networking, Networking::Networks);
    let names: Vec<_> = plan.services.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, ["db", "web"]);
    let (db, web) = (&plan.services[0], &plan.services[1]);
    assert_eq!((web.spec.resources.cpu, web.spec.resources.memory_mib), (Some(1.5), Some(64)));
    assert_eq!(web.spec.network, Some(NetworkMode::Named("back".into())));
    assert_eq!(db.networks, [("back".to_owned(), vec!["db".to_owned(), "store".to_owned()])]);
    assert!(matches!(&web.spec.volumes[0].source, VolumeSource::Bind(path) if path.ends_with("/conf")));
    assert!(web.spec.volumes[0].read_only);
    assert_eq!(web.spec.volumes[1].source, VolumeSource::Named("data".into()));
    assert_eq!(web.spec.provider_options["published_ports"][0]["published"], "8080");
    assert_eq!(web.spec.provider_options["published_ports"][0]["host_ip"], "127.0.0.1");
    assert_eq!(db.spec.provider_options["ulimits"]["nofile"], 5);
    assert_eq!(plan.networks.iter().map(|network| network.internal).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn another_provider_tells_everything_that_it_cannot_at_once_and_where() {
    let planned = plan(WEB, Kind::LocalLike, &PlanOptions::default());
    let keys: Vec<_> = errors(&planned).into_iter().map(|(_, key)| key).collect();
    for key in ["services.web.volumes[1]", "services.db.ulimits", "networks.back.internal"] {
        // A volume of one sandbox is a folder of it.
        let is_expected = key != "services.web.volumes[1]";
        assert_eq!(keys.iter().any(|found| found == key), is_expected, "{key}: {}", planned.report);
    }
    assert!(planned.plan.is_none());
    assert!(planned.report.errors().all(|finding| finding.line > 0 && finding.message.contains("local-like")));
    let poor = plan(WEB, Kind::Poor, &PlanOptions::default());
    let keys: Vec<_> = errors(&poor).into_iter().map(|(_, key)| key).collect();
    for key in [
        "services",
        "services.web.image",
        "services.db.image",
        "services.web.cpus",
        "services.web.mem_limit",
        "services.web.ports[0]",
        "services.web.volumes[0]",
        "services.db.ulimits",
    ] {
        assert!(keys.iter().any(|found| found == key), "{key}: {keys:?}");
    }
}

#[test]
fn what_endangers_this_machine_is_refused_until_it_is_allowed() {
    let cases = [
        ("privileged: true", ComposeAllow::Privileged, "privileged"),
        ("cap_add: [SYS_ADMIN]", ComposeAllow::Privileged, "cap_add"),
        ("pid: host", ComposeAllow::Privileged, "pid"),
        ("ipc: host", ComposeAllow::Privileged, "ipc"),
        ("devices: ['/dev/kvm']", ComposeAllow::Privileged, "devices"),
        ("security_opt: ['seccomp:unconfined']", ComposeAllow::Privileged, "security_opt"),
        ("security_opt: ['apparmor=unconfined']", ComposeAllow::Privileged, "security_opt"),
        ("network_mode: host", ComposeAllow::HostNetwork, "network_mode"),
        ("volumes: ['/etc:/host']", ComposeAllow::HostPaths, "volumes[0]"),
        ("volumes: ['../up:/x']", ComposeAllow::HostPaths, "volumes[0]"),
        ("volumes: ['/var/run/docker.sock:/s']", ComposeAllow::HostPaths, "volumes[0]"),
        ("build: /etc", ComposeAllow::HostPaths, "build.context"),
        ("build: {context: ./in/../..}", ComposeAllow::HostPaths, "build.context"),
        ("build: {context: ., dockerfile: ../Dockerfile}", ComposeAllow::HostPaths, "build.dockerfile"),
    ];
    for (text, allow, key) in cases {
        let text = format!("services:\n  a:\n    image: x\n    {text}\n");
        let refused = plan(&text, Kind::DockerLike, &PlanOptions::default());
        assert_eq!(errors(&refused), [(FindingClass::Security, format!("services.a.{key}"))], "{text}");
        let help = refused.report.errors().next().unwrap().help.clone().unwrap();
        assert!(help.ends_with(&format!("--allow {}", allow.as_str())), "{help}");
        let allowed = plan(&text, Kind::DockerLike, &allowing([allow]));
        assert!(allowed.plan.is_some(), "{text}: {}", allowed.report);
    }
    let harmless = "services: {a: {image: x, cap_add: [NET_ADMIN], security_opt: ['no-new-privileges:true']}}";
    assert!(plan(harmless, Kind::DockerLike, &PlanOptions::default()).plan.is_some());
}

#[test]
fn h11_no_key_is_dropped_without_a_word() {
    // Every key that has no field of its own, with a value. On a provider that knows no option, each must be told.
    let cases = [
        ("annotations: {a: b}", Severity::Note),
        ("attach: true", Severity::Note),
        ("blkio_config: {weight: 5}", Severity::Error),
        ("build: .", Severity::Error),
        ("cap_drop: [ALL]", Severity::Error),
        ("cgroup: private", Severity::Error),
        ("container_name: abc", Severity::Warning),
        ("cpu_shares: 5", Severity::Note),
        ("cpuset: '0'", Severity::Error),
        ("credential_spec: {file: x}", Severity::Error),
        ("develop: {watch: []}", Severity::Note),
        ("device_cgroup_rules: ['c 1:3 mr']", Severity::Error),
        ("devices: ['/dev/x']", Severity::Error),
        ("dns: 1.1.1.1", Severity::Error),
        ("domainname: x", Severity::Error),
        ("external_links: [x]", Severity::Error),
        ("extra_hosts: ['a=1.2.3.4']", Severity::Error),
        ("gpus: all", Severity::Error),
        ("group_add: [x]", Severity::Error),
        ("hostname: web2", Severity::Warning),
        ("init: true", Severity::Note),
        ("ipc: private", Severity::Error),
        ("logging: {driver: x}", Severity::Note),
        ("mac_address: x", Severity::Error),
        ("memswap_limit: 1g", Severity::Error),
        ("models: [x]", Severity::Error),
        ("oom_kill_disable: true", Severity::Error),
        ("pids_limit: 5", Severity::Error),
        ("platform: linux/riscv64", Severity::Error),
        ("post_start: [{command: x}]", Severity::Error),
        ("provider: {type: x}", Severity::Error),
        ("pull_policy: always", Severity::Error),
        ("read_only: true", Severity::Error),
        ("runtime: x", Severity::Error),
        ("shm_size: 64m", Severity::Error),
        ("stdin_open: true", Severity::Warning),
        ("storage_opt: {size: 1G}", Severity::Error),
        ("sysctls: {a: 1}", Severity::Error),
        ("tmpfs: /run", Severity::Error),
        ("tty: true", Severity::Warning),
        ("ulimits: {nofile: 5}", Severity::Error),
        ("use_api_socket: true", Severity::Error),
        ("userns_mode: x", Severity::Error),
        ("volumes_from: [x]", Severity::Error),
        ("working_dir: /x", Severity::Error),
        ("user: '1'", Severity::Error),
    ];
    for (text, severity) in cases {
        let key = text.split(':').next().unwrap();
        let text = format!("services:\n  a:\n    command: x\n    network_mode: bridge\n    {text}\n");
        let planned = plan(&text, Kind::Poor, &allowing([ComposeAllow::Privileged]));
        let found =
            planned.report.findings().iter().find(|finding| finding.key.starts_with(&format!("services.a.{key}")));
        assert_eq!(found.map(|finding| finding.severity), Some(severity), "{text}{}", planned.report);
    }
    assert!(
        plan("services: {a: {command: x, x-any: {y: 1}}}\nx-top: 1\n", Kind::Poor, &PlanOptions::default())
            .plan
            .is_some()
    );
}

#[test]
fn choices_of_the_caller_replace_what_a_provider_lacks() {
    let text = "services: {a: {build: ., command: x, volumes: ['./c:/c'], ports: ['80:80'], network_mode: none}}";
    let refused = plan(text, Kind::Poor, &PlanOptions::default());
    assert_eq!(errors(&refused).len(), 4, "{}", refused.report);
    let mut options = PlanOptions::default();
    options.images.insert("a".to_owned(), "mine:1".to_owned());
    options.bind = BindPolicy::Copy;
    options.publish = PublishPolicy::Nothing;
    let planned = plan(text, Kind::LocalLike, &options);
    let plan = planned.plan.unwrap_or_else(|| panic!("{}", planned.report));
    assert_eq!(plan.services[0].spec.image.as_deref(), Some("mine:1"));
    options.images.insert("nosuch".to_owned(), "x".to_owned());
    let wrong = project(text).plan(&provider(Kind::LocalLike), &options);
    assert!(wrong.report.errors().any(|finding| finding.message.contains("nosuch")));
}

#[test]
fn a_build_is_planned_as_it_is_written_and_its_image_named_as_the_specification_says() {
    let text = "
name: Shop
services:
  Web:
    build:
      context: ./app
      dockerfile_inline: \"FROM scratch\"
      args: {A: b}
      target: last
      labels: [c=d]
      tags: ['extra:1']
      no_cache: true
      pull: 'true'
      platforms: [linux/riscv64]
      cache_from: [x]
  named: {build: ., image: 'mine:2', platform: linux/arm64}
"
    .replace("name: Shop", "name: shop");
    let planned = plan(&text, Kind::DockerLike, &PlanOptions::default());
    let report = planned.report.to_string();
    let plan_of = planned.plan.unwrap_or_else(|| panic!("{report}"));
    let build = |name: &str| plan_of.services.iter().find(|one| one.name == name).unwrap().build.clone().unwrap();
    let web = build("Web");
    assert!(web.context.ends_with("/app") && web.dockerfile_inline.as_deref() == Some("FROM scratch"), "{web:?}");
    assert_eq!((web.tags, web.platforms), (vec!["shop-web".into(), "extra:1".into()], vec!["linux/riscv64".into()]));
    assert!(web.no_cache && web.pull && web.other_keys == ["cache_from"]);
    assert_eq!((web.target.as_deref(), web.labels["c"].as_str(), web.args.iter().count()), (Some("last"), "d", 1));
    let named = build("named");
    assert_eq!((named.tags, named.platforms), (vec!["mine:2".to_owned()], vec!["linux/arm64".to_owned()]));
    let refused = plan("services: {a: {build: ., command: x}}", Kind::LocalLike, &PlanOptions::default());
    assert_eq!(errors(&refused), [(FindingClass::Unsupported, "services.a.build".to_owned())]);
    for (wrong, key) in [
        ("{context: ., ssh: [default]}", "build.ssh"),
        ("{context: ., additional_contexts: {a: /b}}", "build.additional_contexts"),
        ("https://example.test/x.git", "build.context"),
        ("{context: ., platforms: [linux/amd64]}, platform: linux/arm64", "build.platforms"),
    ] {
        let refused = plan(&format!("services: {{a: {{build: {wrong}}}}}"), Kind::DockerLike, &PlanOptions::default());
        assert_eq!(errors(&refused), [(FindingClass::Unsupported, format!("services.a.{key}"))], "{wrong}");
    }
}

#[test]
fn networks_that_cannot_be_kept_apart_need_a_word_of_the_caller() {
    let text =
        "services: {a: {command: x, networks: [one]}, b: {command: x, networks: [two]}}\nnetworks: {one: , two: }\n";
    let refused = plan(text, Kind::LocalLike, &PlanOptions::default());
    assert_eq!(errors(&refused), [(FindingClass::Unsupported, "services.a.networks".to_owned())]);
    let allowed = plan(text, Kind::LocalLike, &allowing([ComposeAllow::FlatNetworks]));
    assert_eq!(allowed.report.count(Severity::Warning), 1);
    let plan = allowed.plan.unwrap();
    assert!(plan.services.iter().all(|service| service.hosts.len() == 1), "they have no names for each other");
}

#[test]
fn the_same_question_has_the_same_answer() {
    let project = project(WEB);
    let (left, right) = (
        project.plan(&provider(Kind::DockerLike), &PlanOptions::default()),
        project.plan(&provider(Kind::DockerLike), &PlanOptions::default()),
    );
    assert_eq!(left.report, right.report);
    let specs = |planned: ComposePlanned| -> Vec<_> {
        planned.plan.unwrap().services.into_iter().map(|service| service.spec).collect()
    };
    assert_eq!(specs(left), specs(right));
}
