//! Where values come from, and what a file that was only found may not say.

use std::{fs, path::Path};

use crate::common::{Ran, run, sandboxctl};

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new(project: &str, user: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("project/deep")).unwrap();
        fs::create_dir_all(folder.path().join("config/sandbox")).unwrap();
        if !project.is_empty() {
            fs::write(folder.path().join("project/sandbox.toml"), project).unwrap();
        }
        if !user.is_empty() {
            fs::write(folder.path().join("config/sandbox/config.toml"), user).unwrap();
        }
        Self { folder }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn run(&self, args: &[&str], variables: &[(&str, &str)]) -> Ran {
        let mut command = sandboxctl(args);
        command.current_dir(self.path().join("project/deep")).env("XDG_CONFIG_HOME", self.path().join("config"));
        command.envs(variables.iter().copied());
        run(command)
    }

    fn provider(&self, args: &[&str], variables: &[(&str, &str)]) -> String {
        let ran = self.run(&[args, &["config", "show", "--origin"]].concat(), variables);
        assert_eq!(ran.code, 0, "{ran:?}");
        let line = ran.stdout.lines().find(|line| line.starts_with("provider ")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().to_owned()
    }
}

#[test]
fn the_nearest_source_wins() {
    let place = Place::new("provider = \"project\"", "provider = \"user\"");
    assert_eq!(place.provider(&[], &[]), "project");
    assert_eq!(place.provider(&[], &[("SANDBOX_PROVIDER", "variable")]), "variable");
    let other = place.path().join("other.toml");
    fs::write(&other, "provider = \"given\"").unwrap();
    assert_eq!(place.provider(&["--config", other.to_str().unwrap()], &[]), "given");
    assert_eq!(Place::new("", "provider = \"user\"").provider(&[], &[]), "user");
    assert_eq!(Place::new("", "").provider(&[], &[]), "local");
    let ran = place.run(&["run", "-q", "--provider", "local", "--", "echo", "flag"], &[]);
    assert_eq!(ran.stdout, "flag\n", "{ran:?}");
}

#[test]
fn settings_reach_the_provider_and_are_checked_by_it() {
    let place =
        Place::new("[providers.local]\nenv_allow = [\"PASSED\"]", "[providers.local]\nenv_allow = []\npath = \"/bin\"");
    let ran = place.run(&["run", "-q", "--", "env"], &[("PASSED", "yes"), ("OTHER", "no")]);
    assert!(ran.stdout.contains("PASSED=yes") && ran.stdout.contains("PATH=/bin\n"), "{ran:?}");
    assert!(!ran.stdout.contains("OTHER"), "{ran:?}");
    let place = Place::new("[providers.local]\nenv_alow = []", "");
    let ran = place.run(&["run", "-q", "--", "true"], &[]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("help: did you mean \"env_allow\"?"), "{ran:?}");
}

#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    let ran = Place::new("provder = \"x\"", "").run(&["providers", "ls"], &[]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("sandbox.toml") && ran.stderr.contains("did you mean \"provider\"?"), "{ran:?}");
    let ran = Place::new("", "a = [canary").run(&["providers", "ls"], &[]);
    assert!(ran.stderr.contains("config.toml, line 1") && !ran.stderr.contains("canary"), "{ran:?}");
}

#[test]
fn a_found_file_may_not_name_what_is_run() {
    let says = "[plugins]\npath = [\"/tmp\"]";
    let place = Place::new(says, "");
    let ran = place.run(&["providers", "ls"], &[]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("plugins.path is not taken") && ran.stderr.contains("help: "), "{ran:?}");
    let given = place.path().join("project/sandbox.toml");
    assert_eq!(place.run(&["--config", given.to_str().unwrap(), "providers", "ls"], &[]).code, 0);
    assert_eq!(Place::new("", says).run(&["providers", "ls"], &[]).code, 0);
    let ran = Place::new("[providers.docker]\ndocker_binary = \"/x\"", "").run(&["providers", "ls"], &[]);
    assert_eq!(ran.code, 2, "{ran:?}");
}

#[test]
fn values_of_settings_are_not_shown() {
    let place = Place::new("", "[providers.daytona]\napi_key = \"canary\"\nretries = 3");
    let ran = place.run(&["config", "show"], &[]);
    assert!(ran.stdout.contains("providers.daytona.api_key  ***"), "{ran:?}");
    assert!(!ran.stdout.contains("canary") && ran.stdout.contains("providers.daytona.retries"), "{ran:?}");
}

#[test]
fn a_spec_file_is_read_and_flags_win() {
    let place = Place::new("", "");
    let spec = place.path().join("spec.json");
    fs::write(&spec, r#"{"env":{"A":"file","B":"file"}}"#).unwrap();
    let file = spec.to_str().unwrap();
    let ran = place.run(&["run", "-q", "-f", file, "-e", "A=flag", "--", "sh", "-c", "echo $A $B"], &[]);
    assert_eq!(ran.stdout, "flag file\n", "{ran:?}");
    fs::write(&spec, r#"{"envv":{"A":"canary"}}"#).unwrap();
    let ran = place.run(&["run", "-q", "-f", file, "--", "true"], &[]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains("did you mean \"env\"?") && !ran.stderr.contains("canary"), "{ran:?}");
    fs::write(&spec, r#"{"env": canary"#).unwrap();
    let ran = place.run(&["run", "-q", "-f", file, "--", "true"], &[]);
    assert!(ran.code == 2 && !ran.stderr.contains("canary"), "{ran:?}");
}
