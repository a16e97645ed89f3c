//! A connection with certificates. Only what the given authority vouches for is the engine.

use std::{path::Path, sync::Arc};

use bollard::{API_DEFAULT_VERSION, BollardRequest, Docker, errors::Error};
use hyper_rustls::HttpsConnector;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use sandbox_core::{Result, SandboxError};

use crate::{
    config::TlsFiles,
    error::{self, NAME},
};

/// The largest file with certificates, in bytes.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// A client of the engine at `address`, which is `host:port`.
///
/// # Errors
/// `NotFound`, `PermissionDenied` or `InvalidInput`, naming the setting and the file.
pub(crate) fn client(address: &str, files: &TlsFiles, timeout_s: u64) -> Result<Docker> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("tls.ca", &files.ca)? {
        roots.add(certificate).map_err(|_| unusable("tls.ca", &files.ca, "a certificate of an authority"))?;
    }
    let chain = certificates("tls.cert", &files.cert)?;
    let key = PrivateKeyDer::from_pem_slice(&read("tls.key", &files.key)?)
        .map_err(|_| unusable("tls.key", &files.key, "a key in PEM form without a password"))?;
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| SandboxError::internal(format!("no version of TLS: {error}")))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|_| unusable("tls.key", &files.key, "the key of tls.cert"))?;
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    let connector = HttpsConnector::from((connector, config));
    // As the engine's other connections: each request has its own, so none meets one that was closed meanwhile.
    let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
    let transport = move |request: BollardRequest| {
        let client = client.clone();
        async move { client.request(request).await.map_err(Error::from) }
    };
    let address = Some(format!("https://{address}"));
    Docker::connect_with_custom_transport(transport, address, timeout_s, API_DEFAULT_VERSION)
        .map_err(|error| error::engine("the engine cannot be reached", error))
}

fn certificates(field: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = read(field, path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    read.ok().filter(|all| !all.is_empty()).ok_or_else(|| unusable(field, path, "a certificate in PEM form"))
}

fn read(field: &str, path: &Path) -> Result<Vec<u8>> {
    let failed = |error| SandboxError::io(path.display(), error).with_field(field).with_provider(NAME);
    if std::fs::metadata(path).map_err(failed)?.len() > FILE_MAX_BYTES {
        return Err(unusable(field, path, "a file of certificates: it is too large"));
    }
    std::fs::read(path).map_err(failed)
}

fn unusable(field: &str, path: &Path, wanted: &str) -> SandboxError {
    SandboxError::invalid_input(field, format!("{} is not {wanted}", path.display())).with_provider(NAME)
}
