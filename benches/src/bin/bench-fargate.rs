//! Sandboxes on Fargate, on the double of it. Needs what its tests need: `cargo xtask bench fargate`.
//!
//! The double runs on threads of its own, in this process: what it costs is in every figure.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use fargate_double::{BASE_IMAGE, Double, Options, Timing};
use sandbox_benches::{
    Goal, HELLO, Place, Table, copy_file, exec, exec_many, fork_exec, fork_exec_many, median, millis, percentile,
};
use sandbox_core::{SandboxProvider, SandboxSpec, from_json};
use sandbox_provider_fargate::FargateProvider;
use tokio::runtime::Runtime;

const CREATES: usize = 8;
const EXECS: usize = 300;
const WARM_UP: usize = 20;
const TRANSFERS: usize = 3;
const TRANSFERRED: usize = 100 << 20;
/// A way to a task as from another place near by, in one direction.
const DISTANCE: Duration = Duration::from_millis(5);
const FAR_EXECS: usize = 50;

fn main() {
    let (service, runtime) =
        (Runtime::new().expect("threads for the double"), Runtime::new().expect("threads for ours"));
    let mut table = Table::default();
    for distance in [Duration::ZERO, DISTANCE] {
        let options = Options { timing: Timing { distance, ..Timing::default() }, ..Options::default() };
        let double = service.block_on(Double::start_with(options)).expect("the double starts");
        runtime.block_on(measure(&double, !distance.is_zero(), &mut table));
        service.block_on(double.stop());
    }
    println!("{table}");
}

async fn measure(double: &Double, is_far: bool, table: &mut Table) {
    let mut settings = double.settings();
    settings["cpu"] = serde_json::json!(0.25);
    let config = from_json(settings, "settings").expect("good settings");
    let provider = FargateProvider::new(config).expect("the provider is made");
    let place = Place { provider: &provider, spec: SandboxSpec::image(BASE_IMAGE) };
    let folder = tempfile::tempdir().expect("a folder");
    if is_far {
        far_execs(&place, table).await;
        transfers(&place, folder.path(), " at 10 ms", || Goal::None, table).await;
    } else {
        ready(&place, double, table).await;
        execs(&place, double, table).await;
        transfers(&place, folder.path(), "", || Goal::AtLeast(80.0), table).await;
    }
    provider.aclose().await.expect("it ends");
}

/// From the task that runs to the sandbox that is used.
async fn ready(place: &Place<'_>, double: &Double, table: &mut Table) {
    let (mut after_running, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..CREATES {
        let begin = SystemTime::now();
        let handle = place.create().await;
        let now = SystemTime::now();
        let task = double.living().pop().expect("there is a task");
        let running = double.running_since(&task.arn).expect("it runs");
        after_running.push(now.duration_since(running).unwrap_or_default());
        whole.push(now.duration_since(begin).unwrap_or_default());
        place.close(&handle).await;
        double.stopped(&task.arn).await;
    }
    let figure =
        format!("{}, worst {}", millis(median(&mut after_running)), millis(percentile(&mut after_running, 1.0)));
    let value = median(&mut after_running).as_secs_f64();
    let beside = format!("create {}", millis(median(&mut whole)));
    table.row("ready after RUNNING", figure, beside, value, " s", Goal::AtMost(1.0));
}

async fn execs(place: &Place<'_>, double: &Double, table: &mut Table) {
    let handle = place.create().await;
    let task = double.living().pop().expect("there is a task").arn;
    for _ in 0..WARM_UP {
        exec(place.provider, &handle).await;
    }
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..EXECS {
        ours.push(exec(place.provider, &handle).await);
        plain.push(fork_exec(&HELLO).await);
    }
    let beside = format!("fork+exec {}", millis(median(&mut plain)));
    let p50 = median(&mut ours);
    let figure = format!("{}, p99 {}", millis(p50), millis(percentile(&mut ours, 0.99)));
    table.row("exec, one at a time", figure, beside, p50.as_secs_f64() * 1000.0, " ms", Goal::AtMost(10.0));
    let (mut times, whole) = exec_many(place.provider, &handle, 32, 640).await;
    let (mut others, others_whole) = fork_exec_many(&HELLO, 32, 640).await;
    let rate = |whole: Duration| 640.0 / whole.as_secs_f64();
    let figure = format!("{:.0}/s, p50 {}", rate(whole), millis(median(&mut times)));
    let beside = format!("fork+exec {:.0}/s, p50 {}", rate(others_whole), millis(median(&mut others)));
    let connections = double.connections(&task);
    assert!(connections > 0, "they went somewhere");
    table.row("exec, 32 at once: connections", figure, beside, connections as f64, "", Goal::AtMost(1.0));
    place.close(&handle).await;
}

/// What an answer costs where each round trip takes ten milliseconds.
async fn far_execs(place: &Place<'_>, table: &mut Table) {
    let handle = place.create().await;
    let mut times = Vec::new();
    for _ in 0..WARM_UP + FAR_EXECS {
        times.push(exec(place.provider, &handle).await);
    }
    let times = &mut times[WARM_UP..];
    let p50 = median(times);
    let figure = format!("{}, p99 {}", millis(p50), millis(percentile(times, 0.99)));
    let value = p50.as_secs_f64() * 1000.0;
    table.row("exec, one at a time, at 10 ms", figure, "a round trip 10 ms", value, " ms", Goal::None);
    place.close(&handle).await;
}

async fn transfers(place: &Place<'_>, folder: &Path, place_suffix: &str, goal: impl Fn() -> Goal, table: &mut Table) {
    let handle = place.create().await;
    let [file, back, copy] = ["file", "back", "copy"].map(|name| folder.join(name));
    std::fs::write(&file, vec![7_u8; TRANSFERRED]).expect("it is written");
    let (mut up, mut down, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TRANSFERS {
        let (one, other) = place.transfer(&handle, &file, &back).await;
        up.push(one);
        down.push(other);
        kernel.push(copy_file(&file, &copy));
    }
    let beside = format!("kernel copy {}", millis(median(&mut kernel)));
    for (what, mut times) in [("upload", up), ("download", down)] {
        let time = median(&mut times);
        let rate = TRANSFERRED as f64 / 1e6 / time.as_secs_f64();
        let what = format!("{what} of 100 MiB{place_suffix}");
        table.row(&what, millis(time), beside.clone(), rate, " MB/s", goal());
    }
    place.close(&handle).await;
}
