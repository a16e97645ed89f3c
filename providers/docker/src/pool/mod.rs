//! Containers that are made ahead: whole ones that only wait to be told whose they are, and holders of a network that
//! a sandbox joins.
//!
//! A member runs our agent, which waits for what it is told: its configuration is a pipe. It serves one sandbox at
//! most, and goes with it.

mod adopt;
mod member;
mod record;
mod shelf;

pub(crate) use adopt::{Draft, Woken};
pub(crate) use member::Member;
pub(crate) use record::{read as read_record, records, remove as remove_record};
pub(crate) use shelf::Pools;
