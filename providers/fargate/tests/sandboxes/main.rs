//! Sandboxes of the double, beyond what the contract says: connections that break under commands, rights, keys, addresses.

mod bootstrap;
mod broken_lines;
mod forwarding;
mod images;
mod large_files;
mod rights;
mod storage;
mod support;
