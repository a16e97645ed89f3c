//! One terminal session: a process, what it showed, and the one client that is attached.

use std::sync::{Arc, Mutex};

use sandbox_process::{Command, Controller, Ending, Event, Limits, Process, Stdin, TerminalSize};
use tokio::sync::{Notify, watch};

use super::{Execd, lock};

/// How much of the output is kept for clients that come back.
pub(super) const RING_BYTES: usize = 1024 * 1024;

/// A session; nothing runs before the first client comes.
pub(crate) struct PtySession {
    pub(super) cwd: String,
    pub(super) command: Option<String>,
    pub(super) state: Mutex<PtyState>,
    /// Told when there is output, or an end.
    pub(super) changed: Notify,
    /// The number of the client that may be attached: a new one makes the old one leave.
    pub(super) turn: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct PtyState {
    pub(super) controller: Option<Controller>,
    /// Channel and bytes of each piece, and the offset of the first.
    pub(super) ring: std::collections::VecDeque<(u8, Vec<u8>)>,
    pub(super) first_offset: u64,
    pub(super) offset: u64,
    pub(super) exit_code: Option<i32>,
    pub(super) is_attached: bool,
}

impl PtyState {
    fn push(&mut self, channel: u8, data: &[u8]) {
        self.offset += data.len() as u64;
        self.ring.push_back((channel, data.to_vec()));
        while self.offset - self.first_offset > RING_BYTES as u64 {
            let Some((_, gone)) = self.ring.pop_front() else { break };
            self.first_offset += gone.len() as u64;
        }
    }

    /// Pieces from an offset on: channel, bytes. The offset is within what is kept.
    pub(super) fn since(&self, offset: u64) -> Vec<(u8, Vec<u8>)> {
        let (mut at, mut found) = (self.first_offset, Vec::new());
        for (channel, data) in &self.ring {
            let end = at + data.len() as u64;
            if end > offset {
                let skip = usize::try_from(offset.saturating_sub(at)).unwrap_or_default();
                found.push((*channel, data[skip..].to_vec()));
            }
            at = end;
        }
        found
    }
}

impl PtySession {
    pub(super) fn new(cwd: String, command: Option<String>) -> Self {
        let (turn, _) = watch::channel(0);
        Self { cwd, command, state: Mutex::default(), changed: Notify::new(), turn }
    }

    /// Starts its process, if none runs.
    pub(super) async fn start(self: &Arc<Self>, execd: &Execd, is_terminal: bool) -> Result<(), String> {
        if lock(&self.state).controller.is_some() {
            return Ok(());
        }
        // The real one needs bash; a small image here has only sh.
        let shell = if std::path::Path::new("/bin/bash").exists() { "bash" } else { "sh" };
        let mut argv = vec![shell.to_owned()];
        if shell == "bash" {
            argv.extend(["--norc".to_owned(), "--noprofile".to_owned()]);
        }
        if let Some(command) = &self.command {
            argv.extend(["-c".to_owned(), command.clone()]);
        }
        let mut command = Command::new(argv).cwd(self.cwd.as_bytes()).env("TERM", "xterm-256color");
        for (name, value) in execd.own_environment() {
            command = command.env(name, value);
        }
        command = match is_terminal {
            true => command.terminal(TerminalSize { rows: 24, cols: 80 }),
            false => command.stdin(Stdin::Stream),
        };
        let process = execd.set.spawn(command, Limits::new()).await.map_err(|error| error.to_string())?;
        {
            let mut state = lock(&self.state);
            state.controller = Some(process.controller());
            state.exit_code = None;
        }
        tokio::spawn(self.clone().pump(process));
        Ok(())
    }

    async fn pump(self: Arc<Self>, mut process: Process) {
        while let Some(event) = process.next_event().await {
            let mut state = lock(&self.state);
            match event {
                Event::Stdout(data) => state.push(1, &data),
                Event::Stderr(data) => state.push(2, &data),
                Event::Exit(exit) => {
                    state.exit_code = Some(if let Ending::Exited(code) = exit.ending { code } else { -1 });
                    state.controller = None;
                }
                _ => {}
            }
            drop(state);
            self.changed.notify_waiters();
        }
    }
}
