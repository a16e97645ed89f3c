//! The steps of loading a plugin, for people.

use plugin_host::LoadStep;

use crate::output::Table;

/// One line a step: what was looked at, what was found, how long it took.
pub(super) fn table(steps: &[LoadStep]) -> Table {
    let mut table = Table::headless();
    for step in steps {
        let (word, text) = match &step.outcome {
            Ok(detail) => ("ok", detail),
            Err(message) => ("FAIL", message),
        };
        let time = format!("{:.1} ms", step.duration.as_secs_f64() * 1000.0);
        table.row([word, step.name, &time, text]);
    }
    table
}
