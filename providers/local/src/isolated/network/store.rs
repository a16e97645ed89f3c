//! The networks of one root, as they are written down.

use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File, OpenOptions},
    io,
    net::Ipv4Addr,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use sandbox_core::{NamedNetwork, NetworkRequest, Result, SandboxError, serde_json};
use serde::{Deserialize, Serialize};

use crate::records::Records;
use crate::{error::os, folder::random_hex, isolated::volume::check_name, workspace::Root};

const FOLDER: &str = ".networks";
const LOCK: &str = ".lock";
const SUFFIX: &str = ".json";
/// No name of a network begins like this.
const UNFINISHED: &str = ".tmp-";

/// Changes of networks take milliseconds.
const LOCK_WITHIN: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Where subnets are taken from when a request names none: 10.83.0.0/24 to 10.83.255.0/24.
const AUTOMATIC: [u8; 2] = [10, 83];

/// The shortest and the longest prefix of a subnet.
const PREFIXES: std::ops::RangeInclusive<u8> = 16..=29;

/// The networks of one root.
pub(crate) struct Networks {
    folder: PathBuf,
    pub(super) root: Root,
    pub(super) records: Records,
}

/// While it lives, nobody else changes networks or their members.
pub(super) struct Locked(#[allow(dead_code, reason = "the lock goes with the descriptor")] File);

/// A network as it is written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Network {
    pub(super) name: String,
    pub(super) subnet: Subnet,
    #[serde(default)]
    pub(super) metadata: BTreeMap<String, String>,
}

impl Network {
    fn into_public(self) -> NamedNetwork {
        NamedNetwork {
            id: self.name.clone(),
            name: self.name,
            subnet: Some(self.subnet.to_string()),
            metadata: self.metadata,
        }
    }
}

impl Networks {
    pub(crate) fn new(root: &Root, records: &Records) -> Self {
        Self { folder: root.path().join(FOLDER), root: root.clone(), records: records.clone() }
    }

    /// Waits for its turn. Blocks.
    pub(super) fn lock(&self) -> Result<Locked> {
        self.root.prepare()?;
        let failed = |error| SandboxError::io("the folder of networks", error);
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let path = self.folder.join(LOCK);
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(failed)?;
        let deadline = Instant::now() + LOCK_WITHIN;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Locked(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => std::thread::sleep(LOOK_EVERY),
                Err(Errno::WOULDBLOCK) => {
                    return Err(SandboxError::timed_out("somebody else changes networks for a minute already"));
                }
                Err(errno) => return Err(os("the lock of networks", errno)),
            }
        }
    }

    pub(super) fn create(&self, _locked: &Locked, request: NetworkRequest) -> Result<NamedNetwork> {
        check_name("name", &request.name)?;
        let all = self.all()?;
        if all.iter().any(|network| network.name == request.name) {
            let why = format!("network {} is there already", request.name);
            return Err(SandboxError::already_exists(why).with_field("name"));
        }
        let is_free = |subnet: &Subnet| !all.iter().any(|network| network.subnet.overlaps(subnet));
        let subnet = match &request.subnet {
            None => (0..=255)
                .map(|third| Subnet { first: Ipv4Addr::from([AUTOMATIC[0], AUTOMATIC[1], third, 0]), prefix: 24 })
                .find(is_free)
                .ok_or_else(|| SandboxError::exhausted("all of 10.83.0.0/16 is used by networks"))?,
            Some(text) => {
                let subnet = Subnet::parse(text)?;
                if !is_free(&subnet) {
                    return Err(SandboxError::invalid_input("subnet", format!("{text} overlaps with another network")));
                }
                subnet
            }
        };
        let network = Network { name: request.name, subnet, metadata: request.metadata };
        self.write(&network)?;
        Ok(network.into_public())
    }

    pub(super) fn list(&self) -> Result<Vec<NamedNetwork>> {
        Ok(self.all()?.into_iter().map(Network::into_public).collect())
    }

    pub(super) fn find(&self, name: &str) -> Result<Network> {
        check_name("network", name)?;
        self.all()?.into_iter().find(|network| network.name == name).ok_or_else(|| {
            SandboxError::not_found(format!("there is no network {name}"))
                .with_field("network")
                .with_help("make it first: create_network")
        })
    }

    pub(super) fn forget(&self, _locked: &Locked, name: &str) -> Result<()> {
        match std::fs::remove_file(self.folder.join(format!("{name}{SUFFIX}"))) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SandboxError::io(format!("network {name}"), error))
            }
            _ => Ok(()),
        }
    }

    /// Removes what was not finished. Whoever writes has the lock.
    pub(crate) fn sweep(&self) -> Result<()> {
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return Ok(()) };
        let _locked = self.lock()?;
        for entry in entries.filter_map(std::result::Result::ok) {
            if entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes()) {
                // Somebody else may sweep at the same time.
                let _ = std::fs::remove_file(entry.path());
            }
        }
        Ok(())
    }

    fn write(&self, network: &Network) -> Result<()> {
        let failed = |error| SandboxError::io(format!("network {}", network.name), error);
        let text =
            serde_json::to_vec(network).map_err(|error| SandboxError::internal(format!("the network: {error}")))?;
        let unfinished = self.folder.join(format!("{UNFINISHED}{}", random_hex(8)?));
        let path = self.folder.join(format!("{}{SUFFIX}", network.name));
        std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, path)).map_err(|error| {
            // The reason to fail is told.
            let _ = std::fs::remove_file(&unfinished);
            failed(error)
        })
    }

    fn all(&self) -> Result<Vec<Network>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| SandboxError::io(self.folder.display(), error))?,
        };
        let read = |path: PathBuf| -> Option<Network> {
            let name = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.to_owned();
            let network: Network = serde_json::from_slice(&std::fs::read(&path).ok()?).ok()?;
            (network.name == name).then_some(network)
        };
        let mut all: Vec<_> = entries.filter_map(|entry| read(entry.ok()?.path())).collect();
        all.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(all)
    }
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Subnet {
    first: Ipv4Addr,
    prefix: u8,
}

impl std::fmt::Display for Subnet {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.first, self.prefix)
    }
}

impl Subnet {
    fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            SandboxError::invalid_input("subnet", format!("{} {why}", text.escape_debug()))
                .with_help("give a range of IPv4 addresses such as 10.10.0.0/24, or none")
        };
        let (first, prefix) = text.split_once('/').ok_or_else(|| bad("has no prefix"))?;
        let first: Ipv4Addr = first.parse().map_err(|_| bad("does not begin with an IPv4 address"))?;
        let prefix: u8 = prefix
            .parse()
            .ok()
            .filter(|prefix| PREFIXES.contains(prefix))
            .ok_or_else(|| bad("must have a prefix of 16 to 29"))?;
        let subnet = Self { first, prefix };
        if u32::from(first) & !subnet.mask() != 0 {
            return Err(bad("has bits beyond its prefix"));
        }
        if first.is_loopback() || first.is_multicast() || first.octets()[0] == 0 || first.octets()[0] >= 240 {
            return Err(bad("is reserved"));
        }
        Ok(subnet)
    }

    fn mask(&self) -> u32 {
        u32::MAX << (32 - self.prefix)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let mask = self.mask() & other.mask();
        u32::from(self.first) & mask == u32::from(other.first) & mask
    }

    /// The addresses that sandboxes may have: not the first two, which are a gateway's elsewhere, nor the last.
    pub(super) fn addresses(&self) -> impl Iterator<Item = Ipv4Addr> {
        let (first, last) = (u32::from(self.first), u32::from(self.first) | !self.mask());
        (first + 2..last).map(Ipv4Addr::from)
    }
}

#[cfg(test)]
mod tests {
    use super::{Networks, Subnet};
    use crate::{config::LocalConfig, records::Records, state::State, workspace::Root};

    #[test]
    fn a_sweep_takes_what_was_not_finished_and_no_network() {
        let temp = tempfile::tempdir().unwrap();
        let root = Root::new(temp.path().join("root"));
        let records = Records::new(&root, State::new(&LocalConfig::default()));
        let networks = Networks::new(&root, &records);
        networks.sweep().unwrap();
        let request = sandbox_core::NetworkRequest { name: "app".to_owned(), ..Default::default() };
        networks.create(&networks.lock().unwrap(), request).unwrap();
        let unfinished = networks.folder.join(".tmp-0123");
        std::fs::write(&unfinished, "{").unwrap();
        networks.sweep().unwrap();
        assert!(!unfinished.exists() && networks.find("app").is_ok());
    }

    #[test]
    fn a_subnet_is_whole_and_of_a_usable_size() {
        for bad in ["", "10.0.0.0", "10.0.0.0/8", "10.0.0.0/30", "10.0.0.1/24", "127.0.0.0/24", "::/64", "10.0.0/24"] {
            assert_eq!(Subnet::parse(bad).unwrap_err().field(), Some("subnet"), "{bad}");
        }
        let subnet = Subnet::parse("10.1.2.8/29").unwrap();
        let addresses: Vec<_> = subnet.addresses().map(|address| address.to_string()).collect();
        assert_eq!(addresses, ["10.1.2.10", "10.1.2.11", "10.1.2.12", "10.1.2.13", "10.1.2.14"]);
        assert!(subnet.overlaps(&Subnet::parse("10.1.0.0/16").unwrap()));
        assert!(!subnet.overlaps(&Subnet::parse("10.1.2.0/29").unwrap()));
    }
}
