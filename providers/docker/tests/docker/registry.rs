//! Debian's registry on the loopback, with and without a password, and a slow way to it.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{engine, support::by_hand};

/// `user:secret-of-tests`, as the registry keeps it.
const HTPASSWD: &str = "user:$2b$05$cCRiwf1eeUXKwUq8URzmcuyXENdWU6UREM6iHNDdlCqAOp8Eya9wK\n";

/// Debian's registry on the loopback.
pub(crate) struct Registry {
    process: Child,
    pub(crate) address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Registry {
    pub(crate) fn start(with_password: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = free_address();
        let file = folder.path().join("htpasswd");
        std::fs::write(&file, HTPASSWD).unwrap();
        let auth = match with_password {
            true => format!("auth:\n  htpasswd:\n    realm: tests\n    path: {}\n", file.display()),
            false => String::new(),
        };
        let text = format!(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {}\n\
             http:\n  addr: {address}\n{auth}",
            folder.path().join("data").display()
        );
        let config = folder.path().join("config.yml");
        std::fs::write(&config, text).unwrap();
        let mut process = Command::new("docker-registry");
        process.arg("serve").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = process.stdin(Stdio::null()).spawn().expect("docker-registry is missing: cargo xtask engine");
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < end, "the registry does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { process, address, _folder: folder }
    }

    pub(crate) fn image(&self, name: &str) -> String {
        format!("{}/{name}", self.address)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An address that was free a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Puts an image into a registry and takes the engine's own name for it away.
pub(crate) fn push(image: &str, config: &Path) {
    by_hand(["tag", engine::STATIC, image]);
    send(image, config);
}

/// Puts an image that no engine has into a registry. It holds one file of so many bytes that cannot be packed.
pub(crate) fn push_new(image: &str, bytes: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.tar");
    let mut random = u64::from(std::process::id()) | 1;
    let contents: Vec<u8> = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 56) as u8
    })
    .take(bytes)
    .collect();
    let mut archive = tar::Builder::new(std::fs::File::create(&path).unwrap());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o644);
    header.set_size(bytes as u64);
    archive.append_data(&mut header, "file", contents.as_slice()).unwrap();
    archive.into_inner().unwrap();
    by_hand(["import", path.to_str().unwrap(), image]);
    send(image, folder.path());
}

fn send(image: &str, config: &Path) {
    let push = Command::new("docker")
        .arg("--config")
        .arg(config)
        .args(["--host", &engine::host(), "push", "--quiet", image])
        .output()
        .unwrap();
    assert!(push.status.success(), "{}", String::from_utf8_lossy(&push.stderr));
    by_hand(["rmi", image]);
}

/// Another address of a registry, at which answers come with so many bytes in a second.
pub(crate) fn slowly(registry: SocketAddr, bytes_per_s: u32) -> SocketAddr {
    const PIECE: usize = 4096;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = move |mut near: TcpStream, mut far: TcpStream| {
        let mut piece = [0; PIECE];
        while let Ok(count @ 1..) = far.read(&mut piece) {
            if near.write_all(&piece[..count]).is_err() {
                break;
            }
            std::thread::sleep(Duration::from_secs(1) * count as u32 / bytes_per_s);
        }
        // Its connection is over for both then.
        let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
    };
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(registry) else { continue };
            let (mut near_in, mut far_out) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            std::thread::spawn(move || answer(near, far));
            std::thread::spawn(move || std::io::copy(&mut near_in, &mut far_out));
        }
    });
    address
}
