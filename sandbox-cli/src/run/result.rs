//! How a run ended, for scripts: 124 to 127 may also be the command's own codes.

use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::OpenOptionsExt,
};

use serde_json::Value;

use crate::failure::Failure;

/// Where the result goes. Opened before anything runs.
pub(crate) struct ResultFile(File);

impl ResultFile {
    /// `fd:N` is a descriptor that our caller has opened, everything else a file, which is emptied.
    ///
    /// # Errors
    /// Exit code 2 when it cannot be written.
    pub(crate) fn open(target: &str) -> Result<Self, Failure> {
        let opened = match target.strip_prefix("fd:") {
            Some(number) if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) => {
                OpenOptions::new().append(true).open(format!("/proc/self/fd/{number}"))
            }
            Some(_) => return Err(Failure::usage("--result: expected fd:N with a number").with_field("--result")),
            None => OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(target),
        };
        opened.map(Self).map_err(|error| {
            Failure::usage(format!("cannot write the result to {target}")).because(error).with_field("--result")
        })
    }

    /// Writes it.
    ///
    /// # Errors
    /// When it cannot be written: the caller was promised one.
    pub(crate) fn write(mut self, result: &Value) -> Result<(), Failure> {
        writeln!(self.0, "{result}").map_err(|error| {
            Failure::infrastructure(format!("cannot write the result: {error}")).with_field("--result")
        })
    }
}
