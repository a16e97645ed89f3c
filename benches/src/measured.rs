//! What one side of a comparison has taken.

use std::time::Duration;

use crate::table::{median, millis, percentile};

/// Times of one side, and how long all of them took.
#[derive(Default)]
pub struct Measured {
    times: Vec<Duration>,
    whole: Duration,
}

impl Measured {
    /// Adds those of one round.
    pub fn add(&mut self, (times, whole): (Vec<Duration>, Duration)) {
        self.times.extend(times);
        self.whole += whole;
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// The middle one, in seconds.
    pub fn p50(&mut self) -> f64 {
        median(&mut self.times).as_secs_f64()
    }

    /// What one in a hundred takes longer than, in seconds.
    pub fn p99(&mut self) -> f64 {
        percentile(&mut self.times, 0.99).as_secs_f64()
    }

    /// How many there were in a second.
    pub fn per_s(&self) -> f64 {
        self.times.len() as f64 / self.whole.as_secs_f64()
    }

    /// All three as text.
    pub fn shown(&mut self) -> String {
        let p99 = percentile(&mut self.times, 0.99);
        format!("{}, p99 {}, {:.0}/s", millis(median(&mut self.times)), millis(p99), self.per_s())
    }
}
