//! Helpers for the tests and measurements of the plugin boundary.
//!
//! Nothing here is skipped: a test that cannot build its fixture fails.

#![deny(unsafe_code)]

pub mod bare;
pub mod build;
pub mod child;
pub mod hosting;
pub mod measure;
pub mod native;
pub mod subjects;
pub mod wait;
pub mod world;
