//! Other releases of the contract: copies of it, patched, with plugins and a host that are built against them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::build::{Profile, cargo, fixtures_folder, lock, repository, update};

/// A release of the contract that is not this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    /// 1.1.0: one more field of the root, one more method of each trait.
    NewerMinor,
    /// 2.0.0.
    OtherMajor,
    /// 1.0.0, but a struct that goes by value has one more field: what must never be released.
    BrokenLayout,
    /// This release, with two providers linked into one program.
    Linked,
    /// This release, with a plugin that aborts on panic while everything below it unwinds.
    LastCrateAborts,
}

/// One place of a text that is changed. A patch that no longer applies fails the test.
struct Patch {
    file: &'static str,
    from: &'static str,
    to: &'static str,
    times: usize,
}

const fn patch(file: &'static str, from: &'static str, to: &'static str) -> Patch {
    Patch { file, from, to, times: 1 }
}

const VERSION: &str = "\nversion = \"1.0.0\"\n";

const NEWER: &[Patch] = &[
    patch("Cargo.toml", VERSION, "\nversion = \"1.1.0\"\n"),
    patch(
        "src/abi/layout.rs",
        "pub new_provider: extern \"C\" fn(RVec<u8>) -> FfiResult<ProviderObject>,\n",
        "pub new_provider: extern \"C\" fn(RVec<u8>) -> FfiResult<ProviderObject>,\n    pub later: extern \"C\" fn() -> u32,\n",
    ),
    patch(
        "src/abi/layout.rs",
        "    fn cancel(&self);\n",
        "    fn cancel(&self);\n    fn later(&self) -> FfiResult<()> { RErr(FfiError { kind: 4, message: RString::new(), detail: RVec::new() }) }\n",
    ),
    patch(
        "src/abi/layout.rs",
        "    fn open(&self, method: RStr<'_>, request: RVec<u8>, body: RVec<u8>) -> Fut<StreamObject>;\n",
        "    fn open(&self, method: RStr<'_>, request: RVec<u8>, body: RVec<u8>) -> Fut<StreamObject>;\n    fn later(&self) -> FfiResult<()> { RErr(FfiError { kind: 4, message: RString::new(), detail: RVec::new() }) }\n",
    ),
    patch(
        "src/abi/entry.rs",
        "PluginRoot { describe, init, new_provider }",
        "PluginRoot { describe, init, new_provider, later: later_field }",
    ),
    patch(
        "src/abi/entry.rs",
        "/// Errors of abi_stable are pages long",
        r#"extern "C" fn later_field() -> u32 { 42 }

/// What a host of 1.1 can do.
pub mod later {
    use super::*;
    use crate::ErrorKind;

    /// The new field, if the plugin has it.
    pub fn root_field(entry: &PluginEntry) -> Option<u32> { entry.root.later().map(|later| later()) }

    /// What the new methods say of a provider and of a stream.
    pub fn default_bodies(entry: &PluginEntry) -> Result<[ErrorKind; 2]> {
        let provider = from_ffi((entry.root.new_provider())(RVec::from(b"{}".as_slice())))?;
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let stream = runtime.block_on(async {
            let create = provider.call("create".into(), RVec::from(b"{}".as_slice()), RVec::new());
            let handle: serde_json::Value = serde_json::from_slice(&from_ffi(create.await)?.json).expect("JSON");
            let request = serde_json::json!({"handle": handle, "request": {"command": {"argv": ["@greet"]}}});
            let open = provider.open("exec".into(), encode(&request)?, RVec::new());
            from_ffi(open.await)
        })?;
        let kind = |result| from_ffi(result).err().map_or(ErrorKind::Unknown, |error| error.kind());
        Ok([kind(provider.later()), kind(stream.later())])
    }
}

/// Errors of abi_stable are pages long"#,
    ),
    // A wish that is left out where nobody has it, and an answer that is always there.
    patch(
        "src/spec.rs",
        "    pub identity: Option<SandboxIdentity>,\n}\n",
        "    pub identity: Option<SandboxIdentity>,\n    /// Only in 1.1.\n    #[serde(skip_serializing_if = \"Option::is_none\")]\n    pub later: Option<u32>,\n}\n",
    ),
    patch(
        "src/info.rs",
        "    pub details: BTreeMap<String, String>,\n}\n",
        "    pub details: BTreeMap<String, String>,\n    /// Only in 1.1.\n    #[serde(default)]\n    pub later: u32,\n}\n",
    ),
    patch(
        "src/info.rs",
        "            details: BTreeMap::new(),\n",
        "            details: BTreeMap::new(),\n            later: 0,\n",
    ),
    patch("src/session.rs", "    Detach,\n}\n", "    Detach,\n    /// Only in 1.1.\n    Later,\n}\n"),
    patch(
        "src/abi/mod.rs",
        "pub use entry::{HostInfo, PluginEntry};",
        "pub use entry::{HostInfo, PluginEntry, later};",
    ),
];

const MAJOR: &[Patch] = &[patch("Cargo.toml", VERSION, "\nversion = \"2.0.0\"\n")];

const BROKEN: &[Patch] = &[
    patch("src/abi/layout.rs", "pub struct FfiReply {\n", "pub struct FfiReply {\n    pub extra: u32,\n"),
    patch("src/abi/codec.rs", "FfiReply { json:", "FfiReply { extra: 7, json:"),
    patch("src/abi/bridge.rs", "FfiReply { json:", "FfiReply { extra: 7, json:"),
];

impl World {
    fn name(self) -> &'static str {
        match self {
            Self::NewerMinor => "newer",
            Self::OtherMajor => "major",
            Self::BrokenLayout => "layout",
            Self::Linked => "linked",
            Self::LastCrateAborts => "aborting",
        }
    }

    fn patches(self) -> &'static [Patch] {
        match self {
            Self::NewerMinor => NEWER,
            Self::OtherMajor => MAJOR,
            Self::BrokenLayout => BROKEN,
            Self::Linked | Self::LastCrateAborts => &[],
        }
    }

    /// The plugin of provider `acme` in that world.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn plugin(self) -> PathBuf {
        self.output().join(format!("libacme_good_{}.so", self.name()))
    }

    /// The program of that world, if there is one: `newer-host`, `linked-host`.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn program(self) -> PathBuf {
        self.output().join(format!("acme-{}-host", self.name()))
    }

    fn output(self) -> PathBuf {
        static BUILT: [OnceLock<PathBuf>; 5] = [const { OnceLock::new() }; 5];
        let build = || match self {
            Self::LastCrateAborts => {
                let plugin = ["rustc", "--lib", "--crate-type", "cdylib"];
                cargo(&plugin, &self.write(), Profile::Dev, &["-C", "panic=abort"])
            }
            _ => cargo(&["build"], &self.write(), Profile::Dev, &[]),
        };
        BUILT[self as usize].get_or_init(build).clone()
    }

    /// Writes the workspace down and gives its folder.
    fn write(self) -> PathBuf {
        let _lock = lock();
        let world = fixtures_folder().join("worlds").join(self.name());
        match self {
            Self::Linked => return self.write_linked(&world),
            Self::LastCrateAborts => {
                let core = repository().join("sandbox-core").display().to_string();
                self.copy_provider("good", &world, &[("../../../sandbox-core", &core)]);
                return world;
            }
            _ => {}
        }
        copy_crate(&repository().join("sandbox-core"), &world.join("sandbox-core"), self.patches());
        let core = "../../../sandbox-core";
        self.copy_provider("good", &world.join("good"), &[(core, "../sandbox-core")]);
        let mut members = "\"sandbox-core\", \"good\"".to_owned();
        if self == Self::NewerMinor {
            members.push_str(", \"plugin-host\", \"newer-host\"");
            copy_crate(&repository().join("plugin-host"), &world.join("plugin-host"), &[]);
            copy_crate(&repository().join("tests/fixtures/newer-host"), &world.join("newer-host"), &[]);
        }
        let root = read(&repository().join("Cargo.toml"));
        let (before, after) = root.split_once("members = [").expect("the workspace lists its members");
        let (_, after) = after.split_once(']').expect("a list ends");
        let root = format!("{before}members = [{members}]{after}").replace("\"line-tables-only\"", "false");
        update(&world.join("Cargo.toml"), root.as_bytes());
        world
    }

    /// Two providers whose files are not those of the fixtures: they must not replace each other in the target folder.
    fn write_linked(self, world: &Path) -> PathBuf {
        let absolute = |crate_name: &str| repository().join(crate_name).display().to_string();
        let (core, host) = (absolute("sandbox-core"), absolute("plugin-host"));
        for provider in ["good", "second"] {
            self.copy_provider(provider, &world.join(provider), &[("../../../sandbox-core", &core)]);
        }
        let program = world.join("program");
        let source = repository().join("tests/fixtures/linked-host");
        copy_sources(&source, &program);
        let mut manifest = read(&source.join("Cargo.toml"));
        for (from, to) in [("../../../sandbox-core", core), ("../../../plugin-host", host)] {
            manifest = replace(&manifest, from, &to, 1);
        }
        for provider in ["good", "second"] {
            let from = format!("acme-{provider} = {{ path");
            manifest = replace(
                &manifest,
                &from,
                &format!("acme-{provider} = {{ package = \"acme-{provider}-linked\", path"),
                1,
            );
        }
        update(&program.join("Cargo.toml"), manifest.as_bytes());
        program
    }

    /// Copies a provider under another package name.
    fn copy_provider(self, provider: &str, target: &Path, paths: &[(&str, &str)]) {
        let source = repository().join("tests/fixtures").join(provider);
        copy_sources(&source, target);
        let mut manifest = read(&source.join("Cargo.toml"));
        let (from, to) = (format!("\"acme-{provider}\""), format!("\"acme-{provider}-{}\"", self.name()));
        manifest = replace(&manifest, &from, &to, 1);
        for (from, to) in paths {
            manifest = replace(&manifest, from, to, 1);
        }
        if !matches!(self, Self::Linked | Self::LastCrateAborts) {
            // A member of the world's workspace, which has the profiles.
            manifest = replace(&manifest, "[workspace]\n", "", 1);
            let (package, _) = manifest.split_once("[profile.dev]").expect("a fixture has its profiles at the end");
            manifest = package.to_owned();
        }
        update(&target.join("Cargo.toml"), manifest.as_bytes());
    }
}

/// Copies a whole crate, with these patches.
fn copy_crate(source: &Path, target: &Path, patches: &[Patch]) {
    let files = ["Cargo.toml", "provider.toml", "src", "examples", "tests"];
    copy(source, target, &files, patches);
}

/// Copies a crate but for its manifest, which the caller writes.
fn copy_sources(source: &Path, target: &Path) {
    copy(source, target, &["provider.toml", "src"], &[]);
}

fn copy(source: &Path, target: &Path, names: &[&str], patches: &[Patch]) {
    let mut files = Vec::new();
    for name in names.iter().filter(|name| source.join(name).exists()) {
        if source.join(name).is_dir() {
            list(source, Path::new(name), &mut files);
        } else {
            files.push(PathBuf::from(name));
        }
    }
    let mut applied = 0;
    for file in &files {
        let mut text = read(&source.join(file));
        for patch in patches.iter().filter(|patch| Path::new(patch.file) == file) {
            text = replace(&text, patch.from, patch.to, patch.times);
            applied += 1;
        }
        update(&target.join(file), text.as_bytes());
    }
    assert_eq!(applied, patches.len(), "every patch of {} found its file", source.display());
}

fn list(source: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(source.join(folder)).expect("a crate has sources");
    for entry in entries {
        let entry = entry.expect("the folder can be read");
        let path = folder.join(entry.file_name());
        if entry.path().is_dir() {
            list(source, &path, files);
        } else {
            files.push(path);
        }
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn replace(text: &str, from: &str, to: &str, times: usize) -> String {
    assert_eq!(text.matches(from).count(), times, "the text to be patched is there: {from}");
    text.replace(from, to)
}
