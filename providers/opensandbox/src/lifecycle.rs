//! The lifecycle API: looking at sandboxes, removing them, moving their expiry.

use std::time::{Duration, SystemTime};

use reqwest::Method;
use sandbox_core::{Result, SandboxError, SandboxStatus};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    config::seconds,
    daemon::{Seen, segment},
    error::{Failure, NAME},
    retry::Operation,
    shared::Shared,
};

/// How many sandboxes are asked for at once.
const PAGE_SIZE: usize = 100;

/// So many pages are read; a server that has more is not to be trusted with its count.
const PAGES: usize = 1000;

/// The state for a word of the server.
pub(crate) fn status(state: &str) -> SandboxStatus {
    match state.to_ascii_lowercase().as_str() {
        "pending" | "allocated" | "creating" | "resuming" => SandboxStatus::Starting,
        // Commands still run until it is frozen.
        "running" | "pausing" => SandboxStatus::Running,
        "paused" => SandboxStatus::Paused,
        "stopping" | "terminated" | "stopped" => SandboxStatus::Stopped,
        "failed" | "error" => SandboxStatus::Error,
        _ => SandboxStatus::Unknown,
    }
}

impl Seen {
    pub(crate) fn read(described: Value) -> Self {
        let text = |key: &str| described["status"][key].as_str().unwrap_or_default().to_owned();
        let (state, reason, message) = (text("state"), text("reason"), text("message"));
        Self { status: status(&state), state, reason, message, described }
    }

    fn gone() -> Self {
        Self {
            status: SandboxStatus::Stopped,
            state: String::new(),
            reason: String::new(),
            message: String::new(),
            described: Value::Null,
        }
    }
}

/// Whether a removal failed for another one that is under way.
fn is_busy(failure: &Failure) -> bool {
    failure.refusal().is_some_and(|one| one.status == 409 || one.code.ends_with("SANDBOX_DELETE_FAILED"))
}

/// A time of the API in milliseconds since the Unix epoch.
pub(crate) fn read_time(value: &Value) -> Option<u64> {
    let text = value.as_str()?.replace("+00:00", "Z");
    let time = humantime::parse_rfc3339_weak(&text).ok()?;
    u64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// The other way round.
pub(crate) fn write_time(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

impl Shared {
    /// What the server says of a sandbox; one that it does not know is stopped, with nothing described.
    pub(crate) async fn look(&self, id: &str) -> Result<Seen, Failure> {
        let call = self.control_call(Method::GET, &format!("/sandboxes/{}", segment(id)));
        match self.control(&call, Operation::Poll).await {
            Ok(answer) => Ok(Seen::read(serde_json::from_slice(&answer.body).unwrap_or_default())),
            Err(failure) if failure.status() == 404 => Ok(Seen::gone()),
            Err(failure) => Err(failure),
        }
    }

    /// Removes a sandbox, and confirms that it is gone.
    pub(crate) async fn remove(&self, id: &str) -> Result<()> {
        let what = format!("removing sandbox {id}");
        let deadline = Instant::now() + seconds(self.config.operations.close_timeout_s);
        let mut call = self.control_call(Method::DELETE, &format!("/sandboxes/{}", segment(id)));
        call.timeout = seconds(self.config.operations.close_timeout_s);
        let mut pause = Duration::from_millis(50);
        loop {
            let end = self.http.call(&call, Operation::Poll, self.operation_backoff(), Some(deadline)).await;
            match end {
                Err(failure) if failure.status() == 404 || failure.status() == 410 => return Ok(()),
                // Somebody else removes it at this moment.
                Err(failure) if is_busy(&failure) && Instant::now() + pause < deadline => {}
                Err(failure) => return Err(failure.error(&what)),
                Ok(_) => {}
            }
            // Some servers only begin to remove it.
            match self.look(id).await {
                Ok(seen) if seen.described.is_null() => return Ok(()),
                Ok(_) if Instant::now() + pause < deadline => {}
                Ok(seen) => {
                    let text = format!("{what}: it is still there ({})", seen.state);
                    return Err(SandboxError::timed_out(text).with_provider(NAME));
                }
                Err(failure) => return Err(failure.error(&what)),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(2));
        }
    }

    /// Moves the expiry, and gives it in milliseconds since the Unix epoch.
    pub(crate) async fn renew_for(&self, id: &str, ttl: Duration) -> Result<u64> {
        let what = format!("moving the expiry of sandbox {id}");
        let at = SystemTime::now()
            .checked_add(ttl)
            .filter(|at| at.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|age| age.as_secs() < 253_000_000_000))
            .ok_or_else(|| SandboxError::invalid_input("ttl_s", "is beyond the year 9999").with_provider(NAME))?;
        let path = format!("/sandboxes/{}/renew-expiration", segment(id));
        let call = self.control_call(Method::POST, &path).json(&json!({ "expiresAt": write_time(at) }));
        let answer = self.control(&call, Operation::Idempotent).await.map_err(|failure| {
            let is_refused = failure.status() == 400 || failure.status() == 422;
            let error = failure.error(&what);
            if is_refused { error.with_field("ttl_s") } else { error }
        })?;
        let told = read_time(&answer.json(&what)?["expiresAt"]);
        let asked = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        Ok(told.unwrap_or_else(|| u64::try_from(asked).unwrap_or(u64::MAX)))
    }

    /// Every sandbox that carries these labels, page by page.
    pub(crate) async fn find(&self, labels: &[(String, String)]) -> Result<Vec<Value>> {
        const WHAT: &str = "listing sandboxes";
        // The filter is a form in one value: encoded, and then encoded again.
        let form = labels.iter().map(|(key, value)| format!("{}={}", segment(key), segment(value)));
        let filter = segment(&form.collect::<Vec<_>>().join("&"));
        let mut found = Vec::new();
        for page in 1..=PAGES {
            let path = format!("/sandboxes?metadata={filter}&page={page}&pageSize={PAGE_SIZE}");
            let answer = self.control(&self.control_call(Method::GET, &path), Operation::Poll).await;
            let mut value = answer.map_err(|failure| failure.error(WHAT))?.json(WHAT)?;
            let has_next = value["pagination"]["hasNextPage"].as_bool().unwrap_or(false);
            let Value::Array(items) = value["items"].take() else {
                return Err(SandboxError::internal(format!("{WHAT}: the answer has no items")).with_provider(NAME));
            };
            let is_empty = items.is_empty();
            found.extend(items);
            if !has_next || is_empty {
                break;
            }
        }
        // A sandbox that moves from one page to the next is seen twice.
        let mut ids = std::collections::HashSet::new();
        found.retain(|item| item["id"].as_str().is_some_and(|id| ids.insert(id.to_owned())));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::SandboxStatus;
    use serde_json::json;

    use super::{read_time, status};

    #[test]
    fn states_are_read_in_any_case_and_new_ones_are_unknown() {
        for (word, expected) in [
            ("Pending", SandboxStatus::Starting),
            ("Allocated", SandboxStatus::Starting),
            ("RUNNING", SandboxStatus::Running),
            ("Paused", SandboxStatus::Paused),
            ("Stopping", SandboxStatus::Stopped),
            ("Terminated", SandboxStatus::Stopped),
            ("Failed", SandboxStatus::Error),
            ("Unknown", SandboxStatus::Unknown),
            ("Hibernating", SandboxStatus::Unknown),
        ] {
            assert_eq!(status(word), expected, "{word}");
        }
    }

    #[test]
    fn times_are_read_with_and_without_fractions() {
        assert_eq!(read_time(&json!("1970-01-01T00:00:01Z")), Some(1000));
        assert_eq!(read_time(&json!("1970-01-01T00:00:01.250000+00:00")), Some(1250));
        assert_eq!(read_time(&json!("soon")), None);
        assert_eq!(read_time(&json!(null)), None);
    }
}
