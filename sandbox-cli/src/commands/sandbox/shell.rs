//! `sandboxctl shell`: a terminal in a sandbox.

use std::{
    ffi::OsString,
    io::{IsTerminal, stdin, stdout},
    sync::Arc,
};

use clap::Args;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use sandbox_api::AsyncSandbox;
use sandbox_core::{
    AttachOptions, ByteString, Capability, ExecExit, ExecOutcome, PtyEvent, PtyStream, SandboxError, SandboxPtySpec,
    SessionControl, bytes::Bytes,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{Finder, SandboxArg};
use crate::{app::App, exit, failure::Failure, output, runtime, spec_args::EnvArgs};

const CTRL_P: u8 = 0x10;
const CTRL_Q: u8 = 0x11;
const CHUNK_BYTES: usize = 4096;
/// Chunks of typed input that wait for a slow sandbox.
const TYPED_AHEAD: usize = 16;

/// Exits with the code of the shell. Ctrl-P Ctrl-Q leaves it running and prints how to come back.
#[derive(Args)]
pub(crate) struct ShellArgs {
    #[command(flatten)]
    sandbox: SandboxArg,
    #[command(flatten)]
    env: EnvArgs,
    /// Working directory of the shell
    #[arg(short = 'w', long, value_name = "DIR")]
    workdir: Option<OsString>,
    /// User of the shell: NAME, UID, UID:GID or NAME:GROUP
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Go back to a session that was left
    #[arg(long, value_name = "SESSION", conflicts_with_all = ["env", "env_file", "workdir", "user"])]
    attach: Option<String>,
    /// Show what it wrote from this byte on; 0: all that is kept
    #[arg(long, value_name = "OFFSET", requires = "attach")]
    since: Option<u64>,
}

/// Puts the terminal back as it was.
struct Raw(Termios);

impl Raw {
    fn enter() -> Result<Self, Failure> {
        let before = tcgetattr(stdin()).map_err(|error| terminal(&error))?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Now, &raw).map_err(|error| terminal(&error))?;
        Ok(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // There is nobody to tell.
        let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
    }
}

fn terminal(error: &rustix::io::Errno) -> Failure {
    Failure::infrastructure("cannot set the terminal up").because(error)
}

/// How it ended.
enum End {
    Over(ExecExit),
    Left,
}

pub(crate) fn run(app: &App, args: &ShellArgs) -> Result<u8, Failure> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Failure::usage("a shell needs a terminal for its input and its output")
            .with_help(format!("run a command with: sandboxctl exec {} -- CMD", args.sandbox.sandbox)));
    }
    let finder = Finder::new(app)?;
    runtime::block_on(async {
        let (saved, sandbox) = finder.find(&args.sandbox.sandbox).await?;
        let mut stream = open(&sandbox, args).await.map_err(|error| Failure::of_command(&error))?;
        let mut session = args.attach.clone().unwrap_or_default();
        let end = {
            let _raw = Raw::enter()?;
            converse(&mut stream, &mut session).await
        };
        match end? {
            End::Over(exit) => Ok(match exit.outcome {
                ExecOutcome::TimedOut { .. } => exit::TIMED_OUT,
                outcome => exit::low_bits(outcome.return_code()),
            }),
            End::Left => {
                stream.detach().await.map_err(|error| Failure::of_command(&error))?;
                output::note(&format!("\nleft; back with: sandboxctl shell {} --attach {session}", saved.name));
                Ok(0)
            }
        }
    })
}

async fn open(sandbox: &AsyncSandbox, args: &ShellArgs) -> sandbox_core::Result<PtyStream> {
    let (provider, handle) = (sandbox.provider(), sandbox.handle()?);
    let size = tcgetwinsize(stdout()).map(|size| (size.ws_row.max(1), size.ws_col.max(1)));
    let (rows, cols) = size.unwrap_or((24, 80));
    if let Some(session) = &args.attach {
        let attach = provider.as_pty_attach().ok_or_else(|| unsupported(sandbox, Capability::PtyAttach))?;
        let options = AttachOptions { since: args.since, ..AttachOptions::default() };
        let stream = attach.attach_pty(&handle, session.clone(), options).await?;
        stream.resize(rows, cols).await?;
        return Ok(stream);
    }
    let pty = provider.as_pty().ok_or_else(|| unsupported(sandbox, Capability::Pty))?;
    let mut spec = SandboxPtySpec { rows, cols, user: args.user.clone(), ..SandboxPtySpec::default() };
    spec.cwd = args.workdir.clone().map(ByteString::from);
    if let Some(term) = crate::environment::raw("TERM") {
        spec.env.insert("TERM", ByteString::from(term));
    }
    args.env.fill(&mut spec.env).map_err(|failure| SandboxError::invalid_input("env", failure.message().to_owned()))?;
    pty.create_pty(&handle, spec).await
}

fn unsupported(sandbox: &AsyncSandbox, capability: Capability) -> SandboxError {
    SandboxError::unsupported(sandbox.provider().name(), capability)
}

/// Carries bytes both ways until the session ends or is left.
async fn converse(stream: &mut PtyStream, session: &mut String) -> Result<End, Failure> {
    let control = stream.control();
    let (typed, chunks) = mpsc::channel(TYPED_AHEAD);
    let mut chunks = Some(chunks);
    // Its last read may never end: the runtime does not wait for it.
    let reader = tokio::spawn(read_keys(typed));
    let mut resized =
        signal(SignalKind::window_change()).map_err(|error| Failure::infrastructure(error.to_string()))?;
    let mut out = tokio::io::stdout();
    let end = loop {
        tokio::select! {
            event = stream.next() => match event.map_err(|error| Failure::of_broken_run(&error))? {
                Some(PtyEvent::Opened { session_id }) => *session = session_id,
                Some(PtyEvent::Output(bytes) | PtyEvent::Stderr(bytes)) => {
                    let written = async { out.write_all(&bytes).await?; out.flush().await };
                    written.await.map_err(|error| output::write_failure(&error))?;
                }
                Some(PtyEvent::Gap(bytes)) => output::note(&format!("\r\n[{bytes} bytes are no longer kept]\r")),
                Some(PtyEvent::Exit(exit)) => break End::Over(exit),
                Some(_) => {}
                None => break End::Left,
            },
            chunk = next(&mut chunks) => match chunk {
                Some(Typed::Bytes(bytes)) => send(&control, bytes).await,
                Some(Typed::Leave) => break End::Left,
                // Our input has ended; the session goes on.
                None => chunks = None,
            },
            _ = resized.recv() => if let Ok(size) = tcgetwinsize(stdout()) {
                // A size that the session does not take is no reason to end it.
                let _ = stream.resize(size.ws_row.max(1), size.ws_col.max(1)).await;
            },
        }
    };
    reader.abort();
    Ok(end)
}

async fn next(chunks: &mut Option<mpsc::Receiver<Typed>>) -> Option<Typed> {
    match chunks {
        Some(chunks) => chunks.recv().await,
        None => std::future::pending().await,
    }
}

enum Typed {
    Bytes(Bytes),
    Leave,
}

/// Reads what is typed, and finds the keys that leave.
async fn read_keys(typed: mpsc::Sender<Typed>) {
    let mut stdin = tokio::io::stdin();
    let mut chunk = [0; CHUNK_BYTES];
    let mut was_ctrl_p = false;
    loop {
        let count = match stdin.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(count) => count,
        };
        let mut bytes = Vec::with_capacity(count + 1);
        for byte in &chunk[..count] {
            if was_ctrl_p && *byte == CTRL_Q {
                let _ = typed.send(Typed::Leave).await;
                return;
            }
            if was_ctrl_p {
                bytes.push(CTRL_P);
            }
            was_ctrl_p = *byte == CTRL_P;
            if !was_ctrl_p {
                bytes.push(*byte);
            }
        }
        if !bytes.is_empty() && typed.send(Typed::Bytes(bytes.into())).await.is_err() {
            return;
        }
    }
}

async fn send(control: &Arc<dyn SessionControl>, bytes: Bytes) {
    // A session that takes no input any more tells its end itself.
    let _ = control.write(bytes).await;
}
