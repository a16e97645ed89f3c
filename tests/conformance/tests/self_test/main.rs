//! The suite against a provider that is honest, and against the same one with each of many faults: no case is there
//! for show.

#![forbid(unsafe_code)]

mod fake;
mod fault;

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_conformance::{CaseStatus, Suite};
use tokio::{
    sync::{RwLock, Semaphore},
    task::JoinSet,
};

use crate::{fake::fake, fault::Fault};

/// Written by the one fault that stops the reaping of orphans for this whole process.
static REAPING: RwLock<()> = RwLock::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_honest_provider_passes_everything() {
    let _reaping = REAPING.read().await;
    let started = Instant::now();
    let suite = Suite::new(fake(None)).with_minimum_run(150);
    let report = suite.run().await.expect("the fake can be made");
    println!("{report}\nin {:?}", started.elapsed());
    assert!(report.is_conformant(), "{report}");
    assert_eq!(report.to_json()["conformant"], true);
}

/// Runs the cases that are meant for a fault. Gives what is wrong with them.
async fn run_with(fault: Fault) -> Vec<String> {
    let mut suite = Suite::new(fake(Some(fault))).with_deadline(Duration::from_secs(30));
    for name in fault.caught_by() {
        suite = suite.with_filter(*name);
    }
    let report = suite.run().await.expect("the fake can be made");
    let mut wrong = Vec::new();
    for name in fault.caught_by() {
        match report.case(name) {
            Some(case) if case.status == CaseStatus::Failed => {
                println!(
                    "{fault:?} -> {name} ({:.1} s): {}",
                    case.duration_s,
                    case.reason.as_deref().unwrap_or_default()
                );
            }
            Some(case) => wrong.push(format!("{fault:?} is not caught by {name}: {:?} {:?}", case.status, case.reason)),
            None => wrong.push(format!("{fault:?}: there is no case {name}")),
        }
    }
    if report.is_conformant() {
        wrong.push(format!("{fault:?} conforms"));
    }
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_fault_is_caught_by_the_case_meant_for_it() {
    const AT_ONCE: usize = 6;
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    for fault in Fault::ALL.iter().copied() {
        let permits = permits.clone();
        running.spawn(async move {
            let _permit = permits.acquire().await;
            if fault == Fault::OrphansNotReaped {
                let _alone = REAPING.write().await;
                run_with(fault).await
            } else {
                let _reaping = REAPING.read().await;
                run_with(fault).await
            }
        });
    }
    let mut wrong = Vec::new();
    while let Some(end) = running.join_next().await {
        wrong.extend(end.expect("a run does not panic"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Cases that no fault of this fake makes fail, and why.
const WITHOUT_FAULT: [(&str, &str); 4] = [
    ("limits.", "the host checks these values in sandbox-core before a provider sees them"),
    ("hygiene.secrets_are_not_in_debug_of_the_types", "the types are those of sandbox-core"),
    ("field.", "a case is made for each field; a sample of them has faults"),
    ("capability.", "a case is made for each capability; a sample of them has faults"),
];

/// Cases of capabilities that the fake does not have.
const NOT_IN_THE_FAKE: [&str; 11] = [
    "images.",
    "services.snapshot_is_listed_until_it_is_removed",
    "services.network_is_listed_until_it_is_removed",
    "services.volume_is_listed_until_it_is_removed",
    "services.closed_port_is_unavailable",
    "network.sandboxes_of_one_reach_each_other",
    "network.sandboxes_of_two_do_not",
    "network.alias_is_known_while_it_is_attached",
    "network.address_and_hosts_lead_to_the_other_sandbox",
    "network.forwarded_bytes_go_both_ways",
    "network.shared_folder_is_seen_by_two",
];

#[test]
fn every_case_has_a_fault_that_makes_it_fail() {
    let caught: BTreeSet<_> = Fault::ALL.iter().flat_map(|fault| fault.caught_by()).copied().collect();
    let is_excused = |name: &str| {
        NOT_IN_THE_FAKE.iter().any(|prefix| name.starts_with(prefix))
            || WITHOUT_FAULT.iter().any(|(prefix, _)| name.starts_with(prefix))
    };
    let cases = Suite::new(fake(None)).cases();
    let vacuous: Vec<_> = cases.iter().map(|case| &case.name).filter(|name| !caught.contains(name.as_str())).collect();
    let vacuous: Vec<_> = vacuous.into_iter().filter(|name| !is_excused(name)).collect();
    assert!(vacuous.is_empty(), "{vacuous:?}");
}

#[test]
fn a_filter_is_a_name_or_a_part_of_names() {
    let names = |filter: &str| {
        let suite = Suite::new(fake(None)).with_filter(filter);
        suite.cases().into_iter().map(|case| case.name).collect::<Vec<_>>()
    };
    assert_eq!(names("upload.mode_is_kept"), ["upload.mode_is_kept"]);
    assert!(names("upload.").len() > 5 && names("upload.").iter().all(|name| name.contains("upload.")));
    assert!(names("nothing like this").is_empty());
}

#[tokio::test]
async fn a_run_in_which_too_few_cases_ran_is_not_conformant() {
    let suite = Suite::new(fake(None)).with_filter("capability.").with_minimum_run(1_000);
    let report = suite.run().await.expect("the fake can be made");
    assert_eq!(report.count(CaseStatus::Failed), 0, "{report}");
    assert!(!report.is_conformant() && report.to_string().contains("too few cases ran"));
}
