//! Isolated local sandboxes beside fork+exec and bubblewrap. Needs `bwrap` and the agent: `cargo xtask bench local`.
//!
//! With names of parts as arguments it measures those only: rate, cold, execs, idle, transfers, floods, limits.

use std::{path::PathBuf, time::Duration};

use sandbox_benches::{
    Goal, HELLO, Place, Table, copy_file, exec, exec_many, fork_exec, fork_exec_many, is_ours, median, millis,
    percentile, pss_kib, resident_kib, settle, tree,
};
use sandbox_core::{SandboxProvider, SandboxSpec, from_json};
use sandbox_provider_local::LocalProvider;

const ROUNDS: usize = 200;
const WARM_UP: usize = 20;
/// Before what is measured by itself: what was done for the next one, or is left of the last one, is over then.
const PAUSE: Duration = Duration::from_millis(30);
/// Sandboxes that are made, used and removed at a time where their rate is measured.
const IN_FLIGHT: usize = 8;
/// An agent gives back what it does not need when it was quiet for some seconds.
const IDLE_AFTER: Duration = Duration::from_secs(15);
/// A sandbox that shows the same folders, has the same namespaces and runs the same command.
const BWRAP: &[&str] = &[
    "bwrap",
    "--unshare-all",
    "--die-with-parent",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    "--",
    HELLO[0],
    HELLO[1],
    HELLO[2],
];

fn provider(folder: &std::path::Path) -> LocalProvider {
    let mut settings = serde_json::json!({ "isolation": "namespaces", "workspace_root": folder.join("root") });
    if let Some(agent) = std::env::var_os("SANDBOX_AGENT") {
        settings["agent_path"] = serde_json::json!(PathBuf::from(agent));
    }
    LocalProvider::new(from_json(settings, "settings").expect("good settings")).expect("the provider is made")
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let temp = tempfile::tempdir().expect("a folder");
    let provider = provider(temp.path());
    let place = Place { provider: &provider, spec: SandboxSpec::default() };
    let mut table = Table::default();
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for part in ["rate", "cold", "execs", "idle", "transfers", "floods", "limits"] {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == part) {
            continue;
        }
        match part {
            "cold" => cold(&place, &mut table).await,
            "execs" => execs(&place, &mut table).await,
            "rate" => rate(&place, &mut table).await,
            "idle" => idle(&place, &mut table).await,
            "transfers" => transfers(&place, temp.path(), &mut table).await,
            "floods" => floods(&place, &mut table).await,
            _ => limits(&place, &mut table).await,
        }
    }
    provider.aclose().await.expect("it ends");
    println!("{table}");
}

async fn cold(place: &Place<'_>, table: &mut Table) {
    let [mut ours, mut bwrap, mut plain, mut close] = [(); 4].map(|()| Vec::new());
    for round in 0..ROUNDS + WARM_UP {
        tokio::time::sleep(PAUSE).await;
        let (first, closed) = place.cold().await;
        tokio::time::sleep(PAUSE).await;
        let times = [first, fork_exec(BWRAP).await, fork_exec(&HELLO).await, closed];
        if round >= WARM_UP {
            for (list, time) in [&mut ours, &mut bwrap, &mut plain, &mut close].into_iter().zip(times) {
                list.push(time);
            }
        }
    }
    let (first, bwrap, plain) = (median(&mut ours), median(&mut bwrap), median(&mut plain));
    let value = first.as_secs_f64() * 1000.0;
    table.row(
        "create → first output",
        millis(first),
        format!("fork+exec {}", millis(plain)),
        value,
        " ms",
        Goal::AtMost(5.0),
    );
    let ratio = first.as_secs_f64() / bwrap.as_secs_f64();
    table.row(
        "create → first output",
        millis(first),
        format!("bubblewrap, to its end {}", millis(bwrap)),
        ratio,
        " ×",
        Goal::AtMost(0.9),
    );
    let close = median(&mut close);
    table.row("close", millis(close), "", close.as_secs_f64() * 1000.0, " ms", Goal::None);
}

async fn execs(place: &Place<'_>, table: &mut Table) {
    let handle = place.create().await;
    for _ in 0..WARM_UP {
        exec(place.provider, &handle).await;
    }
    let [mut ours, mut plain] = [(); 2].map(|()| Vec::new());
    for _ in 0..100 {
        tokio::time::sleep(PAUSE).await;
        ours.push(exec(place.provider, &handle).await);
        tokio::time::sleep(PAUSE).await;
        plain.push(fork_exec(&HELLO).await);
    }
    let (ours, plain) = (median(&mut ours), median(&mut plain));
    let ratio = ours.as_secs_f64() / plain.as_secs_f64();
    let beside = format!("fork+exec {}", millis(plain));
    table.row("exec, one after a pause", millis(ours), beside, ratio, " ×", Goal::None);
    for (at_once, count) in [(1, 40), (8, 160), (32, 320), (128, 512)] {
        let [mut ours, mut plain] = [(); 2].map(|()| Vec::new());
        let (mut our_time, mut plain_time) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..10 {
            let (times, whole) = exec_many(place.provider, &handle, at_once, count).await;
            ours.extend(times);
            our_time += whole;
            let (times, whole) = fork_exec_many(&HELLO, at_once, count).await;
            plain.extend(times);
            plain_time += whole;
        }
        let (ours_p50, plain_p50) = (median(&mut ours), median(&mut plain));
        let ratio = ours_p50.as_secs_f64() / plain_p50.as_secs_f64();
        let figure = format!("{}, p99 {}", millis(ours_p50), millis(percentile(&mut ours, 0.99)));
        let beside = format!("fork+exec {}, p99 {}", millis(plain_p50), millis(percentile(&mut plain, 0.99)));
        let goal = if at_once <= 32 { Goal::AtMost(1.5) } else { Goal::None };
        table.row(&format!("exec, {at_once} at once"), figure, beside, ratio, " ×", goal);
        let rates = [our_time, plain_time].map(|time| (10 * count) as f64 / time.as_secs_f64());
        let figures = rates.map(|rate| format!("{rate:.0}/s"));
        table.row(
            &format!("execs/s, {at_once} at once"),
            figures[0].clone(),
            format!("fork+exec {}", figures[1]),
            rates[0] / rates[1],
            " ×",
            Goal::None,
        );
    }
    place.close(&handle).await;
}

async fn rate(place: &Place<'_>, table: &mut Table) {
    const COUNT: usize = 600;
    const TURNS: usize = 2;
    place.cycles(IN_FLIGHT, 50).await;
    let [mut ours, mut bwrap] = [Duration::ZERO; 2];
    for _ in 0..TURNS {
        ours += place.cycles(IN_FLIGHT, COUNT).await;
        bwrap += fork_exec_many(BWRAP, IN_FLIGHT, COUNT).await.1;
    }
    let [ours, bwrap] = [ours, bwrap].map(|time| (TURNS * COUNT) as f64 / time.as_secs_f64());
    let (figure, beside) = (format!("{ours:.0}/s"), format!("bubblewrap, to its end {bwrap:.0}/s"));
    let what = "create, exec, close: pipelined on one thread";
    table.row(what, figure.clone(), beside.clone(), ours, "/s", Goal::AtLeast(300.0));
    table.row(what, figure, beside, ours / bwrap, " ×", Goal::None);
}

async fn idle(place: &Place<'_>, table: &mut Table) {
    const COUNT: usize = 100;
    let this = std::process::id();
    let mut handles = vec![place.create().await];
    exec(place.provider, &handles[0]).await;
    let before = pss_kib(&tree(this));
    for _ in 0..COUNT {
        let handle = place.create().await;
        exec(place.provider, &handle).await;
        handles.push(handle);
    }
    tokio::time::sleep(IDLE_AFTER).await;
    let each = (pss_kib(&tree(this)) - before) as f64 / COUNT as f64;
    table.row(
        "memory of a sandbox that is idle for 15 s (PSS of every process, host included)",
        format!("{each:.0} KiB"),
        "",
        each / 1024.0,
        " MiB",
        Goal::AtMost(0.3),
    );
    for handle in &handles {
        place.close(handle).await;
    }
}

async fn transfers(place: &Place<'_>, folder: &std::path::Path, table: &mut Table) {
    let handle = place.create().await;
    for (name, bytes, rounds) in [("1 KiB", 1 << 10, 100), ("1 MiB", 1 << 20, 50), ("256 MiB", 256 << 20, 7)] {
        let [file, back, copy] = ["file", "back", "copy"].map(|name| folder.join(name));
        std::fs::write(&file, vec![7_u8; bytes]).expect("it is written");
        let [mut up, mut down, mut kernel] = [(); 3].map(|()| Vec::new());
        for _ in 0..rounds {
            let (one, other) = place.transfer(&handle, &file, &back).await;
            up.push(one);
            down.push(other);
            kernel.push(copy_file(&file, &copy));
            settle();
        }
        let (up, down, kernel) = (median(&mut up), median(&mut down), median(&mut kernel));
        let goal = || if bytes > 100 << 20 { Goal::AtMost(1.3) } else { Goal::None };
        let beside = format!("kernel copy {}", millis(kernel));
        for (what, time) in [("upload", up), ("download", down)] {
            let ratio = time.as_secs_f64() / kernel.as_secs_f64();
            table.row(&format!("{what} of {name}"), millis(time), beside.clone(), ratio, " ×", goal());
        }
    }
    place.close(&handle).await;
}

async fn floods(place: &Place<'_>, table: &mut Table) {
    let handle = place.create().await;
    let this = std::process::id();
    place.flood(&handle, 16).await;
    // What starts the commands after the first is there then.
    exec(place.provider, &handle).await;
    // Not the command's own: that is what writes.
    let total = move || tree(this).iter().filter(|pid| is_ours(**pid)).map(|pid| resident_kib(*pid)).sum::<u64>();
    let before = total();
    let peak = std::rc::Rc::new(std::cell::Cell::new(before));
    let local = tokio::task::LocalSet::new();
    let seen = peak.clone();
    let time = local
        .run_until(async {
            let watch = tokio::task::spawn_local(async move {
                loop {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    seen.set(seen.get().max(total()));
                }
            });
            let time = place.flood(&handle, 1024).await;
            watch.abort();
            time
        })
        .await;
    let extra = (peak.get() - before) as f64 / 1024.0;
    let rate = 1024.0 / time.as_secs_f64();
    table.row(
        "1 GiB of output (resident memory of all our processes above before)",
        format!("{rate:.0} MiB/s"),
        "",
        extra,
        " MiB",
        Goal::AtMost(8.0),
    );
    place.close(&handle).await;
}

async fn limits(place: &Place<'_>, table: &mut Table) {
    let handle = place.create().await;
    let mut late = Vec::new();
    for _ in 0..10 {
        late.push(place.overdue(&handle, 0.3).await);
    }
    let worst = percentile(&mut late, 1.0);
    table.row(
        "a limit with children that went off: answered after it",
        millis(median(&mut late)),
        format!("worst of 10: {}", millis(worst)),
        worst.as_secs_f64() * 1000.0,
        " ms",
        Goal::AtMost(50.0),
    );
    let survivors = place.survivors(&handle).await;
    table.row("survivors", survivors.to_string(), "", survivors as f64, "", Goal::AtMost(0.0));
    place.close(&handle).await;
}
