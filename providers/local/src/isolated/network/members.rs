//! Who is in a network.

use std::net::Ipv4Addr;

use sandbox_core::{NetworkRequest, Result, SandboxError, SandboxStatus};

use super::{
    Attachment, DEFAULT_NETWORK, hosts,
    namespace::Namespace,
    store::{Locked, Networks},
};
use crate::{isolated::Leftover, record::Record, records::Records};

/// Most sandboxes in one network: there are cables between each two of them.
const MEMBERS_MAX: usize = 64;

/// Most further names of a sandbox in a network.
const NAMES_MAX: usize = 32;

/// A sandbox in a network that runs.
struct Member {
    address: Ipv4Addr,
    namespace: Namespace,
}

/// Puts a sandbox into a network, under the lock, and tells everybody. Its record has to be written before.
///
/// On failure the record is as it was, and no cable is left.
pub(crate) fn join(networks: &Networks, record: &mut Record, name: &str, names: Vec<String>) -> Result<()> {
    check_names(&names)?;
    let locked = networks.lock()?;
    let network = match networks.find(name) {
        Err(error) if error.kind() == sandbox_core::ErrorKind::NotFound && name == DEFAULT_NETWORK => {
            networks.create(&locked, NetworkRequest { name: name.to_owned(), ..NetworkRequest::default() })?;
            networks.find(name)?
        }
        found => found?,
    };
    let records = networks.records.clone();
    if let Some(attachment) = record.networks.iter_mut().find(|attachment| attachment.network == name) {
        // In it already, under other names from now on.
        let before = std::mem::replace(&mut attachment.names, names);
        let written = records.write(record);
        if written.is_err()
            && let Some(attachment) = record.networks.iter_mut().find(|attachment| attachment.network == name)
        {
            attachment.names = before;
        }
        return written.map(|()| hosts::tell(&records, &locked, name));
    }
    let namespace = namespace(record)?;
    let members = members(&records, &locked, name, &record.id)?;
    if members.len() >= MEMBERS_MAX {
        return Err(SandboxError::exhausted(format!("network {name} has {MEMBERS_MAX} sandboxes, and takes no more"))
            .with_field("network"));
    }
    let is_free = |address: &Ipv4Addr| !members.iter().any(|member| member.address == *address);
    let address = network.subnet.addresses().find(is_free).ok_or_else(|| {
        SandboxError::exhausted(format!("every address of network {name} is taken")).with_field("network")
    })?;
    let connected = namespace
        .add_address(address)
        .and_then(|()| {
            members.iter().try_for_each(|member| namespace.connect(address, &member.namespace, member.address))
        })
        .and_then(|()| {
            record.networks.push(Attachment { network: name.to_owned(), address, names });
            records.write(record)
        });
    if let Err(error) = connected {
        record.networks.retain(|attachment| attachment.network != name);
        let others: Vec<_> = members.iter().map(|member| member.address).collect();
        // The reason to fail is told; what is left goes with the sandbox.
        let _ = namespace.disconnect(address, &others);
        return Err(error);
    }
    hosts::tell(&records, &locked, name);
    Ok(())
}

/// Takes a sandbox out of a network, under the lock, and tells the others.
pub(super) fn part(networks: &Networks, record: &mut Record, name: &str) -> Result<()> {
    let locked = networks.lock()?;
    let records = networks.records.clone();
    let at = record.networks.iter().position(|attachment| attachment.network == name);
    let Some(at) = at else {
        let why = format!("sandbox {} is not in network {name}", record.id);
        return Err(SandboxError::not_found(why).with_field("network"));
    };
    let others = members(&records, &locked, name, &record.id)?;
    let addresses: Vec<_> = others.iter().map(|member| member.address).collect();
    namespace(record)?.disconnect(record.networks[at].address, &addresses)?;
    let attachment = record.networks.remove(at);
    if let Err(error) = records.write(record) {
        record.networks.insert(at, attachment);
        return Err(error);
    }
    hosts::tell(&records, &locked, name);
    hosts::tell_one(&records, &locked, record);
    Ok(())
}

/// A sandbox has ended, and its record is gone: the others see that at once. As far as it goes, since the kernel and the
/// next one with this address do the rest.
pub(crate) fn leave(networks: &Networks, record_id: &str, attachments: &[Attachment]) {
    if attachments.is_empty() {
        return;
    }
    let Ok(locked) = networks.lock() else { return };
    let records = networks.records.clone();
    for Attachment { network, address, .. } in attachments {
        for member in members(&records, &locked, network, record_id).unwrap_or_default() {
            let _ = member.namespace.unplug(*address);
        }
        hosts::tell(&records, &locked, network);
    }
}

/// Whether sandboxes are in a network.
pub(super) fn is_used(networks: &Networks, locked: &Locked, name: &str) -> Result<bool> {
    let _ = locked;
    let records = networks.records.read_all()?;
    Ok(records.iter().any(|record| record.status() != SandboxStatus::Stopped && is_in(record, name)))
}

pub(super) fn is_in(record: &Record, name: &str) -> bool {
    record.networks.iter().any(|attachment| attachment.network == name)
}

/// Everybody in a network but one.
fn members(records: &Records, _locked: &Locked, name: &str, but: &str) -> Result<Vec<Member>> {
    let member = |record: Record| {
        let attachment = record.networks.iter().find(|attachment| attachment.network == name)?;
        // One that has ended has nothing to be connected to, and its address is free.
        Some(Member { address: attachment.address, namespace: Namespace::of(record.inside.as_ref()?)? })
    };
    let all = records.read_all()?.into_iter().filter(|record| record.id != but);
    Ok(all.filter_map(member).collect())
}

fn namespace(record: &Record) -> Result<Namespace> {
    record.inside.as_ref().and_then(|inside: &Leftover| Namespace::of(inside)).ok_or_else(|| {
        SandboxError::invalid_state(format!("sandbox {} has no network of its own, or has ended", record.id))
            .with_help("a sandbox with this machine's network is in no other one")
    })
}

fn check_names(names: &[String]) -> Result<()> {
    if names.len() > NAMES_MAX {
        return Err(SandboxError::invalid_input("aliases", format!("are more than {NAMES_MAX}")));
    }
    match names.iter().find(|name| !hosts::is_host_name(name)) {
        None => Ok(()),
        Some(name) => Err(SandboxError::invalid_input("aliases", format!("{} is no host name", name.escape_debug()))),
    }
}
