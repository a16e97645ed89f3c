//! Compose documents of every kind, and what loading says about them.

use std::path::Path;

use sandbox_api::compose::{
    ComposeLoaded, ComposeOptions, ComposeProject, ComposeRestart, FindingClass, HealthTest, HostPort, MountSource,
    Severity,
};
use tempfile::TempDir;

/// A folder with these files.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

fn options(folder: &Path, environment: &[(&str, &str)]) -> ComposeOptions {
    let mut options = ComposeOptions::default();
    options.working_directory = Some(folder.to_owned());
    options.environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    options
}

fn load(files: &[(&str, &str)], environment: &[(&str, &str)]) -> ComposeLoaded {
    let folder = folder(files);
    ComposeProject::load(&options(folder.path(), environment))
}

fn good(text: &str) -> ComposeProject {
    let loaded = load(&[("compose.yaml", text)], &[]);
    loaded.project.unwrap_or_else(|| panic!("{}", loaded.report))
}

/// Line, column and message of every error.
fn errors(text: &str) -> Vec<(u32, u32, String)> {
    let loaded = load(&[("compose.yaml", text)], &[]);
    loaded.report.errors().map(|finding| (finding.line, finding.column, finding.message.clone())).collect()
}

#[test]
fn every_problem_is_told_in_one_run_with_its_place() {
    let text = "\
services:
  web:
    image: 5
    imgae: x
    ports: ['70000', 'a:b']
    depends_on: [nosuch]
    networks: [nonet]
    volumes: ['data:/x', 'rel']
    restart: sometimes
    healthcheck: {test: [], interval: 10}
";
    let errors = errors(text);
    let lines: Vec<u32> = errors.iter().map(|(line, ..)| *line).collect();
    assert_eq!(lines, [3, 4, 5, 5, 6, 7, 8, 8, 9, 10, 10], "{errors:#?}");
    assert_eq!((errors[0].1, errors[0].2.as_str()), (12, "must be text, not a number"));
    let loaded = load(&[("compose.yaml", text)], &[]);
    let unknown = loaded.report.errors().find(|finding| finding.line == 4).unwrap();
    assert_eq!(unknown.help.as_deref(), Some("did you mean \"image\"?"));
    assert_eq!((unknown.key.as_str(), unknown.file.as_str()), ("services.web.imgae", "compose.yaml"));
    assert!(loaded.report.to_string().contains("4 |     imgae: x\n  |     ^^^^^\n"), "{}", loaded.report);
    assert!(loaded.project.is_none());
}

#[test]
fn yaml_that_is_not_safe_to_read_is_refused_with_its_place() {
    let bomb: String = (1..9).fold("a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned(), |text, level| {
        let below = format!("*a{}, ", level - 1).repeat(9);
        format!("{text}a{level}: &a{level} [{}]\n", below.trim_end_matches(", "))
    });
    let deep = format!("x-a: {}{}\n", "[".repeat(100), "]".repeat(100));
    let cases = [
        ("services:\n  a: {image: x}\n  a: {image: y}\n", 3, "is there twice"),
        (bomb.as_str(), 6, "more than 100000 nodes"),
        ("x-a: &a {b: *a}\n", 1, "contains it"),
        (deep.as_str(), 1, "nested deeper"),
        ("x-a: {<<: 3}\n", 1, "only a mapping can be merged"),
        ("x-a: &a {}\nx-b: {<<: *a, <<: *a}\n", 2, "\"<<\" is there twice"),
        ("services: [\n", 0, "no YAML"),
        ("x-a: x\nservices: !what {}\n", 2, "tag"),
        ("? [a]\n: b\n", 1, "a key must be text"),
    ];
    for (text, line, message) in cases {
        let errors = errors(text);
        let found = errors.iter().find(|(_, _, found)| found.contains(message));
        let found = found.unwrap_or_else(|| panic!("{text:.60}: {errors:?}"));
        assert!(line == 0 || found.0 == line, "{text:.60}: {found:?}");
    }
}

#[test]
fn h02_env_shell_and_env_file_precedence() {
    let text = "
services:
  a:
    image: x
    env_file: [f1, {path: f2}, {path: absent, required: false}]
    environment: {A: '${A}', B: '${B}', C: '${C}', D: '${D}', E: '${E}', H: 3, I: , J: null, K: , F: '${F-unset}'}
";
    let files = [
        ("compose.yaml", text),
        (".env", "A=d\nB=$A\nC='$A'\nD=\"x # y\"\nE=x # y\nF\n"),
        ("f1", "G=1\nH=1\n"),
        ("f2", "G=2\n"),
    ];
    let loaded = load(&files, &[("A", "s"), ("I", "i")]);
    let project = loaded.project.unwrap_or_else(|| panic!("{}", loaded.report));
    let env = &project.services["a"].environment;
    let expected = [
        ("A", Some("s")),
        ("B", Some("s")),
        ("C", Some("$A")),
        ("D", Some("x # y")),
        ("E", Some("x")),
        ("F", Some("unset")),
        ("G", Some("2")),
        ("H", Some("3")),
        ("I", Some("i")),
        ("J", None),
        ("K", None),
    ];
    for (name, value) in expected {
        assert_eq!(env.get(name).map(|value| value.to_string()).as_deref(), value, "{name}");
    }
    let loaded = load(&[("compose.yaml", text), ("f1", "=x\nG H=1\n"), ("f2", "")], &[]);
    let lines: Vec<_> = loaded.report.errors().map(|finding| (finding.file.as_str(), finding.line)).collect();
    assert_eq!(lines, [("f1", 1), ("f1", 2)], "{}", loaded.report);
}

#[test]
fn h04_values_of_variables_keep_their_text() {
    let text = "
services:
  a:
    image: x
    environment: {A: , B: '', C: true, D: 1.10, E: 0x10, F: 010, G: 1e3, H: no, I: 2024-01-01}
  b:
    image: x
    environment: [A, B=, C=a=b]
";
    let loaded = load(&[("compose.yaml", text)], &[("A", "outside")]);
    let project = loaded.project.unwrap();
    let env = |service: &str, name: &str| project.services[service].environment.get(name).map(ToString::to_string);
    for (name, value) in [
        ("A", "outside"),
        ("B", ""),
        ("C", "true"),
        ("D", "1.10"),
        ("E", "0x10"),
        ("F", "010"),
        ("G", "1e3"),
        ("H", "no"),
        ("I", "2024-01-01"),
    ] {
        assert_eq!(env("a", name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(["A", "B", "C"].map(|name| env("b", name).unwrap()), ["outside", "", "a=b"]);
    assert_eq!(good("services: {a: {image: x, environment: {A: }}}").services["a"].environment.get("A"), None);
}

#[test]
fn h05_an_unquoted_port_is_no_number_to_base_60() {
    let project =
        good("services:\n  a:\n    image: x\n    ports: [2122:22, 80, {target: 80, published: '8000-8010'}]\n");
    let ports = &project.services["a"].ports;
    assert_eq!((ports[0].target, ports[0].published), (22, HostPort::Fixed(2122)));
    assert_eq!((ports[1].target, ports[1].published), (80, HostPort::Any));
    assert_eq!((ports[2].target, ports[2].published), (80, HostPort::Range(8000, 8010)));
    let taken =
        errors("services:\n  a: {image: x, ports: ['80:1']}\n  b: {image: x, ports: ['80:2', '81:3/udp', '81:4']}\n");
    assert_eq!(taken.len(), 1);
    assert!(taken[0].2.contains("taken by service \"a\""), "{taken:?}");
}

#[test]
fn h06_healthcheck_forms() {
    let shell = |text: &str| Some(HealthTest::Shell(text.to_owned()));
    let cases = [
        ("{test: curl -f x || exit 1}", shell("curl -f x || exit 1")),
        ("{test: [CMD, sh, -c, 'exit 0']}", Some(HealthTest::Command(vec!["sh".into(), "-c".into(), "exit 0".into()]))),
        ("{test: [CMD-SHELL, 'exit 0']}", shell("exit 0")),
        ("{test: [NONE]}", Some(HealthTest::None)),
        ("{disable: true}", Some(HealthTest::None)),
        ("{interval: 1m30s}", None),
    ];
    for (text, test) in cases {
        let project = good(&format!("services: {{a: {{image: x, healthcheck: {text}}}}}"));
        assert_eq!(project.services["a"].healthcheck.as_ref().unwrap().test, test, "{text}");
    }
    let project =
        good("services: {a: {image: x, healthcheck: {test: x, interval: 1.5s, retries: 3, start_period: 2s}}}");
    let check = project.services["a"].healthcheck.clone().unwrap();
    assert_eq!(
        (check.interval.unwrap().as_millis(), check.retries, check.start_period.unwrap().as_secs()),
        (1500, Some(3), 2)
    );
    for bad in [
        "{test: ['exit 0']}",
        "{test: []}",
        "{test: x, interval: 10}",
        "{test: x, interval: '10'}",
        "{test: x, retries: -1}",
    ] {
        assert_eq!(errors(&format!("services: {{a: {{image: x, healthcheck: {bad}}}}}")).len(), 1, "{bad}");
    }
}

#[test]
fn h07_profiles_and_dependencies() {
    let text =
        "services:\n  web: {image: x, depends_on: [dbg]}\n  dbg: {image: x, profiles: [x]}\n  free: {image: x}\n";
    let folder = folder(&[("compose.yaml", text)]);
    let with = |profiles: &[&str], services: &[&str], variable: &str| {
        let mut options = options(folder.path(), &[("COMPOSE_PROFILES", variable)]);
        options.profiles = profiles.iter().map(|name| (*name).to_owned()).collect();
        options.services = services.iter().map(|name| (*name).to_owned()).collect();
        ComposeProject::load(&options)
    };
    let names = |loaded: ComposeLoaded| loaded.project.unwrap().services.into_keys().collect::<Vec<_>>();
    let refused = with(&[], &[], "");
    let error = refused.report.errors().next().unwrap();
    assert_eq!((error.line, error.help.as_deref()), (2, Some("activate one of: x")));
    assert_eq!(names(with(&["x"], &[], "")), ["dbg", "free", "web"]);
    assert_eq!(names(with(&[], &[], "y,x")), ["dbg", "free", "web"]);
    assert_eq!(names(with(&["*"], &["web"], "")), ["dbg", "web"]);
    assert_eq!(names(with(&[], &["free"], "")), ["free"]);
    assert_eq!(names(with(&[], &["dbg"], "")), ["dbg"], "a service that is named is active");
    assert!(with(&[], &["web"], "").project.is_none());
    assert!(with(&[], &["nosuch"], "").report.errors().any(|finding| finding.message.contains("nosuch")));
    let optional = good(
        "services:\n  a: {image: x, depends_on: {b: {condition: service_started, required: false}}}\n  b: {image: x, profiles: [p]}\n",
    );
    assert!(optional.services["a"].depends_on.is_empty());
}

#[test]
fn h08_anchors_merge_keys_extends_override_and_reset() {
    let base = "
services:
  base: {build: ./ctx, env_file: vars, environment: {A: 1, B: 1}, command: [old], volumes: ['./d:/d']}
";
    let main = "
x-a: &a {environment: {A: 1}}
x-b: &b {image: other, restart: always}
services:
  one: {<<: [*a, *b], image: own}
  two: {extends: {file: ../base/c.yml, service: base}, environment: [B=2, C=3], command: new}
  three: {extends: one, labels: [x=y]}
";
    let over = "
services:
  one: {environment: {A: 2}, ports: !reset [], cap_add: !override [B]}
  three: {image: third, restart: !reset null}
";
    let first = "services:\n  one: {ports: ['1:1', '2:2'], cap_add: [A], volumes: ['a:/x', 'b:/y']}\nvolumes: {a: , b: , c: }\n";
    let second = "services:\n  one: {volumes: ['c:/x'], cap_add: [A]}\n";
    let folder = folder(&[
        ("base/c.yml", base),
        ("base/vars", "V=v\n"),
        ("main/compose.yaml", main),
        ("main/over.yaml", over),
        ("main/first.yaml", first),
        ("main/second.yaml", second),
    ]);
    let main_folder = folder.path().join("main");
    let mut options = options(&main_folder, &[]);
    options.files = ["compose.yaml", "first.yaml", "second.yaml", "over.yaml"].map(Into::into).to_vec();
    let loaded = ComposeProject::load(&options);
    let project = loaded.project.unwrap_or_else(|| panic!("{}", loaded.report));
    let one = &project.services["one"];
    assert_eq!((one.image.as_deref(), one.restart), (Some("own"), ComposeRestart::Always));
    assert_eq!(one.environment.get("A").unwrap().to_string(), "2");
    assert!(one.ports.is_empty());
    assert_eq!(one.cap_add, ["B"]);
    let volume = |target: &str| one.mounts.iter().find(|mount| mount.target == target).unwrap().source.clone();
    assert_eq!(volume("/x"), MountSource::Volume { name: "c".into() });
    assert_eq!(one.mounts.len(), 2);
    let two = &project.services["two"];
    let base_folder = folder.path().canonicalize().unwrap().join("base");
    let real = |path: &Path| path.parent().unwrap().canonicalize().unwrap().join(path.file_name().unwrap());
    assert_eq!(real(Path::new(&two.build.as_ref().unwrap().context)), base_folder.join("ctx"));
    assert!(matches!(&two.mounts[0].source, MountSource::Bind { path } if real(path) == base_folder.join("d")));
    let env = |name: &str| two.environment.get(name).unwrap().to_string();
    assert_eq!([env("A"), env("B"), env("C"), env("V")], ["1", "2", "3", "v"]);
    assert_eq!(two.command.as_deref(), Some(&["new".to_owned()][..]));
    let three = &project.services["three"];
    assert_eq!(
        (three.image.as_deref(), three.restart, three.labels["x"].as_str()),
        (Some("third"), ComposeRestart::No, "y")
    );
    for (text, message) in [
        ("services: {a: {extends: b}, b: {extends: a}}", "extend each other"),
        ("services: {a: {extends: nosuch}}", "no service \"nosuch\""),
        ("services: {a: {extends: {file: nofile.yml, service: x}}}", "extended file nofile.yml does not exist"),
    ] {
        assert!(errors(text).iter().any(|(_, _, found)| found.contains(message)), "{text}: {:?}", errors(text));
    }
}

#[test]
fn includes_bring_their_own_folder_and_variables() {
    let files = [
        (
            "compose.yaml",
            "include:\n  - sub/inc.yml\n  - {path: sub/two.yml, env_file: two.env, project_directory: .}\nservices: {main: {image: 'm:${TAG}', depends_on: [inc]}}\n",
        ),
        (".env", "TAG=main\n"),
        ("two.env", "TWO=2\nTAG=no\n"),
        ("sub/.env", "TAG=sub\nONLY=only\n"),
        ("sub/inc.yml", "services: {inc: {image: 'i:${TAG}-${ONLY}', volumes: ['./d:/d']}}\n"),
        ("sub/two.yml", "services: {two: {image: 't:${TAG}-${TWO}', volumes: ['./d:/d']}}\n"),
    ];
    let folder = folder(&files);
    let project = ComposeProject::load(&options(folder.path(), &[])).project.unwrap();
    let image = |name: &str| project.services[name].image.clone().unwrap();
    assert_eq!([image("main"), image("inc"), image("two")], ["m:main", "i:main-only", "t:main-2"]);
    let bind = |name: &str| match &project.services[name].mounts[0].source {
        MountSource::Bind { path } => path.strip_prefix(folder.path()).unwrap().display().to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!([bind("inc"), bind("two")], ["sub/d", "d"]);
    let conflict =
        [("compose.yaml", "include: [o.yml]\nservices: {a: {image: x}}\n"), ("o.yml", "services: {a: {image: y}}\n")];
    let loaded = load(&conflict, &[]);
    assert!(loaded.report.errors().any(|finding| finding.message.contains("defined differently")), "{}", loaded.report);
    let circle = load(&[("compose.yaml", "include: [compose.yaml]\n")], &[]);
    assert!(circle.report.errors().any(|finding| finding.message.contains("includes itself")));
    let absent = load(&[("compose.yaml", "include: [gone.yml]\nservices: {}\n")], &[]);
    let error = absent.report.errors().next().unwrap();
    assert_eq!((error.class, error.line, error.column), (FindingClass::MissingFile, 1, 11));
}

#[test]
fn h14_command_and_entrypoint_as_text_list_empty_and_nothing() {
    let list = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let cases = [
        ("echo \"a b\" $$HOME 'c'", list(&["echo", "a b", "$HOME", "c"])),
        ("[echo, 'a b']", list(&["echo", "a b"])),
        ("[]", list(&[])),
        ("''", list(&[])),
        ("", None),
        ("null", None),
    ];
    for (text, expected) in cases {
        for key in ["command", "entrypoint"] {
            let project = good(&format!("services:\n  a:\n    image: x\n    {key}: {text}\n"));
            let service = &project.services["a"];
            let found = if key == "command" { &service.command } else { &service.entrypoint };
            assert_eq!(*found, expected, "{key}: {text}");
        }
    }
}

#[test]
fn circles_are_named_and_references_have_a_near_match() {
    let circle = errors(
        "services:\n  a: {image: x, depends_on: [b]}\n  b: {image: x, depends_on: [c]}\n  c: {image: x, depends_on: [a]}\n",
    );
    assert_eq!(circle, [(2, 17, "services need each other in a circle: a -> b -> c -> a".to_owned())]);
    let loaded =
        load(&[("compose.yaml", "services: {web: {image: x, volumes: ['dat:/x']}}\nvolumes: {data: }\n")], &[]);
    assert_eq!(loaded.report.errors().next().unwrap().help.as_deref(), Some("did you mean \"data\"?"));
}

#[test]
fn what_may_be_secret_is_shown_nowhere() {
    let text = "services:\n  a:\n    image: x\n    environment:\n      TOKEN: 'canary${A:?}'\n      LIST: [canary]\n    command: 'canary \"'\n";
    let loaded = load(&[("compose.yaml", text)], &[]);
    assert_eq!(loaded.report.count(Severity::Error), 3, "{}", loaded.report);
    assert!(!loaded.report.to_string().contains("canary"), "{}", loaded.report);
    assert!(!serde_json::to_string(&loaded.report).unwrap().contains("canary"));
}

#[test]
fn h09_the_name_of_a_project_comes_from_four_places() {
    let folder = folder(&[
        ("My.App/compose.yaml", "services: {a: {image: x}}\n"),
        ("My.App/named.yaml", "name: own\nservices: {}\n"),
    ]);
    let here = folder.path().join("My.App");
    let name = |file: &str, given: Option<&str>, variable: Option<&str>| {
        let environment: Vec<(&str, &str)> = variable.map(|name| ("COMPOSE_PROJECT_NAME", name)).into_iter().collect();
        let mut options = options(&here, &environment);
        options.files = vec![file.into()];
        options.project_name = given.map(str::to_owned);
        ComposeProject::load(&options).project.unwrap().name
    };
    assert_eq!(name("compose.yaml", None, None), "myapp");
    assert_eq!(name("named.yaml", None, None), "own");
    assert_eq!(name("named.yaml", None, Some("variable")), "variable");
    assert_eq!(name("named.yaml", Some("given"), Some("variable")), "given");
    assert_eq!(errors("name: Bad.Name\nservices: {a: {image: x}}\n")[0].0, 1);
}
