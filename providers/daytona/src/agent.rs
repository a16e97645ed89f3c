//! Our agent in a sandbox, for what the service cannot do: bytes to and from a port.
//!
//! The toolbox has one connection that carries bytes both ways: a terminal. So the agent is put into the sandbox as a file,
//! once, and serves this client on a terminal whose line discipline is turned off. It ends with that connection.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hasher},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use sandbox_agent_client::{ForwardTarget, find_agent, forward_ports, open_port};
use sandbox_core::{
    ByteString, ErrorKind, PortForwarding, PortStream, Pty, PtyEvent, PtyStream, Result, SandboxError, SandboxHandle,
    SandboxPtySpec, async_trait,
};
use sandbox_protocol::{Client, ClientOptions};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    sync::Mutex as AsyncMutex,
    time::timeout,
};

use crate::{
    error::NAME,
    provider::DaytonaProvider,
    random::random_hex,
    toolbox::{check, not_running},
    transfer,
};

/// How long the agent may take until it answers, its way into the sandbox included.
const REACH_WITHIN: Duration = Duration::from_secs(120);

/// What is being done when a script fails.
const PLACING: &str = "placing the agent";

/// Bytes on their way to and from the terminal.
const ON_THE_WAY: usize = 256 << 10;

/// Bytes of one message of input.
const INPUT_BYTES: usize = 32 << 10;

/// What the agent is told: it ends with its client.
const CONFIG: &str = r#"{"die_on_disconnect":true,"disconnect_grace_s":0}"#;

type Slot = Arc<AsyncMutex<Option<Client>>>;

/// The agents that are reached from here, by their sandboxes.
#[derive(Default)]
pub(crate) struct Agents(Mutex<HashMap<String, Slot>>);

impl Agents {
    fn slot(&self, sandbox: &str) -> Slot {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.entry(sandbox.to_owned()).or_default().clone()
    }

    /// Lets go of the agent of a sandbox, which ends it.
    pub(crate) fn forget(&self, sandbox: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(sandbox);
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

fn failed(what: &str) -> SandboxError {
    SandboxError::new(ErrorKind::Unsupported, format!("the agent could not be reached: {what}"))
        .with_provider(NAME)
        .with_help("the image needs stty, and a folder from which programs may be run: see operations.job_folder")
}

impl DaytonaProvider {
    /// The connection to the agent of a sandbox that runs, made if there is none, once for all who wait.
    async fn agent(&self, handle: &SandboxHandle) -> Result<Client> {
        let dto = self.shared.known(handle).await?;
        if let Some(error) = not_running(&handle.sandbox_id, &dto) {
            return Err(error);
        }
        let slot = self.shared.agents.slot(&handle.sandbox_id);
        let mut client = slot.lock().await;
        if let Some(client) = client.as_ref().filter(|client| client.close_reason().is_none()) {
            return Ok(client.clone());
        }
        let made = timeout(REACH_WITHIN, self.reach_agent(handle)).await;
        let made = made.unwrap_or_else(|_| {
            Err(SandboxError::unavailable("the agent does not answer in time").with_provider(NAME))
        })?;
        *client = Some(made.clone());
        Ok(made)
    }

    /// Puts the agent's file into the sandbox, unless it is there; gives its path.
    async fn place_agent(&self, handle: &SandboxHandle) -> Result<String> {
        let folder = &self.shared.config.operations.job_folder;
        let look = format!("uname -m; ls '{folder}' 2>/dev/null");
        let said = self.shared.short_script(handle, PLACING, &look).await?.output;
        let arch = said.lines().next().unwrap_or_default().trim().to_owned();
        let named = self.shared.config.operations.agent_path.as_deref();
        let local = find_agent(named, &arch).map_err(|error| error.with_provider(NAME))?;
        let about = |error| SandboxError::io(local.display(), error).with_provider(NAME);
        let mut hasher = DefaultHasher::new();
        hasher.write(&tokio::fs::read(&local).await.map_err(about)?);
        // Its name says what it is: an agent of another release has another one.
        let name = format!("agent-{:016x}", hasher.finish());
        let path = format!("{folder}/{name}");
        if said.lines().any(|line| line == name) {
            return Ok(path);
        }
        let part = format!("{path}.{}", random_hex(6)?);
        transfer::upload(&self.shared, handle, &local, &ByteString::from(part.as_str())).await?;
        let text = format!("chmod 711 '{folder}'; chmod 755 '{part}' && mv '{part}' '{path}'");
        match self.shared.short_script(handle, PLACING, &text).await?.code {
            0 => Ok(path),
            code => Err(failed(&format!("its file could not be placed: exit {code}"))),
        }
    }

    async fn reach_agent(&self, handle: &SandboxHandle) -> Result<Client> {
        let path = self.place_agent(handle).await?;
        let nonce = random_hex(12)?;
        // What the agent is told must find the terminal as it will be. The agent takes pipes and no terminal; when it ends,
        // so does all of this.
        let command = format!(
            "stty raw -echo && printf '%s%s' agent-on- {nonce} && \
             cat | {{ '{path}' serve --stdio --config '{CONFIG}' 2>/dev/null; kill -9 $$; }} | cat"
        );
        let spec = SandboxPtySpec { command: Some(command.into()), ..SandboxPtySpec::default() };
        let mut terminal = self.create_pty(handle, spec).await?;
        let first = until(&mut terminal, format!("agent-on-{nonce}").as_bytes()).await?;
        let (ours, theirs) = tokio::io::duplex(ON_THE_WAY);
        tokio::spawn(carry(terminal, first, theirs));
        let (read, write) = tokio::io::split(ours);
        let client = Client::connect_halves(read, write, ClientOptions::default()).await;
        client.map_err(|error| failed(error.message()).with_source(error))
    }
}

/// Reads until a mark, and gives what came after it.
async fn until(terminal: &mut PtyStream, mark: &[u8]) -> Result<Bytes> {
    let mut seen = Vec::new();
    while let Some(event) = terminal.next().await? {
        match event {
            PtyEvent::Output(bytes) => seen.extend_from_slice(&bytes),
            PtyEvent::Exit(_) => break,
            _ => {}
        }
        if let Some(at) = seen.windows(mark.len()).position(|part| part == mark) {
            return Ok(Bytes::from(seen.split_off(at + mark.len())));
        }
    }
    Err(failed("it did not start"))
}

/// Carries bytes between a terminal and a client until one of them ends. The terminal, and what runs in it, ends with this.
async fn carry(mut terminal: PtyStream, first: Bytes, client: DuplexStream) {
    let control = terminal.control();
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let there = async {
        let mut bytes = vec![0; INPUT_BYTES];
        while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
            if control.write(Bytes::copy_from_slice(&bytes[..count])).await.is_err() {
                break;
            }
        }
    };
    let back = async {
        let mut next = Some(first);
        while let Some(bytes) = next {
            if to_client.write_all(&bytes).await.is_err() {
                break;
            }
            next = match terminal.next().await {
                Ok(Some(PtyEvent::Output(bytes))) => Some(bytes),
                Ok(Some(PtyEvent::Exit(_)) | None) | Err(_) => None,
                Ok(Some(_)) => Some(Bytes::new()),
            };
        }
    };
    tokio::select! {
        () = there => {}
        () = back => {}
    }
}

#[async_trait]
impl PortForwarding for DaytonaProvider {
    async fn validate_port_forwarding(&self) -> Result<()> {
        // The service's machines are mostly like this one; another kind is looked for when it is known.
        let named = self.shared.config.operations.agent_path.as_deref();
        find_agent(named, std::env::consts::ARCH).map(drop).map_err(|error| error.with_provider(NAME))
    }

    async fn open_port(&self, handle: &SandboxHandle, port: u16) -> Result<PortStream> {
        open_port(&self.agent(handle).await?, port).await.map_err(|error| error.with_provider(NAME))
    }

    async fn forward_ports(&self, handle: &SandboxHandle, target: String, ports: Vec<u16>) -> Result<PortStream> {
        let client = self.agent(handle).await?;
        let target = match target.parse() {
            Ok(address) => ForwardTarget::Address(address),
            Err(_) => {
                let other = SandboxHandle::new(&target, NAME);
                check(&other).map_err(|_| {
                    let text = "must be an address, or the id of a sandbox of this service";
                    SandboxError::invalid_input("target", text).with_provider(NAME)
                })?;
                ForwardTarget::Sandbox(self.agent(&other).await?)
            }
        };
        forward_ports(&client, target, &ports).await.map_err(|error| error.with_provider(NAME))
    }
}
