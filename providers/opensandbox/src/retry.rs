//! What is tried again, and when: the one table of operation by failure.

use std::{
    hash::{BuildHasher, RandomState},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;

use crate::error::Failure;

/// What kind of call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Asks, or does something that is the same when it is done twice.
    Idempotent,
    /// A look that may be late: asked again also after no answer came in time.
    Poll,
    /// Starts a command, or anything else that must not happen twice.
    Once,
}

impl Operation {
    /// Whether the call may be repeated after this failure.
    pub(crate) fn repeats(self, failure: &Failure) -> bool {
        match failure {
            Failure::NeverReached(_) => true,
            Failure::Broke(_) => self != Self::Once,
            Failure::TimedOut(_) => self == Self::Poll,
            Failure::Refused(refusal) if refusal.is_gone() => false,
            Failure::Refused(refusal) if refusal.is_not_yet() || refusal.is_unreached() => true,
            Failure::Refused(refusal) => match refusal.status {
                // The server says that it did nothing.
                429 => true,
                408 | 425 | 500 if self == Self::Once => false,
                502..=504 => self != Self::Once,
                408 | 425 => true,
                _ => false,
            },
        }
    }
}

/// A number in [0, 1) that no other process has.
pub(crate) fn random() -> f64 {
    let number = RandomState::new().hash_one(0u8) >> 11;
    number as f64 / (1u64 << 53) as f64
}

/// Pauses that grow at random.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    pub(crate) retries: u32,
    pub(crate) delay: Duration,
    pub(crate) max: Duration,
}

impl Backoff {
    /// The pause before repetition `attempt` (0 is the first).
    pub(crate) fn pause(&self, attempt: u32) -> Duration {
        let most = self.delay.saturating_mul(2u32.saturating_pow(attempt)).min(self.max);
        // Not all of it at random: a pause of nearly nothing would be no pause.
        most / 4 + (most * 3 / 4).mul_f64(random())
    }
}

/// Reads `Retry-After`: seconds, or a date.
pub(crate) fn retry_after(value: &str) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// When a server may be asked again, for all calls to it together.
#[derive(Debug, Default)]
pub(crate) struct Limiter(std::sync::Mutex<Option<Instant>>);

impl Limiter {
    /// The server asked for a pause.
    pub(crate) fn hold(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let mut held = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if held.is_none_or(|held| held < until) {
            *held = Some(until);
        }
    }

    /// How long the next call has to wait; each waits a little longer at random, so that they do not come together.
    pub(crate) fn wait(&self) -> Option<Duration> {
        let held = *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let left = held?.checked_duration_since(Instant::now())?;
        Some(left + left.min(Duration::from_secs(2)).mul_f64(random()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::{Backoff, Limiter, Operation, retry_after};
    use crate::error::{Failure, Refusal};

    fn refused(status: u16, code: &str) -> Failure {
        Failure::Refused(Refusal { status, code: code.to_owned(), ..Refusal::default() })
    }

    #[test]
    fn f03_only_what_did_nothing_or_does_no_harm_is_repeated() {
        use Operation::{Idempotent, Once, Poll};
        let never = || Failure::NeverReached(String::new());
        let broke = || Failure::Broke(String::new());
        let late = || Failure::TimedOut(Duration::ZERO);
        for (failure, expected) in [
            (never(), [true, true, true]),
            (broke(), [true, true, false]),
            (late(), [false, true, false]),
            (refused(429, ""), [true, true, true]),
            (refused(502, "BACKEND_CONNECTION_FAILED"), [true, true, true]),
            (refused(502, "BACKEND_RESPONSE_FAILED"), [true, true, false]),
            (refused(502, ""), [true, true, false]),
            (refused(503, ""), [true, true, false]),
            (refused(504, "BACKEND_TIMEOUT"), [true, true, false]),
            (refused(404, "KUBERNETES::POD_IP_NOT_AVAILABLE"), [true, true, true]),
            (refused(404, "DOCKER::SANDBOX_NOT_FOUND"), [false, false, false]),
            (refused(500, "DOCKER::NETWORK_MODE_ENDPOINT_UNAVAILABLE"), [false, false, false]),
            (refused(500, ""), [false, false, false]),
            (refused(409, ""), [false, false, false]),
            (refused(413, ""), [false, false, false]),
            (refused(401, ""), [false, false, false]),
        ] {
            let repeats = [Idempotent, Poll, Once].map(|operation| operation.repeats(&failure));
            assert_eq!(repeats, expected, "{failure:?}");
        }
    }

    #[test]
    fn f02_both_forms_of_retry_after_are_read() {
        assert_eq!(retry_after("2"), Some(Duration::from_secs(2)));
        assert_eq!(retry_after(" 0 "), Some(Duration::ZERO));
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(30));
        let read = retry_after(&date).unwrap();
        assert!((28..=30).contains(&read.as_secs()), "{read:?}");
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:00:00 GMT"), Some(Duration::ZERO));
        assert_eq!(retry_after("soon"), None);
    }

    #[test]
    fn pauses_grow_up_to_the_limit_and_are_never_nothing() {
        let backoff = Backoff { retries: 3, delay: Duration::from_secs(1), max: Duration::from_secs(4) };
        for (attempt, most) in [(0, 1.0), (1, 2.0), (2, 4.0), (40, 4.0)] {
            let pause = backoff.pause(attempt).as_secs_f64();
            assert!(pause >= most / 4.0 && pause <= most, "{attempt}: {pause}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn f02_a_pause_holds_for_every_call_and_a_shorter_one_does_not_end_it() {
        let limiter = Limiter::default();
        assert_eq!(limiter.wait(), None);
        limiter.hold(Duration::from_secs(10));
        limiter.hold(Duration::from_secs(1));
        assert!(limiter.wait().unwrap() >= Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(limiter.wait(), None);
    }
}
