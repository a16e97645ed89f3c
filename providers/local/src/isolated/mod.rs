//! Sandboxes with namespaces of their own.
//!
//! A sandbox is a folder of this machine, mounted as its working folder, and the agent as PID 1 of its namespaces. The
//! agent is reached over a socket in a private folder that no sandbox sees, and does everything inside: commands,
//! terminals, files, ports. It ends with the process that made it, however that ends, or it lives as long as its lease:
//! a keeper beside it sees to that. Other processes of its user use it by what is written down about it.
//!
//! Nothing falls back to less isolation. What this machine does not allow is an error that names the setting.

mod capabilities;
mod commands;
mod connect;
mod create;
mod disk;
mod door;
mod endpoint;
mod error;
mod files;
mod forward;
mod image;
mod info;
mod inside;
mod jobs;
mod lifetime;
mod memory;
mod network;
mod plan;
mod running;
mod standby;
mod storage;
mod volume;

pub(crate) use commands::exec;
pub(crate) use create::{create, is_lease};
pub(crate) use door::Door;
pub(crate) use files::IsolatedFiles;
pub(crate) use image::images;
pub(crate) use info::{Abilities, info};
pub(crate) use inside::Inside;
pub(crate) use lifetime::{Held, renew};
pub(crate) use network::{Attachment, Networks, leave};
pub(crate) use plan::check_settings;
pub(crate) use running::{Leftover, sweep_cgroups};
pub(crate) use standby::Standby;
pub(crate) use volume::Volumes;
