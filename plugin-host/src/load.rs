//! Loading a checked plugin, once in a process whoever asks for it.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use sandbox_core::{
    ProviderManifest, Result, SandboxError,
    abi::{HostInfo, PluginEntry},
};

use crate::{
    LoadStep, dl,
    inspect::{self, Checksum, FileStamp, InspectedPlugin, Look, OpenPlugin},
    mismatch::Mismatch,
    refusal::Refusal,
    trace::Trace,
};

/// A plugin that is in this process, and stays.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LoadedPlugin {
    /// The file, symbolic links resolved.
    pub path: PathBuf,
    /// What it says of itself.
    pub manifest: ProviderManifest,
    /// Its entry point, which makes providers.
    pub entry: PluginEntry,
}

/// What came of loading a file.
#[derive(Debug)]
#[non_exhaustive]
pub struct Loading {
    /// The steps in order: those of [`inspect`](crate::inspect()), then those of loading. When one refused the file, it
    /// is the last.
    pub steps: Vec<LoadStep>,
    /// The provider's name, also of a file that was refused after its manifest could be read.
    pub name: Option<String>,
    /// The plugin, or why it was refused.
    pub outcome: Result<LoadedPlugin>,
}

/// A file that dlopen took. It is here also if it was refused after that: its code cannot be taken back.
struct Slot {
    stamp: FileStamp,
    outcome: Result<LoadedPlugin, Refusal>,
}

/// Device and inode → what was loaded from there.
static LOADED: Mutex<BTreeMap<(u64, u64), Slot>> = Mutex::new(BTreeMap::new());

/// Inspects a plugin file, loads it and shakes hands with it. The same file is loaded once in a process; asking again,
/// also through a link or from another host, gives the same entry. Nothing is ever unloaded.
///
/// Blocks for as long as the dynamic linker takes: milliseconds.
///
/// The outcome's error is what [`inspect`](crate::inspect()) says, or `Plugin`: the dynamic linker refused it (its own
/// text is kept, also as the source), its layout does not fit, or it says something else than its manifest does.
pub fn load(path: &Path, checksum: &Checksum<'_>, host: &HostInfo) -> Loading {
    load_named(path, None, checksum, host)
}

/// As `load`; a file of another provider than `expected` is refused before it is loaded.
pub(crate) fn load_named(path: &Path, expected: Option<&str>, checksum: &Checksum<'_>, host: &HostInfo) -> Loading {
    let mut load = Load { path, expected, checksum, host, look: Look::new(path, checksum) };
    let outcome = load.run();
    Loading { steps: load.look.trace.into_steps(), name: load.look.name, outcome }
}

struct Load<'a> {
    path: &'a Path,
    expected: Option<&'a str>,
    checksum: &'a Checksum<'a>,
    host: &'a HostInfo,
    look: Look<'a>,
}

impl Load<'_> {
    fn run(&mut self) -> Result<LoadedPlugin> {
        let open = self.look.open()?;
        let key = (open.stamp.device, open.stamp.inode);
        // Held while loading: two threads that want the same file load it once.
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = loaded.get(&key) {
            return self.again(slot, open);
        }
        let inspected = self.look.contents(open)?;
        self.check_name(&inspected.manifest)?;
        let InspectedPlugin { path, manifest, section, file, stamp, .. } = inspected;
        let library = self.look.trace.step("dlopen", || {
            let library = open_library(&path, file, &stamp)?;
            Ok((library, "every symbol bound".to_owned()))
        })?;
        let opened = Opened { path, manifest, section, stamp, library };
        let outcome = opened.shake_hands(self.host, &mut self.look.trace);
        let kept = outcome.as_ref().map(Clone::clone).map_err(Refusal::from);
        loaded.insert(key, Slot { stamp, outcome: kept });
        outcome
    }

    /// The file was loaded before.
    fn again(&mut self, slot: &Slot, open: OpenPlugin) -> Result<LoadedPlugin> {
        let (stamp, path) = (open.stamp, self.path);
        let plugin = self.look.trace.step("already-loaded", || {
            slot.check_same(&stamp, path)?;
            let plugin = slot.outcome.clone().map_err(|refusal| refusal.error())?;
            Ok((plugin, "this process has it already".to_owned()))
        })?;
        if self.checksum.expects(&plugin.manifest.name).is_some() {
            self.look.contents(open)?;
        }
        self.look.name = Some(plugin.manifest.name.clone());
        self.check_name(&plugin.manifest)?;
        Ok(plugin)
    }

    fn check_name(&mut self, manifest: &ProviderManifest) -> Result<()> {
        let (expected, path) = (self.expected, self.path);
        self.look.trace.step("name", || match expected {
            Some(expected) if expected != manifest.name => {
                Err(Mismatch::new("name", format!("the provider {expected:?}"), format!("{:?}", manifest.name))
                    .with_help("rename the file, or install the right one")
                    .at(path))
            }
            _ => Ok(((), manifest.name.clone())),
        })
    }
}

impl Slot {
    fn check_same(&self, stamp: &FileStamp, path: &Path) -> Result<()> {
        if self.stamp == *stamp {
            return Ok(());
        }
        Err(Mismatch::new(
            "already-loaded",
            "the file that this process loaded before",
            "that it was overwritten since then",
        )
        .with_help("restart the program; replace a plugin by writing a new file and renaming it")
        .at(path))
    }
}

fn open_library(path: &Path, file: File, stamp: &FileStamp) -> Result<dl::ForeverLibrary> {
    inspect::check_unchanged(&file, stamp, path)?;
    // The file that was checked, not the one that is at its path by now; by path only where there is no /proc.
    let of_descriptor = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let name = if of_descriptor.exists() { &of_descriptor } else { path };
    dl::open(name, file).map_err(|text| {
        let text = text.replace(&of_descriptor.display().to_string(), &path.display().to_string());
        SandboxError::plugin(format!("{}: dlopen: {text}", path.display()))
            .with_help(linker_help(&text))
            .with_causes(vec![text])
    })
}

fn linker_help(text: &str) -> &'static str {
    if text.contains("GLIBC_") {
        "this system's C library is older than the plugin's: build the plugin on an older system"
    } else if text.contains("undefined symbol") || text.contains("symbol not found") {
        "the plugin needs a library that it does not name, or another release of one: rebuild it"
    } else if text.contains("cannot open shared object") {
        "install the library that the plugin needs: ldd shows which one is missing"
    } else {
        "rebuild the plugin for this machine"
    }
}

/// A library that the dynamic linker took.
struct Opened {
    path: PathBuf,
    manifest: ProviderManifest,
    section: Vec<u8>,
    stamp: FileStamp,
    library: dl::ForeverLibrary,
}

impl Opened {
    fn shake_hands(self, host: &HostInfo, trace: &mut Trace) -> Result<LoadedPlugin> {
        let Self { path, manifest, section, library, .. } = &self;
        let symbol = &manifest.entry_symbol;
        let named = |error: SandboxError| error.context(path.display()).with_provider(&manifest.name);
        trace.step("unchanged", || self.check_same_file())?;
        let address = trace.step("symbol", || {
            let address = library.symbol(symbol).map_err(|text| {
                SandboxError::plugin(format!("{}: dlsym: {text}", path.display())).with_causes(vec![text])
            })?;
            Ok((address, symbol.clone()))
        })?;
        let entry = trace.step("layout", || Ok((address.entry().map_err(named)?, "fits this host".to_owned())))?;
        trace.step("describe", || {
            if entry.manifest_bytes() == *section {
                return Ok(((), "equals the manifest in the file".to_owned()));
            }
            Err(Mismatch::new("describe", "what its manifest section holds", "that it says something else at run time")
                .with_help("build the plugin again from scratch")
                .at(path))
        })?;
        let host = host.clone().with_plugin_file(path);
        trace.step("init", || Ok((entry.init(&host).map_err(named)?, "ready".to_owned())))?;
        Ok(LoadedPlugin { path: path.clone(), manifest: manifest.clone(), entry })
    }

    /// Checks that what was loaded is what was checked: the open file was not written to, and its path, by which it may have
    /// been loaded, still leads to it.
    fn check_same_file(&self) -> Result<((), String)> {
        inspect::check_unchanged(self.library.file(), &self.stamp, &self.path)?;
        if !Path::new("/proc/self/fd").exists() {
            let now = std::fs::metadata(&self.path).map_err(|error| SandboxError::io(self.path.display(), error))?;
            if FileStamp::from(&now) != self.stamp {
                return Err(Mismatch::new("unchanged", "the checked file", "another one at its path").at(&self.path));
            }
        }
        Ok(((), "the file is still the one that was checked".to_owned()))
    }
}
