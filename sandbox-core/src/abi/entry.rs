//! The entry point of a plugin: what `export_provider!` puts there, and what a host finds.

use std::{ffi::c_void, fmt, path::Path, sync::Arc};

use abi_stable::{
    StableAbi,
    abi_stability::abi_checking::check_layout_compatibility,
    library::{__call_root_module_loader, AbiHeaderRef, CheckTypeLayout, LibHeader},
    prefix_type::PrefixTypeTrait,
    std_types::RVec,
};
use serde::{Deserialize, Serialize};

pub use abi_stable::library::RootModuleResult;

/// What `new_provider` gives back.
pub type ProviderResult = FfiResult<ProviderObject>;

use super::{
    codec::{encode, from_ffi},
    layout::{FfiResult, HostApiRef, PluginRoot, PluginRootRef, ProviderObject},
    log,
    provider::Imported,
};
use crate::{ByteString, CONTRACT_VERSION, Result, SandboxError, SandboxProvider};

// ---- the plugin's half ----

/// Builds the root of a plugin. Called once, by the host, through the entry point.
#[doc(hidden)]
pub fn construct(build: fn() -> PluginRootRef) -> RootModuleResult {
    __call_root_module_loader(build)
}

const BUILD_LINES: [&str; 6] =
    ["sandbox-provider 1\nversion=", "\ncontract=", "\npanic=", "\ntarget=", "\nentry=", "\n\n"];

#[doc(hidden)]
pub const fn manifest_length(build: [&str; 3], toml: &str) -> usize {
    let parts = manifest_parts(build, toml);
    let (mut length, mut part) = (0, 0);
    while part < parts.len() {
        length += parts[part].len();
        part += 1;
    }
    length
}

// What only the plugin's own build knows: its version, its panic strategy and its entry symbol. `cfg!(panic)` here
// would tell how this crate was built.
const fn manifest_parts<'a>([version, panic, entry]: [&'a str; 3], toml: &'a str) -> [&'a str; 12] {
    [
        BUILD_LINES[0],
        version,
        BUILD_LINES[1],
        CONTRACT_VERSION,
        BUILD_LINES[2],
        panic,
        BUILD_LINES[3],
        TARGET,
        BUILD_LINES[4],
        entry,
        BUILD_LINES[5],
        toml,
    ]
}

/// Operating system and architecture, as `ProviderManifest::host_target` gives them.
const TARGET: &str = target();

const fn target() -> &'static str {
    match (cfg!(target_os = "macos"), cfg!(target_arch = "aarch64"), cfg!(target_arch = "x86_64")) {
        (false, true, _) if cfg!(target_os = "linux") => "linux-aarch64",
        (false, _, true) if cfg!(target_os = "linux") => "linux-x86_64",
        (true, true, _) => "macos-aarch64",
        (true, _, true) => "macos-x86_64",
        _ => "other",
    }
}

/// The bytes of the manifest section.
#[doc(hidden)]
pub const fn manifest_section<const LENGTH: usize>(build: [&str; 3], toml: &str) -> [u8; LENGTH] {
    let parts = manifest_parts(build, toml);
    let mut section = [0; LENGTH];
    let (mut end, mut part) = (0, 0);
    while part < parts.len() {
        let bytes = parts[part].as_bytes();
        let mut index = 0;
        while index < bytes.len() {
            section[end] = bytes[index];
            end += 1;
            index += 1;
        }
        part += 1;
    }
    section
}

/// The header that a host finds at the entry symbol.
#[doc(hidden)]
pub const fn header(constructor: extern "C" fn() -> RootModuleResult) -> LibHeader {
    // SAFETY: every constructor that `export_provider!` writes goes through `construct`, which takes a `PluginRootRef`.
    unsafe { LibHeader::from_constructor::<PluginRootRef>(constructor, CheckTypeLayout::Yes) }
}

/// The root of a plugin, from its three functions.
#[doc(hidden)]
pub fn root(
    describe: extern "C" fn() -> RVec<u8>,
    init: extern "C" fn(HostApiRef, RVec<u8>) -> FfiResult<()>,
    new_provider: extern "C" fn(RVec<u8>) -> FfiResult<ProviderObject>,
) -> PluginRootRef {
    PluginRoot { describe, init, new_provider }.leak_into_prefix()
}

/// Exports a provider from a shared library: the one line that an author writes beside the implementation of
/// [`SandboxProvider`](crate::SandboxProvider).
///
/// It takes a function from the provider's settings (any type that serde can read; `deny_unknown_fields` is advised) to
/// the provider. The package needs a file `provider.toml` beside its `Cargo.toml`:
///
/// ```toml
/// name = "acme"
/// description = "Sandboxes at ACME"
/// capabilities = ["sandbox.files/1"]
/// ```
///
/// and `crate-type = ["cdylib", "rlib"]`. The macro also defines `pub fn plugin_entry()`, by which a program that links
/// the crate registers it.
#[macro_export]
macro_rules! export_provider {
    ($new:expr $(,)?) => {
        /// The entry point of this provider, for a program that links it.
        pub fn plugin_entry() -> $crate::abi::PluginEntry {
            $crate::abi::PluginEntry::linked(&__sandbox_provider::ENTRY)
        }

        // `$new` is written in the author's scope, so it is read there.
        fn __sandbox_provider_new(settings: $crate::abi::export::RVec<u8>) -> $crate::abi::export::ProviderResult {
            $crate::abi::export::new_provider(settings, $new)
        }

        #[doc(hidden)]
        mod __sandbox_provider {
            use $crate::abi::export::{FfiError, HostApiRef, LibHeader, ProviderResult, RResult, RVec};

            const TOML: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/provider.toml"));
            const PANIC: &str = if cfg!(panic = "unwind") { "unwind" } else { "abort" };
            const SYMBOL: &str = concat!("sandbox_provider_entry_", env!("CARGO_PKG_NAME"));
            const BUILD: [&str; 3] = [env!("CARGO_PKG_VERSION"), PANIC, SYMBOL];
            const LENGTH: usize = $crate::abi::export::manifest_length(BUILD, TOML);

            #[used]
            #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".sbxmeta"))]
            #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,.sbxmeta"))]
            static SECTION: [u8; LENGTH] = $crate::abi::export::manifest_section(BUILD, TOML);

            #[unsafe(export_name = concat!("sandbox_provider_entry_", env!("CARGO_PKG_NAME")))]
            pub(super) static ENTRY: LibHeader = $crate::abi::export::header(construct);

            extern "C" fn describe() -> RVec<u8> {
                RVec::from(SECTION.as_slice())
            }

            extern "C" fn init(host: HostApiRef, info: RVec<u8>) -> RResult<(), FfiError> {
                $crate::abi::export::init(host, info)
            }

            extern "C" fn new_provider(settings: RVec<u8>) -> ProviderResult {
                super::__sandbox_provider_new(settings)
            }

            extern "C" fn construct() -> $crate::abi::export::RootModuleResult {
                $crate::abi::export::construct(|| $crate::abi::export::root(describe, init, new_provider))
            }
        }
    };
}

// ---- the host's half ----

/// What a host tells a plugin about itself, beside and never inside the settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HostInfo {
    /// Version of the contract that the host was built with.
    pub contract: String,
    /// The file that the plugin was loaded from. Set by the loader.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin_file: Option<ByteString>,
}

impl HostInfo {
    /// This program.
    pub fn new() -> Self {
        Self { contract: CONTRACT_VERSION.to_owned(), plugin_file: None }
    }
}

impl HostInfo {
    /// The same, for the plugin of this file.
    #[must_use]
    pub fn with_plugin_file(mut self, file: &Path) -> Self {
        self.plugin_file = Some(file.into());
        self
    }
}

impl Default for HostInfo {
    fn default() -> Self {
        Self::new()
    }
}

/// The entry point of a plugin whose layout was checked. Cheap to clone.
#[derive(Clone)]
pub struct PluginEntry {
    root: PluginRootRef,
}

impl PluginEntry {
    /// The entry point of a linked provider.
    ///
    /// # Panics
    /// Never for what `export_provider!` makes: a linked provider has the layout of this program.
    #[doc(hidden)]
    pub fn linked(header: &'static LibHeader) -> Self {
        Self::from_header(header).expect("a linked provider has the layout of this program")
    }

    /// The entry point at a symbol of a loaded library.
    ///
    /// # Errors
    /// `Plugin` when it is none, or when its layout fits in neither direction.
    ///
    /// # Safety
    /// `symbol` is the address of a static that `export_provider!` made, in a library that is never unloaded.
    pub unsafe fn from_symbol(symbol: *const c_void) -> Result<Self> {
        if symbol.is_null() {
            return Err(SandboxError::plugin("the entry symbol is null"));
        }
        // SAFETY: an `AbiHeaderRef` is the address of such a static (repr(transparent) around a reference), which is not
        // null; the caller vouches for the rest.
        let header = unsafe { std::mem::transmute::<*const c_void, AbiHeaderRef>(symbol) };
        let header = header
            .upgrade()
            .map_err(|error| SandboxError::plugin(format!("the entry point has another ABI: {}", one_line(&error))))?;
        Self::from_header(header)
    }

    fn from_header(header: &'static LibHeader) -> Result<Self> {
        let theirs = header.layout().ok_or_else(|| SandboxError::plugin("the entry point carries no layout"))?;
        let ours = <PluginRootRef as StableAbi>::LAYOUT;
        // abi_stable itself refuses an old plugin in a newer host whose tables have grown: the check holds in one
        // direction only. Tables only ever grow at the end, so it is enough that one of the two directions holds.
        if let Err(newer) = check_layout_compatibility(ours, theirs)
            && check_layout_compatibility(theirs, ours).is_err()
        {
            return Err(SandboxError::plugin(format!(
                "the layout of the entry point does not fit: {}",
                one_line(&newer)
            )));
        }
        // SAFETY: the layout was checked just now.
        let root = unsafe { header.unchecked_layout::<PluginRootRef>() }
            .map_err(|error| SandboxError::plugin(format!("the entry point failed: {error:?}")))?;
        Ok(Self { root })
    }

    /// The manifest as the plugin's code knows it: must equal the section of the file.
    pub fn manifest_bytes(&self) -> Vec<u8> {
        (self.root.describe())().into_vec()
    }

    /// Tells the plugin about its host. From now on its log events reach the host's `tracing` subscriber. Idempotent.
    ///
    /// # Errors
    /// `Internal` when the plugin panics.
    pub fn init(&self, host: &HostInfo) -> Result<()> {
        from_ffi((self.root.init())(log::host_api(), encode(host)?))
    }

    /// Makes a provider from its settings.
    ///
    /// # Errors
    /// `InvalidInput` for settings that the provider refuses; whatever else it says.
    pub fn new_provider(&self, settings: &serde_json::Value) -> Result<Arc<dyn SandboxProvider>> {
        let object = from_ffi((self.root.new_provider())(encode(settings)?))?;
        Ok(Arc::new(Imported::new(object)?))
    }
}

impl fmt::Debug for PluginEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PluginEntry").finish_non_exhaustive()
    }
}

/// Errors of abi_stable are pages long: the beginning, on one line.
fn one_line(error: &impl fmt::Display) -> String {
    const LONGEST: usize = 300;
    let text = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
