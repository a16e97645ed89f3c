//! `sandboxctl stats`: what sandboxes use.

use clap::Args;
use sandbox_core::SandboxMetrics;
use serde_json::json;

use super::Finder;
use crate::{
    app::App,
    failure::Failure,
    output::{List, Table},
    runtime,
    state::Saved,
};

#[derive(Args)]
pub(crate) struct StatsArgs {
    /// Names, ids, or beginnings of them [default: all that `ls` shows]
    #[arg(value_name = "SANDBOX")]
    sandboxes: Vec<String>,
}

pub(crate) fn run(app: &App, args: &StatsArgs) -> Result<u8, Failure> {
    let finder = Finder::new(app)?;
    let found: Vec<Saved> = match args.sandboxes.is_empty() {
        true => finder.store.all()?,
        false => args.sandboxes.iter().map(|word| finder.store.find(word)).collect::<Result<_, _>>()?,
    };
    let measured = runtime::block_on_until_signal(async {
        let mut measured = Vec::new();
        for saved in &found {
            let sandbox = finder.connect(saved).await;
            let metrics = match sandbox {
                Ok(sandbox) => sandbox.metrics().await.map_err(|error| Failure::of_command(&error)),
                Err(failure) => Err(failure),
            };
            match metrics {
                Ok(metrics) => measured.push((saved.name.clone(), metrics)),
                // Of all, those that can be measured; of one that was named, the reason.
                Err(failure) if args.sandboxes.is_empty() => {
                    app.warn(&format!("{}: {}", saved.name, failure.message()));
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(measured)
    })?;
    let mut table = Table::new(["NAME", "CPU", "MEMORY", "PIDS", "DISK", "NET IN", "NET OUT"]);
    for (name, metrics) in &measured {
        table.row([vec![name.clone()], cells(metrics)].concat());
    }
    let list = List {
        key: "sandboxes",
        entries: measured.iter().map(|(name, metrics)| json!({ "name": name, "metrics": metrics })).collect(),
        names: measured.iter().map(|(name, _)| name.clone()).collect(),
        table,
    };
    list.print(app.list_format())?;
    Ok(0)
}

fn cells(metrics: &SandboxMetrics) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let size = |bytes: Option<u64>| or_dash(bytes.map(show_bytes));
    vec![
        or_dash(metrics.cpu_time_s.map(|seconds| format!("{seconds:.2}s"))),
        size(metrics.memory_bytes),
        or_dash(metrics.processes.map(|count| count.to_string())),
        size(metrics.disk_bytes),
        size(metrics.received_bytes),
        size(metrics.sent_bytes),
    ]
}

/// A size as people read it: `512B`, `1.5MiB`.
fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1}{}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::show_bytes;

    #[test]
    fn sizes_have_the_unit_that_fits() {
        for (bytes, text) in [(0, "0B"), (1023, "1023B"), (1536, "1.5KiB"), (3 << 20, "3.0MiB"), (5 << 40, "5.0TiB")] {
            assert_eq!(show_bytes(bytes), text);
        }
    }
}
