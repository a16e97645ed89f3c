//! Servers of the host that a sandbox may reach, and nothing else.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use sandbox_core::{Capability, NetworkPolicy, PolicyRule, ProviderInfo, Result, SandboxError};

/// Who is to reach a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReachFrom {
    /// Programs on this machine: a wildcard address becomes the loopback one.
    Host,
    /// Programs in a sandbox elsewhere: an address of this machine alone is refused.
    Sandbox,
}

/// The URL under which a server of this machine is reached, without a slash at its end.
///
/// # Errors
/// `InvalidInput` for what is no absolute URL, and from a sandbox for a host that means the sandbox itself.
pub fn sandbox_server_url(url: &str, from: ReachFrom) -> Result<String> {
    let parts = Parts::of(url)?;
    let plain = url.trim().trim_end_matches('/').to_owned();
    match (from, parts.address()) {
        (ReachFrom::Sandbox, _) => reachable_host(url).map(|_| plain),
        (ReachFrom::Host, Some(address)) if address.is_unspecified() => {
            let loopback = match address {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.to_string(),
                IpAddr::V6(_) => format!("[{}]", Ipv6Addr::LOCALHOST),
            };
            let port = parts.port.map(|port| format!(":{port}")).unwrap_or_default();
            Ok(format!("{}://{loopback}{port}{}", parts.scheme, parts.path.trim_end_matches('/')))
        }
        (ReachFrom::Host, _) => Ok(plain),
    }
}

/// Egress rules that let a sandbox reach these servers and nothing else: deny by default, and one rule for each host,
/// sorted. No URL means nothing at all.
///
/// # Errors
/// `Unsupported` for a provider that enforces no rules; `InvalidInput` for a URL that no sandbox can reach.
pub fn restricted_network_policy<U: AsRef<str>>(
    info: &ProviderInfo,
    urls: impl IntoIterator<Item = U>,
) -> Result<NetworkPolicy> {
    if !info.capabilities.contains(Capability::NetworkPolicy) {
        return Err(SandboxError::unsupported(&info.name, Capability::NetworkPolicy));
    }
    let hosts = urls.into_iter().map(|url| reachable_host(url.as_ref())).collect::<Result<BTreeSet<_>>>()?;
    let rule = |target| PolicyRule { allow: true, target, ports: Vec::new() };
    Ok(NetworkPolicy { default_allow: false, rules: hosts.into_iter().map(rule).collect() })
}

/// The host of a URL, if programs elsewhere can reach it.
fn reachable_host(url: &str) -> Result<String> {
    let parts = Parts::of(url)?;
    let is_local = match parts.address() {
        Some(address) => address.is_loopback() || address.is_unspecified(),
        None => {
            let name = parts.host.trim_end_matches('.').to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    };
    if is_local {
        return Err(SandboxError::invalid_input(
            "url",
            format!("the host {:?} is the sandbox itself there", parts.host),
        )
        .with_help("let the server listen on an address that the sandbox reaches, and name that"));
    }
    Ok(parts.host.to_owned())
}

/// The parts of a URL that matter here. User information, query and fragment are left out: they may be secret.
struct Parts<'a> {
    scheme: &'a str,
    host: &'a str,
    port: Option<&'a str>,
    path: &'a str,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Result<Self> {
        let wrong = || SandboxError::invalid_input("url", "must be an absolute URL with a host");
        let (scheme, rest) = url.trim().split_once("://").ok_or_else(wrong)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let authority = authority.rsplit_once('@').map_or(authority, |(_, authority)| authority);
        let path = &rest[..rest.find(['?', '#']).unwrap_or(rest.len())];
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, rest) = v6.split_once(']').ok_or_else(wrong)?;
                (host, rest.strip_prefix(':'))
            }
            None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
        };
        let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok());
        if scheme.is_empty() || host.is_empty() || !is_port {
            return Err(wrong());
        }
        Ok(Self { scheme, host, port, path })
    }

    /// The address, if the host is one. Shorthands count, as for the C library: `127.1`, `0`, `2130706433`, `0x7f.1`.
    fn address(&self) -> Option<IpAddr> {
        if let Ok(address) = self.host.parse::<IpAddr>() {
            return Some(address.to_canonical());
        }
        let parts: Vec<u64> = self.host.trim_end_matches('.').split('.').map(number).collect::<Option<_>>()?;
        let (last, first) = parts.split_last()?;
        let room = 4usize.checked_sub(first.len())?;
        if first.iter().any(|part| *part > 255) || *last >= 1u64 << (8 * room) {
            return None;
        }
        let high = first.iter().fold(0u64, |address, part| address << 8 | part);
        u32::try_from(high << (8 * room) | last).ok().map(|address| IpAddr::V4(Ipv4Addr::from(address)))
    }
}

fn number(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    match (lower.strip_prefix("0x"), lower.strip_prefix('0')) {
        (Some(hex), _) => u64::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => lower.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::{Capability, ErrorKind, ProviderInfo};

    use super::{ReachFrom, restricted_network_policy, sandbox_server_url};

    #[test]
    fn a_wildcard_address_becomes_the_loopback_one_and_others_stay() {
        for (url, expected) in [
            ("http://0.0.0.0:80/a/?q=1#f", "http://127.0.0.1:80/a"),
            ("http://user:pw@0.0.0.0/", "http://127.0.0.1"),
            ("http://[::]:8080/x", "http://[::1]:8080/x"),
            ("http://host:1/x/", "http://host:1/x"),
            ("https://10.0.0.1?q", "https://10.0.0.1?q"),
        ] {
            assert_eq!(sandbox_server_url(url, ReachFrom::Host).unwrap(), expected);
        }
        for url in ["", "host:80", "/x", "http://", "http://:80", "http://h:x", "http://[::1"] {
            assert_eq!(sandbox_server_url(url, ReachFrom::Host).unwrap_err().field(), Some("url"), "{url}");
        }
    }

    #[test]
    fn a_host_that_means_the_sandbox_itself_is_refused_however_it_is_written() {
        for host in [
            "localhost",
            "LocalHost.",
            "a.localhost",
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "127.1",
            "0",
            "2130706433",
            "0x7f.1",
            "0177.0.0.1",
        ] {
            let error = sandbox_server_url(&format!("http://{host}:80/"), ReachFrom::Sandbox).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{host}");
        }
        for host in ["example.org", "10.0.0.1", "[2001:db8::1]", "localhost.example.org", "1.2.3.4.5"] {
            sandbox_server_url(&format!("http://{host}/"), ReachFrom::Sandbox).unwrap();
        }
    }

    #[test]
    fn only_the_named_hosts_may_be_reached_and_only_where_that_is_enforced() {
        let mut info = ProviderInfo::new("fake");
        let urls = ["https://b.example/x", "http://a.example:1", "https://b.example/y"];
        assert_eq!(restricted_network_policy(&info, urls).unwrap_err().kind(), ErrorKind::Unsupported);
        info.capabilities.insert(Capability::NetworkPolicy);
        let policy = restricted_network_policy(&info, urls).unwrap();
        let targets: Vec<_> = policy.rules.iter().map(|rule| (rule.allow, rule.target.as_str())).collect();
        assert_eq!((policy.default_allow, targets), (false, vec![(true, "a.example"), (true, "b.example")]));
        assert!(restricted_network_policy(&info, Vec::<&str>::new()).unwrap().rules.is_empty());
        restricted_network_policy(&info, ["http://127.1/"]).unwrap_err();
    }
}
