//! Proxies that the environment names.

use std::{io::ErrorKind, net::TcpListener, process::Command};

use crate::support::Service;

/// Set where this program runs again, with a proxy in its environment.
const BEHIND_A_PROXY: &str = "SANDBOX_TEST_BEHIND_A_PROXY";

/// Runs as another program, for the test below.
#[tokio::test]
async fn behind_a_proxy() {
    if std::env::var_os(BEHIND_A_PROXY).is_none() {
        return;
    }
    let service = Service::new().await;
    let handle = service.sandbox().await;
    assert_eq!(service.sh(&handle, "echo reached").await, "reached\n");
}

#[test]
fn e04_a_service_on_this_machine_is_not_asked_through_a_proxy_of_the_environment() {
    let stub = TcpListener::bind("127.0.0.1:0").unwrap();
    stub.set_nonblocking(true).unwrap();
    let proxy = format!("http://user:canary@{}", stub.local_addr().unwrap());
    let mut again = Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "proxies::behind_a_proxy", "--nocapture"]).env(BEHIND_A_PROXY, "1");
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        again.env(name, &proxy).env(name.to_uppercase(), &proxy);
    }
    let output = again.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(stub.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "a request went to the proxy");
}
