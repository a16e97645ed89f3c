//! The clients that ask: through a proxy of the environment, if it names one, and never through it what only this machine
//! reaches.

use std::{net::IpAddr, time::Duration};

use reqwest::{Client, Url};
use sandbox_core::{Result, SandboxError, is_loopback_host};

const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// AWS closes what is idle for longer.
const POOL_IDLE: Duration = Duration::from_secs(15);
/// Where machines and containers are told their credentials by IPv6: the first two parts of the address.
const METADATA_IPV6: [u16; 2] = [0xfd00, 0x0ec2];

/// A client for every service.
#[derive(Clone)]
pub(crate) struct Http {
    far: Client,
    near: Client,
}

impl Http {
    pub(crate) fn new() -> Result<Self> {
        // Of this library's own copy; a second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            Client::builder()
                .connect_timeout(CONNECT_LIMIT)
                .pool_idle_timeout(POOL_IDLE)
                // A redirect would take the signature elsewhere.
                .redirect(reqwest::redirect::Policy::none())
                .user_agent(concat!("sandbox-provider-fargate/", env!("CARGO_PKG_VERSION")))
        };
        let failed = |error: reqwest::Error| SandboxError::internal(format!("no HTTP client: {}", error.without_url()));
        let (far, near) = (builder().build().map_err(failed)?, builder().no_proxy().build().map_err(failed)?);
        Ok(Self { far, near })
    }

    /// The client for this address.
    pub(crate) fn to(&self, url: &str) -> &Client {
        let url = Url::parse(url);
        if url.as_ref().ok().and_then(Url::host_str).is_some_and(is_near) { &self.near } else { &self.far }
    }
}

/// Whether a host is this machine, or one that a proxy would find another one at.
fn is_near(host: &str) -> bool {
    is_loopback_host(host)
        || match host.trim_matches(['[', ']']).parse::<IpAddr>().map(|address| address.to_canonical()) {
            Ok(IpAddr::V4(address)) => address.is_link_local(),
            Ok(IpAddr::V6(address)) => address.segments()[..2] == METADATA_IPV6,
            Err(_) => false,
        }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Http, is_near};
    use crate::aws::testing::Stub;

    /// Set where this program runs again, with a proxy in its environment: what is to be asked.
    const ASKED: &str = "SANDBOX_TEST_BEHIND_A_PROXY";

    #[test]
    fn what_only_this_machine_reaches_is_near() {
        for host in ["localhost", "127.0.0.1", "127.77.0.9", "[::1]", "169.254.170.2", "169.254.169.254"] {
            assert!(is_near(host), "{host}");
        }
        for host in ["[fd00:ec2::254]", "[fd00:ec2::23]", "[::ffff:169.254.169.254]"] {
            assert!(is_near(host), "{host}");
        }
        for host in ["ecs.eu-central-1.amazonaws.com", "169.255.0.1", "10.0.0.1", "[fd00::1]", "169.254.170.2.example"]
        {
            assert!(!is_near(host), "{host}");
        }
    }

    /// Runs as another program, for the test below.
    #[tokio::test]
    async fn behind_a_proxy() {
        let Ok(urls) = std::env::var(ASKED) else { return };
        let http = Http::new().unwrap();
        for url in urls.split(' ') {
            let answer = http.to(url).get(url).send().await.unwrap();
            assert!(answer.status().is_success(), "{url}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn e04_this_machine_is_not_asked_through_a_proxy_of_the_environment_and_aws_is() {
        let (service, proxy) =
            (Stub::start(|_| (200, String::new())).await, Stub::start(|_| (200, String::new())).await);
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "aws::http::tests::behind_a_proxy", "--nocapture"]);
        again.env(ASKED, format!("{}/near http://ecs.example/far", service.url()));
        for name in ["http_proxy", "https_proxy", "all_proxy"] {
            again.env(name, proxy.url()).env(name.to_uppercase(), proxy.url());
        }
        // A server of CGI would not be told of a proxy by the name in capitals.
        let output = again.env_remove("REQUEST_METHOD").env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        let paths = |stub: &Stub| stub.asked().into_iter().map(|asked| asked.path).collect::<Vec<_>>();
        assert_eq!(paths(&service), ["/near"]);
        assert_eq!(paths(&proxy), ["http://ecs.example/far"]);
    }
}
