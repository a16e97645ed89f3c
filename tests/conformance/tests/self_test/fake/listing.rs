use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandbox_core::{
    Capability, ListFilter, ListSweep, Owner, Result, SandboxError, SandboxIdentity, SandboxRecord, SandboxStatus,
    SweepReport,
};

use super::{provider::Fake, world::NAME};
use crate::fault::Fault;

impl Fake {
    fn records(&self, filter: &ListFilter) -> Vec<SandboxRecord> {
        let boxes = self.world.boxes.lock().unwrap();
        let is_old = |age: Duration| {
            self.has(Fault::AgeFilterIgnored) || filter.older_than_s.is_none_or(|limit| age.as_secs_f64() > limit)
        };
        let mut records: Vec<_> = boxes
            .values()
            .filter(|sandbox| {
                let run = sandbox.spec.identity.as_ref().map(|identity| &identity.run_id);
                let is_run = filter.run_id.is_none() || filter.run_id.as_ref() == run;
                let has_labels =
                    filter.metadata.iter().all(|(key, value)| sandbox.spec.metadata.get(key) == Some(value));
                is_run && has_labels && is_old(sandbox.made.elapsed())
            })
            .map(|sandbox| SandboxRecord {
                handle: Self::handle(&sandbox.id),
                status: SandboxStatus::Running,
                name: sandbox.spec.name.clone(),
                image: None,
                metadata: match self.world.fault {
                    Some(Fault::LabelsLost | Fault::MetadataFieldIgnored) => Default::default(),
                    _ => sandbox.spec.metadata.clone(),
                },
                identity: sandbox.spec.identity.clone().map(|identity| match self.has(Fault::IdentityLost) {
                    true => SandboxIdentity { created_at_ms: 0, ..identity },
                    false => identity,
                }),
            })
            .collect();
        records.sort_by(|left, right| left.handle.sandbox_id.cmp(&right.handle.sandbox_id));
        records
    }

    fn is_abandoned(&self, identity: &SandboxIdentity) -> bool {
        match &identity.owner {
            _ if self.has(Fault::SweepDoesNothing) => false,
            _ if self.has(Fault::SweepTakesEverything) => true,
            Owner::Process { pid, start_time, .. } => {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
                let started = rest.split_whitespace().nth(19).and_then(|text| text.parse::<u64>().ok());
                match started {
                    Some(_) if self.has(Fault::SweepByPidAlone) => false,
                    started => started != Some(*start_time),
                }
            }
            _ => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
                identity.expires_at_ms.is_some_and(|expiry| expiry < now)
            }
        }
    }
}

#[sandbox_core::async_trait]
impl ListSweep for Fake {
    async fn list(&self, filter: ListFilter) -> Result<Vec<SandboxRecord>> {
        if self.has(Fault::ListUnsupported) {
            return Err(SandboxError::unsupported(NAME, Capability::ListSweep));
        }
        Ok(self.records(&filter))
    }

    async fn sweep(&self, filter: ListFilter, dry_run: bool) -> Result<SweepReport> {
        let mut report = SweepReport::default();
        for record in self.records(&filter) {
            if record.identity.as_ref().is_some_and(|identity| self.is_abandoned(identity)) {
                if !dry_run || self.has(Fault::DryRunRemoves) {
                    self.world.close(&record.handle.sandbox_id).await;
                }
                report.removed.push(record.handle.sandbox_id);
            }
        }
        Ok(report)
    }
}
