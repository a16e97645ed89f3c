//! The programs that the fake's sandboxes have.

use std::sync::{Arc, Mutex};

use sandbox_core::{
    ControlReply, ControlRequest, ExecCommand, ExecEvent, ExecExit, ExecOutcome, ExecRequest, ExecStream, Result,
    SandboxError, Session, SessionControl, StartFailure, async_trait, bytes::Bytes,
};
use tokio::sync::mpsc;

use super::{World, service_of};

struct Control(mpsc::UnboundedSender<ControlRequest>);

#[async_trait]
impl SessionControl for Control {
    async fn write(&self, _data: Bytes) -> Result<()> {
        Ok(())
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        self.0.send(request).map_err(|_| SandboxError::invalid_state("it is over"))?;
        Ok(ControlReply::default())
    }
}

/// Runs a program:
///
/// * `serve` until a signal; `stubborn` until it is killed; `exit N`; `print TEXT`;
/// * `crash N` ends N times with 1 and then serves; `missing` cannot be started;
/// * `well` is a health check that fails as often as the world says; `resolve NAME…` asks for names.
pub fn run(world: Arc<Mutex<World>>, id: String, request: ExecRequest) -> Result<ExecStream> {
    let argv: Vec<String> = match &request.command {
        ExecCommand::Argv(argv) => argv.iter().map(ToString::to_string).collect(),
        ExecCommand::Shell { script, .. } => script.to_string().split(' ').map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    let (service, count) = {
        let mut world = world.lock().unwrap();
        let Some(sandbox) = world.sandboxes.get(&id) else { return Err(SandboxError::not_found("gone")) };
        let service = service_of(&sandbox.spec);
        let count = match argv.first().map(String::as_str) {
            Some("well") => 0,
            _ => {
                let runs = world.runs.entry(service.clone()).or_default();
                *runs += 1;
                *runs
            }
        };
        world.calls.push(format!("run {service} {}", argv.join(" ")));
        (service, count)
    };
    let words: Vec<&str> = argv.iter().map(String::as_str).collect();
    let finished = |code: i32| ExecStream::finished("", "", ExecExit::new(ExecOutcome::Exited(code)));
    Ok(match words[..] {
        ["mkdir", ..] => finished(0),
        ["exit", code] => finished(code.parse().unwrap()),
        ["print", ..] => ExecStream::finished(words[1..].join(" "), "", ExecExit::new(ExecOutcome::Exited(0))),
        ["missing", ..] => {
            let exit = ExecExit::start_failed(StartFailure::NotFound, "program \"missing\" was not found");
            ExecStream::finished("", "", exit)
        }
        ["crash", most] if count <= most.parse().unwrap() => finished(1),
        ["well"] => {
            let mut world = world.lock().unwrap();
            let left = world.sick.entry(service).or_default();
            let is_sick = *left > 0;
            *left -= usize::from(is_sick);
            finished(i32::from(is_sick))
        }
        ["resolve", ..] => {
            finished(i32::from(!words[1..].iter().all(|name| resolves(&world.lock().unwrap(), &id, name))))
        }
        _ => until_told(world, service, words.first() == Some(&"stubborn")),
    })
}

/// Whether a name is known in a sandbox: in one of its networks, or in its hosts file.
fn resolves(world: &World, id: &str, name: &str) -> bool {
    let own = &world.sandboxes[id];
    let in_network = world.sandboxes.values().any(|other| {
        own.networks
            .keys()
            .any(|network| other.networks.get(network).is_some_and(|names| names.iter().any(|n| n == name)))
    });
    in_network || own.hosts.contains_key(name)
}

fn until_told(world: Arc<Mutex<World>>, service: String, is_stubborn: bool) -> ExecStream {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    Session::spawn(Control(sender), move |sink| async move {
        sink.send(ExecEvent::Stdout(Bytes::from(format!("{service} serves\n")))).await;
        let outcome = loop {
            match receiver.recv().await {
                Some(ControlRequest::Signal(number)) => {
                    world.lock().unwrap().calls.push(format!("signal {service} {number}"));
                    if !is_stubborn {
                        break ExecOutcome::Exited(0);
                    }
                }
                Some(ControlRequest::Kill) | None => break ExecOutcome::Signalled(9),
                Some(_) => {}
            }
        };
        world.lock().unwrap().calls.push(format!("ended {service}"));
        sink.send(ExecEvent::Exit(ExecExit::new(outcome))).await;
        Ok(())
    })
}
