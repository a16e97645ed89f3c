//! What every provider does.

use std::path::Path;

use crate::{
    BackgroundServices, BuildImage, ByteString, Capability, CapabilitySet, Connect, Endpoint, ExecRequest, ExecStream,
    Files, ImageConfigs, Jobs, ListSweep, Metrics, Network, NetworkPolicies, Networks, PauseResume, PortForwarding,
    ProviderInfo, Pty, PtyAttach, Renew, Result, RuntimeRequirements, SandboxHandle, SandboxSpec, SandboxStatus,
    SharedStorage, Sidecars, Snapshots, Volumes,
};

/// Calls a macro with every capability: the accessor, its trait, and the capability itself.
macro_rules! capability_accessors {
    ($macro:ident) => {
        $macro! {
            /// URLs for declared ports.
            as_endpoint: Endpoint => Endpoint;
            /// Pause and resume.
            as_pause_resume: PauseResume => PauseResume;
            /// Interactive sessions.
            as_pty: Pty => Pty;
            /// Sessions that outlive their client.
            as_pty_attach: PtyAttach => PtyAttach;
            /// Reattach from another process.
            as_connect: Connect => Connect;
            /// Commands that leave services running.
            as_background_services: BackgroundServices => BackgroundServices;
            /// Direct traffic between sandboxes.
            as_network: Network => Network;
            /// Port forwarding.
            as_port_forwarding: PortForwarding => PortForwarding;
            /// Storage that several sandboxes share.
            as_shared_storage: SharedStorage => SharedStorage;
            /// Kernel capabilities and shared memory asked for at run time.
            as_runtime_requirements: RuntimeRequirements => RuntimeRequirements;
            /// Containers beside the main one.
            as_sidecars: Sidecars => Sidecars;
            /// File operations by bytes and directory transfer.
            as_files: Files => Files;
            /// Commands that run on without a client.
            as_jobs: Jobs => Jobs;
            /// Finding and removing what was left behind.
            as_list_sweep: ListSweep => ListSweep;
            /// Moving the expiry.
            as_renew: Renew => Renew;
            /// Snapshots.
            as_snapshots: Snapshots => Snapshots;
            /// What an image says of itself.
            as_image_config: ImageConfigs => ImageConfig;
            /// Building images.
            as_build_image: BuildImage => BuildImage;
            /// Named networks.
            as_networks: Networks => Networks;
            /// Named volumes.
            as_volumes: Volumes => Volumes;
            /// What a sandbox uses.
            as_metrics: Metrics => Metrics;
            /// Egress rules.
            as_network_policy: NetworkPolicies => NetworkPolicy;
        }
    };
}
#[cfg(feature = "abi")]
pub(crate) use capability_accessors;

macro_rules! accessors {
    ($($(#[$doc:meta])* $method:ident: $interface:ident => $capability:ident;)*) => {
        /// A backend that makes sandboxes.
        ///
        /// An author implements this trait, returns `Some(self)` from the accessor of each optional capability that
        /// works, and exports the type with [`export_provider!`](crate::export_provider). Everything is safe Rust; any
        /// async runtime may be used inside, and a tokio runtime is there in a plugin.
        ///
        /// The methods may be called at the same time, from any thread. Dropping the future of any method but `create`
        /// cancels it.
        #[crate::async_trait]
        pub trait SandboxProvider: Send + Sync + 'static {
            /// The provider's name, the same as in its manifest. Does not block.
            fn name(&self) -> &str;

            /// What this provider honours with its configuration. Does not block. `capabilities` is filled in by
            /// [`SandboxProvider::full_info`].
            fn info(&self) -> ProviderInfo;

            /// Makes a sandbox.
            ///
            /// * Returns when commands run and files move, or fails with everything that it made removed.
            /// * Runs to its end even when its caller has gone away; the host then closes what it made.
            /// * Values are checked already ([`SandboxSpec::validate`]), and no field is set that `info` refuses.
            /// * Start-up files are not its business: the host uploads them.
            ///
            /// # Errors
            /// `Create`, `CreateVerification`, or what the backend said: `NotFound` (image), `Unauthorized`,
            /// `Exhausted`, `Unavailable`, `InvalidInput` (provider options).
            async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle>;

            /// Starts a command.
            ///
            /// * A command that cannot be started is an outcome ([`ExecOutcome::StartFailed`](crate::ExecOutcome)), not
            ///   an error.
            /// * The stream's last event is its exit; a stream that breaks off reads as `Lost`.
            /// * At the deadline and when the stream is dropped, the whole process tree is killed.
            ///
            /// # Errors
            /// `NotFound` or `InvalidState` when the sandbox is gone or paused; `Unavailable` when nothing was started.
            async fn exec(&self, handle: &SandboxHandle, request: ExecRequest) -> Result<ExecStream>;

            /// Copies a file of this host into the sandbox, streaming.
            ///
            /// * `remote` is absolute, or relative to the sandbox's workdir; parent folders are made.
            /// * The file's permission bits are kept; the owner is the sandbox's default user.
            /// * Returns when the file is complete; a target that is a folder is refused.
            ///
            /// # Errors
            /// `NotFound`, `PermissionDenied`, `InvalidInput` or `Exhausted` (no space), naming the path.
            async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()>;

            /// Copies a regular file out of the sandbox, streaming.
            ///
            /// * Parent folders of `local` are made; a failed download leaves an old file as it was.
            /// * What comes out is hostile: no link of the sandbox is made or followed on this host, no special file made.
            ///
            /// # Errors
            /// `NotFound`, `PermissionDenied` or `InvalidInput` (not a regular file), naming the path.
            async fn download_file(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()>;

            /// The state of the sandbox: `Stopped` when it is gone, `Unknown` when the backend cannot be reached.
            ///
            /// # Errors
            /// Only for a handle that is not this provider's.
            async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus>;

            /// Removes the sandbox and everything that belongs to it, and confirms that it is gone.
            ///
            /// * Idempotent: closing a sandbox that is gone succeeds.
            /// * Safe at any time: commands under way end as `Lost` or killed.
            ///
            /// # Errors
            /// Whatever kept it from being removed; calling again is safe.
            async fn close(&self, handle: &SandboxHandle) -> Result<()>;

            /// Ends the provider itself: connections, background tasks. Sandboxes stay. Idempotent.
            ///
            /// # Errors
            /// Whatever kept it from ending.
            async fn aclose(&self) -> Result<()> {
                Ok(())
            }

            $(
                $(#[$doc])*
                fn $method(&self) -> Option<&dyn $interface> {
                    None
                }
            )*

            /// The capabilities whose accessor returns something.
            fn capabilities(&self) -> CapabilitySet {
                let mut set = CapabilitySet::default();
                $(
                    if self.$method().is_some() {
                        set.insert(Capability::$capability);
                    }
                )*
                set
            }

            /// `info` with the capabilities filled in.
            fn full_info(&self) -> ProviderInfo {
                let mut info = self.info();
                info.capabilities = self.capabilities();
                info
            }
        }
    };
}

capability_accessors!(accessors);
