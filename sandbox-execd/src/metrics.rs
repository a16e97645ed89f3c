//! What the sandbox uses: the agent's figures, in the form of execd.

use std::{sync::Arc, time::Duration};

use hyper::StatusCode;
use sandbox_core::SandboxMetrics;
use sandbox_protocol::methods::{self, Nothing};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    command::now_ms,
    execd::Execd,
    http::{self, Answer, Refusal, Response},
};

/// Over how long the processor's use is measured.
const SAMPLE: Duration = Duration::from_secs(1);

/// The pause between two measurements of a watch.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

const MIB: f64 = 1024.0 * 1024.0;

/// The limit of this sandbox's memory in bytes, where there is one.
fn memory_limit() -> Option<u64> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    files.iter().find_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
}

/// Memory of the machine, in bytes: all of it, and what is in use.
fn machine_memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
    };
    let total = kib("MemTotal") * 1024;
    (total, total.saturating_sub(kib("MemAvailable") * 1024))
}

/// Ticks of all processors of the machine: all of them, and those that did something.
fn machine_ticks() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let numbers = text.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
    let numbers: Vec<u64> = numbers.filter_map(|text| text.parse().ok()).collect();
    let all = numbers.iter().sum();
    // Idle, and waiting for disks.
    (all, all - numbers.iter().skip(3).take(2).sum::<u64>())
}

impl Execd {
    async fn used(&self) -> Result<SandboxMetrics, Refusal> {
        Ok(self.client.call(methods::METRICS, &Nothing {}).await?)
    }

    /// One measurement, which takes a while.
    async fn measure(&self) -> Result<Value, Refusal> {
        let (before, ticks_before, start) = (self.used().await?, machine_ticks(), Instant::now());
        tokio::time::sleep(SAMPLE).await;
        let (after, ticks_after, time) = (self.used().await?, machine_ticks(), start.elapsed());
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let share = match (before.cpu_time_s, after.cpu_time_s) {
            (Some(before), Some(after)) => (after - before) / time.as_secs_f64() / cores,
            // Without a cgroup that can be read it is the machine's use, as with execd itself.
            _ => {
                let all = ticks_after.0.saturating_sub(ticks_before.0).max(1);
                ticks_after.1.saturating_sub(ticks_before.1) as f64 / all as f64
            }
        };
        let (machine_total, machine_used) = machine_memory();
        let total = memory_limit().map_or(machine_total, |limit| limit.min(machine_total));
        let used = after.memory_bytes.unwrap_or(machine_used);
        Ok(json!({
            "cpu_count": cores, "cpu_used_pct": (share * 100.0).clamp(0.0, 100.0),
            "mem_total_mib": total as f64 / MIB, "mem_used_mib": used as f64 / MIB, "timestamp": now_ms(),
        }))
    }

    pub(crate) async fn metrics(&self) -> Answer {
        Ok(http::json(StatusCode::OK, &self.measure().await?))
    }

    /// One measurement a line, for as long as the client listens.
    pub(crate) fn watch_metrics(self: &Arc<Self>) -> Response {
        let (pieces, response) = http::streamed("text/event-stream");
        let execd = self.clone();
        tokio::spawn(async move {
            loop {
                let measured = tokio::select! {
                    measured = execd.measure() => measured,
                    () = pieces.closed() => return,
                };
                let Ok(measured) = measured else { return };
                if pieces.send(Ok(format!("{measured}\n").into())).await.is_err() {
                    return;
                }
                tokio::time::sleep(WATCH_PAUSE).await;
            }
        });
        response
    }
}
