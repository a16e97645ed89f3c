//! What the provider does where a server, a daemon or something in between does not do what it should. The server and the
//! daemons are ours, in this process, and fail as they are told to.

#![forbid(unsafe_code)]

mod background;
mod cli;
mod connection;
mod create;
mod exec;
mod lifecycle;
mod limits;
mod native;
mod network;
mod pool;
mod snapshots;
mod support;
mod terminal;
mod tls;
