//! Times in the form of the API.

use std::time::{Duration, UNIX_EPOCH};

pub(crate) fn rfc3339(ms: u64) -> String {
    humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(ms)).to_string()
}

/// The other way round, in UTC.
pub(crate) fn parse_rfc3339(text: &str) -> Option<u64> {
    let time = humantime::parse_rfc3339_weak(&text.replace("+00:00", "Z")).ok()?;
    u64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}
