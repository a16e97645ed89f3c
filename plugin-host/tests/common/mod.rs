//! What the tests share.
#![allow(dead_code, reason = "no test file uses all of it")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use plugin_host::{PluginHost, PluginHostBuilder, SearchScope};
use sandbox_core::{CONTRACT_VERSION, ProviderManifest, SandboxProvider};
use serde_json::Value;
use tempfile::TempDir;

#[path = "../fixture/stub.rs"]
mod stub;

pub(crate) use stub::{Stub, StubSettings};

pub(crate) const ENTRY: &str = "test_entry";

/// A folder that only its owner may write.
pub(crate) fn folder() -> TempDir {
    tempfile::tempdir().expect("the temporary folder is writable")
}

pub(crate) fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("the file is ours");
}

/// A host that sees nothing of the machine.
pub(crate) fn lonely() -> PluginHostBuilder {
    PluginHost::builder().search(SearchScope::OnlyGiven)
}

/// A factory for a registered provider.
pub(crate) fn stub(
    mark: &str,
) -> impl Fn(Value) -> sandbox_core::Result<Arc<dyn SandboxProvider>> + Send + Sync + 'static {
    let mark = mark.to_owned();
    move |_| Ok(Arc::new(Stub(StubSettings { mark: mark.clone(), ..StubSettings::default() })))
}

pub(crate) fn mark(provider: &Arc<dyn SandboxProvider>) -> String {
    provider.info().details.get("mark").cloned().unwrap_or_default()
}

/// The text of a manifest section.
#[derive(Clone)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) contract: String,
    pub(crate) panic: String,
    pub(crate) target: String,
    pub(crate) entry: String,
}

impl Manifest {
    pub(crate) fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            contract: CONTRACT_VERSION.to_owned(),
            panic: "unwind".to_owned(),
            target: ProviderManifest::host_target(),
            entry: ENTRY.to_owned(),
        }
    }

    pub(crate) fn text(&self) -> String {
        let Self { name, contract, panic, target, entry } = self;
        format!(
            "sandbox-provider 1\nversion=0.3.1\ncontract={contract}\npanic={panic}\ntarget={target}\nentry={entry}\n\n\
             name = \"{name}\"\ncapabilities = [\"sandbox.pty/1\"]\n"
        )
    }
}

/// A shared library out of C.
pub(crate) struct CLibrary {
    section: Option<String>,
    code: String,
    flags: Vec<String>,
}

impl CLibrary {
    /// One that looks like a provider and has an entry symbol full of zeros.
    pub(crate) fn provider(name: &str) -> Self {
        Self::with_section(Some(&Manifest::named(name).text()))
    }

    pub(crate) fn with_section(section: Option<&str>) -> Self {
        let code = format!("const char {ENTRY}[4096] = {{0}};\n");
        Self { section: section.map(str::to_owned), code, flags: Vec::new() }
    }

    pub(crate) fn code(mut self, code: &str) -> Self {
        self.code.push_str(code);
        self
    }

    pub(crate) fn only_code(mut self, code: &str) -> Self {
        self.code = code.to_owned();
        self
    }

    /// Its constructor makes this file.
    pub(crate) fn canary(self, file: &Path) -> Self {
        self.code(&format!(
            "#include <fcntl.h>\n__attribute__((constructor)) static void run(void) {{ creat(\"{}\", 0644); }}\n",
            file.display()
        ))
    }

    /// Its constructor ends the process.
    pub(crate) fn deadly(self) -> Self {
        self.code("#include <stdlib.h>\n__attribute__((constructor)) static void run(void) { abort(); }\n")
    }

    pub(crate) fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    pub(crate) fn build(&self, file: &Path) -> PathBuf {
        self.build_with("-shared", file)
    }

    pub(crate) fn build_with(&self, kind: &str, file: &Path) -> PathBuf {
        self.try_build_with(kind, file).unwrap_or_else(|text| panic!("gcc: {text}"))
    }

    /// What gcc says if it cannot.
    pub(crate) fn try_build_with(&self, kind: &str, file: &Path) -> Result<PathBuf, String> {
        let sources = folder();
        let source = sources.path().join("library.c");
        let mut code = self.code.clone();
        if let Some(section) = &self.section {
            let bytes: Vec<String> = section.bytes().map(|byte| byte.to_string()).collect();
            code.push_str(&format!(
                "__attribute__((section(\"{}\"), used)) const char manifest[] = {{{}}};\n",
                sandbox_core::MANIFEST_SECTION,
                bytes.join(",")
            ));
        }
        fs::write(&source, code).expect("the temporary folder is writable");
        let built = Command::new("gcc")
            .args(["-fPIC", "-O1", "-w", kind, "-o"])
            .arg(file)
            .arg(&source)
            .args(&self.flags)
            .output()
            .expect("these tests need gcc: install it (apt-get install gcc)");
        match built.status.success() {
            true => Ok(file.to_owned()),
            false => Err(String::from_utf8_lossy(&built.stderr).into_owned()),
        }
    }
}

/// Something that cargo built from this crate's examples.
pub(crate) fn example(file: &str) -> PathBuf {
    let test = std::env::current_exe().expect("Linux and macOS know it");
    let target = test.parent().and_then(Path::parent).expect("a test is in <target>/<profile>/deps");
    target.join("examples").join(file)
}

/// The real plugin of this crate's tests.
pub(crate) fn fixture() -> PathBuf {
    let extension = if cfg!(target_os = "macos") { "dylib" } else { "so" };
    let file = example(&format!("libfixture_provider.{extension}"));
    assert!(file.exists(), "{} is missing: cargo build -p plugin-host --examples", file.display());
    file
}

/// A copy of the real plugin: for the dynamic linker another library.
pub(crate) fn fixture_at(file: &Path) -> PathBuf {
    fs::copy(fixture(), file).expect("the temporary folder is writable");
    set_mode(file, 0o755);
    file.to_owned()
}
