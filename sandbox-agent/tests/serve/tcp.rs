//! An agent on a TCP port, which knows its token by the hash alone, in a place that its image has chosen.

use std::process::{Child, Command, Stdio};

use crate::support::{program, run, seconds, within};
use sandbox_core::{ErrorKind, ExecRequest, Secret};
use sandbox_protocol::{Client, ClientOptions};
use tokio::net::TcpStream;

/// SHA-256 of `abc`, as FIPS 180-2 has it.
const SHA256_OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that nothing listens on right now.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn serve(port: u16, digest: &str, folder: &std::path::Path) -> Ended {
    let mut command = Command::new(program());
    command
        .args(["serve", "--listen-tcp", &format!("127.0.0.1:{port}"), "--config-env", "THE_CONFIG"])
        .args(["--token-sha256-env", "THE_HASH"])
        .env_clear()
        .env("THE_CONFIG", r#"{"inherit_env": true, "inherit_workdir": true, "env": {"BOTH": "ours"}}"#)
        .env("THE_HASH", digest)
        .envs([("PATH", "/usr/bin:/bin"), ("OF_IMAGE", "yes"), ("BOTH", "theirs"), ("HOME", "/of-the-agent")])
        .current_dir(folder)
        .stderr(Stdio::null());
    Ended(command.spawn().unwrap())
}

async fn connect(port: u16, token: &str) -> Result<Client, sandbox_core::SandboxError> {
    let listening = async {
        loop {
            match TcpStream::connect(("127.0.0.1", port)).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
            }
        }
    };
    let stream = within(seconds(20), listening).await;
    Client::connect(stream, ClientOptions::default().with_token(Secret::new(token))).await
}

#[tokio::test]
async fn the_token_of_a_hash_lets_in_and_no_other_one() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let _agent = serve(port, SHA256_OF_ABC, folder.path());
    for wrong in ["", "abd", SHA256_OF_ABC] {
        assert_eq!(connect(port, wrong).await.unwrap_err().kind(), ErrorKind::Unauthorized, "{wrong:?}");
    }
    let client = connect(port, "abc").await.unwrap();
    let script = "echo $OF_IMAGE $BOTH; pwd; echo $HOME; env | grep THE_; tr '\\0' '\\n' < /proc/$PPID/environ | grep -e inherit -e ba7816";
    let result = run(&client, ExecRequest::shell(script)).await;
    let text = result.stdout_text().into_owned();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..2], ["yes ours", folder.path().to_str().unwrap()]);
    assert!(lines.len() == 3 && lines[2] != "/of-the-agent", "nothing of the agent's own is told: {lines:?}");
}

#[test]
fn a_hash_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for bad in ["", "ab", &"x".repeat(64)] {
        let mut agent = serve(free_port(), bad, folder.path());
        assert!(!agent.0.wait().unwrap().success(), "{bad:?}");
    }
}
