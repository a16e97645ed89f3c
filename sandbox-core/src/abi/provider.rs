//! Providers, both halves: the required operations, and those that carry paths or bytes beside JSON.

use std::{path::Path, sync::Arc};

use abi_stable::{
    sabi_trait::TD_Opaque,
    std_types::{RStr, RVec},
};
use async_ffi::FutureExt;
use bytes::Bytes;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    bridge::{self, Method},
    codec::{decode, encode, from_ffi, reply, to_bytes, to_ffi, to_rvec},
    layout::{FfiProvider, FfiProvider_TO, FfiReply, FfiResult, Fut, ProviderObject, StreamObject},
    runtime::{Guarded, guarded, spawned, uncancelled},
    stream,
};
use crate::{
    ByteString, Capability, CapabilitySet, ErrorKind, ExecRequest, ExecStream, ProviderInfo, Result, SandboxError,
    SandboxHandle, SandboxProvider, SandboxSpec, SandboxStatus, Session, SessionEvent, StdinSource, async_trait,
    from_json, provider::capability_accessors,
};

/// A handle and two paths, one of them of this host.
#[derive(Serialize, Deserialize)]
struct Transfer {
    handle: SandboxHandle,
    local: ByteString,
    remote: ByteString,
}

impl Transfer {
    fn new(handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Self {
        Self { handle: handle.clone(), local: local.into(), remote: remote.clone() }
    }
}

#[derive(Serialize, Deserialize)]
struct Exec {
    handle: SandboxHandle,
    request: ExecRequest,
}

/// Takes the bytes of stdin out of a request: they travel beside the JSON.
pub(super) fn detach_stdin(request: &mut ExecRequest) -> RVec<u8> {
    match &mut request.stdin {
        StdinSource::Bytes(bytes) => to_rvec(std::mem::take(bytes)),
        _ => RVec::new(),
    }
}

/// Puts them back.
pub(super) fn attach_stdin(request: &mut ExecRequest, body: RVec<u8>) {
    if let StdinSource::Bytes(bytes) = &mut request.stdin {
        *bytes = to_bytes(body);
    }
}

// ---- the plugin's half ----

/// The plugin's half of `new_provider`: settings as JSON, read into the author's type.
#[doc(hidden)]
pub fn new_provider<C, P>(settings: RVec<u8>, new: impl FnOnce(C) -> Result<P>) -> FfiResult<ProviderObject>
where
    C: DeserializeOwned,
    P: SandboxProvider,
{
    to_ffi(guarded(|| {
        let settings: C = from_json(decode(&settings)?, "the provider's settings")?;
        let provider: Arc<dyn SandboxProvider> = Arc::new(new(settings)?);
        Ok(FfiProvider_TO::from_value(Exported(Arc::new(Guarded::new(provider))), TD_Opaque))
    }))
}

struct Exported(Arc<Guarded<Arc<dyn SandboxProvider>>>);

impl FfiProvider for Exported {
    fn info(&self) -> FfiResult<RVec<u8>> {
        to_ffi(guarded(|| encode(&self.0.full_info())))
    }

    fn call(&self, method: RStr<'_>, request: RVec<u8>, body: RVec<u8>) -> Fut<FfiReply> {
        let provider = self.0.clone();
        if method.as_str() == "create" {
            let closer = provider.clone();
            let work = uncancelled(
                // A wish of a newer host that this side does not know is refused by its name.
                async move { provider.create(from_json(decode(&request)?, "spec")?).await },
                // Nobody waits for this sandbox any more.
                |handle: SandboxHandle| async move {
                    if let Err(error) = closer.close(&handle).await {
                        tracing::warn!(sandbox_id = handle.sandbox_id, %error, "an abandoned sandbox could not be closed");
                    }
                },
            );
            return async move { to_ffi(work.await.and_then(|handle| reply(&handle))) }.into_ffi();
        }
        let method = method.as_str().to_owned();
        spawned(async move { call(&***provider, &method, &request, body).await })
    }

    fn open(&self, method: RStr<'_>, request: RVec<u8>, body: RVec<u8>) -> Fut<StreamObject> {
        let provider = self.0.clone();
        let method = method.as_str().to_owned();
        spawned(async move { open(&***provider, &method, &request, body).await })
    }
}

async fn call(provider: &dyn SandboxProvider, method: &str, request: &[u8], body: RVec<u8>) -> Result<FfiReply> {
    match method {
        "upload_file" => {
            let Transfer { handle, local, remote } = decode(request)?;
            reply(&provider.upload_file(&handle, local.as_path(), &remote).await?)
        }
        "download_file" => {
            let Transfer { handle, local, remote } = decode(request)?;
            reply(&provider.download_file(&handle, &remote, local.as_path()).await?)
        }
        "status" => reply(&provider.status(&decode(request)?).await?),
        "close" => reply(&provider.close(&decode(request)?).await?),
        "aclose" => reply(&provider.aclose().await?),
        _ => bridge::call(provider, Method { name: method, request }, body).await,
    }
}

async fn open(provider: &dyn SandboxProvider, method: &str, request: &[u8], body: RVec<u8>) -> Result<StreamObject> {
    match method {
        "exec" => {
            let Exec { handle, mut request } = decode(request)?;
            attach_stdin(&mut request, body);
            Ok(stream::export(provider.exec(&handle, request).await?))
        }
        _ => bridge::open(provider, Method { name: method, request }, body).await,
    }
}

pub(super) fn unknown_method(provider: &str, method: &str) -> SandboxError {
    SandboxError::new(ErrorKind::Unsupported, format!("provider {provider:?} does not know the call {method:?}"))
        .with_provider(provider)
}

// ---- the host's half ----

/// A provider of a plugin, as the trait that everybody uses.
pub(super) struct Imported {
    object: ProviderObject,
    name: String,
    capabilities: CapabilitySet,
}

impl Imported {
    pub(super) fn new(object: ProviderObject) -> Result<Self> {
        let info: ProviderInfo = decode(&from_ffi(object.info())?)?;
        Ok(Self { object, name: info.name, capabilities: info.capabilities })
    }

    pub(super) fn has(&self, capability: Capability) -> bool {
        self.capabilities.contains(capability)
    }

    pub(super) async fn call(&self, method: &str, request: &impl Serialize, body: RVec<u8>) -> Result<FfiReply> {
        let call = self.object.call(method.into(), encode(request)?, body);
        from_ffi(call.await).map_err(|error| error.with_provider(&self.name))
    }

    pub(super) async fn call_json<T: DeserializeOwned>(&self, method: &str, request: &impl Serialize) -> Result<T> {
        decode(&self.call(method, request, RVec::new()).await?.json)
    }

    pub(super) async fn open_session<E: SessionEvent>(
        &self,
        method: &str,
        request: &impl Serialize,
        body: RVec<u8>,
    ) -> Result<Session<E>> {
        let open = self.object.open(method.into(), encode(request)?, body);
        let stream = from_ffi(open.await).map_err(|error| error.with_provider(&self.name))?;
        Ok(stream::import(stream, &self.name))
    }

    pub(super) async fn transfer(
        &self,
        method: &str,
        handle: &SandboxHandle,
        local: &Path,
        remote: &ByteString,
    ) -> Result<()> {
        self.call_json(method, &Transfer::new(handle, local, remote)).await
    }
}

macro_rules! imported_provider {
    ($($(#[$doc:meta])* $accessor:ident: $interface:ident => $capability:ident;)*) => {
        #[async_trait]
        impl SandboxProvider for Imported {
            fn name(&self) -> &str {
                &self.name
            }

            fn info(&self) -> ProviderInfo {
                from_ffi(self.object.info()).and_then(|json| decode(&json)).unwrap_or_else(|error| {
                    ProviderInfo::new(&self.name).with_detail("error", error.to_string())
                })
            }

            fn capabilities(&self) -> CapabilitySet {
                self.capabilities.clone()
            }

            async fn create(&self, spec: SandboxSpec) -> Result<SandboxHandle> {
                self.call_json("create", &spec).await
            }

            async fn exec(&self, handle: &SandboxHandle, mut request: ExecRequest) -> Result<ExecStream> {
                let body = detach_stdin(&mut request);
                let request = Exec { handle: handle.clone(), request };
                self.open_session("exec", &request, body).await
            }

            async fn upload_file(&self, handle: &SandboxHandle, local: &Path, remote: &ByteString) -> Result<()> {
                self.transfer("upload_file", handle, local, remote).await
            }

            async fn download_file(&self, handle: &SandboxHandle, remote: &ByteString, local: &Path) -> Result<()> {
                self.transfer("download_file", handle, local, remote).await
            }

            async fn status(&self, handle: &SandboxHandle) -> Result<SandboxStatus> {
                self.call_json("status", handle).await
            }

            async fn close(&self, handle: &SandboxHandle) -> Result<()> {
                self.call_json("close", handle).await
            }

            async fn aclose(&self) -> Result<()> {
                self.call_json("aclose", &()).await
            }

            $(
                fn $accessor(&self) -> Option<&dyn crate::$interface> {
                    self.has(Capability::$capability).then_some(self)
                }
            )*
        }
    };
}

capability_accessors!(imported_provider);

/// The bytes of a reply.
pub(super) fn body(reply: FfiReply) -> Bytes {
    to_bytes(reply.body)
}
