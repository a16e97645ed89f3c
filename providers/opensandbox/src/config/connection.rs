//! Where the server is, and how to talk to it. The only file that reads this process's environment for settings.

use std::time::Duration;

use sandbox_core::{Result, Secret};
use serde::Deserialize;

use super::{check_count, check_option, check_pause, invalid, seconds};

const DOMAIN_VARIABLES: [&str; 2] = ["OPENSANDBOX_DOMAIN", "OPEN_SANDBOX_DOMAIN"];
const KEY_VARIABLES: [&str; 2] = ["OPENSANDBOX_API_KEY", "OPEN_SANDBOX_API_KEY"];
const DOMAIN_DEFAULT: &str = "localhost:8080";

/// Where the server is, and how to talk to it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ConnectionConfig {
    /// `host[:port][/prefix]`, also with `http://` or `https://` in front, which then wins over `protocol`. Default: what
    /// `OPENSANDBOX_DOMAIN` or `OPEN_SANDBOX_DOMAIN` says, else `localhost:8080`.
    pub domain: Option<String>,
    /// The key of the lifecycle API. Default: what `OPENSANDBOX_API_KEY` or `OPEN_SANDBOX_API_KEY` says, else none.
    pub api_key: Option<Secret>,
    /// `http` or `https`. Default: `http`.
    pub protocol: Protocol,
    /// Longest time for the answer to a control call, in seconds. Default: 30.
    pub request_timeout_s: Option<f64>,
    /// Whether commands and files go through the server, or directly to the sandbox's own address. Default: false.
    pub use_server_proxy: bool,
    /// How long an idle connection is kept, in seconds; below what the server keeps it for. 0 keeps none. Default: 3.
    pub keepalive_expiry_s: f64,
    /// How many control calls may be under way at once. 1 to 10,000; default 100.
    pub max_connections: u32,
    /// How many idle connections are kept for each address. 0 to 10,000; default 20.
    pub max_keepalive_connections: u32,
    /// How often a connection that cannot be made is tried again, in calls that would not be repeated otherwise. 0 to 100;
    /// default 2.
    pub connect_retries: u32,
    /// A new connection for each call. Default: false.
    pub disable_connection_pooling: bool,
    /// Whether the server must prove who it is. Default: true. `false` lets anybody in between read the key.
    pub tls_verify: bool,
    /// A file of certificates (PEM) that are trusted beside those of the system. Default: none.
    pub ca_file: Option<String>,
    /// What the daemons inside want to be told, where they are set up so. Default: none.
    pub execd_access_token: Option<Secret>,
    /// Which client of the model's is meant. There is one here, which does what both do: it is checked, and means nothing.
    pub transport_backend: Option<TransportBackend>,
}

/// A client of the model's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportBackend {
    /// The one that is shared by a process.
    Aiohttp,
    /// The one with a pool of its own.
    Httpx,
}

/// How the server is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// In the clear.
    #[default]
    Http,
    /// Over TLS.
    Https,
}

/// What to do when the certificate of a server does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnverified {
    /// Refuse it.
    Refuse,
    /// Go on.
    GoOn,
}

impl Protocol {
    /// As it is in a URL.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        Self {
            domain: None,
            api_key: None,
            protocol: Protocol::Http,
            request_timeout_s: None,
            use_server_proxy: false,
            keepalive_expiry_s: 3.0,
            max_connections: 100,
            max_keepalive_connections: 20,
            connect_retries: 2,
            disable_connection_pooling: false,
            tls_verify: true,
            ca_file: None,
            execd_access_token: None,
            transport_backend: None,
        }
    }
}

fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty()))
}

/// The address of the server, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) protocol: Protocol,
    /// `host[:port]`.
    pub(crate) authority: String,
    /// `/prefix`, or nothing.
    pub(crate) prefix: String,
}

impl Origin {
    fn parse(domain: &str, protocol: Protocol) -> Result<Self> {
        const KEY: &str = "connection.domain";
        let domain = domain.trim();
        let (protocol, rest) = match domain.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (Protocol::Http, rest),
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (Protocol::Https, rest),
            Some(_) => return Err(invalid(KEY, "the scheme must be http or https")),
            None => (protocol, domain),
        };
        if rest.contains(['?', '#']) {
            return Err(invalid(KEY, "must not have a query or a fragment"));
        }
        if rest.contains('@') {
            return Err(invalid(KEY, "must not hold credentials").with_help("use connection.api_key"));
        }
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let is_bad =
            authority.is_empty() || authority.contains(char::is_whitespace) || path.contains(char::is_whitespace);
        let origin = Self { protocol, authority: authority.to_owned(), prefix: path.trim_end_matches('/').to_owned() };
        if is_bad || reqwest::Url::parse(&origin.base()).map_or(true, |url| !url.has_host()) {
            return Err(invalid(KEY, "must be host[:port][/prefix], such as sandbox.example.org or localhost:8080"));
        }
        Ok(origin)
    }

    /// The address of the API, without a slash at the end.
    pub(crate) fn base(&self) -> String {
        format!("{}://{}{}/v1", self.protocol.as_str(), self.authority, self.prefix)
    }
}

impl ConnectionConfig {
    pub(crate) fn origin(&self) -> Result<Origin> {
        let domain = self.domain.clone().or_else(|| variable(&DOMAIN_VARIABLES));
        Origin::parse(domain.as_deref().unwrap_or(DOMAIN_DEFAULT), self.protocol)
    }

    pub(crate) fn key(&self) -> Option<Secret> {
        let given = self.api_key.clone().filter(|key| !key.expose().is_empty());
        given.or_else(|| variable(&KEY_VARIABLES).map(Secret::new))
    }

    /// The longest time for the answer to a control call.
    pub(crate) fn request_timeout(&self) -> Duration {
        seconds(self.request_timeout_s.unwrap_or(30.0))
    }

    pub(crate) fn on_unverified(&self) -> OnUnverified {
        if self.tls_verify { OnUnverified::Refuse } else { OnUnverified::GoOn }
    }

    pub(super) fn validate(&self) -> Result<()> {
        self.origin()?;
        for (key, secret) in
            [("connection.api_key", self.key()), ("connection.execd_access_token", self.execd_access_token.clone())]
        {
            let is_bad = |secret: &Secret| secret.expose().bytes().any(|byte| !(0x20..0x7f).contains(&byte));
            if secret.as_ref().is_some_and(is_bad) {
                return Err(invalid(key, "must be printable ASCII"));
            }
        }
        check_option("connection.request_timeout_s", self.request_timeout_s)?;
        check_pause("connection.keepalive_expiry_s", self.keepalive_expiry_s)?;
        check_count("connection.max_connections", self.max_connections, 1..=10_000)?;
        check_count("connection.max_keepalive_connections", self.max_keepalive_connections, 0..=10_000)?;
        check_count("connection.connect_retries", self.connect_retries, 0..=100)?;
        if self.ca_file.as_deref().is_some_and(|file| !file.starts_with('/')) {
            return Err(invalid("connection.ca_file", "must be an absolute path"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Origin, Protocol};

    #[test]
    fn a_scheme_in_the_domain_wins_and_a_prefix_is_kept() {
        for (domain, base) in [
            ("localhost:8080", "https://localhost:8080/v1"),
            ("http://h", "http://h/v1"),
            ("HTTPS://h:1/a/b/", "https://h:1/a/b/v1"),
            (" [::1]:9/ ", "https://[::1]:9/v1"),
        ] {
            assert_eq!(Origin::parse(domain, Protocol::Https).unwrap().base(), base, "{domain}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_key() {
        for bad in ["", "ftp://h", "http://", "h?x=1", "h#f", "a b", "http:///x", "u:p@h", "h:port"] {
            let error = Origin::parse(bad, Protocol::Http).expect_err(bad);
            assert_eq!(error.field(), Some("connection.domain"), "{bad}");
        }
    }
}
