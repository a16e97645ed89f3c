//! The stable ABI between a host and a provider in a shared library.
//!
//! Built on `abi_stable` and `async-ffi`, and fenced: no type of those crates is named outside of this module, by an
//! author or by an application. What crosses is small and never grows but by appending to the tables of functions:
//! one call entry point (JSON and bytes both ways), one stream entry point, and strings with versions for everything
//! that can be asked. A capability that is added later moves no layout.
//!
//! | file | both halves of |
//! |---|---|
//! | `layout` | the types that cross; the only file with `StableAbi` in it |
//! | `runtime` | running the author's code: on the plugin's own tokio runtime, panics caught |
//! | `stream` | [`Session`](crate::Session) |
//! | `provider` | [`SandboxProvider`](crate::SandboxProvider), the required operations |
//! | `bridge` | the capability traits |
//! | `log` | log events, from the plugin to the host's `tracing` subscriber |
//! | `entry` | the entry point: [`export_provider!`](crate::export_provider) and [`PluginEntry`] |

// What `#[sabi_trait]` and `#[derive(StableAbi)]` generate trips these; the allowances end at this fence.
#[allow(missing_docs, unreachable_pub, non_local_definitions, unused_braces, clippy::all, rust_2018_idioms)]
#[allow(clippy::undocumented_unsafe_blocks, clippy::multiple_unsafe_ops_per_block)]
mod layout;

mod bridge;
mod codec;
mod entry;
mod log;
mod provider;
mod runtime;
mod stream;

pub use entry::{HostInfo, PluginEntry};
pub use runtime::plugin_file;

/// What the expansion of `export_provider!` names. Not for anybody else: nothing here is kept stable.
#[doc(hidden)]
pub mod export {
    pub use abi_stable::{
        library::LibHeader,
        std_types::{RResult, RVec},
    };

    pub use super::{
        entry::{ProviderResult, RootModuleResult, construct, header, manifest_length, manifest_section, root},
        layout::{FfiError, HostApiRef},
        provider::new_provider,
        runtime::init,
    };
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    /// The text of every file, and whether it is inside of the fence.
    fn sources(folder: &Path, is_fenced: bool, found: &mut Vec<(bool, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                sources(&path, is_fenced || path.ends_with("src/abi"), found);
            } else {
                found.push((is_fenced, fs::read_to_string(&path).unwrap()));
            }
        }
    }

    #[test]
    fn the_crates_under_the_abi_are_named_inside_of_the_fence_only_and_nothing_unwinds_over_the_boundary() {
        let mut found = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), false, &mut found);
        assert!(found.iter().any(|(is_fenced, _)| *is_fenced) && found.iter().any(|(is_fenced, _)| !is_fenced));
        // In halves, since this file is one of them.
        let unwinding = ["C-", "unwind\""].concat();
        for (is_fenced, code) in &found {
            assert!(!code.contains(&unwinding), "a panic that leaves a library ends the program");
            let names = ["abi_stable", "async_ffi"].iter().any(|name| code.contains(name));
            assert!(*is_fenced || !names, "{code}");
        }
    }
}
