//! What can be limited.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Limits of a whole sandbox; `None` does not limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory without swap, files in memory included; 1 MiB..=8 EiB - 1.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once; 2..=4194304.
    pub pids: Option<u64>,
    /// CPU in thousandths of one processor; 10..=1000000.
    pub cpu_millis: Option<u64>,
}

impl Limits {
    pub(crate) fn validate(&self) -> Result<(), (&'static str, &'static str)> {
        let within = |value: Option<u64>, low: u64, high: u64| value.is_none_or(|value| (low..=high).contains(&value));
        if !within(self.memory_bytes, 1 << 20, i64::MAX as u64) {
            return Err(("cgroup.limits.memory_bytes", "1048576..=9223372036854775807"));
        }
        if !within(self.pids, 2, 4_194_304) {
            return Err(("cgroup.limits.pids", "2..=4194304"));
        }
        if !within(self.cpu_millis, 10, 1_000_000) {
            return Err(("cgroup.limits.cpu_millis", "10..=1000000"));
        }
        Ok(())
    }

    pub(super) fn wanted(&self) -> impl Iterator<Item = Limit> {
        let limits = [
            (self.memory_bytes.is_some(), Limit::Memory),
            (self.pids.is_some(), Limit::Pids),
            (self.cpu_millis.is_some(), Limit::Cpu),
        ];
        limits.into_iter().filter_map(|(wanted, limit)| wanted.then_some(limit))
    }
}

/// Something that a cgroup may control.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// Memory.
    Memory,
    /// Processes and threads.
    Pids,
    /// CPU time.
    Cpu,
    /// Stopping and going on, for pause and resume.
    Freeze,
}

impl Limit {
    pub(super) const ALL: [Limit; 4] = [Limit::Memory, Limit::Pids, Limit::Cpu, Limit::Freeze];

    /// The controller's name in the kernel.
    pub(super) fn controller(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::Pids => "pids",
            Limit::Cpu => "cpu",
            Limit::Freeze => "freezer",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Limit::Memory => "memory",
            Limit::Pids => "pids",
            Limit::Cpu => "cpu",
            Limit::Freeze => "freeze",
        })
    }
}
