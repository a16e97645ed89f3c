//! A server that is reached by TLS.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use opensandbox_double::Control;
use sandbox_core::{ErrorKind, PtyEvent, SandboxProvider, SandboxPtySpec, SandboxSpec};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::support::{World, options, provider, soon};

/// An authority (`ca.pem`), and what it says of this machine's loopback (`server.pem`, `server-key.pem`).
fn certificates(folder: &Path) {
    let openssl = |words: &[&str]| {
        let output = Command::new("openssl").args(words).current_dir(folder).stdin(Stdio::null()).output();
        let output = output.expect("openssl is missing: cargo xtask engine");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let authority = ["-x509", "-days", "2", "-subj", "/CN=tests", "-keyout", "ca-key.pem", "-out", "ca.pem"];
    openssl(&[&["req"], &key[..], &authority].concat());
    let server = ["-subj", "/CN=server", "-keyout", "server-key.pem", "-out", "server.csr"];
    openssl(&[&["req"], &key[..], &server].concat());
    std::fs::write(folder.join("ext"), "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth").unwrap();
    let signed = ["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-extfile", "ext", "-days", "2"];
    openssl(&[&["x509", "-req", "-in", "server.csr", "-out", "server.pem"], &signed[..]].concat());
}

/// Passes what comes by TLS on to the server.
async fn front(control: &Control, folder: &Path) -> SocketAddr {
    let chain = CertificateDer::pem_file_iter(folder.join("server.pem")).unwrap().collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(folder.join("server-key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(chain, key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, behind) = (listener.local_addr().unwrap(), control.address());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            tokio::spawn(async move {
                // Who does not trust us goes away.
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut server = TcpStream::connect(behind).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    control.is_known_as(address);
    address
}

/// A server by TLS, its address, and the folder with its authority.
struct Secured {
    world: World,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl Secured {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path());
        let world = World::with(options(), json!({})).await;
        let address = front(&world.control, folder.path()).await;
        Self { world, address, folder }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn with(self, over: Value) -> Self {
        let mut connection = json!({ "protocol": "https" });
        connection.as_object_mut().unwrap().extend(over.as_object().cloned().unwrap());
        let over = json!({ "connection": connection, "create": { "retries": 0 } });
        let provider = Arc::new(provider(&self.address.to_string(), over));
        Self { world: World { provider, ..self.world }, ..self }
    }
}

#[tokio::test]
async fn the_certificate_of_a_server_is_checked_unless_that_is_turned_off() {
    let secured = Secured::new().await.with(json!({}));
    let error = soon(secured.world.provider.create(SandboxSpec::default())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("ertificate"), "the reason is told: {error}");
    // Nothing of the request, and so nothing of the key, has gone.
    assert!(secured.world.control.seen().is_empty());
    let secured = secured.with(json!({ "tls_verify": false }));
    let handle = secured.world.sandbox().await;
    assert_eq!(secured.world.text(&handle, "echo in").await, "in\n");
    secured.world.control.end().await;
}

#[tokio::test]
async fn an_authority_that_is_given_is_trusted_for_calls_and_for_terminals() {
    let secured = Secured::new().await;
    let file = secured.file("ca.pem");
    let secured = secured.with(json!({ "ca_file": file.display().to_string() }));
    let world = &secured.world;
    let handle = world.sandbox().await;
    assert_eq!(world.text(&handle, "echo in").await, "in\n");
    let spec = SandboxPtySpec { command: Some("echo on-a-terminal".into()), ..Default::default() };
    let mut stream = soon(world.provider.as_pty().unwrap().create_pty(&handle, spec)).await.unwrap();
    let mut seen = String::new();
    while let Some(event) = soon(stream.next()).await.unwrap() {
        if let PtyEvent::Output(bytes) = event {
            seen += &String::from_utf8_lossy(&bytes);
        }
    }
    assert!(seen.contains("on-a-terminal"), "{seen:?}");
    secured.world.control.end().await;
}

#[tokio::test]
async fn a_file_of_authorities_that_holds_none_is_refused_by_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    let refused = |file: &Path| {
        let settings =
            crate::support::settings("h", json!({ "connection": { "ca_file": file.display().to_string() } }));
        let config = sandbox_core::from_json(settings, "config").unwrap();
        sandbox_provider_opensandbox::OpenSandboxProvider::new(config).unwrap_err()
    };
    assert_eq!(refused(&file).field(), Some("connection.ca_file"), "a file that is not there");
    std::fs::write(&file, "no certificate").unwrap();
    assert_eq!(refused(&file).field(), Some("connection.ca_file"), "a file of something else");
}
