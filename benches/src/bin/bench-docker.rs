//! Docker sandboxes beside fork+exec, the Engine's API by bollard, and its own command. Needs an engine with the images of
//! the tests, and the agent: `cargo xtask bench docker`. `--quick` does little of everything.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sandbox_benches::{
    Cli, EngineApi, Goal, HELLO, HELLO_OF_IMAGE, Measured, Place, Table, copy_file, exec, exec_many, fork_exec_many,
    many, median, millis, percentile, resident_kib, settle,
};
use sandbox_core::{SandboxProvider, SandboxSpec, from_json};
use sandbox_provider_docker::DockerProvider;
use serde_json::{Value, json};

const IMAGE: &str = "sandbox-test/busybox:1";
/// How long a pool may take to be full again.
const REFILL_LIMIT: Duration = Duration::from_secs(60);

/// How much is done.
struct Effort {
    cold_rounds: usize,
    /// At once, execs of a slow side in a round, rounds.
    levels: &'static [(usize, usize, usize)],
    /// How often fast sides do what slow ones do once.
    fast_factor: usize,
    transfers: &'static [(&'static str, usize, usize)],
    flood_mib: u64,
    burst: usize,
}

const FULL: Effort = Effort {
    cold_rounds: 15,
    levels: &[(1, 5, 12), (8, 32, 4), (32, 64, 3), (128, 128, 2)],
    fast_factor: 10,
    transfers: &[("1 KiB", 1 << 10, 15), ("1 MiB", 1 << 20, 15), ("256 MiB", 256 << 20, 4)],
    flood_mib: 1024,
    burst: 50,
};

const QUICK: Effort = Effort {
    cold_rounds: 1,
    levels: &[(1, 1, 1), (8, 8, 1)],
    fast_factor: 2,
    transfers: &[("1 KiB", 1 << 10, 1), ("1 MiB", 1 << 20, 1)],
    flood_mib: 16,
    burst: 3,
};

/// Everything that is measured.
struct Sides {
    agent: DockerProvider,
    relay: DockerProvider,
    bare: DockerProvider,
    networks: DockerProvider,
    ready: DockerProvider,
    api: EngineApi,
    cli: Cli,
}

fn provider(folder: &Path, host: &str, name: &str, more: Value) -> DockerProvider {
    let mut settings =
        json!({ "host": host, "run_dir": folder.join(name), "pull": "never", "use_docker_config": false });
    if more["agent"] != "off"
        && let Some(agent) = std::env::var_os("SANDBOX_AGENT")
    {
        settings["agent_path"] = json!(PathBuf::from(agent));
    }
    for (key, value) in more.as_object().expect("settings") {
        settings[key] = value.clone();
    }
    DockerProvider::new(from_json(settings, "settings").expect("good settings")).expect("the provider is made")
}

fn place(provider: &DockerProvider) -> Place<'_> {
    Place { provider, spec: SandboxSpec::image(IMAGE) }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let effort = if std::env::args().any(|argument| argument == "--quick") { &QUICK } else { &FULL };
    let host = std::env::var("SANDBOX_TEST_DOCKER").expect("it needs an engine: cargo xtask bench docker");
    let temp = tempfile::Builder::new().prefix("sbx").tempdir().expect("a folder");
    let make = |name: &str, more: Value| provider(temp.path(), &host, name, more);
    let sides = Sides {
        agent: make("a", json!({ "agent": "required", "transport": "socket" })),
        relay: make("r", json!({ "agent": "required", "transport": "relay" })),
        bare: make("b", json!({ "agent": "off" })),
        networks: make("n", json!({ "agent": "required", "transport": "socket", "pool": { "network": 2 } })),
        ready: make("w", json!({ "agent": "required", "transport": "socket", "pool": { "ready": 2 } })),
        api: EngineApi::new(&host),
        cli: Cli::new(&host),
    };
    let mut table = Table::default();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    for part in ["execs", "cold", "ahead", "transfers", "floods", "bursts", "limits"] {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == part) {
            continue;
        }
        match part {
            "execs" => execs(&sides, effort, &mut table).await,
            "cold" => cold(&sides, effort, &mut table).await,
            "ahead" => ahead(&sides, effort, &mut table).await,
            "transfers" => transfers(&sides, effort, temp.path(), &mut table).await,
            "floods" => floods(&sides, effort, &mut table).await,
            "bursts" => bursts(&sides, effort, &mut table).await,
            _ => limits(&sides, &mut table).await,
        }
    }
    for provider in [&sides.agent, &sides.relay, &sides.bare, &sides.networks, &sides.ready] {
        provider.aclose().await.expect("it ends");
    }
    println!("{table}");
}

async fn execs(sides: &Sides, effort: &Effort, table: &mut Table) {
    let handle = place(&sides.agent).create().await;
    let far = place(&sides.relay).create().await;
    let bare = place(&sides.bare).create().await;
    let container = sides.api.create(IMAGE).await;
    for _ in 0..5 {
        exec(&sides.agent, &handle).await;
        exec(&sides.relay, &far).await;
    }
    for (at_once, count, rounds) in effort.levels.iter().copied() {
        let [mut ours, mut relay, mut fallback, mut plain, mut own, mut api, mut cli] =
            [(); 7].map(|()| Measured::default());
        let fast = count * effort.fast_factor;
        for _ in 0..rounds {
            ours.add(exec_many(&sides.agent, &handle, at_once, fast).await);
            plain.add(fork_exec_many(&HELLO, at_once, fast).await);
            own.add(fork_exec_many(&HELLO_OF_IMAGE, at_once, fast).await);
            relay.add(exec_many(&sides.relay, &far, at_once, fast).await);
            api.add(many(at_once, count, async || sides.api.exec(&container).await).await);
            cli.add(many(at_once, count, async || sides.cli.exec(&container).await).await);
            fallback.add(exec_many(&sides.bare, &bare, at_once, count).await);
        }
        let what = |side: &str| format!("exec, {at_once} at once{side}");
        let (figure, host) = (ours.shown(), format!("fork+exec {}", plain.shown()));
        let goal = if at_once <= 32 { Goal::AtMost(1.5) } else { Goal::None };
        table.row(&what(": p50"), &figure, &host, ours.p50() / plain.p50(), " ×", goal);
        let goal = if at_once >= 32 { Goal::AtLeast(0.8) } else { Goal::None };
        table.row(&what(": execs/s"), &figure, &host, ours.per_s() / plain.per_s(), " ×", goal);
        let beside = format!("fork+exec of the image's shell {}", own.shown());
        table.row(&what(": p50"), &figure, &beside, ours.p50() / own.p50(), " ×", Goal::None);
        let beside = format!("Engine API {}", api.shown());
        let goal = if at_once <= 32 { Goal::AtMost(1.0 / 40.0) } else { Goal::None };
        table.row(&what(": p50"), &figure, &beside, ours.p50() / api.p50(), " ×", goal);
        let goal = if at_once == 32 { Goal::AtMost(1.0 / 40.0) } else { Goal::None };
        table.row(&what(": p99"), &figure, &beside, ours.p99() / api.p99(), " ×", goal);
        let beside_cli = format!("docker exec {}", cli.shown());
        table.row(&what(": p50"), &figure, &beside_cli, ours.p50() / cli.p50(), " ×", Goal::None);
        table.row(
            &what(", through the engine: p50"),
            relay.shown(),
            &host,
            relay.p50() / plain.p50(),
            " ×",
            Goal::None,
        );
        table.row(
            &what(", without the agent: p50"),
            fallback.shown(),
            &beside,
            fallback.p50() / api.p50(),
            " ×",
            Goal::None,
        );
    }
    sides.api.remove(&container).await;
    for (provider, handle) in [(&sides.agent, &handle), (&sides.relay, &far), (&sides.bare, &bare)] {
        place(provider).close(handle).await;
    }
}

/// The goals are those of the design, ratios to the model's provider (0.55, 0.30, 1/100), told as ratios to the Engine's
/// API, which took 378 ms where that took 576.
async fn cold(sides: &Sides, effort: &Effort, table: &mut Table) {
    let [mut agent, mut relay, mut bare, mut api, mut cli] = [(); 5].map(|()| Vec::new());
    let [mut close, mut removal] = [(); 2].map(|()| Vec::new());
    for _ in 0..effort.cold_rounds {
        let (first, closed) = place(&sides.agent).cold().await;
        agent.push(first);
        close.push(closed);
        relay.push(place(&sides.relay).cold().await.0);
        bare.push(place(&sides.bare).cold().await.0);
        let (first, removed) = sides.api.cold(IMAGE).await;
        api.push(first);
        removal.push(removed);
        cli.push(sides.cli.cold(IMAGE).await);
    }
    let engine = median(&mut api);
    let beside = format!("Engine API {}", millis(engine));
    let ratio = |time: Duration| time.as_secs_f64() / engine.as_secs_f64();
    let what = "create → first output";
    let ours = median(&mut agent);
    table.row(what, millis(ours), &beside, ratio(ours), " ×", Goal::AtMost(0.84));
    let run = median(&mut cli);
    let to_run = ours.as_secs_f64() / run.as_secs_f64();
    table.row(what, millis(ours), format!("docker run --rm, to its end {}", millis(run)), to_run, " ×", Goal::None);
    for (side, mut times) in [(", agent through the engine", relay), (", without the agent", bare)] {
        let time = median(&mut times);
        table.row(&format!("{what}{side}"), millis(time), &beside, ratio(time), " ×", Goal::None);
    }
    let (close, removal) = (median(&mut close), median(&mut removal));
    let beside = format!("Engine API {}", millis(removal));
    table.row("close", millis(close), beside, close.as_secs_f64() / removal.as_secs_f64(), " ×", Goal::None);
}

/// With what was made ahead. Each round begins when that is full again.
async fn ahead(sides: &Sides, effort: &Effort, table: &mut Table) {
    for (what, provider, holds, goal) in [
        ("create → first output, network made ahead", &sides.networks, 2, 0.46),
        ("create → first output, from a warm pool", &sides.ready, 2, 0.015),
    ] {
        let before = sides.api.running().await;
        // The first one is what the pool learns from.
        place(provider).cold().await;
        let [mut ours, mut api] = [(); 2].map(|()| Vec::new());
        for _ in 0..effort.cold_rounds {
            full(&sides.api, before + holds).await;
            ours.push(place(provider).cold().await.0);
            api.push(sides.api.cold(IMAGE).await.0);
        }
        let (ours, api) = (median(&mut ours), median(&mut api));
        let ratio = ours.as_secs_f64() / api.as_secs_f64();
        let beside = format!("Engine API {}", millis(api));
        table.row(what, millis(ours), beside, ratio, " ×", Goal::AtMost(goal));
        provider.aclose().await.expect("it ends");
    }
}

async fn full(api: &EngineApi, count: usize) {
    let end = Instant::now() + REFILL_LIMIT;
    while api.running().await < count {
        assert!(Instant::now() < end, "what is made ahead is not made");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // A container that runs is ready a moment later.
    tokio::time::sleep(Duration::from_millis(200)).await;
}

async fn transfers(sides: &Sides, effort: &Effort, folder: &Path, table: &mut Table) {
    let (near, far) = (place(&sides.agent), place(&sides.relay));
    let (handle, distant) = (near.create().await, far.create().await);
    let container = sides.api.create(IMAGE).await;
    let (file, back, copy) = (folder.join("file"), folder.join("back"), folder.join("copy"));
    for (name, bytes, rounds) in effort.transfers.iter().copied() {
        let contents: Vec<u8> = (0..bytes).map(|index| (index * 31 % 251) as u8).collect();
        std::fs::write(&file, &contents).expect("room");
        let mut ways = [(); 5].map(|()| [Vec::new(), Vec::new()]);
        for _ in 0..rounds {
            let kernel = (copy_file(&file, &copy), copy_file(&file, &copy));
            settle();
            let near = near.transfer(&handle, &file, &back).await;
            settle();
            let far = far.transfer(&distant, &file, &back).await;
            settle();
            let api = sides.api.transfer(&container, &file, &back).await;
            settle();
            let all = [near, far, api, sides.cli.transfer(&container, &file, &back).await, kernel];
            settle();
            assert!(std::fs::read(&back).expect("a file") == contents, "it came back changed");
            for (way, (up, down)) in ways.iter_mut().zip(all) {
                way[0].push(up);
                way[1].push(down);
            }
        }
        for (index, direction) in ["upload", "download"].into_iter().enumerate() {
            let [ours, relay, api, cli, kernel] = ways.each_mut().map(|way| median(&mut way[index]).as_secs_f64());
            let shown = |seconds: f64| millis(Duration::from_secs_f64(seconds));
            let what = format!("{direction} of {name}");
            // The model's provider took about 175 ms up and 75 ms down for the small ones, the archives about 50.
            let goal = match bytes {
                1024 => Goal::AtMost(1.0 / 50.0),
                0x10_0000 => Goal::AtMost(1.0 / 20.0),
                _ => Goal::AtMost(1.0 / 2.0),
            };
            table.row(&what, shown(ours), format!("archives of the Engine {}", shown(api)), ours / api, " ×", goal);
            table.row(&what, shown(ours), format!("docker cp {}", shown(cli)), ours / cli, " ×", Goal::None);
            let goal = if bytes > 100 << 20 { Goal::AtMost(1.3) } else { Goal::None };
            table.row(&what, shown(ours), format!("kernel copy {}", shown(kernel)), ours / kernel, " ×", goal);
            let far = format!("{what}, through the engine");
            table.row(
                &far,
                shown(relay),
                format!("archives of the Engine {}", shown(api)),
                relay / api,
                " ×",
                Goal::None,
            );
        }
    }
    sides.api.remove(&container).await;
    near.close(&handle).await;
    far.close(&distant).await;
}

async fn floods(sides: &Sides, effort: &Effort, table: &mut Table) {
    for (what, provider) in [("", &sides.agent), (", through the engine", &sides.relay)] {
        let place = place(provider);
        let handle = place.create().await;
        place.flood(&handle, 16).await;
        let this = std::process::id();
        let before = resident_kib(this);
        let peak = std::cell::Cell::new(before);
        let watch = async {
            loop {
                tokio::time::sleep(Duration::from_millis(20)).await;
                peak.set(peak.get().max(resident_kib(this)));
            }
        };
        let time = tokio::select! {
            time = place.flood(&handle, effort.flood_mib) => time,
            () = watch => unreachable!("it watches for ever"),
        };
        let extra = peak.get().saturating_sub(before) as f64 / 1024.0;
        let rate = effort.flood_mib as f64 / time.as_secs_f64();
        let what = format!("{} MiB of output{what} (memory of this process above before)", effort.flood_mib);
        table.row(&what, format!("{rate:.0} MiB/s"), "", extra, " MiB", Goal::AtMost(8.0));
        place.close(&handle).await;
    }
}

async fn bursts(sides: &Sides, effort: &Effort, table: &mut Table) {
    let count = effort.burst;
    let (made, removed) = place(&sides.agent).burst(count).await;
    let (api_made, api_removed) = sides.api.burst(IMAGE, count).await;
    let rate = |time: Duration| count as f64 / time.as_secs_f64();
    for (what, ours, api) in [("made", made, api_made), ("removed", removed, api_removed)] {
        let beside = format!("Engine API {}, {:.1}/s", millis(api), rate(api));
        let figure = format!("{}, {:.1}/s", millis(ours), rate(ours));
        let ratio = ours.as_secs_f64() / api.as_secs_f64();
        table.row(&format!("{count} sandboxes {what} at once"), figure, beside, ratio, " ×", Goal::None);
    }
}

async fn limits(sides: &Sides, table: &mut Table) {
    let place = place(&sides.agent);
    let handle = place.create().await;
    let mut late = Vec::new();
    for _ in 0..5 {
        late.push(place.overdue(&handle, 0.3).await);
    }
    let worst = percentile(&mut late, 1.0);
    let beside = format!("worst of 5: {}", millis(worst));
    let what = "a limit with children that went off: answered after it";
    table.row(what, millis(median(&mut late)), beside, worst.as_secs_f64() * 1000.0, " ms", Goal::AtMost(50.0));
    let survivors = place.survivors(&handle).await;
    table.row("survivors", survivors.to_string(), "", survivors as f64, "", Goal::AtMost(0.0));
    place.close(&handle).await;
}
