//! The docker provider on a real engine.

mod agentless;
mod between;
mod builds;
mod cli;
mod disk;
mod dockerd;
mod engine;
mod failures;
mod images;
mod jobs;
mod network;
mod parts;
mod podman;
mod pool;
mod proxy;
mod registry;
mod restart;
mod support;
mod tcp;
mod ways;
