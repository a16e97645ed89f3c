//! Ports of another place on a sandbox's loopback: another sandbox's, an address that the task reaches, or whatever this
//! machine reaches. When the connection breaks, the ports are taken again on the next one.

use std::{sync::Arc, time::Duration};

use sandbox_agent_client::{ForwardTarget, forward_ports, is_broken};
use sandbox_core::{
    ControlReply, ControlRequest, ErrorKind, PortStream, Result, SandboxError, Session, SessionControl, async_trait,
    bytes::Bytes, tracing,
};
use sandbox_protocol::Client;
use tokio::time::Instant;

use crate::{error::NAME, provider::Shared, sandbox::Sandbox};

/// How long ports that were lost with their connection are tried again.
const AGAIN_LIMIT: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(200);

/// What a target's name begins with, if it is one of this machine.
const HOST: &str = "host";

/// Where ports lead.
#[derive(Clone)]
pub(crate) enum Target {
    Address(std::net::IpAddr),
    Sandbox(Arc<Sandbox>),
    Here(String),
}

impl Target {
    /// `host` is this machine's loopback, `host:NAME` what it reaches by that name, and an address what the task reaches.
    /// None: a sandbox's id.
    ///
    /// # Errors
    /// `InvalidInput` for a name that is none.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>> {
        if let Ok(address) = text.parse() {
            return Ok(Some(Self::Address(address)));
        }
        let name = match text.strip_prefix(HOST) {
            Some("") => "127.0.0.1",
            Some(rest) if rest.starts_with(':') => &rest[1..],
            _ => return Ok(None),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || ".-:_".contains(c);
        if name.is_empty() || name.len() > 253 || !name.chars().all(is_name) {
            let why = "must be host:NAME with the name or address of a host";
            return Err(SandboxError::invalid_input("target", why).with_provider(NAME));
        }
        Ok(Some(Self::Here(name.to_owned())))
    }
}

/// Forwards ports until the stream is dropped, or the sandbox has ended.
///
/// # Errors
/// As [`forward_ports`].
pub(crate) async fn forward(
    shared: Arc<Shared>,
    sandbox: Arc<Sandbox>,
    target: Target,
    ports: Vec<u16>,
) -> Result<PortStream> {
    let forwarding = Forwarding { shared, sandbox, target, ports };
    let (client, stream) = match forwarding.begin().await {
        Ok(begun) => begun,
        Err(error) => return Err(forwarding.sandbox.explain(&forwarding.shared, error).await),
    };
    Ok(Session::spawn(NoControl, move |sink| async move {
        tokio::select! {
            () = sink.closed() => Ok(()),
            ended = forwarding.go_on(client, stream) => Err(ended),
        }
    }))
}

struct Forwarding {
    shared: Arc<Shared>,
    sandbox: Arc<Sandbox>,
    target: Target,
    ports: Vec<u16>,
}

impl Forwarding {
    async fn begin(&self) -> Result<(Client, PortStream)> {
        let client = self.sandbox.client(&self.shared).await?;
        let target = match &self.target {
            Target::Address(address) => ForwardTarget::Address(*address),
            Target::Sandbox(other) => ForwardTarget::Sandbox(other.client(&self.shared).await?),
            Target::Here(host) => ForwardTarget::Here(host.clone()),
        };
        let stream = forward_ports(&client, target, &self.ports).await?;
        Ok((client, stream))
    }

    /// Returns why it does not go on.
    async fn go_on(&self, mut client: Client, mut stream: PortStream) -> SandboxError {
        loop {
            let error = match stream.next().await {
                Ok(_) => SandboxError::internal("a forwarding ended by itself"),
                Err(error) => error,
            };
            drop(stream);
            if !is_broken(&client, &error) {
                return self.sandbox.explain(&self.shared, error).await;
            }
            (client, stream) = match self.again().await {
                Ok(begun) => begun,
                Err(error) => return self.sandbox.explain(&self.shared, error).await,
            };
            tracing::debug!(sandbox_id = %self.sandbox.id, "ports are forwarded again");
        }
    }

    async fn again(&self) -> Result<(Client, PortStream)> {
        let end = Instant::now() + AGAIN_LIMIT;
        loop {
            match self.begin().await {
                // The agent may not know yet that the connection before is gone.
                Err(error) if may_pass(error.kind()) && Instant::now() < end => tokio::time::sleep(PAUSE).await,
                done => return done,
            }
        }
    }
}

fn may_pass(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::AlreadyExists | ErrorKind::Lost | ErrorKind::Unavailable)
}

/// There is nothing to say to a forwarding.
struct NoControl;

#[async_trait]
impl SessionControl for NoControl {
    async fn write(&self, _: Bytes) -> Result<()> {
        Err(SandboxError::invalid_state("a forwarding takes no input").with_provider(NAME))
    }

    async fn control(&self, _: ControlRequest) -> Result<ControlReply> {
        Err(SandboxError::unsupported_control(NAME, None))
    }
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn a_target_is_this_machine_what_it_reaches_an_address_or_a_sandbox() {
        for (text, host) in [("host", "127.0.0.1"), ("host:model.example", "model.example"), ("host:::1", "::1")] {
            assert!(matches!(Target::parse(text).unwrap(), Some(Target::Here(name)) if name == host), "{text}");
        }
        assert!(matches!(Target::parse("10.0.0.7").unwrap(), Some(Target::Address(_))));
        for id in ["0123456789abcdef", "hostile", ""] {
            assert!(Target::parse(id).unwrap().is_none(), "{id}");
        }
        for bad in ["host:", "host:a b", "host:a/b"] {
            assert_eq!(Target::parse(bad).err().unwrap().field(), Some("target"), "{bad}");
        }
    }
}
