//! Layers of configuration, provider blocks, and what a file may say.

use std::{fs, path::PathBuf};

use sandbox_api::{
    Config, ConfigFileKind, ConfigSources, Environment, ErrorKind, resolve_provider_config, resolve_provider_metadata,
    serde_json::{Value, json},
};

struct Place(tempfile::TempDir);

impl Place {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("project/deep/er")).unwrap();
        fs::create_dir_all(folder.path().join("user")).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn sources(&self, variables: &[(&str, &str)]) -> ConfigSources {
        let mut sources = ConfigSources::default();
        sources.folder = Some(self.path("project/deep/er"));
        sources.user_folder = Some(self.path("user"));
        sources.environment = variables.iter().copied().collect::<Environment>();
        sources
    }

    fn load(&self, variables: &[(&str, &str)]) -> sandbox_api::Result<Config> {
        Config::load(&self.sources(variables))
    }

    fn load_file(&self, name: &str, variables: &[(&str, &str)]) -> sandbox_api::Result<Config> {
        Config::load(&self.sources(variables).with_file(Some(&self.path(name))))
    }
}

#[test]
fn a_flag_beats_a_variable_beats_the_project_beats_the_user_and_each_value_names_its_source() {
    let place = Place::new(&[
        ("project/sandbox.toml", "provider = \"project\"\n[providers.local]\na = 1\nb = 1\n"),
        ("user/config.toml", "provider = \"user\"\n[providers.local]\nb = 2\nc = 2\nd = 2\n"),
    ]);
    let mut config =
        place.load(&[("SANDBOX_PROVIDER__LOCAL__C", "[3]"), ("SANDBOX_PROVIDER__LOCAL__E", "text")]).unwrap();
    config.set("local", "d", json!(4), "--set");
    assert_eq!(config.resolve("local").unwrap().settings, json!({"a": 1, "b": 1, "c": [3], "d": 4, "e": "text"}));
    let sources: Vec<_> = config.all_settings().map(|(_, key, value)| (key, value.source.clone())).collect();
    let project = place.path("project/sandbox.toml").display().to_string();
    assert_eq!(
        sources,
        [
            ("a", project.clone()),
            ("b", project.clone()),
            ("c", "SANDBOX_PROVIDER__LOCAL__C".to_owned()),
            ("d", "--set".to_owned()),
            ("e", "SANDBOX_PROVIDER__LOCAL__E".to_owned()),
        ]
    );
    assert_eq!(config.provider(None, false).value, "project");
    assert_eq!(config.provider(Some("flag"), true).source, "--provider");
    let with_variable = place.load(&[("SANDBOX_PROVIDER", "variable")]).unwrap();
    assert_eq!(with_variable.provider(None, false).source, "SANDBOX_PROVIDER");
    let kinds: Vec<_> = config.files().iter().map(|file| file.kind).collect();
    assert_eq!(kinds, [ConfigFileKind::Found, ConfigFileKind::User]);
    let none = Place::new(&[]).load(&[]).unwrap();
    assert_eq!(
        (none.provider(None, true).value.as_str(), none.provider(None, false).value.as_str()),
        ("docker", "local")
    );
    assert_eq!(none.resolve("local").unwrap().config(), json!({"local": {}}));
}

/// As the model's users write them: one block among much else, with variables.
const MODELS_YAML: &str = "
responses_api_models:
  policy: {kind: vllm, url: '${policy_base_url}'}
sandbox:
  docker:
    image: ${oc.env:IMAGE,python:3.12-slim}
    registry_password: ${oc.env:PASSWORD}
  default_metadata:
    team: ${oc.env:TEAM,blue}
    size: 3
other: {opensandbox: {}}
";

#[test]
fn the_blocks_of_a_file_of_the_model_are_found_and_only_what_is_used_is_filled_in() {
    let place = Place::new(&[("gym.yaml", MODELS_YAML)]);
    let config = place.load_file("gym.yaml", &[("PASSWORD", "canary")]).unwrap();
    let resolved = config.resolve("sandbox").unwrap();
    assert_eq!(resolved.config(), json!({"docker": {"image": "python:3.12-slim", "registry_password": "canary"}}));
    let labels: Vec<_> = resolved.metadata.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(labels, [("size", "3"), ("team", "blue")]);
    assert!(!format!("{config:?} {resolved:?}").contains("canary"));
    let error = place.load_file("gym.yaml", &[]).unwrap().resolve("sandbox").unwrap_err();
    assert_eq!(error.field(), Some("registry_password"));
    assert!(error.to_string().contains("PASSWORD"), "{error}");
    // Settings from elsewhere are laid over those of the block.
    let variables = [("PASSWORD", "x"), ("SANDBOX_PROVIDER__DOCKER__IMAGE", "mine")];
    let config = place.load_file("gym.yaml", &variables).unwrap();
    assert_eq!(config.resolve("sandbox").unwrap().settings["image"], "mine");
}

#[test]
fn blocks_stand_in_our_own_files_too_and_a_block_without_one_provider_is_refused() {
    let text = "[blocks.fast]\nlocal = { isolation = \"none\" }\ndefault_metadata = { a = \"b\" }\n\
                [blocks.two]\na = {}\nb = {}\n";
    let place = Place::new(&[("user/config.toml", text)]);
    let config = place.load(&[]).unwrap();
    let fast = config.resolve("fast").unwrap();
    assert_eq!((fast.config(), fast.metadata.len()), (json!({"local": {"isolation": "none"}}), 1));
    let error = config.resolve("two").unwrap_err();
    assert!(error.to_string().contains("\"two\" must name exactly one provider; it has \"a\", \"b\""), "{error}");
}

#[test]
fn what_cannot_be_meant_is_refused_with_its_file() {
    let place = Place::new(&[
        ("a.yaml", "provder: x\n"),
        ("b.toml", "provder = \"x\"\n"),
        ("project/sandbox.toml", "[providers.daytona]\napi_key = { from_env = \"KEY\" }\n"),
    ]);
    let error = place.load_file("a.yaml", &[]).unwrap_err();
    assert!(error.to_string().contains("a.yaml") && error.to_string().contains("no provider block"), "{error}");
    let error = place.load_file("b.toml", &[]).unwrap_err();
    assert_eq!(error.help(), Some("did you mean \"provider\"?"));
    assert_eq!(place.load_file("none.toml", &[]).unwrap_err().kind(), ErrorKind::NotFound);
    let error = place.load(&[("KEY", "canary")]).unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::PermissionDenied, Some("providers.daytona.api_key")));
    // Named by the user, the same file counts.
    let config = place.load_file("project/sandbox.toml", &[("KEY", "canary")]).unwrap();
    assert_eq!(config.resolve("daytona").unwrap().settings, json!({"api_key": "canary"}));
}

#[test]
fn the_functions_of_the_model_take_a_read_file_and_give_plain_data() {
    let place = Place::new(&[(
        "gym.yaml",
        "box: {local: {path: '${oc.env:NO_SUCH_VARIABLE,/bin}'}, default_metadata: {a: b}}",
    )]);
    let Value::Object(named) = sandbox_api::read_config_file(&place.path("gym.yaml")).unwrap() else { panic!() };
    let config = resolve_provider_config(&json!("box"), Some(&named)).unwrap();
    assert_eq!(Value::Object(config), json!({"local": {"path": "/bin"}}));
    assert_eq!(resolve_provider_metadata(&json!("box"), Some(&named)).unwrap()["a"], "b");
}
