//! One gate for all requests: when the service asks for patience, everybody waits.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use reqwest::header::HeaderMap;

use crate::random::jitter;

/// The longest wait that is taken from a header; longer ones are told to the caller.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What the service counts apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Throttle {
    Create,
    Lifecycle,
    Other,
}

impl Throttle {
    /// The name in the service's headers.
    fn name(self) -> &'static str {
        match self {
            Self::Create => "sandbox-create",
            Self::Lifecycle => "sandbox-lifecycle",
            Self::Other => "authenticated",
        }
    }
}

/// When requests may be sent again, for each thing that is counted. A permit is never held while waiting.
#[derive(Debug, Default)]
pub(crate) struct Gate([Mutex<Option<Instant>>; 3]);

impl Gate {
    fn closed_until(&self, throttle: Throttle) -> &Mutex<Option<Instant>> {
        &self.0[throttle as usize]
    }

    /// Waits until requests may be sent. Fails with the time left when that is beyond the deadline.
    pub(crate) async fn pass(&self, throttle: Throttle, deadline: Instant) -> Result<(), Duration> {
        loop {
            let until = *self.closed_until(throttle).lock().unwrap_or_else(PoisonError::into_inner);
            let Some(until) = until.filter(|until| *until > Instant::now()) else { return Ok(()) };
            if until >= deadline {
                return Err(until.saturating_duration_since(Instant::now()));
            }
            // Not everybody at the same moment, and never before it.
            let wait = until.saturating_duration_since(Instant::now());
            tokio::time::sleep((wait + jitter(Duration::from_millis(250))).min(deadline - Instant::now())).await;
        }
    }

    /// Takes in what an answer says of limits.
    pub(crate) fn observe(&self, throttle: Throttle, status: u16, headers: &HeaderMap, fallback: Duration) {
        let wait = match status {
            429 => Some(retry_after(headers, throttle).unwrap_or(fallback)),
            _ => used_up(headers, throttle),
        };
        let Some(wait) = wait else { return };
        let until = Instant::now() + wait.min(LONGEST);
        let mut closed = self.closed_until(throttle).lock().unwrap_or_else(PoisonError::into_inner);
        *closed = Some(closed.map_or(until, |before| before.max(until)));
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// `Retry-After` of what is counted, or the plain one: seconds or a date.
pub(crate) fn retry_after(headers: &HeaderMap, throttle: Throttle) -> Option<Duration> {
    let own = format!("retry-after-{}", throttle.name());
    let value = text(headers, &own).or_else(|| text(headers, "retry-after"))?.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// The time until the count starts again, when it is used up.
fn used_up(headers: &HeaderMap, throttle: Throttle) -> Option<Duration> {
    let left = text(headers, &format!("x-ratelimit-remaining-{}", throttle.name()))?;
    let reset = text(headers, &format!("x-ratelimit-reset-{}", throttle.name()))?;
    (left.trim() == "0").then(|| reset.trim().parse().ok()).flatten().and_then(|s| Duration::try_from_secs_f64(s).ok())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant, SystemTime};

    use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

    use super::{Gate, Throttle, retry_after};

    fn headers(pairs: &[(&'static str, String)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, String)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn f02_retry_after_is_read_as_seconds_and_as_a_date_and_the_own_one_goes_first() {
        let plain = |value: &str| retry_after(&headers(&[("retry-after", value.to_owned())]), Throttle::Create);
        assert_eq!(plain("2"), Some(Duration::from_secs(2)));
        assert_eq!(plain("0"), Some(Duration::ZERO));
        assert_eq!(plain("soon"), None);
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(10));
        let wait = plain(&date).unwrap();
        assert!(wait > Duration::from_secs(7) && wait <= Duration::from_secs(10), "{wait:?}");
        let both = headers(&[("retry-after", "9".into()), ("retry-after-sandbox-create", "3".into())]);
        assert_eq!(retry_after(&both, Throttle::Create), Some(Duration::from_secs(3)));
        assert_eq!(retry_after(&both, Throttle::Lifecycle), Some(Duration::from_secs(9)));
    }

    #[tokio::test]
    async fn f02_everybody_waits_and_nobody_longer_than_his_deadline() {
        let gate = Gate::default();
        let started = Instant::now();
        gate.observe(Throttle::Create, 429, &headers(&[("retry-after", "0.3".into())]), Duration::from_secs(9));
        gate.pass(Throttle::Other, started + Duration::from_secs(9)).await.unwrap();
        assert!(started.elapsed() < Duration::from_millis(250), "another count is not waited for");
        gate.pass(Throttle::Create, started + Duration::from_secs(9)).await.unwrap();
        assert!(started.elapsed() >= Duration::from_millis(300));
        gate.observe(Throttle::Create, 429, &headers(&[("retry-after", "86400".into())]), Duration::ZERO);
        let left = gate.pass(Throttle::Create, Instant::now() + Duration::from_secs(5)).await.unwrap_err();
        assert!(left > Duration::from_secs(80_000));
    }

    #[tokio::test]
    async fn f02_a_count_that_is_used_up_closes_the_gate_before_the_refusal() {
        let gate = Gate::default();
        let used =
            [("x-ratelimit-remaining-authenticated", "0".into()), ("x-ratelimit-reset-authenticated", "7".into())];
        gate.observe(Throttle::Other, 200, &headers(&used), Duration::ZERO);
        assert!(gate.pass(Throttle::Other, Instant::now() + Duration::from_secs(1)).await.is_err());
    }
}
