//! Figures as a Markdown table.

use std::{fmt, time::Duration};

/// The middle of these times. They are sorted.
pub fn median(times: &mut [Duration]) -> Duration {
    percentile(times, 0.5)
}

/// The time below which this share of them is; 0.0 to 1.0. They are sorted.
pub fn percentile(times: &mut [Duration], share: f64) -> Duration {
    times.sort();
    let last = times.len().saturating_sub(1);
    times.get((last as f64 * share).round() as usize).copied().unwrap_or_default()
}

/// A time in milliseconds, as text.
pub fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

/// What a figure is to be.
pub enum Goal {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
    /// Only to be seen.
    None,
}

/// What was measured: what, the figure, beside what, the ratio or value that has a goal, and whether it is reached.
#[derive(Default)]
pub struct Table(Vec<[String; 5]>);

impl Table {
    /// A row. `value` is what the goal is about, in `unit`.
    pub fn row(
        &mut self,
        what: &str,
        figure: impl Into<String>,
        peer: impl Into<String>,
        value: f64,
        unit: &str,
        goal: Goal,
    ) {
        let (limit, verdict) = match goal {
            Goal::AtMost(limit) => {
                (format!(" (≤ {limit}{unit})"), if value <= limit { "reached" } else { "not reached" })
            }
            Goal::AtLeast(limit) => {
                (format!(" (≥ {limit}{unit})"), if value >= limit { "reached" } else { "not reached" })
            }
            Goal::None => (String::new(), ""),
        };
        self.0.push([
            what.to_owned(),
            figure.into(),
            peer.into(),
            format!("{}{unit}{limit}", shown(value)),
            verdict.to_owned(),
        ]);
    }
}

/// Small ratios with the digits that tell them apart.
fn shown(value: f64) -> String {
    match value > 0.0 && value < 0.1 {
        true => format!("{value:.4}"),
        false => format!("{value:.2}"),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "| what | ours | beside it | value (goal) | |\n|---|---|---|---|---|")?;
        for row in &self.0 {
            writeln!(f, "| {} |", row.join(" | "))?;
        }
        Ok(())
    }
}
