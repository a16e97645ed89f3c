use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sandbox_api::compose::{ComposeLoaded, ComposeOptions, ComposeProject};
use serde_json::Value;

/// The name of the folder that a document lies in, which is its project's.
const FOLDER: &str = "stack";

/// What stands for the folder in a form that is kept.
const MARK: &str = "$DIR";

pub(crate) struct Case {
    pub(crate) name: String,
    /// A folder with the documents.
    home: tempfile::TempDir,
    args: Vec<String>,
    environment: Vec<(String, String)>,
    expected: Value,
}

/// Every case there is.
pub(crate) fn cases() -> Vec<Case> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compose_normal/cases");
    let mut folders: Vec<PathBuf> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.iter().map(|folder| Case::read(folder)).collect()
}

impl Case {
    fn read(folder: &Path) -> Self {
        let home = tempfile::tempdir().unwrap();
        copy(folder, &home.path().join(FOLDER));
        let json = |name: &str| -> Option<Value> {
            let text = fs::read_to_string(folder.join(name)).ok()?;
            Some(serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}")))
        };
        let run = json("run.json").unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Self {
            name: folder.file_name().unwrap().to_string_lossy().into_owned(),
            home,
            args: run["args"].as_array().into_iter().flatten().map(text).collect(),
            environment: run["env"].as_object().into_iter().flatten().map(|(k, v)| (k.clone(), text(v))).collect(),
            expected: json("expected.json").unwrap_or_default(),
        }
    }

    /// A document of its own.
    pub(crate) fn of_text(name: &str, text: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(FOLDER)).unwrap();
        fs::write(home.path().join(FOLDER).join("compose.yaml"), text.replace(MARK, &Self::folder_of(&home))).unwrap();
        Self { name: name.to_owned(), home, args: Vec::new(), environment: Vec::new(), expected: Value::Null }
    }

    /// Its normal form as a document, with the same services in it.
    pub(crate) fn again(&self, text: &str) -> Self {
        let profiles = self.args.chunks_exact(2).filter(|pair| pair[0] == "--profile");
        let args = profiles.flatten().cloned().collect();
        // A secret of the environment is still one.
        Self { args, environment: self.environment.clone(), ..Self::of_text(&self.name, text) }
    }

    fn folder_of(home: &tempfile::TempDir) -> String {
        home.path().join(FOLDER).display().to_string()
    }

    pub(crate) fn load(&self) -> ComposeLoaded {
        let folder = self.home.path().join(FOLDER);
        let mut options = ComposeOptions::default();
        options.environment = self.environment.clone().into_iter().collect();
        let mut args = self.args.iter();
        while let Some(arg) = args.next() {
            let value = args.next().unwrap();
            match arg.as_str() {
                "-f" => options.files.push(folder.join(value)),
                "--profile" => options.profiles.push(value.clone()),
                other => panic!("{}: {other}", self.name),
            }
        }
        options.working_directory = Some(folder);
        ComposeProject::load(&options)
    }

    /// Our normal form.
    pub(crate) fn resolved(&self) -> Value {
        let loaded = self.load();
        let project = loaded.project.unwrap_or_else(|| panic!("{}: {}", self.name, loaded.report));
        self.marked(project.resolved())
    }

    /// With the mark in place of the folder.
    fn marked(&self, value: Value) -> Value {
        serde_json::from_str(&value.to_string().replace(&Self::folder_of(&self.home), MARK)).unwrap()
    }

    pub(crate) fn expected(&self) -> Value {
        assert!(!self.expected.is_null(), "{} has no expected.json", self.name);
        self.expected.clone()
    }

    /// What the real program makes of it.
    pub(crate) fn by_program(&self, program: &str) -> Value {
        let output = Command::new(program)
            .args(&self.args)
            .args(["config", "--format", "json"])
            .env_clear()
            .env("HOME", self.home.path())
            .envs(self.environment.clone())
            .current_dir(self.home.path().join(FOLDER))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&output.stderr));
        self.marked(serde_json::from_slice(&output.stdout).unwrap())
    }

    /// The files of the case that are documents by themselves, as JSON.
    pub(crate) fn documents(&self) -> Vec<(String, Value)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.home.path().join(FOLDER)).unwrap() {
            let path = entry.unwrap().path();
            let text = || fs::read_to_string(&path).unwrap();
            // A tag of the merge is no value of any schema.
            if path.extension().is_some_and(|extension| extension == "yaml") && !text().contains('!') {
                found.push((path.file_name().unwrap().to_string_lossy().into_owned(), crate::schema::yaml(&text())));
            }
        }
        assert!(!found.is_empty(), "{}", self.name);
        found
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false if ["run.json", "expected.json"].iter().any(|name| entry.file_name() == *name) => {}
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}
