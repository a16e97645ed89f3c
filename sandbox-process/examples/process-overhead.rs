//! What an exec costs against plain `std::process` in the same run: `sh -c 'echo hi'`, one at a time, interleaved,
//! median and 90th percentile. Then throughput, several at once. `cargo run --release --example process-overhead [count]
//! [ballast in MiB]`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_process::{Command, Event, Limits, ProcessSet};

const ARGV: [&str; 3] = ["/bin/sh", "-c", "echo hi"];

async fn ours(set: &ProcessSet) -> Duration {
    let begin = Instant::now();
    let mut process =
        set.spawn(Command::new(ARGV), Limits::new().timeout(Duration::from_secs(60))).await.expect("starts");
    let mut output = Vec::new();
    while let Some(event) = process.next_event().await {
        if let Event::Stdout(bytes) = event {
            output.extend_from_slice(&bytes);
        }
    }
    assert_eq!(output, b"hi\n");
    begin.elapsed()
}

fn plain() -> Duration {
    let begin = Instant::now();
    let output = std::process::Command::new(ARGV[0]).args(&ARGV[1..]).env_clear().output().expect("starts");
    assert_eq!(output.stdout, b"hi\n");
    begin.elapsed()
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort();
    times[(times.len() - 1) * percent / 100]
}

async fn throughput(at_once: usize, total: usize, ours_too: bool) -> f64 {
    let set = Arc::new(ProcessSet::new());
    let begin = Instant::now();
    let mut workers = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let set = set.clone();
        workers.spawn(async move {
            for _ in 0..total / at_once {
                if ours_too {
                    ours(&set).await;
                } else {
                    tokio::task::spawn_blocking(plain).await.expect("no panic");
                }
            }
        });
    }
    while workers.join_next().await.is_some() {}
    (total / at_once * at_once) as f64 / begin.elapsed().as_secs_f64()
}

fn main() {
    let argument = |index: usize| std::env::args().nth(index).and_then(|text| text.parse::<usize>().ok());
    let count = argument(1).unwrap_or(200);
    let ballast = vec![1u8; argument(2).unwrap_or(0) << 20];
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let set = Arc::new(ProcessSet::new());
        let (mut with_us, mut without) = (Vec::new(), Vec::new());
        for round in 0..count + 10 {
            let set = set.clone();
            let a = tokio::spawn(async move { ours(&set).await }).await.expect("no panic");
            let b = plain();
            if round >= 10 {
                with_us.push(a);
                without.push(b);
            }
        }
        let (a, b) = (percentile(&mut with_us, 50), percentile(&mut without, 50));
        println!("median of {count}: ours {a:?}, plain {b:?}, ratio {:.2}", a.as_secs_f64() / b.as_secs_f64());
        println!("p90: ours {:?}, plain {:?}", percentile(&mut with_us, 90), percentile(&mut without, 90));
        for at_once in [8, 32] {
            let (a, b) = (throughput(at_once, count * 2, true).await, throughput(at_once, count * 2, false).await);
            println!("{at_once} at once: ours {a:.0}/s, plain {b:.0}/s, ratio of times {:.2}", b / a);
        }
    });
    drop(ballast);
}
