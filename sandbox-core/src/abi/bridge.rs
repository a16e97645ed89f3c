//! The capability traits, both halves of each.
//!
//! A method of a capability is called by the capability's versioned name and its own: `sandbox.renew/1.renew`. Its
//! arguments are a JSON object by their names. What carries bytes or paths beside JSON stands at the end, by hand.

use std::{collections::BTreeMap, path::Path};

use abi_stable::std_types::RVec;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    codec::{decode, reply, to_bytes, to_rvec},
    layout::{FfiReply, StreamObject},
    provider::{Imported, attach_stdin, body, detach_stdin, unknown_method},
    stream,
};
use crate::{
    AttachOptions, BackgroundServices, BuildEvent, BuildImage, BuildRequest, ByteString, Capability, Connect, DirEntry,
    Endpoint, ExecEvent, ExecExit, ExecRequest, ExecStream, FileStat, Files, ImageConfig, ImageConfigs, JobInfo,
    JobOffsets, Jobs, ListFilter, ListSweep, Metrics, NamedNetwork, NamedVolume, Network, NetworkPolicies,
    NetworkPolicy, NetworkRequest, Networks, PauseResume, PortEvent, PortForwarding, Pty, PtyAttach, PtyEvent,
    ReadRange, Renew, Result, RuntimeRequirements, RuntimeRequirementsSpec, SandboxEndpoint, SandboxError,
    SandboxHandle, SandboxMetrics, SandboxProvider, SandboxPtySpec, SandboxRecord, Session, SharedStorage, Sidecars,
    Snapshot, Snapshots, SweepReport, VolumeRequest, Volumes, WriteOptions, async_trait,
};

/// A call by name, its arguments still in JSON.
pub(super) struct Method<'a> {
    pub(super) name: &'a str,
    pub(super) request: &'a [u8],
}

/// The interface of a capability, or the refusal.
fn interface<I>(provider: &dyn SandboxProvider, found: Option<I>, capability: Capability) -> Result<I> {
    found.ok_or_else(|| SandboxError::unsupported(provider.name(), capability))
}

/// Adds one argument to the JSON object of a request.
fn put(request: &mut Map<String, Value>, name: &str, value: &impl Serialize) -> Result<()> {
    let value = serde_json::to_value(value)
        .map_err(|error| SandboxError::internal(format!("a message could not be written: {error}")))?;
    request.insert(name.to_owned(), value);
    Ok(())
}

/// One argument out of the JSON object of a request; one that is absent reads as null, so that optional arguments can
/// be added later.
fn take<T: serde::de::DeserializeOwned>(request: &mut Map<String, Value>, name: &str) -> Result<T> {
    serde_json::from_value(request.remove(name).unwrap_or_default())
        .map_err(|error| SandboxError::plugin(format!("argument {name} of the other side could not be read: {error}")))
}

macro_rules! bridge {
    ($(
        $interface:ident, $accessor:ident, $capability:ident, $wire:literal {
            $(call $call:ident($($call_handle:ident)?; $($call_arg:ident: $call_type:ty),*) -> $reply:ty;)*
            $(open $open:ident($($open_handle:ident)?; $($open_arg:ident: $open_type:ty),*) -> $event:ty;)*
        }
    )*) => {
        /// The plugin's half of every call.
        async fn plain_call(provider: &dyn SandboxProvider, method: &Method<'_>) -> Result<Option<FfiReply>> {
            $($(
                if method.name == concat!($wire, ".", stringify!($call)) {
                    #[allow(unused_mut, unused_variables)]
                    let mut request: Map<String, Value> = decode(method.request)?;
                    let interface = interface(provider, provider.$accessor(), Capability::$capability)?;
                    $(let $call_handle: SandboxHandle = take(&mut request, "handle")?;)?
                    $(let $call_arg: $call_type = take(&mut request, stringify!($call_arg))?;)*
                    return reply(&interface.$call($(&$call_handle,)? $($call_arg),*).await?).map(Some);
                }
            )*)*
            Ok(None)
        }

        /// The plugin's half of every stream.
        async fn plain_open(provider: &dyn SandboxProvider, method: &Method<'_>) -> Result<Option<StreamObject>> {
            $($(
                if method.name == concat!($wire, ".", stringify!($open)) {
                    let mut request: Map<String, Value> = decode(method.request)?;
                    let interface = interface(provider, provider.$accessor(), Capability::$capability)?;
                    $(let $open_handle: SandboxHandle = take(&mut request, "handle")?;)?
                    $(let $open_arg: $open_type = take(&mut request, stringify!($open_arg))?;)*
                    return Ok(Some(stream::export(interface.$open($(&$open_handle,)? $($open_arg),*).await?)));
                }
            )*)*
            Ok(None)
        }

        /// The host's half.
        $(
            #[async_trait]
            impl $interface for Imported {
                $(
                    async fn $call(&self, $($call_handle: &SandboxHandle,)? $($call_arg: $call_type),*) -> Result<$reply> {
                        #[allow(unused_mut)]
                        let mut request = Map::new();
                        $(put(&mut request, "handle", $call_handle)?;)?
                        $(put(&mut request, stringify!($call_arg), &$call_arg)?;)*
                        self.call_json(concat!($wire, ".", stringify!($call)), &request).await
                    }
                )*
                $(
                    async fn $open(
                        &self,
                        $($open_handle: &SandboxHandle,)?
                        $($open_arg: $open_type),*
                    ) -> Result<Session<$event>> {
                        let mut request = Map::new();
                        $(put(&mut request, "handle", $open_handle)?;)?
                        $(put(&mut request, stringify!($open_arg), &$open_arg)?;)*
                        self.open_session(concat!($wire, ".", stringify!($open)), &request, RVec::new()).await
                    }
                )*
            }
        )*

        #[cfg(test)]
        const WIRE_NAMES: &[(Capability, &str)] = &[$((Capability::$capability, $wire)),*];
    };
}

bridge! {
    Endpoint, as_endpoint, Endpoint, "sandbox.endpoint/1" {
        call endpoint(handle; port: u16) -> SandboxEndpoint;
    }
    PauseResume, as_pause_resume, PauseResume, "sandbox.pause_resume/1" {
        call pause(handle;) -> ();
        call resume(handle;) -> SandboxHandle;
    }
    Pty, as_pty, Pty, "sandbox.pty/1" {
        open create_pty(handle; spec: SandboxPtySpec) -> PtyEvent;
    }
    PtyAttach, as_pty_attach, PtyAttach, "sandbox.pty_attach/1" {
        open attach_pty(handle; session_id: String, options: AttachOptions) -> PtyEvent;
    }
    Connect, as_connect, Connect, "sandbox.connect/1" {
        call serialize_handle(handle; scope: Option<String>) -> Value;
        call connect(; descriptor: Value) -> SandboxHandle;
    }
    Network, as_network, Network, "sandbox.network/1" {
        call validate_networking(;) -> ();
        call network_address(handle;) -> String;
        call set_hosts(handle; hosts: BTreeMap<String, String>) -> ();
    }
    PortForwarding, as_port_forwarding, PortForwarding, "sandbox.port_forwarding/1" {
        call validate_port_forwarding(;) -> ();
        open open_port(handle; port: u16) -> PortEvent;
        open forward_ports(handle; target: String, ports: Vec<u16>) -> PortEvent;
    }
    SharedStorage, as_shared_storage, SharedStorage, "sandbox.shared_storage/1" {
        call shared_volume_options(; source: Option<String>, target: String, read_only: bool) -> Value;
        call shared_volume_metadata(;) -> BTreeMap<String, String>;
    }
    RuntimeRequirements, as_runtime_requirements, RuntimeRequirements, "sandbox.runtime_requirements/1" {
        call validate_runtime_requirements(; requirements: RuntimeRequirementsSpec) -> Option<Value>;
        call configure_runtime(handle; requirements: RuntimeRequirementsSpec) -> ();
    }
    Jobs, as_jobs, Jobs, "sandbox.jobs/1" {
        call start_job(handle; request: ExecRequest) -> JobInfo;
        call list_jobs(handle;) -> Vec<JobInfo>;
        call wait_job(handle; job_id: String, timeout_s: Option<f64>) -> Option<ExecExit>;
        call signal_job(handle; job_id: String, signal: i32, tree: bool) -> ();
        open attach_job(handle; job_id: String, since: JobOffsets) -> ExecEvent;
    }
    ListSweep, as_list_sweep, ListSweep, "sandbox.list_sweep/1" {
        call list(; filter: ListFilter) -> Vec<SandboxRecord>;
        call sweep(; filter: ListFilter, dry_run: bool) -> SweepReport;
    }
    Renew, as_renew, Renew, "sandbox.renew/1" {
        call renew(handle; ttl_s: f64) -> u64;
    }
    Snapshots, as_snapshots, Snapshots, "sandbox.snapshots/1" {
        call create_snapshot(handle; name: String) -> Snapshot;
        call list_snapshots(;) -> Vec<Snapshot>;
        call remove_snapshot(; id: String) -> ();
    }
    ImageConfigs, as_image_config, ImageConfig, "sandbox.image_config/1" {
        call image_config(; image: String) -> ImageConfig;
    }
    BuildImage, as_build_image, BuildImage, "sandbox.build_image/1" {
        open build_image(; request: BuildRequest) -> BuildEvent;
    }
    Networks, as_networks, Networks, "sandbox.networks/1" {
        call create_network(; request: NetworkRequest) -> NamedNetwork;
        call list_networks(;) -> Vec<NamedNetwork>;
        call remove_network(; name: String) -> ();
        call attach_network(handle; name: String, aliases: Vec<String>) -> ();
        call detach_network(handle; name: String) -> ();
    }
    Volumes, as_volumes, Volumes, "sandbox.volumes/1" {
        call create_volume(; request: VolumeRequest) -> NamedVolume;
        call list_volumes(;) -> Vec<NamedVolume>;
        call remove_volume(; name: String) -> ();
    }
    Metrics, as_metrics, Metrics, "sandbox.metrics/1" {
        call metrics(handle;) -> SandboxMetrics;
    }
    NetworkPolicies, as_network_policy, NetworkPolicy, "sandbox.network_policy/1" {
        call set_network_policy(handle; policy: NetworkPolicy) -> ();
        call network_policy(handle;) -> NetworkPolicy;
    }
}

// ---- those that carry bytes or paths ----

/// The arguments of every such method; each uses some of them.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Arguments {
    #[serde(skip_serializing_if = "Option::is_none")]
    handle: Option<SandboxHandle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request: Option<ExecRequest>,
    sidecar: String,
    path: ByteString,
    local: ByteString,
    range: ReadRange,
    options: WriteOptions,
    recursive: bool,
}

impl Arguments {
    fn of(handle: &SandboxHandle) -> Self {
        Self { handle: Some(handle.clone()), ..Self::default() }
    }

    fn path(handle: &SandboxHandle, path: ByteString) -> Self {
        Self { path, ..Self::of(handle) }
    }

    fn transfer(handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Self {
        Self { path: remote.clone(), local: local.into(), ..Self::of(handle) }
    }

    fn handle(&self) -> Result<&SandboxHandle> {
        self.handle.as_ref().ok_or_else(|| SandboxError::plugin("a message of the other side names no sandbox"))
    }

    fn request(&mut self, body: RVec<u8>) -> Result<ExecRequest> {
        let mut request =
            self.request.take().ok_or_else(|| SandboxError::plugin("a message of the other side names no command"))?;
        attach_stdin(&mut request, body);
        Ok(request)
    }
}

pub(super) async fn call(provider: &dyn SandboxProvider, method: Method<'_>, body: RVec<u8>) -> Result<FfiReply> {
    if let Some(reply) = plain_call(provider, &method).await? {
        return Ok(reply);
    }
    let files = || interface(provider, provider.as_files(), Capability::Files);
    let arguments = || decode::<Arguments>(method.request);
    match method.name {
        "sandbox.files/1.read_file" => {
            let arguments = arguments()?;
            let bytes = files()?.read_file(arguments.handle()?, arguments.path.clone(), arguments.range).await?;
            Ok(FfiReply { json: RVec::new(), body: to_rvec(bytes) })
        }
        "sandbox.files/1.write_file" => {
            let arguments = arguments()?;
            let (handle, data) = (arguments.handle()?, to_bytes(body));
            reply(&files()?.write_file(handle, arguments.path.clone(), data, arguments.options.clone()).await?)
        }
        "sandbox.files/1.list_dir" => {
            let arguments = arguments()?;
            reply(&files()?.list_dir(arguments.handle()?, arguments.path.clone()).await?)
        }
        "sandbox.files/1.stat" => {
            let arguments = arguments()?;
            reply(&files()?.stat(arguments.handle()?, arguments.path.clone()).await?)
        }
        "sandbox.files/1.remove" => {
            let arguments = arguments()?;
            reply(&files()?.remove(arguments.handle()?, arguments.path.clone(), arguments.recursive).await?)
        }
        "sandbox.files/1.make_dir" => {
            let arguments = arguments()?;
            reply(&files()?.make_dir(arguments.handle()?, arguments.path.clone()).await?)
        }
        "sandbox.files/1.upload_dir" => {
            let arguments = arguments()?;
            reply(&files()?.upload_dir(arguments.handle()?, arguments.local.as_path(), &arguments.path).await?)
        }
        "sandbox.files/1.download_dir" => {
            let arguments = arguments()?;
            reply(&files()?.download_dir(arguments.handle()?, &arguments.path, arguments.local.as_path()).await?)
        }
        "sandbox.sidecars/1.download_sidecar_file" => {
            let arguments = arguments()?;
            let sidecars = interface(provider, provider.as_sidecars(), Capability::Sidecars)?;
            let (handle, local) = (arguments.handle()?, arguments.local.as_path());
            reply(&sidecars.download_sidecar_file(handle, &arguments.sidecar, &arguments.path, local).await?)
        }
        unknown => Err(unknown_method(provider.name(), unknown)),
    }
}

pub(super) async fn open(provider: &dyn SandboxProvider, method: Method<'_>, body: RVec<u8>) -> Result<StreamObject> {
    if let Some(stream) = plain_open(provider, &method).await? {
        return Ok(stream);
    }
    let mut arguments: Arguments = match method.name {
        "sandbox.background_services/1.exec" | "sandbox.sidecars/1.exec" => decode(method.request)?,
        unknown => return Err(unknown_method(provider.name(), unknown)),
    };
    let request = arguments.request(body)?;
    let handle = arguments.handle()?;
    let stream = if method.name == "sandbox.sidecars/1.exec" {
        let sidecars = interface(provider, provider.as_sidecars(), Capability::Sidecars)?;
        sidecars.sidecar_exec(handle, arguments.sidecar.clone(), request).await?
    } else {
        let services = interface(provider, provider.as_background_services(), Capability::BackgroundServices)?;
        services.exec_with_background_services(handle, request).await?
    };
    Ok(stream::export(stream))
}

impl Imported {
    async fn files<T: serde::de::DeserializeOwned>(&self, method: &str, arguments: Arguments) -> Result<T> {
        self.call_json(&format!("sandbox.files/1.{method}"), &arguments).await
    }
}

#[async_trait]
impl Files for Imported {
    async fn read_file(&self, handle: &SandboxHandle, path: ByteString, range: ReadRange) -> Result<Bytes> {
        let arguments = Arguments { range, ..Arguments::path(handle, path) };
        self.call("sandbox.files/1.read_file", &arguments, RVec::new()).await.map(body)
    }

    async fn write_file(
        &self,
        handle: &SandboxHandle,
        path: ByteString,
        data: Bytes,
        options: WriteOptions,
    ) -> Result<()> {
        let arguments = Arguments { options, ..Arguments::path(handle, path) };
        self.call("sandbox.files/1.write_file", &arguments, to_rvec(data)).await.map(drop)
    }

    async fn list_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<Vec<DirEntry>> {
        self.files("list_dir", Arguments::path(handle, path)).await
    }

    async fn stat(&self, handle: &SandboxHandle, path: ByteString) -> Result<FileStat> {
        self.files("stat", Arguments::path(handle, path)).await
    }

    async fn remove(&self, handle: &SandboxHandle, path: ByteString, recursive: bool) -> Result<()> {
        self.files("remove", Arguments { recursive, ..Arguments::path(handle, path) }).await
    }

    async fn make_dir(&self, handle: &SandboxHandle, path: ByteString) -> Result<()> {
        self.files("make_dir", Arguments::path(handle, path)).await
    }

    async fn upload_dir(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
        self.files("upload_dir", Arguments::transfer(handle, local, remote)).await
    }

    async fn download_dir(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
        self.files("download_dir", Arguments::transfer(handle, local, remote)).await
    }
}

#[async_trait]
impl BackgroundServices for Imported {
    async fn exec_with_background_services(
        &self,
        handle: &SandboxHandle,
        mut request: ExecRequest,
    ) -> Result<ExecStream> {
        let body = detach_stdin(&mut request);
        let arguments = Arguments { request: Some(request), ..Arguments::of(handle) };
        self.open_session("sandbox.background_services/1.exec", &arguments, body).await
    }
}

#[async_trait]
impl Sidecars for Imported {
    async fn sidecar_exec(
        &self,
        handle: &SandboxHandle,
        sidecar: String,
        mut request: ExecRequest,
    ) -> Result<ExecStream> {
        let body = detach_stdin(&mut request);
        let arguments = Arguments { request: Some(request), sidecar, ..Arguments::of(handle) };
        self.open_session("sandbox.sidecars/1.exec", &arguments, body).await
    }

    async fn download_sidecar_file(
        &self,
        handle: &SandboxHandle,
        sidecar: &str,
        remote: &ByteString,
        local: &Path,
    ) -> Result<()> {
        let arguments = Arguments { sidecar: sidecar.to_owned(), ..Arguments::transfer(handle, local, remote) };
        self.call_json("sandbox.sidecars/1.download_sidecar_file", &arguments).await
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn methods_are_called_by_the_name_of_their_capability() {
        for (capability, wire) in super::WIRE_NAMES {
            assert_eq!(capability.wire_name(), *wire);
        }
    }
}
