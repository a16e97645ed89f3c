//! Sandboxes as tasks of AWS Fargate: a machine of its own for each, and no cluster to run.
//!
//! A sandbox is one task. Its main process is our agent, which a sidecar puts into a volume that both share; commands,
//! terminals, files and ports go over one connection to it, through the sidecar's SSH server or straight to the task's
//! address. AWS itself is asked as rarely as possible: one task definition for each image, one question for all tasks
//! that start, nothing at all while commands run.
//!
//! Everything that is made carries tags: who made it, until when, and which incarnation it is. So any process finds it
//! again, a handle never means another task, and what nobody answers for any more can be swept.

#![forbid(unsafe_code)]

mod aws;
mod bootstrap;
mod config;
mod create;
mod definition;
mod ending;
mod endpoint;
mod error;
mod files;
mod forwarding;
mod images;
mod info;
mod jobs;
mod key;
mod launch;
mod lifecycle;
mod link;
mod options;
mod plan;
mod policy;
mod poller;
mod provider;
mod sandbox;
mod scripts;
mod sessions;
mod settings;
mod size;
mod staging;
mod storage;
mod sweep;
mod tags;
mod time;
mod transport;

pub use config::{
    Address, Architecture, BuildConfig, Capacity, EfsConfig, FargateConfig, KeySource, ServiceEndpoints, SidecarConfig,
    StaticCredentials, TransportKind,
};
pub use policy::{Needs, needs};
pub use provider::FargateProvider;

sandbox_core::export_provider!(FargateProvider::new);
