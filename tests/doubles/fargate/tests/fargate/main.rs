//! The double, seen by the service's official client and Debian's SSH: neither was written here.

mod access;
mod faults;
mod lives;
mod planes;
mod support;
