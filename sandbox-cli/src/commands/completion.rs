//! `sandboxctl completion`: a static script; it loads no plugin and reads no file.

use clap::Args;
use clap_complete::Shell;

use crate::{failure::Failure, output, usage};

#[derive(Args)]
pub(crate) struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes the script.
pub(crate) fn run(args: &CompletionArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut usage::command(), "sandboxctl", &mut script);
    output::data(&String::from_utf8_lossy(&script))
}
