//! The report of the clean-up lane. One test: the lane is one for the process.

use std::{sync::Arc, time::Duration};

use crate::fake::{Fake, Gate};
use sandbox_api::{AsyncSandbox, Ownership, flush_cleanup, flush_cleanup_blocking};
use sandbox_core::SandboxSpec;

async fn drop_started(fake: &Arc<Fake>) {
    let sandbox = AsyncSandbox::new(fake.clone()).with_ownership(Ownership::Shared);
    sandbox.start(Some(SandboxSpec::default())).await.unwrap();
}

#[test]
fn a_flush_waits_reports_what_is_left_and_the_next_one_finishes_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let long = Duration::from_secs(20);
    assert!(flush_cleanup_blocking(long).is_clean(), "nothing to do");

    let good = Fake::with(&[]);
    runtime.block_on(async {
        for _ in 0..5 {
            drop_started(&good).await;
        }
        let report = flush_cleanup(long).await;
        assert_eq!((report.closed, report.is_clean()), (5, true));
    });
    assert!(good.seen().open.is_empty());

    let gate = Gate::shut();
    let hanging = Arc::new(Fake { name: "hanging".into(), close_gate: Some(gate.clone()), ..Fake::default() });
    let failing = Arc::new(Fake { name: "failing".into(), ..Fake::default() });
    failing.seen().fail_close = 1;
    runtime.block_on(async {
        drop_started(&hanging).await;
        drop_started(&failing).await;
    });
    failing.wait("close", |seen| seen.fail_close == 0);
    failing.seen().fail_close = 1;
    let report = flush_cleanup_blocking(Duration::from_millis(50));
    assert!(!report.is_clean());
    assert_eq!(report.unfinished.len() + report.failed.len(), 2, "{report:?}");
    let hung = report.unfinished.iter().find(|item| item.provider == "hanging").expect("it still hangs");
    assert_eq!(hung.sandbox_id.as_deref(), Some("1"));

    gate.open();
    // What failed once or twice by now is tried again by each flush, until it works.
    let mut closed = report.closed;
    for _ in 0..3 {
        closed += flush_cleanup_blocking(long).closed;
    }
    let last = runtime.block_on(flush_cleanup(long));
    assert!(last.is_clean(), "{last:?}");
    assert_eq!(closed + last.closed, 2);
}
