//! The docker provider on a real engine.

mod agentless;
mod builds;
mod cli;
mod dockerd;
mod engine;
mod failures;
mod images;
mod jobs;
mod network;
mod parts;
mod podman;
mod pool;
mod restart;
mod support;
mod tcp;
mod ways;
