//! Connections to ports of a sandbox, and ports of others on its own loopback. The daemon passes on HTTP and nothing else,
//! so that a small program inside does the rest; it needs a Python there, which the settings name.

use std::{net::IpAddr, sync::Arc};

use bytes::{BufMut, Bytes, BytesMut};
use sandbox_core::{
    ControlReply, ControlRequest, ErrorKind, ExecEvent, ExecExit, ExecOutcome, ExecRequest, ExecStream, Network,
    PortEvent, PortForwarding, PortStream, Pty, PtyEvent, PtyStream, Result, SandboxError, SandboxHandle,
    SandboxPtySpec, SessionControl, SessionSink, async_trait,
};

use crate::{
    error::NAME,
    exec::{exec_as, quote},
    provider::OpenSandboxProvider,
    state::State,
};

/// One connection: what it hears in pieces with their length in front goes out, an empty piece closes that direction.
const CONNECT: &str = include_str!("forward/connect.py");

/// Listens on the loopback, and passes every connection on.
const RELAY: &str = include_str!("forward/relay.py");

/// What the second one ends with when somebody else listens there.
const IS_TAKEN: i32 = 98;

/// What the first one says before anything of the connection.
const CONNECTED: &[u8] = b"connected\n";

/// Who runs them: ports below 1024 are nobody else's.
const ROOT: &str = "0:0";

/// Longest time for the script that gets Python, in seconds.
const SETUP_WITHIN_S: f64 = 180.0;

/// Most ports of one call.
const PORTS_MAX: usize = 64;

/// So much goes in one piece.
const PIECE_BYTES: usize = 32 * 1024;

/// So much of what the programs say is kept, for an error.
const WORDS_BYTES: usize = 4096;

#[async_trait]
impl PortForwarding for OpenSandboxProvider {
    async fn validate_port_forwarding(&self) -> Result<()> {
        // Not declared without its setting.
        Ok(())
    }

    async fn open_port(&self, handle: &SandboxHandle, port: u16) -> Result<PortStream> {
        if port == 0 {
            return Err(SandboxError::invalid_input("port", "must be 1 to 65535, not 0").with_provider(NAME));
        }
        if let Some(agent) = self.shared.native(&handle.sandbox_id).await? {
            self.shared.open(handle)?;
            return agent.open_port(port).await;
        }
        self.set_up(handle).await?;
        let python = &self.shared.config.networking.python_executable;
        let command = format!("exec {} -c {} {port}", quote(python), quote(CONNECT));
        let spec = SandboxPtySpec {
            command: Some(command.as_str().into()),
            cwd: Some("/".into()),
            user: Some(ROOT.to_owned()),
            pty: false,
            ..SandboxPtySpec::default()
        };
        let mut inside = self.create_pty(handle, spec).await?;
        let early = connected(&mut inside, port).await?;
        let (sink, stream) = PortStream::channel(Input(inside.control()));
        tokio::spawn(carry(inside, early, sink));
        Ok(stream)
    }

    async fn forward_ports(&self, handle: &SandboxHandle, target: String, ports: Vec<u16>) -> Result<PortStream> {
        check(&ports)?;
        if let Some(agent) = self.shared.native(&handle.sandbox_id).await? {
            self.shared.open(handle)?;
            return agent.forward_ports(&target, &ports).await;
        }
        let target = match target.parse::<IpAddr>() {
            Ok(address) => address.to_string(),
            // The id of a sandbox of this server.
            Err(_) => self.network_address(&SandboxHandle::new(&target, NAME)).await?,
        };
        let state = State { user: None, ..self.shared.open(handle)? };
        self.set_up(handle).await?;
        let python = self.shared.config.networking.python_executable.as_str();
        let mut words = vec![python.to_owned(), "-c".to_owned(), RELAY.to_owned(), target];
        words.extend(ports.iter().map(u16::to_string));
        let request = ExecRequest::argv(words).with_user(ROOT).with_cwd("/");
        let mut relay = exec_as(&self.shared, &handle.sandbox_id, &state, request).await?;
        let mut said = Vec::new();
        loop {
            match relay.next().await? {
                Some(ExecEvent::Stdout(bytes)) if bytes.starts_with(b"ready") => break,
                Some(ExecEvent::Stderr(bytes)) => keep(&mut said, &bytes),
                Some(ExecEvent::Exit(exit)) => return Err(not_forwarded(&exit, &said)),
                Some(_) => {}
                None => return Err(SandboxError::internal("the relay ended without an end").with_provider(NAME)),
            }
        }
        let (sink, stream) = PortStream::channel(NoInput);
        tokio::spawn(hold(relay, sink));
        Ok(stream)
    }
}

impl OpenSandboxProvider {
    /// Runs the script of the settings that gets Python, if there is one.
    async fn set_up(&self, handle: &SandboxHandle) -> Result<()> {
        let Some(script) = &self.shared.config.networking.setup_command else { return Ok(()) };
        let state = State { user: None, ..self.shared.open(handle)? };
        let request = ExecRequest::shell(script.as_str()).with_user(ROOT).with_cwd("/").with_timeout_s(SETUP_WITHIN_S);
        let stream = exec_as(&self.shared, &handle.sandbox_id, &state, request).await?;
        let result = stream.collect(Default::default()).await?;
        if result.outcome().is_success() {
            return Ok(());
        }
        let text = format!("networking.setup_command ended with {}", result.outcome().return_code());
        Err(SandboxError::new(ErrorKind::Unsupported, text).with_provider(NAME))
    }
}

fn check(ports: &[u16]) -> Result<()> {
    let bad = |why: String| Err(SandboxError::invalid_input("ports", why).with_provider(NAME));
    if ports.is_empty() || ports.len() > PORTS_MAX {
        return bad(format!("must be 1 to {PORTS_MAX} ports"));
    }
    match ports.iter().enumerate().find(|(index, port)| **port == 0 || ports[..*index].contains(port)) {
        Some((_, port)) => bad(format!("must be different, and 1 to 65535: {port}")),
        None => Ok(()),
    }
}

fn keep(said: &mut Vec<u8>, bytes: &[u8]) {
    said.extend_from_slice(&bytes[..bytes.len().min(WORDS_BYTES.saturating_sub(said.len()))]);
}

/// The refusal of a program that did not run.
fn without_python(exit: &ExecExit) -> Option<SandboxError> {
    let is_missing = matches!(exit.outcome, ExecOutcome::StartFailed { .. } | ExecOutcome::Exited(126 | 127));
    is_missing.then(|| {
        SandboxError::new(ErrorKind::Unsupported, "the sandbox has no Python that could forward ports")
            .with_help("set networking.python_executable, or networking.setup_command to install it")
            .with_provider(NAME)
    })
}

fn not_forwarded(exit: &ExecExit, said: &[u8]) -> SandboxError {
    if let Some(error) = without_python(exit) {
        return error;
    }
    let said = crate::error::short(&String::from_utf8_lossy(said));
    let error = match exit.outcome {
        ExecOutcome::Exited(IS_TAKEN) => {
            SandboxError::new(ErrorKind::AlreadyExists, format!("a port is taken inside: {said}")).with_field("ports")
        }
        _ => SandboxError::unavailable(format!("the ports cannot be forwarded: {said}")),
    };
    error.with_provider(NAME)
}

/// Waits until the program inside is connected; gives what it has heard by then.
async fn connected(inside: &mut PtyStream, port: u16) -> Result<Bytes> {
    let mut said = BytesMut::new();
    loop {
        match inside.next().await? {
            Some(PtyEvent::Output(bytes)) => {
                said.put_slice(&bytes);
                if said.len() >= CONNECTED.len() && said.starts_with(CONNECTED) {
                    return Ok(said.split_off(CONNECTED.len()).freeze());
                }
            }
            Some(PtyEvent::Exit(exit)) => {
                let refused = SandboxError::unavailable(format!("nothing listens on port {port} of the sandbox"));
                return Err(without_python(&exit).unwrap_or_else(|| refused.with_provider(NAME)));
            }
            Some(_) => {}
            None => return Err(SandboxError::pty("the connection ended without an end").with_provider(NAME)),
        }
    }
}

/// Passes on what comes from inside, until one of the two ends is gone.
async fn carry(mut inside: PtyStream, early: Bytes, sink: SessionSink<PortEvent>) {
    if !early.is_empty() {
        sink.send(PortEvent::Data(early)).await;
    }
    loop {
        let event = tokio::select! {
            event = inside.next() => event,
            // Dropped with it, the session inside ends.
            () = sink.closed() => return,
        };
        match event {
            Ok(Some(PtyEvent::Output(bytes))) => {
                sink.send(PortEvent::Data(bytes)).await;
            }
            Ok(Some(PtyEvent::Gap(bytes))) => {
                sink.fail(SandboxError::lost(format!("{bytes} bytes of it are lost"), sandbox_core::Admitted::Yes))
                    .await;
                return;
            }
            Ok(Some(PtyEvent::Exit(_))) => {
                sink.send(PortEvent::End).await;
                return;
            }
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => {
                sink.fail(error).await;
                return;
            }
        }
    }
}

/// Keeps the relay for as long as somebody wants it.
async fn hold(mut relay: ExecStream, sink: SessionSink<PortEvent>) {
    let mut said = Vec::new();
    loop {
        let event = tokio::select! {
            event = relay.next() => event,
            () = sink.closed() => return,
        };
        match event {
            Ok(Some(ExecEvent::Stderr(bytes))) => keep(&mut said, &bytes),
            Ok(Some(ExecEvent::Exit(exit))) => return sink.fail(not_forwarded(&exit, &said)).await,
            Ok(Some(_)) => {}
            Ok(None) => return,
            Err(error) => return sink.fail(error).await,
        }
    }
}

/// What goes into a connection.
struct Input(Arc<dyn SessionControl>);

impl Input {
    async fn piece(&self, data: &[u8]) -> Result<()> {
        let mut piece = BytesMut::with_capacity(4 + data.len());
        piece.put_u32(u32::try_from(data.len()).unwrap_or(u32::MAX));
        piece.put_slice(data);
        self.0.write(piece.freeze()).await
    }
}

#[async_trait]
impl SessionControl for Input {
    async fn write(&self, data: Bytes) -> Result<()> {
        for piece in data.chunks(PIECE_BYTES) {
            self.piece(piece).await?;
        }
        Ok(())
    }

    async fn control(&self, request: ControlRequest) -> Result<ControlReply> {
        match request {
            ControlRequest::CloseInput => self.piece(&[]).await.map(|()| ControlReply::default()),
            ControlRequest::Kill => self.0.control(ControlRequest::Kill).await,
            _ => Err(SandboxError::unsupported_control(NAME, None)),
        }
    }
}

/// There is nothing to say to a forwarding.
struct NoInput;

#[async_trait]
impl SessionControl for NoInput {
    async fn write(&self, _: Bytes) -> Result<()> {
        Err(SandboxError::invalid_state("a forwarding takes no input").with_provider(NAME))
    }

    async fn control(&self, _: ControlRequest) -> Result<ControlReply> {
        Err(SandboxError::unsupported_control(NAME, None))
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn ports_are_different_numbers_and_not_too_many() {
        check(&[1, 65535]).unwrap();
        for bad in [vec![], vec![0], vec![80, 81, 80], (1..=65).collect()] {
            assert_eq!(check(&bad).unwrap_err().field(), Some("ports"), "{bad:?}");
        }
    }
}
