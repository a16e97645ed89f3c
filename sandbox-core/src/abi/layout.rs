//! The types that cross. FROZEN once the docker provider is in: by-value types never change, function tables only grow
//! at their end, with a default body or an optional field.

use abi_stable::{StableAbi, library::RootModule, sabi_trait, sabi_types::VersionStrings, std_types::*};
use async_ffi::FfiFuture;

/// An error. `kind` is an open number; everything else that may ever be said is in the JSON of `detail`.
#[repr(C)]
#[derive(StableAbi, Debug, Clone)]
pub struct FfiError {
    pub kind: u32,
    pub message: RString,
    pub detail: RVec<u8>,
}

pub type FfiResult<T> = RResult<T, FfiError>;
pub type Fut<T> = FfiFuture<FfiResult<T>>;

/// What a call gives back: JSON, and bytes that are not put into JSON.
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct FfiReply {
    pub json: RVec<u8>,
    pub body: RVec<u8>,
}

/// One event of a stream.
#[repr(C)]
#[derive(StableAbi, Debug)]
pub struct FfiFrame {
    pub channel: u32,
    pub data: RVec<u8>,
}

/// One log event. Level 1 is error, 5 is trace.
#[repr(C)]
#[derive(StableAbi)]
pub struct LogRecord<'a> {
    pub level: u8,
    pub target: RStr<'a>,
    pub message: RStr<'a>,
    pub fields_json: RSlice<'a, u8>,
}

/// What the host gives to a plugin.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = HostApiRef, prefix_fields = HostApiPrefix)))]
#[sabi(missing_field(option))]
pub struct HostApi {
    /// Tells two copies of this crate in one process apart: the address of a static of the host's copy.
    #[sabi(last_prefix_field)]
    pub image: usize,
    pub log_enabled: extern "C" fn(u8) -> bool,
    pub log: extern "C" fn(&LogRecord<'_>),
}

/// A stream. All methods may be called at the same time.
#[sabi_trait]
pub trait FfiStream: Send + Sync {
    /// The next events, at least one; none at the end.
    fn next(&self) -> Fut<RVec<FfiFrame>>;
    fn write(&self, data: RVec<u8>) -> Fut<()>;
    /// JSON both ways.
    fn control(&self, request: RVec<u8>) -> Fut<RVec<u8>>;
    /// Cancels what runs. Does not block.
    #[sabi(last_prefix_field)]
    fn cancel(&self);
}
pub type StreamObject = FfiStream_TO<'static, RBox<()>>;

/// A provider. All methods may be called at the same time.
#[sabi_trait]
pub trait FfiProvider: Send + Sync {
    /// JSON of `ProviderInfo`. Does not block.
    fn info(&self) -> FfiResult<RVec<u8>>;
    fn call(&self, method: RStr<'_>, request: RVec<u8>, body: RVec<u8>) -> Fut<FfiReply>;
    #[sabi(last_prefix_field)]
    fn open(&self, method: RStr<'_>, request: RVec<u8>, body: RVec<u8>) -> Fut<StreamObject>;
}
pub type ProviderObject = FfiProvider_TO<'static, RBox<()>>;

/// The root of a plugin.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginRootRef, prefix_fields = PluginRootPrefix)))]
#[sabi(missing_field(option))]
pub struct PluginRoot {
    /// The bytes of the manifest section.
    pub describe: extern "C" fn() -> RVec<u8>,
    /// JSON about the host. Idempotent.
    pub init: extern "C" fn(HostApiRef, RVec<u8>) -> FfiResult<()>,
    /// JSON of the settings.
    #[sabi(last_prefix_field)]
    pub new_provider: extern "C" fn(RVec<u8>) -> FfiResult<ProviderObject>,
}

impl RootModule for PluginRootRef {
    abi_stable::declare_root_module_statics! {PluginRootRef}
    const BASE_NAME: &'static str = "sandbox_provider";
    const NAME: &'static str = "sandbox_provider";
    const VERSION_STRINGS: VersionStrings = abi_stable::package_version_strings!();
}
