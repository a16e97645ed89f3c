//! `sandboxctl compose logs` and `events`: files that the process of the stack writes.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use serde_json::{Value, json};

use super::{
    document::DocumentArgs,
    found,
    state::{Folder, Running},
};
use crate::{app::App, failure::Failure, output};

/// How often a file is looked at.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct LogsArgs {
    /// Go on until the stack is over
    #[arg(short = 'f', long)]
    follow: bool,
    /// Only so many lines of each, from the end
    #[arg(long, value_name = "LINES")]
    tail: Option<usize>,
    /// Only these services
    #[arg(value_name = "SERVICE")]
    services: Vec<String>,
}

#[derive(Args)]
pub(crate) struct EventsArgs {
    /// Go on until the stack is over
    #[arg(short = 'f', long)]
    follow: bool,
}

/// A file that grows.
struct Growing {
    path: PathBuf,
    name: String,
    read: u64,
    /// A line whose end has not been written yet.
    rest: Vec<u8>,
}

impl Growing {
    /// The lines that are new. With `is_last` also one without an end.
    fn lines(&mut self, is_last: bool) -> Vec<String> {
        let mut bytes = std::mem::take(&mut self.rest);
        let read = File::open(&self.path).and_then(|mut file| {
            file.seek(SeekFrom::Start(self.read))?;
            file.read_to_end(&mut bytes)
        });
        self.read += read.unwrap_or_default() as u64;
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
        if !is_last {
            self.rest = bytes.split_off(end);
        }
        String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
    }
}

pub(super) fn logs(app: &App, document: &DocumentArgs, args: &LogsArgs) -> Result<u8, Failure> {
    let project = document.name(app)?;
    let folder = Folder::of(&project)?;
    let running = folder.expect_running(&project)?;
    // What the process of the stack does not write any more, its sandboxes keep.
    if !running.is_owned() && kept(app, &running, args)? {
        return Ok(0);
    }
    let status: Value = folder.read("status.json").unwrap_or_default();
    let mut files = Vec::new();
    for one in status["services"].as_array().into_iter().flatten() {
        let service = one["service"].as_str().unwrap_or_default();
        let replica = one["replica"].as_u64().unwrap_or(1) as u32;
        if args.services.is_empty() || args.services.iter().any(|name| name == service) {
            let path = folder.log(service, replica);
            files.push(Growing { path, name: format!("{service}-{replica}"), read: 0, rest: Vec::new() });
        }
    }
    if let Some(name) = args.services.iter().find(|name| {
        !files.iter().any(|file| file.name.rsplit_once('-').is_some_and(|(service, _)| service == name.as_str()))
    }) {
        return Err(unknown(name));
    }
    let mut is_first = true;
    loop {
        let is_over = !args.follow || folder.running().is_none_or(|running| !running.is_owned());
        for file in &mut files {
            let lines = file.lines(is_over);
            let skipped = if is_first { lines.len().saturating_sub(args.tail.unwrap_or(usize::MAX)) } else { 0 };
            for line in &lines[skipped..] {
                show(app, &file.name, line)?;
            }
        }
        is_first = false;
        if is_over {
            return Ok(0);
        }
        std::thread::sleep(LOOK);
    }
}

fn unknown(service: &str) -> Failure {
    Failure::failed("not_found", format!("there is no running service {service:?}")).with_field("SERVICE")
}

fn show(app: &App, sandbox: &str, line: &str) -> Result<(), Failure> {
    match app.format.is_json() {
        true => output::json_line(&json!({ "sandbox": sandbox, "line": line })),
        false => output::data(&format!("{sandbox} | {line}\n")),
    }
}

/// The logs of a stack whose process is gone. False when it cannot be found again.
fn kept(app: &App, running: &Running, args: &LogsArgs) -> Result<bool, Failure> {
    let shown = found::with_stack(app, running, async |stack| {
        let failed = |error: sandbox_core::SandboxError| Failure::of_command(&error);
        let status = stack.status().map_err(failed)?;
        if let Some(name) = args.services.iter().find(|name| !status.iter().any(|one| one.service == **name)) {
            return Err(unknown(name));
        }
        let mut following = tokio::task::JoinSet::new();
        let (sender, mut lines) = tokio::sync::mpsc::channel(64);
        for one in status {
            if !args.services.is_empty() && !args.services.contains(&one.service) {
                continue;
            }
            let logs = stack.logs(&one.service, one.replica).map_err(failed)?;
            let name = format!("{}-{}", one.service, one.replica);
            let there: Vec<u8> = logs.snapshot().iter().flat_map(|chunk| chunk.bytes.to_vec()).collect();
            let there = String::from_utf8_lossy(&there).into_owned();
            if !args.follow {
                let all: Vec<&str> = there.lines().collect();
                for line in &all[all.len().saturating_sub(args.tail.unwrap_or(usize::MAX))..] {
                    show(app, &name, line)?;
                }
                continue;
            }
            let (sender, skipped) =
                (sender.clone(), there.lines().count().saturating_sub(args.tail.unwrap_or(usize::MAX)));
            following.spawn(async move {
                let (mut follower, mut rest, mut number) = (logs.follow(), Vec::new(), 0);
                loop {
                    let chunk = follower.next().await;
                    let is_last = chunk.is_none();
                    rest.extend_from_slice(&chunk.map(|chunk| chunk.bytes).unwrap_or_default());
                    let end = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
                    let whole: Vec<u8> = if is_last { std::mem::take(&mut rest) } else { rest.drain(..end).collect() };
                    for line in String::from_utf8_lossy(&whole).lines() {
                        number += 1;
                        if number > skipped && sender.send((name.clone(), line.to_owned())).await.is_err() {
                            return;
                        }
                    }
                    if is_last {
                        return;
                    }
                }
            });
        }
        drop(sender);
        while let Some((name, line)) = lines.recv().await {
            show(app, &name, &line)?;
        }
        Ok(())
    })?;
    Ok(shown.is_some())
}

pub(super) fn events(app: &App, document: &DocumentArgs, args: &EventsArgs) -> Result<u8, Failure> {
    let project = document.name(app)?;
    let folder = Folder::of(&project)?;
    folder.expect_running(&project)?;
    let mut file = Growing { path: folder.path("events.jsonl"), name: String::new(), read: 0, rest: Vec::new() };
    loop {
        let is_over = !args.follow || folder.running().is_none_or(|running| !running.is_owned());
        for line in file.lines(is_over) {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            let text = |key: &str| event[key].as_str().unwrap_or("-").to_owned();
            match app.format.is_json() {
                true => output::data(&format!("{line}\n"))?,
                false => output::data(&format!(
                    "{} {} {} {}\n",
                    event["at_ms"],
                    text("service"),
                    event["replica"],
                    text("what")
                ))?,
            }
        }
        if is_over {
            return Ok(0);
        }
        std::thread::sleep(LOOK);
    }
}
