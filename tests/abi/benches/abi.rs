//! What the boundary costs: `cargo bench -p sandbox-abi-tests`. The example `abi-report` gives the short answer.

use std::{
    collections::BTreeMap,
    hint::black_box,
    time::{Duration, Instant},
};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use plugin_host::Checksum;
use sandbox_abi_tests::subjects::{FILE_BYTES, Loading, STREAM_BYTES, Subject, Subjects, file_contents, host_runtime};
use sandbox_core::ExecRequest;
use tokio::runtime::Runtime;

const COMMANDS: [(&str, &[&str]); 2] = [("exec true", &["/bin/true"]), ("exec sh", &["sh", "-c", "echo hi"])];

/// Times `work` on a worker of the host.
fn time<F, W>(runtime: &Runtime, iterations: u64, subject: &Subject, mut work: W) -> Duration
where
    F: Future<Output = ()> + Send,
    W: FnMut(Subject) -> F + Send + 'static,
{
    let subject = subject.clone();
    let timed = runtime.spawn(async move {
        let start = Instant::now();
        for _ in 0..iterations {
            work(subject.clone()).await;
        }
        start.elapsed()
    });
    runtime.block_on(timed).expect("the work does not panic")
}

fn calls(criterion: &mut Criterion) {
    let runtime = host_runtime();
    let subjects = runtime.block_on(Subjects::new());
    let pair = [("native", &subjects.native), ("abi", &subjects.loaded)];

    let mut group = criterion.benchmark_group("status");
    for (name, subject) in pair {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                time(&runtime, iterations, subject, |subject| async move {
                    black_box(subject.status().await);
                })
            });
        });
    }
    group.bench_function("native in a task", |bencher| {
        bencher.iter_custom(|iterations| {
            time(&runtime, iterations, &subjects.native, |subject| async move {
                black_box(subject.status_in_a_task().await);
            })
        });
    });
    group.finish();

    for (name, argv) in COMMANDS {
        let mut group = criterion.benchmark_group(name);
        for (name, subject) in pair {
            group.bench_function(name, |bencher| {
                bencher.iter_custom(|iterations| {
                    time(&runtime, iterations, subject, move |subject| async move {
                        subject.exec(ExecRequest::argv(argv.iter().copied())).await;
                    })
                });
            });
        }
        group.finish();
    }

    let mut group = criterion.benchmark_group("stream 64 KiB chunks");
    group.throughput(Throughput::Bytes(STREAM_BYTES as u64)).sample_size(20);
    for (name, subject) in pair {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                time(&runtime, iterations, subject, |subject| async move { subject.stream().await })
            });
        });
    }
    group.finish();

    let mut group = criterion.benchmark_group("write file 1 MiB");
    group.throughput(Throughput::Bytes(FILE_BYTES as u64));
    for (name, subject) in pair {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|iterations| {
                // The contents are made in there too: the row "make" is what that costs.
                time(&runtime, iterations, subject, |subject| async move { subject.write_file(file_contents()).await })
            });
        });
    }
    group.bench_function("make", |bencher| bencher.iter(|| black_box(file_contents())));
    let source = vec![0x5a_u8; FILE_BYTES];
    let mut target = vec![0_u8; FILE_BYTES];
    group.bench_function("memcpy", |bencher| bencher.iter(|| target.copy_from_slice(black_box(&source))));
    group.finish();
    runtime.block_on(subjects.close());
}

fn loading(criterion: &mut Criterion) {
    // Every iteration leaves a library in this process for good: a few must do.
    let mut group = criterion.benchmark_group("load");
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group.warm_up_time(Duration::from_millis(20)).measurement_time(Duration::from_millis(100));
    let pins = BTreeMap::new();
    let mut loading = Loading::new();
    group.bench_function("bare dlopen", |bencher| {
        bencher.iter_custom(|iterations| (0..iterations).map(|_| loading.bare()).sum());
    });
    group.bench_function("verified", |bencher| {
        bencher.iter_custom(|iterations| (0..iterations).map(|_| loading.verified(&Checksum::IfPinned(&pins))).sum());
    });
    group.bench_function("verified, with SHA-256", |bencher| {
        bencher.iter_custom(|iterations| (0..iterations).map(|_| loading.verified(&Checksum::Compute)).sum());
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    targets = calls, loading
}
criterion_main!(benches);
