//! Stacks that really run, each on the docker provider's engine and on isolated local sandboxes.
//!
//! They need root and an engine of their own: `cargo xtask engine -- cargo nextest run -p sandbox-api`.

mod backend;
mod builds;
mod life;
mod options;
mod stacks;
