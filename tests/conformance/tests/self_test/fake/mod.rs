//! A small provider in this process: real programs, folders of this host, no isolation. Honest unless given a fault.

mod abilities;
mod directory;
mod exec;
mod jobs;
mod launch;
mod listing;
mod path;
mod processes;
mod provider;
mod pump;
mod sessions;
mod terminal;
mod transfer;
mod world;

use std::sync::Arc;

use sandbox_conformance::{ProviderFactory, factory};
use sandbox_core::SandboxProvider;

use crate::fault::Fault;

/// A factory whose providers share their sandboxes, as processes with one backend do.
pub(crate) fn fake(fault: Option<Fault>) -> impl ProviderFactory {
    let world = Arc::new(world::World::new(fault));
    factory(move || {
        let provider: Arc<dyn SandboxProvider> = Arc::new(provider::Fake::new(world.clone()));
        async move { Ok(provider) }
    })
}
