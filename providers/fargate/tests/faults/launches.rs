//! Launches that do not go as they should.

use std::time::{Duration, Instant};

use fargate_double::{Fault, Options, Timing};
use sandbox_core::{ErrorKind, SandboxProvider};
use serde_json::{Value, json};

use crate::support::{LATE, Service, provider, spec, until};

/// The subnets of the launches, in order.
fn subnets(requests: &[Value]) -> Vec<Value> {
    let of = |request: &Value| request["networkConfiguration"]["awsvpcConfiguration"]["subnets"].clone();
    requests.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_there_is_no_room_another_subnet_is_tried() {
    let service = Service::new().await;
    service.double.fault(Fault::capacity().times(2));
    service.double.fault(Fault::no_interfaces());
    let sandbox = service.sandbox().await;
    assert_eq!((service.double.happened("capacity"), service.double.happened("network interfaces")), (2, 1));
    let requests = service.double.requests("RunTask");
    assert_eq!(requests.len(), 4);
    let all = json!(service.double.account().subnets);
    let [one, two, three] = [0, 1, 2].map(|index| json!([all[index]]));
    assert_eq!(subnets(&requests), [all, one, two, three]);
    assert_eq!(service.double.tasks().len(), 1);
    service.works_and_goes(&sandbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spot_falls_back_to_on_demand_where_that_is_wanted() {
    let service = Service::with(Options::default(), json!({"capacity": "spot_with_fallback"})).await;
    service.double.fault(Fault::capacity().only_spot().times(100));
    let sandbox = service.sandbox().await;
    let spot = |request: &Value| request["capacityProviderStrategy"][0]["capacityProvider"] == "FARGATE_SPOT";
    let requests = service.double.requests("RunTask");
    let (last, before) = requests.split_last().unwrap();
    assert!(before.iter().all(spot) && !spot(last), "{requests:?}");
    assert_eq!(service.double.happened("capacity") as usize, before.len());
    service.works_and_goes(&sandbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_room_at_all_is_told_at_the_deadline() {
    let service = Service::new().await;
    service.double.fault(Fault::capacity().times(10_000));
    let mut spec = spec();
    spec.ready_timeout_s = Some(4.0);
    let begin = Instant::now();
    let error = service.provider.create(spec).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(begin.elapsed() < LATE);
    assert!(service.double.happened("capacity") > 3);
    assert_eq!(service.double.tasks(), []);
    service.ends_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn throttling_by_code_and_by_message_is_waited_for() {
    let service = Service::new().await;
    for operation in ["RegisterTaskDefinition", "RunTask", "DescribeTasks"] {
        service.double.fault(Fault::throttled(operation));
        service.double.fault(Fault::throttled_by_message(operation));
    }
    let sandbox = service.sandbox().await;
    assert_eq!((service.double.happened("throttled"), service.double.happened("throttled by message")), (3, 3));
    service.double.fault(Fault::throttled("StopTask"));
    let double = &service.double;
    assert_eq!(double.tasks().len(), 1, "one task for all of it");
    service.provider.close(&sandbox).await.expect("it is closed");
    assert_eq!(double.happened("throttled"), 4);
    service.ends_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_concurrent_revisions_are_outwaited_and_many_creates_make_one_definition() {
    let service = Service::new().await;
    service.double.fault(Fault::concurrent_revisions());
    let sandboxes = tokio::join!(service.sandbox(), service.sandbox(), service.sandbox(), service.sandbox());
    let sandboxes = <[_; 4]>::from(sandboxes);
    assert_eq!(service.double.happened("concurrent revisions"), 1);
    assert_eq!(service.double.answers("RegisterTaskDefinition", 200), 1);
    assert_eq!((service.double.living().len(), service.double.calls("RunTask")), (4, 4));
    // Another process finds it, and registers none.
    let other = provider(&service.double, &json!({}));
    let another = other.create(spec()).await.expect("it is made");
    assert_eq!(service.double.answers("RegisterTaskDefinition", 200), 1);
    other.close(&another).await.expect("it is closed");
    for sandbox in &sandboxes {
        service.provider.close(sandbox).await.expect("it is closed");
    }
    service.ends_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_aws_does_not_know_at_first_is_no_failure() {
    let service = Service::new().await;
    service.double.fault(Fault::missing().times(3));
    let sandbox = service.sandbox().await;
    assert_eq!(service.double.happened("missing"), 3);
    assert_eq!(service.double.tasks().len(), 1);
    service.works_and_goes(&sandbox).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_whose_network_or_image_fails_in_passing_is_launched_again() {
    for (fault, name) in [(Fault::no_network(), "no network"), (Fault::no_image(), "no image")] {
        let service = Service::new().await;
        service.double.fault(fault);
        let sandbox = service.sandbox().await;
        assert_eq!(service.double.happened(name), 1);
        let codes: Vec<_> = service.double.tasks().iter().map(|task| task.stop_code).collect();
        assert_eq!(codes, [Some("TaskFailedToStart"), None], "{name}");
        let tokens: Vec<Value> =
            service.double.requests("RunTask").iter().map(|request| request["clientToken"].clone()).collect();
        assert_ne!(tokens[0], tokens[1], "a launch of its own");
        service.works_and_goes(&sandbox).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fails_again_and_again_is_told_and_leaves_nothing() {
    let service = Service::new().await;
    service.double.fault(Fault::no_network().times(100));
    let error = service.provider.create(spec()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Create, "{error}");
    assert!(error.message().contains("network interface"), "{error}");
    assert!(service.double.happened("no network") > 1);
    let mut unknown = spec();
    unknown.image = Some("nobody/knows:1".to_owned());
    // Its network comes about.
    let service = {
        service.ends_empty().await;
        Service::new().await
    };
    let error = service.provider.create(unknown).await.unwrap_err();
    assert_eq!((error.kind(), error.field()), (ErrorKind::NotFound, Some("image")), "{error}");
    assert_eq!(service.double.calls("RunTask"), 1, "it would never work");
    service.ends_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_to_the_launch_makes_no_second_task() {
    for fault in [Fault::lost_answer("RunTask").times(2), Fault::hung_up("RunTask").times(2)] {
        let service = Service::new().await;
        service.double.fault(fault);
        let sandbox = service.sandbox().await;
        assert_eq!(service.double.happened("lost answer") + service.double.happened("hung up"), 2);
        assert_eq!((service.double.calls("RunTask"), service.double.tasks().len()), (3, 1));
        service.works_and_goes(&sandbox).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_nobody_waits_for_leaves_nothing_whenever_that_is() {
    let service = Service::new().await;
    // While RunTask is on its way; its answer lost besides; then later and later.
    service.double.fault(Fault::late("RunTask", Duration::from_millis(300)));
    service.double.fault(Fault::lost_answer("RunTask"));
    for wait_ms in [100, 150, 10, 80, 200, 400, 700] {
        let before = service.double.tasks().len();
        let create = service.provider.create(spec());
        if let Ok(made) = tokio::time::timeout(Duration::from_millis(wait_ms), create).await {
            // On a fast machine it was ready.
            service.provider.close(&made.expect("it is made")).await.expect("it is closed");
            continue;
        }
        // What was asked for is made, whoever waits; then it is stopped.
        let asked = |operation| service.double.calls(operation);
        until("it was never begun, or is over", || {
            asked("RunTask") == 0 || service.double.tasks().len() == before || service.double.living().is_empty()
        })
        .await;
    }
    assert_eq!((service.double.happened("late"), service.double.happened("lost answer")), (1, 1));
    // Requests that were on their way may still come.
    let quiet = async || {
        let before = service.double.calls("RunTask") + service.double.calls("StopTask");
        tokio::time::sleep(Duration::from_secs(2)).await;
        before == service.double.calls("RunTask") + service.double.calls("StopTask")
    };
    let end = Instant::now() + LATE;
    while !(quiet().await && service.double.living().is_empty()) {
        assert!(Instant::now() < end, "left: {:?}", service.double.living());
    }
    assert!(!service.double.tasks().is_empty(), "some had been begun");
    service.ends_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_does_not_get_to_run_in_time_is_stopped() {
    let service = Service::new().await;
    service.double.fault(Fault::slow_pull(Duration::from_secs(600)));
    let mut spec = spec();
    spec.ready_timeout_s = Some(3.0);
    let error = service.provider.create(spec).await.unwrap_err();
    assert!(error.message().contains("PENDING"), "it says how far it got: {error}");
    assert_eq!(service.double.happened("slow pull"), 1);
    until("it is stopped", || service.double.tasks().iter().all(|task| task.stop_code == Some("UserInitiated"))).await;
    service.ends_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_is_ready_a_moment_after_its_task_runs() {
    let timing =
        Timing { provisioning: Duration::from_millis(600), pending: Duration::from_millis(600), ..Timing::default() };
    let service = Service::with(Options { timing, ..Options::default() }, json!({})).await;
    let create = service.sandbox();
    let seen_running = until("it runs", || service.double.tasks().iter().any(|task| task.status == "RUNNING"));
    let running_at = async {
        seen_running.await;
        Instant::now()
    };
    let (sandbox, running_at) = tokio::join!(async { (create.await, Instant::now()) }, running_at);
    let late = sandbox.1.saturating_duration_since(running_at);
    assert!(late < Duration::from_secs(10), "{late:?} after RUNNING");
    assert!(service.double.calls("DescribeTasks") > 1);
    service.works_and_goes(&sandbox.0).await;
}
