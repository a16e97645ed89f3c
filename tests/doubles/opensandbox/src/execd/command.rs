//! Commands, in the foreground and in the background.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use sandbox_process::{
    Command, Controller, Ending, Event, Exit, Limits, Process, StartError, StartErrorKind, Stdin, User,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Execd, env_file, lock, new_id, now_ms,
    output::{Events, Stream},
};
use crate::http::{self, Answer, Request, Response, empty, failure, query, streamed, value_of};

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How long SIGTERM has before SIGKILL when a command is interrupted.
const INTERRUPT_GRACE: Duration = Duration::from_secs(3);

#[derive(Deserialize)]
struct Order {
    #[serde(default)]
    command: String,
    #[serde(default)]
    argv: Vec<String>,
    #[serde(default)]
    cwd: String,
    #[serde(default)]
    background: bool,
    #[serde(default)]
    timeout: u64,
    uid: Option<u32>,
    gid: Option<u32>,
    #[serde(default)]
    envs: BTreeMap<String, String>,
    /// Ours: exact bytes in events.
    #[serde(default)]
    bytes: bool,
    /// Ours: a file as standard input.
    #[serde(default)]
    stdin_path: String,
}

/// One command, running or over.
pub(crate) struct Running {
    content: String,
    is_background: bool,
    controller: Option<Controller>,
    state: Mutex<State>,
    log: Mutex<Vec<u8>>,
    started_ms: u64,
}

#[derive(Default)]
struct State {
    is_over: bool,
    exit_code: Option<i32>,
    error: Option<String>,
    finished_ms: u64,
    /// Ours: how it ended, exactly.
    exit: Option<Value>,
}

/// How a command that was started ended, in the words of the protocol.
struct Told {
    code: i32,
    trace: String,
    outcome: Value,
}

pub(crate) fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        6 => "aborted",
        8 => "floating point exception",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal: signal {other}"),
    };
    format!("signal: {name}")
}

fn told(exit: &Exit) -> Told {
    match exit.ending {
        Ending::Exited(code) => Told { code, trace: format!("exit status {code}"), outcome: json!({ "exited": code }) },
        Ending::Signalled(signal) => {
            Told { code: -1, trace: signal_name(signal), outcome: json!({ "signalled": signal }) }
        }
        Ending::TimedOut | Ending::IdleTimedOut => Told {
            code: -1,
            trace: signal_name(9),
            outcome: json!({ "timed_out": { "idle": exit.ending == Ending::IdleTimedOut } }),
        },
        Ending::Killed => Told { code: -1, trace: signal_name(9), outcome: json!({ "signalled": 9 }) },
        _ => Told { code: -1, trace: "lost".to_owned(), outcome: json!({ "signalled": 9 }) },
    }
}

/// The words of the Go runtime for a program that cannot be started, and ours.
fn start_failure(error: &StartError, program: &str) -> (String, Value) {
    let (words, reason) = match error.kind() {
        StartErrorKind::NotFound if !program.contains('/') => {
            (format!("exec: {program:?}: executable file not found in $PATH"), "not_found")
        }
        StartErrorKind::NotFound => (format!("fork/exec {program}: no such file or directory"), "not_found"),
        StartErrorKind::NotExecutable => (format!("fork/exec {program}: permission denied"), "not_executable"),
        StartErrorKind::CwdNotAccessible => ("chdir: permission denied".to_owned(), "cwd_not_accessible"),
        StartErrorKind::UserRefused => ("fork/exec: operation not permitted".to_owned(), "user_refused"),
        StartErrorKind::Resource => ("fork/exec: resource temporarily unavailable".to_owned(), "resources"),
        _ => (format!("fork/exec {program}: {error}"), "other"),
    };
    let outcome = json!({ "start_failed": { "reason": reason, "message": words } });
    (words, outcome)
}

/// The variable that names the file of variables for later commands.
const ENV_FILE: &str = "EXECD_ENVS";

impl Execd {
    /// What the daemon itself has.
    pub(super) fn own_environment(&self) -> BTreeMap<String, String> {
        let mut own = self.options.env.clone();
        own.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
        own.entry("HOME".to_owned()).or_insert_with(|| "/root".to_owned());
        own
    }

    /// The same with what clients have added, and with what a command has of its own.
    pub(super) fn environment(&self, envs: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut merged = self.own_environment();
        if let Some(file) = merged.get(ENV_FILE) {
            // Nobody has to make it.
            let text = std::fs::read(file).unwrap_or_default();
            merged.extend(env_file::read(&String::from_utf8_lossy(&text)));
        }
        merged.extend(envs.iter().map(|(name, value)| (name.clone(), value.clone())));
        merged
    }

    fn build(&self, order: &Order) -> Result<(Command, String), Box<Response>> {
        let bad = |message: &str| Box::new(failure(400, "INVALID_REQUEST_BODY", message));
        let (mut command, program) = if !order.argv.is_empty() && self.options.argv {
            (Command::new(order.argv.iter().map(String::as_bytes)), order.argv[0].clone())
        } else if order.command.is_empty() {
            return Err(bad("Key: 'RunCommandRequest.Command' Error:Field validation for 'Command' failed"));
        } else {
            // By its path: the environment of the command may name other folders.
            let shell = if std::path::Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
            let command = Command::shell(shell, order.command.as_bytes());
            (command.map_err(|_| bad("the command holds a NUL"))?, shell.to_owned())
        };
        for (name, value) in self.environment(&order.envs) {
            command = command.env(name, value);
        }
        if !order.cwd.is_empty() {
            if !std::path::Path::new(&order.cwd).is_dir() {
                return Err(bad("the working directory does not exist or is no directory"));
            }
            command = command.cwd(order.cwd.as_bytes());
        }
        match (order.uid, order.gid) {
            (None, Some(_)) => return Err(bad("gid without uid")),
            (None, None) => {}
            (Some(uid), gid) => {
                let spec = gid.map_or_else(|| uid.to_string(), |gid| format!("{uid}:{gid}"));
                let (passwd, group) =
                    (std::fs::read("/etc/passwd").unwrap_or_default(), std::fs::read("/etc/group").unwrap_or_default());
                let user = User::resolve(spec.as_bytes(), &passwd, &group);
                command = command.user(user.map_err(|_| bad("no such user"))?);
            }
        }
        if !order.stdin_path.is_empty() {
            let input = std::fs::read(&order.stdin_path).map_err(|_| bad("the input cannot be read"))?;
            command = command.stdin(Stdin::Bytes(input.into()));
        }
        Ok((command, program))
    }

    pub(super) async fn run_command(self: &Arc<Self>, request: Request) -> Answer {
        let Some(body) = http::read_all(request.into_body()).await else { return Err(http::Dropped) };
        let bad = |message: &str| Ok(failure(400, "INVALID_REQUEST_BODY", message));
        let Ok(value) = serde_json::from_slice::<Value>(&body) else { return bad("the body is no JSON") };
        let Ok(order) = serde_json::from_value::<Order>(value.clone()) else { return bad("the body is no order") };
        let (command, program) = match self.build(&order) {
            Ok(built) => built,
            Err(response) => return Ok(*response),
        };
        self.note_start(&value);
        let mut limits = Limits::new().kill_grace(INTERRUPT_GRACE);
        if order.timeout > 0 {
            // A grace would give SIGTERM at the time limit, too.
            limits = limits.kill_grace(Duration::ZERO).timeout(Duration::from_millis(order.timeout));
        }
        let (sender, response) = streamed("text/event-stream");
        let events = Events::new(sender, &self.options, order.bytes);
        let id = new_id();
        let (execd, is_background) = (self.clone(), order.background);
        match self.set.spawn(command, limits).await {
            Ok(process) => {
                let running = Arc::new(Running {
                    content: order.command,
                    is_background,
                    controller: Some(process.controller()),
                    state: Mutex::default(),
                    log: Mutex::default(),
                    started_ms: now_ms(),
                });
                lock(&self.commands).insert(id.clone(), running.clone());
                tokio::spawn(async move {
                    if is_background {
                        tokio::spawn(collect(process, running));
                        submitted(&events, &id).await;
                    } else {
                        stream(process, running, events, &id, execd.options.extensions).await;
                    }
                });
            }
            Err(error) => {
                let (words, outcome) = start_failure(&error, &program);
                let state = State {
                    is_over: true,
                    exit_code: Some(-1),
                    error: Some(words.clone()),
                    finished_ms: now_ms(),
                    exit: None,
                };
                let running = Running {
                    content: order.command,
                    is_background,
                    controller: None,
                    state: Mutex::new(state),
                    log: Mutex::default(),
                    started_ms: now_ms(),
                };
                lock(&self.commands).insert(id.clone(), Arc::new(running));
                tokio::spawn(async move {
                    first(&events, &id).await;
                    let mut event = json!({ "type": "error", "error":
                        { "ename": "CommandExecError", "evalue": words, "traceback": [] } });
                    if execd.options.extensions {
                        event["exit"] = json!({ "outcome": outcome });
                    }
                    events.event(event).await;
                });
            }
        }
        Ok(response)
    }

    pub(super) async fn interrupt(&self, request: &Request) -> Response {
        let query = query(request);
        let Some(id) = value_of(&query, "id") else { return failure(400, "MISSING_QUERY", "id") };
        let running = lock(&self.commands).get(id).cloned();
        let Some(running) = running.filter(|running| !lock(&running.state).is_over) else {
            return failure(500, "RUNTIME_ERROR", "no such running command");
        };
        if let Some(controller) = &running.controller {
            if value_of(&query, "now").is_some() && self.options.extensions {
                controller.kill_tree_now();
            } else {
                controller.kill_tree();
            }
        }
        empty(200)
    }

    pub(super) fn command_status(&self, id: &str) -> Response {
        let Some(running) = lock(&self.commands).get(id).cloned() else {
            return failure(404, "INVALID_REQUEST_BODY", "command not found");
        };
        let state = lock(&running.state);
        let mut status = json!({ "id": id, "content": running.content, "running": !state.is_over,
                                 "started_at": rfc3339(running.started_ms) });
        if state.is_over {
            status["finished_at"] = json!(rfc3339(state.finished_ms));
            status["exit_code"] = json!(state.exit_code);
            if let Some(error) = &state.error {
                status["error"] = json!(error);
            }
            if let Some(exit) = state.exit.as_ref().filter(|_| self.options.extensions) {
                status["exit"] = exit.clone();
            }
        }
        http::json(200, &status)
    }

    pub(super) fn command_logs(&self, id: &str, request: &Request) -> Response {
        let running = lock(&self.commands).get(id).cloned();
        let Some(running) = running.filter(|running| running.is_background) else {
            return failure(400, "INVALID_REQUEST_BODY", "no such command in the background");
        };
        let query = query(request);
        let cursor = value_of(&query, "cursor").and_then(|text| text.parse().ok()).unwrap_or(0usize);
        let log = lock(&running.log);
        let rest = log.get(cursor..).unwrap_or_default().to_vec();
        let mut response = http::full(200, Some("text/plain"), rest);
        response.headers_mut().insert("EXECD-COMMANDS-TAIL-CURSOR", log.len().into());
        response
    }
}

async fn first(events: &Events, id: &str) {
    events.event(json!({ "type": "init", "text": id })).await;
    events.event(json!({ "type": "ping", "text": "pong" })).await;
}

async fn submitted(events: &Events, id: &str) {
    first(events, id).await;
    events.event(json!({ "type": "execution_complete", "execution_time": 0 })).await;
}

fn finish(running: &Running, exit: &Exit) -> Told {
    let told = told(exit);
    let mut state = lock(&running.state);
    state.is_over = true;
    state.exit_code = Some(told.code);
    state.error = (told.code != 0).then(|| told.trace.clone());
    state.finished_ms = now_ms();
    state.exit = Some(exact(exit, &told));
    drop(state);
    told
}

/// How a command ended, in the words of the contract.
fn exact(exit: &Exit, told: &Told) -> Value {
    json!({ "outcome": told.outcome, "output_open": exit.output_open, "usage": {
        "cpu_time_s": exit.cpu_time.as_secs_f64(), "peak_memory_bytes": exit.peak_memory_bytes,
        "wall_time_s": exit.wall_time.as_secs_f64() } })
}

/// Keeps the output of a command in the background.
async fn collect(mut process: Process, running: Arc<Running>) {
    while let Some(event) = process.next_event().await {
        match event {
            Event::Stdout(data) | Event::Stderr(data) => lock(&running.log).extend_from_slice(&data),
            Event::Exit(exit) => drop(finish(&running, &exit)),
            _ => {}
        }
    }
}

/// Sends the output of a command, and how it ended.
async fn stream(mut process: Process, running: Arc<Running>, mut events: Events, id: &str, extensions: bool) {
    first(&events, id).await;
    let mut ping = tokio::time::interval(Duration::from_secs(3));
    ping.reset();
    loop {
        let event = tokio::select! {
            event = process.next_event() => event,
            _ = ping.tick() => {
                events.event(json!({ "type": "ping", "text": "pong" })).await;
                continue;
            }
        };
        match event {
            Some(Event::Stdout(data)) => events.output(Stream::Stdout, &data).await,
            Some(Event::Stderr(data)) => events.output(Stream::Stderr, &data).await,
            Some(Event::Exit(exit)) => {
                events.flush().await;
                let told = finish(&running, &exit);
                let time = exit.wall_time.as_millis() as u64;
                let mut event = match told.code {
                    0 => json!({ "type": "execution_complete", "execution_time": time }),
                    code => json!({ "type": "error", "error": { "ename": "CommandExecError",
                        "evalue": code.to_string(), "traceback": [told.trace] } }),
                };
                if extensions {
                    event["exit"] = exact(&exit, &told);
                }
                events.event(event).await;
            }
            Some(_) => {}
            None => return,
        }
    }
}

/// A time in the form of the protocol.
pub(crate) fn rfc3339(ms: u64) -> String {
    let (days, rest) = ((ms / 86_400_000) as i64, ms % 86_400_000);
    // Days since 0000-03-01, by the proleptic Gregorian calendar.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_of_year = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_of_year + 2) / 5 + 1;
    let month = if month_of_year < 10 { month_of_year + 3 } else { month_of_year - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600_000, rest / 60_000 % 60, rest / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", rest % 1000)
}

/// The other way round, in UTC.
pub(crate) fn parse_rfc3339(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T')?;
    let time = time.trim_end_matches('Z').trim_end_matches("+00:00");
    let numbers = |text: &str, by: char| -> Option<Vec<u64>> { text.split(by).map(|part| part.parse().ok()).collect() };
    let (clock, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let (date, clock) = (numbers(date, '-')?, numbers(clock, ':')?);
    let ([year, month, day], [hour, minute, second]) = (date.as_slice(), clock.as_slice()) else { return None };
    let (year, shifted) = if *month <= 2 { (year - 1, month + 9) } else { (*year, month - 3) };
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * shifted + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    let ms: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    Some(((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + ms)
}
