//! How fast AWS may be asked: one bucket for each account and region, whoever asks in this process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// What AWS documents for launches on Fargate: so many at once, …
const BURST: f64 = 100.0;
/// … and so many a second in the long run.
const PER_SECOND: f64 = 20.0;

/// The right to ask.
#[derive(Debug)]
pub(crate) struct Budget(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Below zero: so many wait already.
    tokens: f64,
    at: Instant,
}

impl Budget {
    fn new() -> Self {
        Self(Mutex::new(State { tokens: BURST, at: Instant::now() }))
    }

    /// That of an account and region.
    pub(crate) fn of(account: &str, region: &str) -> Arc<Self> {
        type All = HashMap<(String, String), Arc<Budget>>;
        static ALL: OnceLock<Mutex<All>> = OnceLock::new();
        let mut all = ALL.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        all.entry((account.to_owned(), region.to_owned())).or_insert_with(|| Arc::new(Self::new())).clone()
    }

    /// Waits for the turn of one call. False: it would come only after the deadline, and was not taken.
    pub(crate) async fn take(&self, deadline: Instant) -> bool {
        let wait = {
            let mut state = self.refilled();
            let wait = Duration::from_secs_f64((1.0 - state.tokens).max(0.0) / PER_SECOND);
            if Instant::now() + wait > deadline {
                return false;
            }
            state.tokens -= 1.0;
            wait
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        true
    }

    /// AWS says that it was too fast: nothing is left of the burst.
    pub(crate) fn drain(&self) {
        let mut state = self.refilled();
        state.tokens = state.tokens.min(0.0);
    }

    fn refilled(&self) -> std::sync::MutexGuard<'_, State> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state.tokens = (state.tokens + now.duration_since(state.at).as_secs_f64() * PER_SECOND).min(BURST);
        state.at = now;
        state
    }
}

/// The wait before the next try: anything up to a bound that doubles with each.
pub(crate) fn backoff(attempt: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(20);
    let bound = FIRST.saturating_mul(1 << attempt.min(10)).min(LONGEST);
    bound.mul_f64(random_part())
}

/// From 0 to 1. It spreads tries, and protects nothing.
fn random_part() -> f64 {
    use std::hash::{BuildHasher, RandomState};
    f64::from(RandomState::new().hash_one(0) as u32) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{BURST, Budget, PER_SECOND, backoff};

    #[tokio::test(start_paused = true)]
    async fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let budget = Budget::new();
        let (start, far) = (Instant::now(), Instant::now() + Duration::from_secs(3600));
        for _ in 0..BURST as usize {
            assert!(budget.take(far).await);
        }
        assert_eq!(start.elapsed(), Duration::ZERO);
        for _ in 0..40 {
            assert!(budget.take(far).await);
        }
        let took = start.elapsed().as_secs_f64();
        assert!((took - 40.0 / PER_SECOND).abs() < 0.2, "{took}");
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_throttle_nobody_bursts_and_nobody_waits_beyond_his_deadline() {
        let budget = Budget::new();
        budget.drain();
        let start = Instant::now();
        assert!(!budget.take(start).await, "there is nothing left");
        assert!(budget.take(start + Duration::from_secs(9)).await);
        assert!(start.elapsed() >= Duration::from_secs_f64(0.9 / PER_SECOND));
    }

    #[test]
    fn accounts_and_regions_have_budgets_of_their_own() {
        let one = Budget::of("1", "x");
        assert!(std::sync::Arc::ptr_eq(&one, &Budget::of("1", "x")));
        assert!(!std::sync::Arc::ptr_eq(&one, &Budget::of("1", "y")));
        assert!(!std::sync::Arc::ptr_eq(&one, &Budget::of("2", "x")));
    }

    #[test]
    fn waits_are_spread_below_a_bound_that_doubles() {
        let many: Vec<_> = (0..64).map(|_| backoff(3)).collect();
        assert!(many.iter().all(|wait| *wait <= Duration::from_millis(1600)));
        assert!(many.iter().max() > many.iter().min());
        assert!((0..99).all(|attempt| backoff(attempt) <= Duration::from_secs(20)));
    }
}
