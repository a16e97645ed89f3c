//! One run: create, execute with streams, remove; whatever happens, nothing is left. Or one command in a sandbox that
//! stays.

mod ending;
mod input;
mod interrupt;
mod output;
mod result;
mod sandbox;

pub(crate) use input::Input;
pub(crate) use interrupt::Interrupts;
pub(crate) use result::ResultFile;
pub(crate) use sandbox::{Place, Plan, run};
