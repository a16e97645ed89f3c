//! Compose files: loading, planning, and running on providers that are scripted.

mod fake;
mod load;
mod plan;
mod run;
