//! What the contract does not ask of every provider: the service's own ways to fail, seen at the level of HTTP.

mod defects;
mod description;
mod faults;
mod golden;
mod jobs;
mod live;
mod official_sdk;
mod played;
mod ports;
mod prism;
mod proxies;
mod replay;
mod rows;
mod services;
mod sockets;
mod support;
