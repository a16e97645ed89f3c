//! Finding processes that outlived their sandbox.

use std::time::Duration;

use crate::host::eventually;

/// The variable that every sandbox of the suite carries where its provider honours `env`.
pub(crate) const TOKEN_VARIABLE: &str = "SANDBOX_CONFORMANCE_TOKEN";

/// How long a killed process may still be listed after a close: exit is not instant on a loaded machine.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// Processes of this host whose environment holds the token. A zombie has no environment and is not among them.
pub(crate) fn processes_with_token(token: &str) -> Vec<u32> {
    let needle = format!("{TOKEN_VARIABLE}={token}");
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|variable| variable == needle.as_bytes()))
        })
        .collect()
}

/// Waits for every process with the token to go. Gives those that stayed.
pub(crate) async fn survivors(token: &str) -> Vec<u32> {
    let is_gone = async || processes_with_token(token).is_empty();
    if eventually(GONE_WITHIN, is_gone).await { Vec::new() } else { processes_with_token(token) }
}
