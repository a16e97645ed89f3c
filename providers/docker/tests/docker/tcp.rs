//! Engines that are reached by TCP, with certificates and without.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use sandbox_core::{
    ByteString, ErrorKind, ExecRequest, SandboxProvider,
    serde_json::{Value, json},
};
use sandbox_provider_docker::DockerProvider;

use crate::{
    dockerd::{Dockerd, bring_image, provider},
    engine,
    support::{run, spec},
};

fn must(command: &mut Command) {
    let output = command.stdin(Stdio::null()).output().expect("it is missing: cargo xtask engine");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Certificates of one authority: `ca.pem`, and for each name `NAME.pem` and `NAME-key.pem`.
fn certificates(folder: &Path, names: &[(&str, &str)]) {
    std::fs::create_dir_all(folder).unwrap();
    let openssl = |words: &[&str]| must(Command::new("openssl").args(words).current_dir(folder));
    let key = ["-newkey", "rsa:2048", "-nodes", "-days", "2"];
    let authority = ["-x509", "-subj", "/CN=tests", "-keyout", "ca-key.pem", "-out", "ca.pem"];
    openssl(&[&["req"], &key[..], &authority].concat());
    for (name, extensions) in names {
        let file = |end: &str| format!("{name}{end}");
        std::fs::write(folder.join(file(".ext")), extensions).unwrap();
        let subject = format!("/CN={name}");
        openssl(
            &[&["req"], &key[..3], &["-subj", &subject, "-keyout", &file("-key.pem"), "-out", &file(".csr")]].concat(),
        );
        let authority = ["-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2"];
        let files = ["-in", &file(".csr"), "-extfile", &file(".ext"), "-out", &file(".pem")];
        openssl(&[&["x509", "-req"], &authority[..], &files].concat());
    }
}

fn tls(authority: &Path, client: &Path, name: &str) -> Value {
    let file = |folder: &Path, name: String| folder.join(name).display().to_string();
    json!({
        "ca": file(authority, "ca.pem".to_owned()),
        "cert": file(client, format!("{name}.pem")),
        "key": file(client, format!("{name}-key.pem")),
    })
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Makes a sandbox, uses it and removes it.
async fn works(provider: &DockerProvider, folder: &Path) {
    let handle = provider.create(spec().with_env("WHO", "far")).await.unwrap();
    let result = run(provider, &handle, ExecRequest::shell("cat; echo $WHO >&2; exit 3").with_stdin_bytes("in")).await;
    assert_eq!((result.stdout_text().as_ref(), result.stderr_text().as_ref()), ("in", "far\n"));
    assert_eq!(result.return_code(), 3);
    let (file, back) = (folder.join("file"), folder.join("back"));
    let bytes: Vec<u8> = (0..3_u32 << 20).map(|index| (index % 253) as u8).collect();
    std::fs::write(&file, &bytes).unwrap();
    provider.upload_file(&handle, &file, &ByteString::from("/tmp/file")).await.unwrap();
    provider.download_file(&handle, &ByteString::from("/tmp/file"), &back).await.unwrap();
    assert!(std::fs::read(&back).unwrap() == bytes);
    provider.close(&handle).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_by_tls_works_with_the_right_certificates_and_says_what_is_wrong_with_others() {
    let temp = tempfile::Builder::new().prefix("sbx").tempdir().unwrap();
    let folder = temp.path();
    let (ours, others) = (folder.join("ours"), folder.join("others"));
    let client = ("cert", "extendedKeyUsage=clientAuth");
    certificates(&ours, &[("server", "subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth"), client]);
    certificates(&others, &[client]);
    let port = free_port();
    let file = |name: &str| ours.join(name).display().to_string();
    let more = [
        format!("--host=tcp://127.0.0.1:{port}"),
        "--tlsverify".to_owned(),
        format!("--tlscacert={}", file("ca.pem")),
        format!("--tlscert={}", file("server.pem")),
        format!("--tlskey={}", file("server-key.pem")),
    ];
    let _dockerd = Dockerd::start(folder, &more).await;
    bring_image(folder);
    let host = format!("tcp://127.0.0.1:{port}");
    let with = |tls: Value| provider(folder, json!({ "host": host, "tls": tls }));
    let right = with(tls(&ours, &ours, "cert"));
    works(&right, folder).await;
    right.aclose().await.unwrap();
    let failure = async |provider: DockerProvider| provider.create(spec()).await.unwrap_err();
    let error = failure(with(tls(&others, &ours, "cert"))).await;
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "an engine that somebody else vouches for: {error:?}");
    assert!(error.help().unwrap().contains("tls.ca"), "{error:?}");
    let error = failure(with(tls(&ours, &others, "cert"))).await;
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "a client that the engine does not know: {error:?}");
    assert!(error.help().unwrap().contains("tls.cert"), "{error:?}");
    let error = failure(provider(folder, json!({ "host": host }))).await;
    assert!(error.help().unwrap().contains("set tls"), "{error:?}");
    for (key, value) in [("ca", "/no/such/ca.pem"), ("cert", "/no/such/cert.pem"), ("key", "/no/such/key.pem")] {
        let mut files = tls(&ours, &ours, "cert");
        files[key] = value.into();
        let error = failure(with(files)).await;
        assert_eq!(
            (error.kind(), error.field()),
            (ErrorKind::NotFound, Some(format!("tls.{key}").as_str())),
            "{error:?}"
        );
    }
    let mut files = tls(&ours, &ours, "cert");
    files["key"] = file("cert.pem").into();
    let error = failure(with(files)).await;
    assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidInput, Some("tls.key")), "{error:?}");
    by_environment(folder, &host, &ours);
}

/// The variables that docker's own client reads.
fn by_environment(folder: &Path, host: &str, certificates: &Path) {
    let home = folder.join("home");
    let find = certificates.join("found");
    std::fs::create_dir_all(&home).unwrap();
    std::fs::create_dir_all(&find).unwrap();
    for (from, to) in [("ca.pem", "ca.pem"), ("cert.pem", "cert.pem"), ("cert-key.pem", "key.pem")] {
        std::fs::copy(certificates.join(from), find.join(to)).unwrap();
    }
    let providers: PathBuf = engine::agent().parent().unwrap().to_owned();
    let program = providers.with_file_name("sandboxctl");
    assert!(program.is_file(), "{} is missing: cargo xtask run -- version", program.display());
    let sandboxctl = |has_tls: bool| {
        let mut command = Command::new(&program);
        command.args(["run", "--provider", "docker", engine::BUSYBOX, "--", "echo", "by the environment"]);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", &home).current_dir(&home).stdin(Stdio::null());
        command.env("SANDBOX_PROVIDER_DIR", &providers).env("SANDBOX_PROVIDER__DOCKER__NETWORK", "none");
        command.env("DOCKER_HOST", host);
        if has_tls {
            command.env("DOCKER_TLS_VERIFY", "1").env("DOCKER_CERT_PATH", &find);
        }
        command.output().unwrap()
    };
    let output = sandboxctl(true);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "by the environment\n");
    assert!(!sandboxctl(false).status.success());
}

/// A network namespace of its own, which is another machine to everything that is said by TCP.
struct Far {
    name: String,
}

impl Far {
    fn make() -> Self {
        let number = std::process::id();
        let far = Self { name: format!("sbxfar{number}") };
        far.remove();
        let ip = |words: &str| must(Command::new("ip").args(words.split_whitespace()));
        let (name, here) = (&far.name, far.here());
        ip(&format!("netns add {name}"));
        ip(&format!("link add {here} type veth peer name eth0 netns {name}"));
        ip(&format!("addr add {}/30 dev {here}", Self::address(1)));
        ip(&format!("link set {here} up"));
        ip(&format!("-n {name} addr add {}/30 dev eth0", Self::address(2)));
        ip(&format!("-n {name} link set eth0 up"));
        ip(&format!("-n {name} link set lo up"));
        far
    }

    fn here(&self) -> String {
        // A name of a link has at most 15 bytes.
        format!("sbf{}", std::process::id())
    }

    fn address(last: u8) -> String {
        let number = std::process::id();
        format!("10.251.{}.{}", number / 64 % 256, number % 64 * 4 + u32::from(last))
    }

    fn remove(&self) {
        for words in [vec!["link", "delete", &self.here()], vec!["netns", "delete", &self.name]] {
            let _ = Command::new("ip").args(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.remove();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_at_another_address_works_by_tcp_and_cannot_be_shared_folders_with() {
    let far = Far::make();
    let temp = tempfile::Builder::new().prefix("sbx").tempdir().unwrap();
    let folder = temp.path();
    let mut command = Command::new("nsenter");
    command.args([&format!("--net=/run/netns/{}", far.name), "dockerd"]);
    let host = format!("tcp://{}:2375", Far::address(2));
    let dockerd = Dockerd::start_by(command, folder, &[format!("--host={host}"), "--tls=false".to_owned()]).await;
    bring_image(folder);
    let provider = provider(folder, json!({ "host": host, "agent": "required" }));
    works(&provider, folder).await;
    let handle = provider.create(spec()).await.unwrap();
    assert_eq!(handle.state["via"], "relay", "{handle:?}");
    provider.close(&handle).await.unwrap();
    // Nothing of it is on this machine's disk.
    assert_eq!(std::fs::read_dir(folder.join("run")).into_iter().flatten().count(), 0);
    tokio::task::spawn_blocking(move || drop(dockerd)).await.unwrap();
    let error = provider.create(spec()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
}
