//! Private networks between the sandboxes of this machine.
//!
//! Each pair of members has a cable of its own (`veth`), from one network namespace right into the other. Nothing of it is
//! ever in this machine's own network: no bridge that has to be removed, no address that overlaps with one of its own, and
//! no way from a sandbox to it. A cable ends with either of its sandboxes, however that ends.
//!
//! A bridge in this machine's network was the alternative. It answers for this machine's own addresses (the weak host
//! model), takes broadcasts to it, and stays when everybody who knows of it was killed.
//!
//! What is written down: networks below `.networks`, members in the records of sandboxes. All changes are under one lock
//! for each root.

mod capability;
mod hosts;
mod members;
mod namespace;
mod netlink;
mod store;

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

pub(crate) use members::{join, leave};
pub(crate) use store::Networks;

/// The network of sandboxes that name none, where the settings make one.
pub(crate) const DEFAULT_NETWORK: &str = "default";

/// A sandbox's place in a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Attachment {
    pub(crate) network: String,
    pub(crate) address: Ipv4Addr,
    /// Under which the others find it.
    #[serde(default)]
    pub(crate) names: Vec<String>,
}
