//! What a plugin says of itself before any of its code runs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{CapabilitySet, Result, SandboxError};

/// The version of the contract that this crate is.
pub const CONTRACT_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The section of a plugin file that holds its manifest.
pub const MANIFEST_SECTION: &str = ".sbxmeta";

/// A version of the contract: same major works together, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContractVersion {
    /// Moves when old and new no longer work together.
    pub major: u32,
    /// Moves when something is added.
    pub minor: u32,
}

impl ContractVersion {
    /// The version of this crate.
    ///
    /// # Panics
    /// Never: the version of this crate is well formed, and a test says so.
    pub fn current() -> Self {
        Self::parse(CONTRACT_VERSION).expect("the version of this crate is MAJOR.MINOR.PATCH")
    }

    /// Reads `MAJOR.MINOR` or `MAJOR.MINOR.PATCH`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.').map(|part| part.parse().ok());
        let version = Self { major: parts.next()??, minor: parts.next()?? };
        match (parts.next(), parts.next()) {
            (None | Some(Some(_)), None) => Some(version),
            _ => None,
        }
    }

    /// True if a plugin of that version works with this one.
    pub fn is_compatible_with(self, other: Self) -> bool {
        self.major == other.major
    }
}

impl fmt::Display for ContractVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What a plugin file says of itself: the author's `provider.toml` and what the build adds to it.
///
/// In the file it is a section [`MANIFEST_SECTION`]: a first line `sandbox-provider 1`, lines `key=value` written by
/// `export_provider!`, an empty line, and the text of `provider.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ProviderManifest {
    /// The provider's name: `[a-z0-9][a-z0-9_-]{0,63}`.
    pub name: String,
    /// The version of the plugin's package.
    pub version: String,
    /// The contract it was built against.
    #[serde(serialize_with = "as_text")]
    pub contract: ContractVersion,
    /// `unwind`, or `abort` (refused: every panic would end the host).
    pub panic_strategy: String,
    /// Operating system and architecture, such as `linux-x86_64`.
    pub target: String,
    /// The symbol of its entry point.
    pub entry_symbol: String,
    /// One line for people.
    pub description: String,
    /// The capabilities that it may have; what it has with a given configuration is told by `info`.
    pub capabilities: CapabilitySet,
}

fn as_text<S: serde::Serializer>(version: &ContractVersion, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(version)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProviderToml {
    name: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    capabilities: CapabilitySet,
}

/// A manifest is small; a larger section is not one.
const MAX_MANIFEST_BYTES: usize = 64 * 1024;

impl ProviderManifest {
    /// Reads the contents of the section. Never panics, whatever the bytes are.
    ///
    /// # Errors
    /// `Plugin`, saying what is wrong and where.
    pub fn parse(section: &[u8]) -> Result<Self> {
        let bad = |what: String| SandboxError::plugin(format!("manifest: {what}"));
        if section.len() > MAX_MANIFEST_BYTES {
            return Err(bad(format!("has {} bytes; at most {MAX_MANIFEST_BYTES} are read", section.len())));
        }
        let text = std::str::from_utf8(section).map_err(|_| bad("is not UTF-8".to_owned()))?;
        let (build, toml) = text.split_once("\n\n").ok_or_else(|| bad("has no provider.toml part".to_owned()))?;
        let mut lines = build.lines();
        if lines.next() != Some("sandbox-provider 1") {
            return Err(bad("does not start with \"sandbox-provider 1\"".to_owned()));
        }
        let pairs: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once('=')).collect();
        // Keys that this version does not know are left alone.
        let get = |key: &str| {
            pairs
                .iter()
                .find(|(name, _)| *name == key)
                .map(|(_, value)| (*value).to_owned())
                .ok_or_else(|| bad(format!("has no {key}")))
        };
        let contract_text = get("contract")?;
        let contract = ContractVersion::parse(&contract_text)
            .ok_or_else(|| bad(format!("contract {contract_text:?} is not MAJOR.MINOR")))?;
        let author: ProviderToml =
            toml::from_str(toml).map_err(|error| bad(format!("provider.toml: {}", error.message())))?;
        if !is_provider_name(&author.name) {
            return Err(bad(format!("name {:?} is not [a-z0-9][a-z0-9_-]{{0,63}}", author.name)));
        }
        Ok(Self {
            name: author.name,
            version: get("version")?,
            contract,
            panic_strategy: get("panic")?,
            target: get("target")?,
            entry_symbol: get("entry")?,
            description: author.description,
            capabilities: author.capabilities,
        })
    }

    /// The target that this host loads plugins for.
    pub fn host_target() -> String {
        format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH)
    }
}

/// Whether a text is a provider name: `[a-z0-9][a-z0-9_-]{0,63}`.
pub(crate) fn is_provider_name(name: &str) -> bool {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 64 && name.starts_with(lower) && name.chars().all(|c| lower(c) || c == '_' || c == '-')
}

/// Checks the name of a provider.
///
/// # Errors
/// `InvalidInput`, giving the form.
pub(crate) fn check_provider_name(name: &str) -> Result<()> {
    if is_provider_name(name) {
        return Ok(());
    }
    Err(SandboxError::invalid_input("provider name", format!("{name:?} is not [a-z0-9][a-z0-9_-]{{0,63}}")))
}

impl ProviderManifest {
    /// Checks the name of a provider: `[a-z0-9][a-z0-9_-]{0,63}`.
    ///
    /// # Errors
    /// `InvalidInput`, giving the form.
    pub fn check_name(name: &str) -> Result<()> {
        check_provider_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::{ContractVersion, ProviderManifest};

    const GOOD: &str = "sandbox-provider 1\nversion=0.3.1\ncontract=1.0.0\npanic=unwind\ntarget=linux-x86_64\nentry=e\nlater=x\n\nname = \"acme\"\ncapabilities = [\"sandbox.files/1\", \"acme.x/1\"]\n";

    #[test]
    fn a_good_manifest_is_read_and_later_keys_are_left_alone() {
        let manifest = ProviderManifest::parse(GOOD.as_bytes()).unwrap();
        assert_eq!((manifest.name.as_str(), manifest.version.as_str()), ("acme", "0.3.1"));
        assert_eq!(manifest.contract, ContractVersion { major: 1, minor: 0 });
        assert_eq!(manifest.capabilities.names().count(), 2);
        ContractVersion::current();
    }

    #[test]
    fn every_cut_or_changed_manifest_is_refused_or_read_but_never_panics() {
        for end in 0..GOOD.len() {
            let _ = ProviderManifest::parse(&GOOD.as_bytes()[..end]);
        }
        for position in 0..GOOD.len() {
            let mut bytes = GOOD.as_bytes().to_vec();
            bytes[position] ^= 0x80;
            assert!(ProviderManifest::parse(&bytes).is_err());
        }
        for (from, to) in [
            ("acme\"", "Acme\""),
            ("contract=1.0.0", "contract=one"),
            ("panic=unwind\n", ""),
            ("provider 1", "provider 2"),
        ] {
            assert!(ProviderManifest::parse(GOOD.replace(from, to).as_bytes()).is_err(), "{to}");
        }
    }

    #[test]
    fn versions_are_two_or_three_numbers() {
        assert_eq!(ContractVersion::parse("1.2"), Some(ContractVersion { major: 1, minor: 2 }));
        assert_eq!(ContractVersion::parse("1.2.3"), Some(ContractVersion { major: 1, minor: 2 }));
        for bad in ["", "1", "1.", "1.x", "1.2.3.4", "1.2.x"] {
            assert_eq!(ContractVersion::parse(bad), None, "{bad}");
        }
    }
}
