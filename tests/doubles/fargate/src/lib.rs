//! A stand-in for AWS Fargate, over HTTP on loopback.
//!
//! * The control plane is moto, the field's own emulator, with its checks of signatures and
//!   permissions on. A front passes every request on as it was signed, and tells of tasks what happens to them in truth:
//!   moto knows records only.
//! * A task is real: a network of its own with an address on the loopback (`127.64.0.0` and above), and for each container of
//!   its definition mounts, a root from an image, processes and a host name of its own. Commands, dependencies, volumes,
//!   overrides and exit codes are those of the definition. It needs root.
//! * [`Fault`]s go wrong in a scripted way, and are counted when they do.
//!
//! * What the build service is asked to copy or build becomes an image of tasks.
//!
//! What it does not have is refused, not ignored: health checks, secrets of containers, files of environment variables. Sizes
//! are checked, and not enforced. moto knows actions of a policy, not its resources and conditions.

#![forbid(unsafe_code)]

mod builds;
mod control_plane;
mod definition;
mod double;
mod ecs;
mod error;
mod fault;
mod front;
mod image;
mod journal;
mod network;
mod plane;
mod run;
mod sizes;
mod task;
mod world;

pub use control_plane::{Account, Key};
pub use double::{Double, Options, TaskInfo, Timing};
pub use fault::Fault;
pub use image::{BARE_IMAGE, BASE_IMAGE, EMPTY_IMAGE, SIDECAR_IMAGE};
