//! Many sandboxes at once on one provider: `many [SANDBOXES [COMMANDS [ISOLATION [table]]]]`, 100 with 10 commands each by
//! default. Says how long it took, how much memory and how many descriptors this process had at most, and what is left;
//! with `table` as a table for a page.

use std::{
    env,
    error::Error,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_api::{
    Admission, AdmissionLimits, AsyncSandbox, Ownership, SandboxProvider, SandboxSpec, create_provider,
    serde_json::json,
};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |index: usize, default| arguments.get(index).map_or(Ok(default), |text: &String| text.parse());
    let (sandboxes, commands) = (number(0, 100)?, number(1, 10)?);
    let isolation = arguments.get(2).map_or("none", String::as_str);
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("root");
    let provider = create_provider(&json!({"local": {"isolation": isolation, "workspace_root": root}}))?;
    let admission = Admission::new(limits());
    let descriptors_before = descriptors();

    let began = Instant::now();
    // All are there before any of them is used, and none is removed before all were used.
    let mut started = JoinSet::new();
    for _ in 0..sandboxes {
        started.spawn(start(provider.clone(), admission.clone()));
    }
    let all: Vec<AsyncSandbox> = started.join_all().await.into_iter().collect::<Result<_, _>>()?;
    let (up, most_descriptors) = (began.elapsed(), descriptors());
    let mut used = JoinSet::new();
    for (index, sandbox) in all.into_iter().enumerate() {
        used.spawn(async move { (use_it(&sandbox, index, commands).await, sandbox) });
    }
    let mut wrong = 0;
    let mut all = Vec::new();
    for (result, sandbox) in used.join_all().await {
        wrong += result?;
        all.push(sandbox);
    }
    let ran = began.elapsed() - up;
    let mut stopped = JoinSet::new();
    for sandbox in all {
        stopped.spawn(async move { sandbox.stop().await });
    }
    stopped.join_all().await.into_iter().collect::<Result<Vec<()>, _>>()?;
    provider.aclose().await?;
    // What a dead process leaves is collected a moment later.
    let patience = Instant::now() + Duration::from_secs(20);
    while children() > 0 && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Each sandbox has a folder and a record, both named after it.
    let folders = named_after_sandboxes(&root);
    let result = Figures {
        sandboxes,
        commands,
        wrong,
        up,
        ran,
        all: began.elapsed(),
        descriptors: [descriptors_before, most_descriptors, descriptors()],
        left: [children(), folders],
    };
    if arguments.get(3).is_some_and(|form| form == "table") {
        result.print_table(isolation);
    } else {
        result.print();
    }
    Ok(())
}

struct Figures {
    sandboxes: usize,
    commands: usize,
    wrong: usize,
    up: Duration,
    ran: Duration,
    all: Duration,
    /// Before, with all up, after.
    descriptors: [usize; 3],
    /// Processes and folders.
    left: [usize; 2],
}

impl Figures {
    fn print(&self) {
        let [before, most, after] = self.descriptors;
        println!("{} sandboxes, {} commands each, {} wrong answers", self.sandboxes, self.commands, self.wrong);
        println!(
            "up in {:.1} s, used in {:.1} s, all in {:.1} s",
            self.up.as_secs_f64(),
            self.ran.as_secs_f64(),
            self.all.as_secs_f64()
        );
        let memory = peak_memory_kib() / 1024;
        println!("memory at most {memory} MiB, descriptors {before} before, {most} with all up, {after} after");
        println!("left: {} processes, {} folders", self.left[0], self.left[1]);
    }

    fn print_table(&self, isolation: &str) {
        let [before, most, after] = self.descriptors;
        let (up, ran) = (self.up.as_secs_f64(), self.ran.as_secs_f64());
        let number = self.sandboxes * self.commands;
        println!("| what | figure |\n|---|---|");
        println!("| sandboxes there at once, `isolation = \"{isolation}\"` | {} |", self.sandboxes);
        println!("| commands, and how many answered wrongly | {number}, {} |", self.wrong);
        println!("| creating all of them | {up:.1} s, {:.0} in a second |", self.sandboxes as f64 / up);
        println!("| running all commands | {ran:.1} s, {:.0} in a second |", number as f64 / ran);
        println!("| from the first create to the last removal | {:.1} s |", self.all.as_secs_f64());
        println!("| memory of this process, at most | {} MiB |", peak_memory_kib() / 1024);
        println!("| descriptors of this process: before, with all up, after | {before}, {most}, {after} |");
        println!("| left behind: processes, folders | {}, {} |", self.left[0], self.left[1]);
    }
}

fn limits() -> AdmissionLimits {
    let mut limits = AdmissionLimits::default();
    limits.creates = Some(16);
    limits.execs = Some(64);
    limits
}

async fn start(provider: Arc<dyn SandboxProvider>, admission: Admission) -> sandbox_api::Result<AsyncSandbox> {
    let sandbox = AsyncSandbox::new(provider).with_ownership(Ownership::Shared).with_admission(&admission);
    sandbox.start(Some(SandboxSpec::default())).await?;
    Ok(sandbox)
}

/// Runs commands one after the other and gives how many answered wrongly.
async fn use_it(sandbox: &AsyncSandbox, index: usize, commands: usize) -> sandbox_api::Result<usize> {
    let mut wrong = 0;
    for command in 0..commands {
        let result = sandbox.run(format!("echo {index}-{command}; exit 7")).await?;
        let right = format!("{index}-{command}\n");
        wrong += usize::from(result.stdout_text() != right || result.return_code() != 7);
    }
    Ok(wrong)
}

fn named_after_sandboxes(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_name().to_string_lossy().starts_with("local-") {
            true => 1,
            false if entry.path().is_dir() => named_after_sandboxes(&entry.path()),
            false => 0,
        })
        .sum()
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

fn peak_memory_kib() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Processes that this one started and that are there.
fn children() -> usize {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
        .map(|list| list.split_whitespace().count())
        .sum()
}
