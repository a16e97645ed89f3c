//! What the boundary costs, as a table: `cargo run --release -p sandbox-abi-tests --example abi-report`.
//!
//! The samples of a row's columns are taken in turn, so that whatever else the machine does hits all of them alike. What
//! counts is the ratio; the times are those of this machine in this hour.
//!
//! Waking a core of a virtual machine that sleeps costs more than everything that is measured here, so the cores are kept
//! awake by programs of the lowest priority, which give way at once. One row is taken without them, to show it.

use std::{
    collections::BTreeMap,
    hint::black_box,
    process::{Child, Command},
    time::{Duration, Instant},
};

use plugin_host::Checksum;
use sandbox_abi_tests::{
    measure::Samples,
    subjects::{FILE_BYTES, Loading, STREAM_BYTES, Subject, Subjects, file_contents, host_runtime},
};
use sandbox_core::ExecRequest;
use tokio::runtime::Builder;

const SAMPLES: usize = 61;
const EXEC_SAMPLES: usize = 301;
const STATUS_CALLS: u32 = 50;
/// The first ones find cold caches.
const WARM_UP: usize = 4;

/// One row: the work, its time without the boundary, its time over it.
struct Row {
    work: &'static str,
    reference: String,
    base: Samples,
    measured: Samples,
}

impl Row {
    fn print(&self) {
        let ratio = |of: fn(&Samples) -> Duration| of(&self.measured).as_secs_f64() / of(&self.base).as_secs_f64();
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            self.work,
            self.reference,
            text(&self.base),
            text(&self.measured),
            number(ratio(Samples::median)),
            number(ratio(Samples::quiet)),
        );
    }
}

fn text(samples: &Samples) -> String {
    format!("{} ({})", duration(samples.median()), duration(samples.quiet()))
}

fn duration(duration: Duration) -> String {
    let micros = duration.as_secs_f64() * 1e6;
    match micros {
        ..1.0 => format!("{:.0} ns", micros * 1e3),
        1.0..1000.0 => format!("{micros:.1} us"),
        _ => format!("{:.2} ms", micros / 1e3),
    }
}

fn number(ratio: f64) -> String {
    if ratio < 10.0 { format!("{ratio:.2}") } else { format!("{ratio:.0}") }
}

/// Runs the work of each column in turn, forwards and backwards, so that none is always the one after another.
macro_rules! in_turn {
    ($samples:expr, $first:expr, $second:expr $(,)?) => {{
        let (mut first, mut second) = (Vec::with_capacity($samples), Vec::with_capacity($samples));
        for sample in 0..$samples + WARM_UP {
            for turn in 0..2 {
                let is_first = (sample + turn) % 2 == 0;
                let start = Instant::now();
                if is_first {
                    $first
                } else {
                    $second
                }
                let taken = start.elapsed();
                if sample >= WARM_UP {
                    if is_first { first.push(taken) } else { second.push(taken) }
                }
            }
        }
        (Samples::new(first), Samples::new(second))
    }};
}

fn main() {
    if cfg!(debug_assertions) {
        eprintln!("measure what is shipped: cargo run --release -p sandbox-abi-tests --example abi-report");
        std::process::exit(2);
    }
    println!("| work | compared with | it | over the boundary | ratio | ratio when quiet |");
    println!("|---|---|---|---|---|---|");
    let runtime = host_runtime();
    let asleep = runtime.block_on(async { tokio::spawn(calls_of_sleeping_cores()).await });
    let awake = KeptAwake::start();
    let rows = runtime.block_on(async { tokio::spawn(measure()).await }).expect("the measurements do not panic");
    let asleep = asleep.expect("the measurements do not panic");
    asleep.print();
    for row in &rows {
        row.print();
    }
    for row in loading() {
        row.print();
    }
    drop(awake);
    let by_work: BTreeMap<_, _> = rows.iter().map(|row| (row.work, row)).collect();
    let call = by_work["call `status`"].measured.quiet();
    let exec = by_work["exec `/bin/true`"].base.quiet();
    println!();
    println!(
        "Times are medians, in brackets the fifth percentile; {SAMPLES} samples, {EXEC_SAMPLES} of an exec; cores kept awake. \
         One call over the boundary is {:.1} % of the cheapest exec; where the cores sleep between its steps, {:.1} % (the goal is 2 %).",
        100.0 * call.as_secs_f64() / exec.as_secs_f64(),
        100.0 * asleep.measured.quiet().as_secs_f64() / exec.as_secs_f64()
    );
}

/// Keeps every core from sleeping while it lives.
struct KeptAwake(Vec<Child>);

impl KeptAwake {
    fn start() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spin = || Command::new("chrt").args(["--idle", "0", "sh", "-c", "while :; do :; done"]).spawn();
        Self((0..cores).map(|_| spin().expect("chrt, of util-linux, is there")).collect())
    }
}

impl Drop for KeptAwake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

async fn calls_of_sleeping_cores() -> Row {
    let subjects = Subjects::new().await;
    let calls = async |subject: &Subject| {
        for _ in 0..STATUS_CALLS {
            black_box(subject.status().await);
        }
    };
    let (base, measured) = in_turn!(SAMPLES, calls(&subjects.native).await, calls(&subjects.loaded).await);
    let (base, measured) = (base.per(STATUS_CALLS), measured.per(STATUS_CALLS));
    Row { work: "call `status`, cores asleep between the steps", reference: "`dyn` call".to_owned(), base, measured }
}

async fn measure() -> Vec<Row> {
    let subjects = Subjects::new().await;
    let (native, loaded) = (&subjects.native, &subjects.loaded);
    let mut rows = Vec::new();
    let mut compare = |work, reference: &str, (base, measured): (Samples, Samples)| {
        rows.push(Row { work, reference: reference.to_owned(), base, measured });
    };

    let calls = async |subject: &Subject| {
        for _ in 0..STATUS_CALLS {
            black_box(subject.status().await);
        }
    };
    let calls_in_tasks = async |subject: &Subject| {
        for _ in 0..STATUS_CALLS {
            black_box(subject.status_in_a_task().await);
        }
    };
    let (task, call) = in_turn!(SAMPLES, calls_in_tasks(native).await, calls(loaded).await);
    compare("call `status`", "spawn and join", (task.per(STATUS_CALLS), call.per(STATUS_CALLS)));
    let (plain, call) = in_turn!(SAMPLES, calls(native).await, calls(loaded).await);
    compare("the same", "`dyn` call", (plain.per(STATUS_CALLS), call.per(STATUS_CALLS)));

    let request = || ExecRequest::argv(["/bin/true"]);
    let times = in_turn!(EXEC_SAMPLES, native.exec(request()).await, loaded.exec(request()).await);
    compare("exec `/bin/true`", "native", times);
    let plugin_like =
        Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread can be started");
    let elsewhere = plugin_like.handle().clone();
    let times =
        in_turn!(EXEC_SAMPLES, native.exec_elsewhere(&elsewhere, request()).await, loaded.exec(request()).await);
    compare("the same", "native on a runtime of its own", times);
    plugin_like.shutdown_background();
    let request = || ExecRequest::argv(["sh", "-c", "echo hi"]);
    let times = in_turn!(EXEC_SAMPLES, native.exec(request()).await, loaded.exec(request()).await);
    compare("exec `sh -c 'echo hi'`", "native", times);

    let times = in_turn!(SAMPLES, native.stream().await, loaded.stream().await);
    let rate = |samples: &Samples| STREAM_BYTES as f64 / 1e9 / samples.median().as_secs_f64();
    let reference = format!("native ({:.1} GB/s; over it {:.1} GB/s)", rate(&times.0), rate(&times.1));
    compare("stream 32 MiB in 64 KiB chunks", &reference, times);

    // Made before the clock runs.
    let mut contents = Vec::new();
    contents.resize_with(4 * (SAMPLES + WARM_UP), file_contents);
    let mut next = || contents.pop().expect("enough were made");
    let times = in_turn!(SAMPLES, native.write_file(next()).await, loaded.write_file(next()).await);
    compare("hand over a file of 1 MiB", "native", times);
    let source = vec![0x5a_u8; FILE_BYTES];
    let mut target = vec![0_u8; FILE_BYTES];
    let times = in_turn!(SAMPLES, black_box(&mut target).copy_from_slice(&source), loaded.write_file(next()).await);
    compare("the same", "memcpy of 1 MiB", times);
    subjects.close().await;
    rows
}

/// Every sample is a library that was not loaded before; none is ever unloaded.
fn loading() -> Vec<Row> {
    let mut loading = Loading::new();
    let pins = BTreeMap::new();
    let not_pinned = Checksum::IfPinned(&pins);
    let mut columns = [const { Vec::new() }; 4];
    for _ in 0..SAMPLES {
        columns[0].push(loading.bare());
        columns[1].push(loading.inspected(&not_pinned));
        columns[2].push(loading.verified(&not_pinned));
        columns[3].push(loading.verified(&Checksum::Compute));
    }
    let [bare, inspected, verified, hashed] = columns.map(Samples::new);
    let row = |work, measured| Row { work, reference: "bare dlopen".to_owned(), base: bare.clone(), measured };
    vec![
        row("inspect a plugin, not loading it", inspected),
        row("load a plugin: all checks and the handshake", verified),
        row("the same with its SHA-256", hashed),
    ]
}
