//! Terminals, ports, metrics and the expiry: contract calls as the agent takes them.

use sandbox_core::{
    AttachOptions, PortStream, PtyEvent, PtyStream, Result, SandboxError, SandboxMetrics, SandboxPtySpec,
};
use sandbox_protocol::{
    Client,
    methods::{self, Nothing, PortOpen, PtyAttachRequest, PtyCreate, TtlRenew, TtlRenewed},
};

/// The longest time to live: ten years, in seconds.
pub const TTL_MAX_S: f64 = 315_360_000.0;

/// Opens a terminal.
///
/// # Errors
/// Those of the contract.
pub async fn create_pty(client: &Client, spec: SandboxPtySpec) -> Result<PtyStream> {
    spec.validate()?;
    client.open::<PtyEvent>(methods::PTY_CREATE, &PtyCreate { session_id: String::new(), spec }).await
}

/// Attaches to a terminal.
///
/// # Errors
/// Those of the contract.
pub async fn attach_pty(client: &Client, session_id: String, options: AttachOptions) -> Result<PtyStream> {
    client.open::<PtyEvent>(methods::PTY_ATTACH, &PtyAttachRequest { session_id, options }).await
}

/// Connects to a port inside.
///
/// # Errors
/// Those of the contract.
pub async fn open_port(client: &Client, port: u16) -> Result<PortStream> {
    client.open(methods::PORT_OPEN, &PortOpen { port, host: None }).await
}

/// The use right now.
///
/// # Errors
/// What the connection failed with.
pub async fn metrics(client: &Client) -> Result<SandboxMetrics> {
    client.call(methods::METRICS, &Nothing {}).await
}

/// Moves the expiry to so long from now; in milliseconds since the Unix epoch.
///
/// # Errors
/// `InvalidInput` outside of 0 to [`TTL_MAX_S`].
pub async fn renew(client: &Client, ttl_s: f64) -> Result<u64> {
    if !(ttl_s > 0.0 && ttl_s <= TTL_MAX_S) {
        let message = format!("must be above 0 and at most {TTL_MAX_S} seconds");
        return Err(SandboxError::invalid_input("ttl_s", message));
    }
    let request = TtlRenew { ttl_s: ttl_s.max(0.001) };
    Ok(client.call::<TtlRenewed>(methods::TTL_RENEW, &request).await?.expires_at_ms)
}
