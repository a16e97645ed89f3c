//! A worker under a deadline, with a receipt that says whether anything of it is left.

mod kept;
mod wrapped;

use std::time::Duration;

use sandbox_core::{ByteString, ExecRequest, Result, SandboxError, SandboxExecResult};
use serde::{Deserialize, Serialize};

use crate::AsyncSandbox;

/// What became of a supervised worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SupervisionReceipt {
    /// Every process of the worker is gone, those that detached themselves too, or none was started.
    pub cleanup_confirmed: bool,
    /// The worker's own exit code, 128 + n for a signal, 126 or 127 if it could not be started; none if it had to be
    /// killed.
    pub return_code: Option<i32>,
    /// What went wrong; none if nothing did.
    pub error: Option<String>,
    /// The deadline ended the worker.
    pub timed_out: bool,
}

/// A supervised worker that is over: the receipt, and the output within the usual limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Supervised {
    /// What became of it.
    pub receipt: SupervisionReceipt,
    /// Its output. The outcome in it is that of the supervision, not the worker's.
    pub output: SandboxExecResult,
}

impl AsyncSandbox {
    /// Runs a worker until it ends or its deadline comes, and then ends everything that it left: at the deadline it is
    /// told to terminate and has `cleanup_timeout` to do so; whatever then still runs is killed, also after a normal
    /// end. The receipt says whether that was confirmed.
    ///
    /// Where the provider has [`jobs`](sandbox_core::Capability::Jobs) the sandbox does it: it ends the worker at the
    /// end of both times whatever becomes of this process, contact that breaks off is taken up again, and no shell is
    /// needed. Elsewhere the sandbox needs a POSIX shell and commands whose input stays open, and the deadline is kept here. The worker's input is at its
    /// end. Dropping the future ends the worker.
    ///
    /// # Errors
    /// `InvalidInput` for a limit that is not above 0 and for an empty command; those of
    /// [`exec_stream`](Self::exec_stream). Once the worker runs, what goes wrong is in the receipt.
    pub async fn supervise<A: Into<ByteString>>(
        &self,
        argv: impl IntoIterator<Item = A>,
        timeout: Duration,
        cleanup_timeout: Duration,
    ) -> Result<Supervised> {
        for (field, limit) in [("timeout", timeout), ("cleanup_timeout", cleanup_timeout)] {
            if limit.is_zero() {
                return Err(SandboxError::invalid_input(field, "must be above 0"));
            }
        }
        let argv: Vec<ByteString> = argv.into_iter().map(Into::into).collect();
        // Checked as what it is, not as an argument of a wrapper.
        ExecRequest::argv(argv.clone()).validate()?;
        match self.provider.as_jobs() {
            Some(_) => kept::supervise(self, argv, timeout, cleanup_timeout).await,
            None => wrapped::supervise(self, argv, timeout, cleanup_timeout).await,
        }
    }
}
